from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from phasemeter.launch.child import Child, Command, DiedError, NotReadyError
from phasemeter.record.clock import MonotonicClock
from phasemeter.record.errors import EngineError

FAKE = Path(__file__).with_name("fake_tree.py")
ROOT = Path(__file__).resolve().parents[3]


def command(tmp_path: Path, mode: str) -> Command:
    return Command(
        argv=(sys.executable, "-S", str(FAKE), str(tmp_path / "pids"), mode),
        environment={"X": "from us", "PATH": os.environ["PATH"]},
        log=tmp_path / "logs" / "engine.log",
    )


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return not Path("/proc/self/stat").exists()


def pids_of(tmp_path: Path, n: int, seconds: float = 20) -> list[int]:
    deadline = time.monotonic() + seconds
    file = tmp_path / "pids"
    while time.monotonic() < deadline:
        found = [int(line) for line in file.read_text().split()] if file.exists() else []
        if len(found) == n:
            return found
        time.sleep(0.02)
    raise AssertionError(f"there never were {n} processes")


def wait_until_gone(pids: list[int], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while any(running(pid) for pid in pids):
        assert time.monotonic() < deadline, [pid for pid in pids if running(pid)]
        time.sleep(0.05)


async def lines_with(child: Child, text: str) -> None:
    async with asyncio.timeout(20):
        while not any(text in line for line in child.new_lines()):
            await asyncio.sleep(0.02)


async def test_stop_ends_the_whole_tree_also_what_ignores_sigterm_and_left_the_group(tmp_path):
    child = await Child.start(command(tmp_path, "serve"))
    pids = pids_of(tmp_path, 3)
    assert child.pid == pids[0]
    assert all(running(pid) for pid in pids)
    assert child.death is None
    death = await child.stop(grace_s=0.3)
    assert not any(running(pid) for pid in pids)
    assert death.code == -signal.SIGKILL
    assert "SIGKILL" in death.how
    assert (await child.stop()).code == death.code
    assert child.death is not None


async def test_a_polite_process_is_asked_first(tmp_path):
    child = await Child.start(command(tmp_path, "polite"))
    await lines_with(child, "ready")
    death = await child.stop(grace_s=20)
    assert death.code == 0
    assert death.tail == ("value of X: from us", "ready", "bye")


async def test_death_is_told_at_once_with_the_last_lines_and_leaves_nothing(tmp_path):
    child = await Child.start(command(tmp_path, "die"))
    seen: list[str] = []

    async def never() -> bool:
        await asyncio.sleep(3600)
        return True

    began = time.monotonic()
    with pytest.raises(DiedError) as caught:
        await child.await_ready(never, clock=MonotonicClock(), timeout_s=600, on_line=seen.append)
    assert time.monotonic() - began < 60
    death = caught.value.death
    assert death.code == 3
    assert death.tail == tuple(f"line {i}" for i in range(5, 20))
    assert seen == ["value of X: from us", *(f"line {i}" for i in range(20))]
    wait_until_gone(
        pids_of(tmp_path, 2) if len((tmp_path / "pids").read_text().split()) == 2 else pids_of(tmp_path, 1)
    )
    assert (await child.stop()).code == 3


async def test_a_kill_from_outside_is_named(tmp_path):
    child = await Child.start(command(tmp_path, "kill9"))
    assert await child.wait(0.0) is None or child.death is not None
    death = await child.wait()
    assert death is not None
    assert death.how == "was killed by SIGKILL"
    await child.stop()


async def test_ready_means_what_the_check_says(tmp_path):
    child = await Child.start(command(tmp_path, "polite"))
    answers = iter([False, False, True])

    async def check() -> bool:
        return next(answers)

    seen: list[str] = []
    await lines_with(child, "ready")
    await child.await_ready(check, clock=MonotonicClock(), timeout_s=60, on_line=seen.append)
    assert next(answers, None) is None

    async def no() -> bool:
        return False

    with pytest.raises(NotReadyError, match="not ready after") as caught:
        await child.await_ready(no, clock=MonotonicClock(), timeout_s=0.3)
    assert caught.value.tail[-1] == "ready"
    assert child.death is None
    await child.stop()


async def test_a_failing_check_is_passed_on(tmp_path):
    child = await Child.start(command(tmp_path, "polite"))

    async def breaks() -> bool:
        raise EngineError("it answers, but with errors")

    with pytest.raises(EngineError, match="with errors"):
        await child.await_ready(breaks, clock=MonotonicClock(), timeout_s=60)
    await child.stop()


async def test_a_command_that_cannot_be_started(tmp_path):
    missing = Command(argv=(str(tmp_path / "nothing"),), environment={}, log=tmp_path / "log")
    with pytest.raises(EngineError, match="cannot be started: No such file"):
        await Child.start(missing)


async def test_a_killed_guardian_takes_the_command_with_it(tmp_path):
    child = await Child.start(command(tmp_path, "polite"))
    await lines_with(child, "ready")
    child._guardian.kill()
    death = await child.wait(20)
    assert death is not None
    assert death.code is None
    wait_until_gone([child.pid])
    await child.stop()


PARENT = """
import asyncio, os, sys
from pathlib import Path
from phasemeter.launch.child import Child, Command

async def main():
    folder = Path(sys.argv[2])
    argv = (sys.executable, "-S", sys.argv[1], str(folder / "pids"), "serve")
    child = await Child.start(Command(argv, dict(os.environ), folder / "log"))
    print("started", flush=True)
    await child.wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_outlives_us_however_we_end(tmp_path, how):
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(FAKE), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    pids = pids_of(tmp_path, 3)
    assert all(running(pid) for pid in pids)
    parent.send_signal(how)
    parent.communicate(timeout=20)
    wait_until_gone(pids)

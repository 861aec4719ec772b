"""Loads against a real server over loopback that is killed, restarted, hung or slow, and against our own limits."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from phasemeter.engines import open_engine
from phasemeter.engines.spec import EngineSpec
from phasemeter.measure.load import Arrivals, Load, Patience, Stage
from phasemeter.measure.load_session import measure_load
from phasemeter.measure.recording import Beside
from phasemeter.record.clock import Anchor, MonotonicClock
from phasemeter.record.engine import Outcome
from phasemeter.record.errors import EngineError
from phasemeter.record.file import read_run
from phasemeter.record.run import SCHEMA, Header, Machine, Run

SRC = Path(__file__).resolve().parents[2] / "src"
S = 1_000_000_000
ENV = {"PYTHONPATH": str(SRC), "PATH": "/usr/bin:/bin"}
LENGTHS = {"kind": "lengths", "input": "16", "output": "8"}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")


class Server:
    """A `phasemeter simulate` process."""

    def __init__(self, port: int = 0, *flags: str) -> None:
        command = "from phasemeter.cli.simulate import command; command()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", command, "--json", "--ttft-ms", "20", "--itl-ms", "5", "--port", str(port), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=ENV,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.port = json.loads(self.process.stdout.readline())["port"]
        self.url = f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def perform(url: str, load: Load, out: Path, *, extra: dict[str, object] | None = None, **spec) -> Run:
    clock = MonotonicClock()

    async def main() -> None:
        engine = open_engine(EngineSpec("openai", url=url, **spec), clock)
        await engine.start()
        header = Header(SCHEMA, "r", "0", Anchor(0, 0), engine.info, Machine("h", "o", "c", 2), settings={})
        try:
            await measure_load(engine, load, clock, out, header, Beside(extra=extra or {}))
        finally:
            await engine.close()

    asyncio.run(main())
    return read_run(out)


def once_measured(out: Path, act) -> threading.Thread:
    """Call `act` in a thread when ten requests or so are in the file."""

    def wait() -> None:
        until = time.monotonic() + 60
        while (not out.exists() or out.stat().st_size < 5000) and time.monotonic() < until:
            time.sleep(0.02)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def load(stage: Stage, **fields) -> Load:
    return Load(workload=LENGTHS, stages=(stage,), warmup=0, arrivals=Arrivals("constant"), **fields)


def outcomes(found: Run) -> set[Outcome]:
    return {t.outcome for t in found.requests}


def test_a_quiet_open_loop_starts_what_it_planned(tmp_path):
    with Server() as server:
        found = perform(server.url, load(Stage(rate_per_s=50.0, duration_ns=2 * S)), tmp_path / "r.jsonl")
    assert len(found.requests) == 100
    assert outcomes(found) == {Outcome.OK}
    arrived = sorted(t.arrived_ns for t in found.requests)
    assert {b - a for a, b in pairwise(arrived)} == {S // 50}
    assert all(t.started_ns >= t.arrived_ns for t in found.requests)


def test_a_server_killed_in_a_closed_loop_ends_the_run_and_keeps_what_was(tmp_path):
    out = tmp_path / "r.jsonl"
    with Server() as server:
        killer = once_measured(out, server.kill)
        with pytest.raises(EngineError, match="cannot be reached any more"):
            perform(server.url, load(Stage(concurrency=4, duration_ns=60 * S)), out)
        killer.join()
    found = read_run(out)
    assert {Outcome.OK, Outcome.CONNECT_FAILED} <= outcomes(found)
    assert found.footer is not None
    assert found.footer.error is not None


def test_a_server_restarted_in_an_open_loop_is_part_of_the_record(tmp_path):
    again: list[Server] = []
    with Server() as server:

        def restart() -> None:
            server.kill()
            time.sleep(0.3)
            again.append(Server(server.port))

        out = tmp_path / "r.jsonl"
        restarter = once_measured(out, restart)
        found = perform(server.url, load(Stage(rate_per_s=40.0, duration_ns=5 * S)), out)
        restarter.join()
        again[0].kill()
    by_time = sorted(found.requests, key=lambda t: t.arrived_ns)
    assert len(by_time) == 200
    assert by_time[0].outcome is Outcome.OK
    assert by_time[-1].outcome is Outcome.OK
    assert Outcome.CONNECT_FAILED in outcomes(found)


@pytest.mark.parametrize(
    ("fault", "spec", "expected"),
    [
        ({"hang_before_first": True}, {"first_token_timeout_s": 0.3}, Outcome.TIMEOUT_FIRST),
        ({"hang_after": 3}, {"gap_timeout_s": 0.3}, Outcome.TIMEOUT_GAP),
        ({"itl_ms": 200}, {"timeout_s": 0.6}, Outcome.TIMEOUT_TOTAL),
        ({"close_connection": True}, {}, Outcome.OK),
        ({"usage_lie": 99}, {}, Outcome.OK),
        ({"reset_after": 2}, {}, Outcome.RESET),
    ],
)
def test_faults_of_a_server_are_outcomes(tmp_path, fault, spec, expected):
    with Server() as server:
        asked = load(Stage(rate_per_s=20.0, requests=10))
        found = perform(server.url, asked, tmp_path / "r.jsonl", extra={"x_simulate": fault}, **spec)
    assert len(found.requests) == 10
    assert outcomes(found) == {expected}


def test_planned_cancels_close_the_connection_and_are_no_failures(tmp_path):
    from phasemeter.explain.summary import summarise

    patience = Patience(cancel_ratio=0.5, cancel_after_tokens=3)
    with Server() as server:
        found = perform(
            server.url, load(Stage(concurrency=4, requests=40), patience=patience), tmp_path / "r.jsonl"
        )
    given_up = [t for t in found.requests if t.given_up]
    assert 5 < len(given_up) < 35
    assert all(3 <= t.counted_tokens() < 8 for t in given_up)
    requests = summarise(found).requests
    assert (requests.ok, requests.failed) == (40 - len(given_up), 0)


def command(tmp_path: Path, *args: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """`phasemeter measure ... --out run.jsonl` in a process of its own, after `before`."""
    started = f"{before}\nfrom phasemeter.cli import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", started, "measure", *args, "--out", str(tmp_path / "run.jsonl")],
        capture_output=True, text=True, env=ENV, timeout=100, check=False,
    )  # fmt: skip


def test_too_few_descriptors_are_told_by_number(tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 150))"
    with Server() as server:
        engine = ("--engine", "openai", "--url", server.url, "--input-tokens", "8", "--output-tokens", "4")
        done = command(tmp_path, *engine, "--concurrency", "120", "--repeats", "1", before=limit)
        assert done.returncode == 2, done.stderr
        assert "184 file descriptors" in done.stderr
        (tmp_path / "run.jsonl").unlink()
        done = command(
            tmp_path, *engine, "--concurrency", "80", "--requests", "160", "--duration", "20", before=limit
        )
        assert done.returncode == 0, done.stderr
    assert max(t.in_flight or 0 for t in read_run(tmp_path / "run.jsonl").requests) == 80


def test_a_full_disk_ends_the_run_with_a_clear_word_and_what_was_written_stays(tmp_path):
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    done = command(
        tmp_path, "--engine", "simulated", "--truth", "ttft_ms=1", "--rate", "200", "--duration", "20",
        "--input-tokens", "8", "--output-tokens", "4", before=limit,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "the lines written before are kept" in done.stderr
    found = read_run(tmp_path / "run.jsonl")
    assert len(found.requests) > 20
    assert found.damaged == ()


def test_a_kill_keeps_all_but_what_was_in_flight(tmp_path):
    out = tmp_path / "run.jsonl"
    process = subprocess.Popen(
        [
            sys.executable, "-c", "from phasemeter.cli import main; main()", "measure", "--engine", "simulated",
            "--truth", "ttft_ms=5", "--truth", "itl_ms=1", "--rate", "50", "--duration", "60", "--warmup", "0",
            "--input-tokens", "8", "--output-tokens", "4", "--out", str(out),
        ],
        stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=ENV,
    )  # fmt: skip
    until = time.monotonic() + 60
    while (not out.exists() or out.stat().st_size < 20_000) and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    found = read_run(out)
    assert len(found.requests) > 10
    assert found.footer is None
    assert outcomes(found) == {Outcome.OK}


def test_a_server_that_takes_no_connection_is_given_up_by_its_limit(tmp_path):
    """A listener with a full backlog: the kernel drops what comes, as an overloaded or filtered host does."""
    with Server() as server:
        out = tmp_path / "r.jsonl"
        asked = load(Stage(rate_per_s=20.0, requests=5))
        clock = MonotonicClock()

        async def main() -> None:
            engine = open_engine(EngineSpec("openai", url=server.url, connect_timeout_s=0.3), clock)
            await engine.start()
            header = Header(
                SCHEMA, "r", "0", Anchor(0, 0), engine.info, Machine("h", "o", "c", 2), settings={}
            )
            server.kill()
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                deaf.bind(("127.0.0.1", server.port))
                deaf.listen(0)
                plugs = [socket.socket() for _ in range(4)]
                for plug in plugs:
                    plug.setblocking(False)
                    plug.connect_ex(("127.0.0.1", server.port))
                await asyncio.sleep(0.1)
                await measure_load(engine, asked, clock, out, header)
                for plug in plugs:
                    plug.close()
            await engine.close()

        asyncio.run(main())
    assert outcomes(read_run(out)) <= {Outcome.TIMEOUT_CONNECT, Outcome.RESET}
    assert Outcome.TIMEOUT_CONNECT in outcomes(read_run(out))


def test_ctrl_c_in_an_open_loop_keeps_everything(tmp_path):
    out = tmp_path / "run.jsonl"
    with Server(0, "--ttft-ms", "400") as server:
        process = subprocess.Popen(
            [
                sys.executable, "-c", "from phasemeter.cli import main; main()", "measure", "--engine", "openai",
                "--url", server.url, "--rate", "50", "--duration", "60", "--warmup", "0", "--input-tokens", "8",
                "--output-tokens", "4", "--out", str(out),
            ],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, env=ENV, text=True,
        )  # fmt: skip
        once_measured(out, lambda: process.send_signal(signal.SIGINT)).join()
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    found = read_run(out)
    assert found.footer is not None
    assert found.footer.interrupted
    assert outcomes(found) == {Outcome.OK, Outcome.CANCELLED}
    assert not any(t.given_up for t in found.requests)

"""A run sent from the two nodes of a local Ray cluster. The second node lives in a time namespace of its own where the
system allows that: its monotonic clock then reads an hour more, as another machine's would."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")

from golden.simulate_process import Server
from phasemeter.engines.spec import EngineSpec
from phasemeter.measure.hands import Hire
from phasemeter.measure.header import Asked, grid_settings, make_header
from phasemeter.measure.load import Share
from phasemeter.measure.plan import Grid, planned_requests
from phasemeter.measure.ray_workers import disconnect, hire_on
from phasemeter.measure.worker import Order
from phasemeter.measure.workers import measure_in_workers
from phasemeter.record.clock import MonotonicClock, anchor
from phasemeter.record.engine import EngineInfo, Outcome
from phasemeter.record.errors import EngineError, InputError
from phasemeter.record.file import read_run

pytestmark = [pytest.mark.live, pytest.mark.filterwarnings("default")]

CLOCK = MonotonicClock()
RAY = str(Path(sys.executable).with_name("ray"))
COMMON = (
    "--node-ip-address=127.0.0.1",
    "--num-cpus=1",
    "--disable-usage-stats",
    "--object-store-memory=80000000",
)
AHEAD_S = 3600


class Cluster:
    def __init__(self, port: int, client_port: int, second: list[int], *, apart: bool) -> None:
        self.address = f"127.0.0.1:{port}"
        self.client = f"ray://127.0.0.1:{client_port}"
        self.second = second
        self.apart = apart


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def ours() -> dict[int, str]:
    """Ray's processes, by id."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if any(
                    word in line for word in ("ray/core/src/ray", "ray/_private", "ray::", "ray/dashboard")
                ):
                    found[int(folder.name)] = line
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    port, client_port = free_port(), free_port()
    before = set(ours())
    head = [
        "--head",
        f"--port={port}",
        f"--ray-client-server-port={client_port}",
        "--include-dashboard=false",
    ]
    head += ["--min-worker-port=0", "--max-worker-port=0"]
    subprocess.run([RAY, "start", *head, *COMMON], check=True, timeout=90, capture_output=True)
    first = set(ours())
    join = [RAY, "start", f"--address=127.0.0.1:{port}", *COMMON]
    ahead = ["unshare", "--time", "--monotonic", str(AHEAD_S), "--fork"]
    apart = shutil.which("unshare") is not None and (
        subprocess.run([*ahead, "true"], check=False, capture_output=True, timeout=20).returncode == 0
    )
    subprocess.run([*(ahead if apart else ()), *join], check=True, timeout=90, capture_output=True)
    second = sorted(set(ours()) - first)
    yield Cluster(port, client_port, second, apart=apart)
    for pid in set(ours()) - before:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    running = Server("--ttft-ms", "20", "--itl-ms", "2")
    yield f"http://127.0.0.1:{running.port}"
    running.stop()


def order_of(url: str, grid: Grid) -> Order:
    info = EngineInfo(kind="openai", model="simulated")
    header = make_header(info, Asked(anchor(CLOCK), grid_settings(grid), planned_requests(grid)), CLOCK)
    return Order(
        EngineSpec(kind="openai", url=url, timeout_s=20.0), header, out="", share=Share(of=2), grid=grid
    )


def hire_patiently(address: str) -> Hire:
    """Ray's client server starts a process for each client; on a busy machine it can take longer than Ray waits."""
    for _ in range(3):
        with contextlib.suppress(InputError):
            return hire_on(address, CLOCK)
    return hire_on(address, CLOCK)


@pytest.mark.parametrize("way", ["driver", "client"])
async def test_two_nodes_send_one_plan_on_one_clock(
    cluster: Cluster, server: str, tmp_path: Path, way: str
) -> None:
    grid = Grid((16,), (20,), concurrency=(6,), repeats=3, warmup=1, anchor=False)
    out = tmp_path / "run.jsonl"
    hire = hire_patiently(cluster.address if way == "driver" else cluster.client)
    started_ns = CLOCK.now_ns()
    try:
        await measure_in_workers(order_of(server, grid), CLOCK, out, hire, planned=36)
    finally:
        disconnect()
    run = read_run(out)
    measured = [t for t in run.requests if not t.cell.warmup]
    assert Counter(t.outcome for t in measured) == {Outcome.OK: 36}
    # on our clock, whatever the other node's reads
    assert all(started_ns < t.started_ns < t.end_ns < CLOCK.now_ns() for t in measured)
    assert max(t.in_flight or 0 for t in measured) == 6
    ahead_ms = [
        float(found) for note in run.header.notes for found in re.findall("ahead by ([-0-9.]+) ms", note)
    ]
    assert len(ahead_ms) == 2
    if cluster.apart:
        assert sorted(round(ms / 1000) for ms in ahead_ms) == [0, AHEAD_S]
    assert min(ahead_ms, key=abs) == pytest.approx(0.0, abs=20)


async def test_a_node_that_goes_away_loses_its_open_stage_alone(
    cluster: Cluster, server: str, tmp_path: Path
) -> None:
    grid = Grid((16,), (300,), concurrency=(4,), repeats=8, requests=8, warmup=0, anchor=False)
    out = tmp_path / "run.jsonl"
    hire = hire_patiently(cluster.address)
    run = asyncio.ensure_future(measure_in_workers(order_of(server, grid), CLOCK, out, hire, planned=24))
    try:
        part = tmp_path / "run.jsonl.parts" / "part-000.jsonl"
        while not (part.exists() and part.read_bytes().count(b'"request"') >= 4):
            assert not run.done()
            await asyncio.sleep(0.05)
        for pid in cluster.second:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="nobody saw how|was killed"):
            await asyncio.wait_for(run, 100)
    finally:
        disconnect()
    kept = read_run(out)
    blocks = [
        Counter(t.outcome for t in kept.requests if t.cell.block == block)
        for block in sorted({t.cell.block for t in kept.requests})
    ]
    # Ray takes a moment to see it; what had been fetched at the gates before stands
    assert blocks[:-1] == [{Outcome.OK: 8}] * (len(blocks) - 1)
    assert blocks[-1] == {Outcome.OK: 4, Outcome.LOST: 4}
    assert 2 <= len(blocks) < 8

"""Several processes send one run: against `simulate` in a process of its own."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from golden.simulate_process import Server
from phasemeter.engines.spec import EngineSpec
from phasemeter.measure.header import Asked, grid_settings, make_header
from phasemeter.measure.load import Share
from phasemeter.measure.plan import Grid, planned_requests
from phasemeter.measure.worker import Order
from phasemeter.measure.workers import Hand, ProcessHand, hire_here, measure_in_workers
from phasemeter.record.clock import MonotonicClock, anchor
from phasemeter.record.engine import EngineInfo, Outcome
from phasemeter.record.errors import EngineError, InputError
from phasemeter.record.file import read_run

CLOCK = MonotonicClock()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    running = Server("--ttft-ms", "20", "--itl-ms", "2")
    yield f"http://127.0.0.1:{running.port}"
    running.stop()


def order_of(url: str, grid: Grid, workers: int) -> Order:
    info = EngineInfo(kind="openai", model="simulated")
    asked = Asked(anchor(CLOCK), grid_settings(grid), planned_requests(grid))
    return Order(
        EngineSpec(kind="openai", url=url, timeout_s=20.0),
        make_header(info, asked, CLOCK),
        out="",
        share=Share(of=workers),
        grid=grid,
    )


async def test_two_workers_send_one_plan(server: str, tmp_path: Path) -> None:
    grid = Grid((16, 32), (8,), concurrency=(1, 6), repeats=2, warmup=1, anchor=False)
    out = tmp_path / "run.jsonl"
    order = order_of(server, grid, 2)
    await measure_in_workers(order, CLOCK, out, hire_here, planned=planned_requests(grid))
    run = read_run(out)
    measured = [t for t in run.requests if not t.cell.warmup]
    assert len(measured) == planned_requests(grid)
    assert {t.outcome for t in measured} == {Outcome.OK}
    assert len({t.id for t in run.requests}) == len(run.requests)
    ends = [t.end_ns for t in run.requests]
    assert ends == sorted(ends)
    # stages never overlap: each begins when all requests of the one before have ended, in whatever process
    by_stage: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for t in measured:
        key = (t.cell.input_tokens, t.cell.concurrency, t.cell.block)
        by_stage.setdefault(key, []).append((t.started_ns, t.end_ns))
    spans = sorted((min(a for a, _ in s), max(b for _, b in s)) for s in by_stage.values())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    # six at once, three a process, and the record knows the whole
    assert max(t.in_flight or 0 for t in measured if t.cell.concurrency == 6) == 6
    assert run.footer is not None
    assert run.footer.client_cpu_ns is not None
    assert run.footer.error is None
    assert not (tmp_path / "run.jsonl.parts").exists()


async def test_a_killed_worker_loses_its_own_requests_alone(server: str, tmp_path: Path) -> None:
    grid = Grid((16,), (400,), concurrency=(4,), repeats=6, requests=8, warmup=0, anchor=False)
    out = tmp_path / "run.jsonl"
    hands: list[ProcessHand] = []

    async def hire(number: int, place: Path) -> Hand:
        hand = await hire_here(number, place)
        assert isinstance(hand, ProcessHand)
        hands.append(hand)
        return hand

    run = asyncio.ensure_future(
        measure_in_workers(order_of(server, grid, 2), CLOCK, out, hire, planned=planned_requests(grid))
    )
    part = tmp_path / "run.jsonl.parts" / "part-001.jsonl"
    while not (part.exists() and b'"request"' in part.read_bytes()):
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)  # its requests of the next stage, 1.6 s long, are under way
    os.kill(hands[1].pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="worker 2 was killed by SIGKILL"):
        await run
    kept = read_run(out)
    last = max(t.cell.block for t in kept.requests)
    assert 1 <= last < 5
    # the open stage is whole: what worker 1 sent, and what died with worker 2
    assert Counter(t.outcome for t in kept.requests if t.cell.block == last) == {
        Outcome.OK: 4,
        Outcome.LOST: 4,
    }
    assert Counter(t.outcome for t in kept.requests if t.cell.block < last) == {Outcome.OK: 8 * last}
    assert all(
        t.error == "worker 2 was killed by SIGKILL" for t in kept.requests if t.outcome is Outcome.LOST
    )
    assert kept.footer is not None
    assert "worker 2" in (kept.footer.error or "")


async def test_interrupted_it_keeps_what_had_ended(server: str, tmp_path: Path) -> None:
    grid = Grid((16,), (20,), concurrency=(2,), repeats=400, warmup=0, anchor=False)
    out = tmp_path / "run.jsonl"
    run = asyncio.ensure_future(
        measure_in_workers(order_of(server, grid, 2), CLOCK, out, hire_here, planned=1600)
    )
    part = tmp_path / "run.jsonl.parts" / "part-000.jsonl"
    while not (part.exists() and part.read_bytes().count(b'"request"') > 3):
        await asyncio.sleep(0.02)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    kept = read_run(out)
    assert sum(t.outcome is Outcome.OK for t in kept.requests) >= 3
    assert kept.footer is not None
    assert kept.footer.interrupted


async def test_what_workers_refuse_is_told_once(tmp_path: Path) -> None:
    grid = Grid((16,), (8,), concurrency=(2,), repeats=1)
    order = order_of("http://127.0.0.1:1", grid, 2)
    with pytest.raises((EngineError, InputError)):
        await measure_in_workers(order, CLOCK, tmp_path / "run.jsonl", hire_here, planned=4)

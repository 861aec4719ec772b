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
from msgspec.structs import replace

from golden.simulate_process import Server
from phasemeter.engines.spec import EngineSpec
from phasemeter.measure.hands import Hand, ProcessHand, hire_here
from phasemeter.measure.header import Asked, grid_settings, load_settings, make_header
from phasemeter.measure.load import Arrivals, Load, Share, Stage
from phasemeter.measure.plan import Grid, planned_requests
from phasemeter.measure.recording import Beside, Progress
from phasemeter.measure.supply import outlines
from phasemeter.measure.worker import Order
from phasemeter.measure.workers import measure_in_workers
from phasemeter.measure.workload import open_workload
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
    shown: list[Progress] = []
    beside = Beside(scrape_s=0, watch=shown.append)
    await measure_in_workers(order, CLOCK, out, hire_here, planned=planned_requests(grid), beside=beside)
    run = read_run(out)
    measured = [t for t in run.requests if not t.cell.warmup]
    assert len(measured) == planned_requests(grid)
    # whoever watches sees where all of it stands, and the end only at the end
    assert {at.warming for at in shown} == {True, False}
    assert [at.cell is None for at in shown].index(True) == len(shown) - 1
    assert shown[-1].done == planned_requests(grid)
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


async def test_each_worker_finds_how_the_server_counts_text(server: str, tmp_path: Path) -> None:
    grid = Grid((24,), (4,), concurrency=(2,), repeats=1, warmup=1, anchor=False)
    out = tmp_path / "run.jsonl"
    order = order_of(server, grid, 2)
    chat = replace(order, spec=replace(order.spec, api="chat"))
    await measure_in_workers(chat, CLOCK, out, hire_here, planned=4)
    measured = [t for t in read_run(out).requests if not t.cell.warmup]
    assert Counter(t.outcome for t in measured) == {Outcome.OK: 4}
    assert {t.usage.prompt_tokens for t in measured if t.usage} == {24}


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
    os.kill(hands[1].pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="worker 2 was killed by SIGKILL"):
        await run
    kept = read_run(out)
    last = max(t.cell.block for t in kept.requests)
    assert last < 5
    # the open stage is whole: what both sent, and what died with worker 2
    outcomes = Counter(t.outcome for t in kept.requests if t.cell.block == last)
    assert outcomes.total() == 8
    assert 1 <= outcomes[Outcome.LOST] <= 4
    assert set(outcomes) <= {Outcome.OK, Outcome.LOST}
    assert Counter(t.outcome for t in kept.requests if t.cell.block < last) == (
        {Outcome.OK: 8 * last} if last else {}
    )
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


async def test_parts_of_a_killed_run_are_not_written_over(server: str, tmp_path: Path) -> None:
    kept = tmp_path / "run.jsonl.parts" / "part-000.jsonl"
    kept.parent.mkdir()
    kept.write_text("precious")
    order = order_of(server, Grid((16,), (8,), concurrency=(2,), repeats=1), 2)
    with pytest.raises(InputError, match=r"run\.jsonl\.parts beside it holds the parts"):
        await measure_in_workers(order, CLOCK, tmp_path / "run.jsonl", hire_here, planned=4)
    assert kept.read_text() == "precious"
    assert not (tmp_path / "run.jsonl").exists()


async def test_what_workers_refuse_is_told_once(tmp_path: Path) -> None:
    grid = Grid((16,), (8,), concurrency=(2,), repeats=1)
    order = order_of("http://127.0.0.1:1", grid, 2)
    with pytest.raises((EngineError, InputError)):
        await measure_in_workers(order, CLOCK, tmp_path / "run.jsonl", hire_here, planned=4)


async def test_a_server_that_dies_is_told_once_and_where_the_whole_record_is(tmp_path: Path) -> None:
    dying = Server("--ttft-ms", "5", "--itl-ms", "1")
    grid = Grid((16,), (4,), concurrency=(4,), repeats=1, requests=100_000, warmup=1, anchor=False)
    out = tmp_path / "run.jsonl"
    order = order_of(f"http://127.0.0.1:{dying.port}", grid, 2)
    run = asyncio.ensure_future(measure_in_workers(order, CLOCK, out, hire_here, planned=100_000))
    part = tmp_path / "run.jsonl.parts" / "part-001.jsonl"
    while not (part.exists() and part.read_bytes().count(b'"request"') > 3):
        await asyncio.sleep(0.02)
    dying.stop()
    with pytest.raises(EngineError) as told:
        await run
    assert str(told.value).count("cannot be reached any more") == 1
    assert ".parts" not in str(told.value)
    assert str(told.value).endswith(f"what was measured is kept in {out}")


@pytest.mark.parametrize("everybody", [False, True])
async def test_a_full_disk_in_a_worker_loses_nothing(server: str, tmp_path: Path, everybody: bool) -> None:
    """A limit on the size of files stands for it: of one worker, or of the parent, too, which then cannot join."""
    resource = pytest.importorskip("resource")
    grid = Grid((16,), (8,), concurrency=(4,), repeats=1, requests=400, warmup=1, anchor=False)
    out = tmp_path / "run.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def hire(number: int, place: Path) -> Hand:
        hand = await hire_here(number, place)
        assert isinstance(hand, ProcessHand)
        if number == 0:
            resource.prlimit(hand.pid, resource.RLIMIT_FSIZE, (20_000, 20_000))
        if everybody:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        return hand

    parts = tmp_path / "run.jsonl.parts"
    try:
        with pytest.raises(InputError, match="what was measured is kept in") as told:
            await measure_in_workers(order_of(server, grid, 2), CLOCK, out, hire, planned=400)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(parts if everybody else out) in told.value.mend
    assert out.exists() is not everybody
    assert parts.exists() is everybody
    kept = read_run(parts / "part-000.jsonl" if everybody else out).requests
    assert sum(t.outcome is Outcome.OK for t in kept) >= 5


def load_order(url: str, load: Load, workers: int) -> Order:
    info = EngineInfo(kind="openai", model="simulated")
    header = make_header(info, Asked(anchor(CLOCK), load_settings(load), None), CLOCK)
    spec = EngineSpec(kind="openai", url=url, timeout_s=20.0)
    return Order(spec, header, out="", share=Share(of=workers), load=load)


LENGTHS = {"kind": "lengths", "input": "uniform:8:64", "output": "8"}


async def test_two_workers_share_an_open_loop(server: str, tmp_path: Path) -> None:
    stages = tuple(Stage(rate_per_s=rate, requests=30) for rate in (60.0, 120.0))
    load = Load(LENGTHS, stages, Arrivals("poisson"), warmup=2)
    out = tmp_path / "run.jsonl"
    await measure_in_workers(load_order(server, load, 2), CLOCK, out, hire_here, planned=60)
    measured = [t for t in read_run(out).requests if not t.cell.warmup]
    assert Counter((t.cell.rate_per_s, t.outcome) for t in measured) == {
        (60.0, Outcome.OK): 30,
        (120.0, Outcome.OK): 30,
    }
    assert len({t.id for t in measured}) == 60
    # the arrivals are those that one process would have drawn, whoever sent them
    workload = open_workload(load.workload, load.seed)
    for number, stage in enumerate(stages):
        mine = sorted(t.arrived_ns for t in measured if t.cell.rate_per_s == stage.rate_per_s)
        due = [outline.due_ns for outline in outlines(load, workload, stage, number, Share())]
        assert {a - b for a, b in zip(mine, due, strict=True)} == {mine[0] - due[0]}


async def test_a_killed_worker_of_an_open_loop_loses_all_that_it_still_had_to_send(
    server: str, tmp_path: Path
) -> None:
    load = Load(LENGTHS, (Stage(rate_per_s=20.0, requests=60),), Arrivals("constant"), warmup=0)
    out = tmp_path / "run.jsonl"
    hands: list[ProcessHand] = []

    async def hire(number: int, place: Path) -> Hand:
        hand = await hire_here(number, place)
        assert isinstance(hand, ProcessHand)
        hands.append(hand)
        return hand

    run = asyncio.ensure_future(measure_in_workers(load_order(server, load, 2), CLOCK, out, hire, planned=60))
    part = tmp_path / "run.jsonl.parts" / "part-001.jsonl"
    while not (part.exists() and b'"request"' in part.read_bytes()):
        await asyncio.sleep(0.02)
    os.kill(hands[1].pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="worker 2 was killed by SIGKILL"):
        await run
    kept = read_run(out).requests
    odd = [t for t in kept if int(t.id.rsplit("-", 1)[1]) % 2]
    even = [t for t in kept if int(t.id.rsplit("-", 1)[1]) % 2 == 0]
    assert Counter(t.outcome for t in even) == {Outcome.OK: 30}
    assert len({t.id for t in odd}) == 30
    assert Counter(t.outcome for t in odd)[Outcome.LOST] >= 1
    assert {t.outcome for t in odd} <= {Outcome.OK, Outcome.LOST}

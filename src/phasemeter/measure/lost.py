"""Which requests a dead worker took with it: planned for the stage that was open, and not in its part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import Struct

from phasemeter.measure.load import Load
from phasemeter.measure.load_session import level_cell, shaped
from phasemeter.measure.plan import Grid, visits
from phasemeter.measure.supply import outlines
from phasemeter.measure.worker import Order
from phasemeter.measure.workload import open_workload
from phasemeter.record.clock import Clock
from phasemeter.record.engine import Outcome
from phasemeter.record.parts import Part, requests_of
from phasemeter.record.request import Cell
from phasemeter.record.timeline import Timeline


class _Lost(Struct, frozen=True):
    name: str
    cell: Cell
    due_ns: int = 0


def lost_requests(
    order: Order, part: Part, opened_ns: Sequence[int], why: str, clock: Clock
) -> list[Timeline]:
    """The worker's requests of the last gate opened (`opened_ns`: every gate's start, the warm-up's first) that its
    part does not hold; their end is the moment at which we know. In a closed loop that only a duration ends, the plan
    has no end: there it is one request a slot."""
    stage = len(opened_ns) - 2
    if stage < 0:
        return []
    found: list[_Lost] = []
    if order.grid is not None:
        found = _of_grid(order, order.grid, part, stage)
    elif order.load is not None:
        found = list(_of_load(order, order.load, part, stage))
    now_ns = clock.now_ns()
    return [_stamped(one, opened_ns[-1] + one.due_ns, now_ns, why) for one in found]


def _of_grid(order: Order, grid: Grid, part: Part, stage: int) -> list[_Lost]:
    visit = visits(grid)[stage]
    known = sum(timeline.cell == visit.cell for timeline in _kept(part))
    missing = max(0, order.share.dealt(visit.requests, visit.cell.slots) - known)
    run, mine = order.header.run_id, order.share.mine
    return [_Lost(f"{run}-lost-{mine}-{stage}-{i}", visit.cell) for i in range(missing)]


def _of_load(order: Order, load: Load, part: Part, number: int) -> Iterator[_Lost]:
    stage = load.stages[number]
    known = {timeline.id for timeline in _kept(part)}
    workload = open_workload(load.workload, load.seed)
    missing = (
        _Lost(name, shaped(item, level_cell(stage)), outline.due_ns)
        for outline in outlines(load, workload, stage, number, order.share)
        for item in outline.items
        if (name := f"{order.header.run_id}-{item.index:06d}") not in known
    )
    endless = stage.concurrency is not None and stage.requests is None
    return islice(missing, order.share.part(stage.concurrency or 0)) if endless else missing


def _kept(part: Part) -> Iterator[Timeline]:
    return requests_of(part) if part.path.exists() else iter(())


def _stamped(lost: _Lost, due_ns: int, now_ns: int, why: str) -> Timeline:
    return Timeline(
        id=lost.name,
        cell=lost.cell,
        max_tokens=lost.cell.output_tokens,
        outcome=Outcome.LOST,
        arrived_ns=due_ns,
        started_ns=due_ns,
        end_ns=max(due_ns, now_ns),
        error=why,
    )

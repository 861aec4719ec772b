"""Which requests a dead worker took with it: planned for the stage that was open, and not in its part."""

from __future__ import annotations

from collections.abc import Sequence

from phasemeter.measure.plan import Grid, visits
from phasemeter.measure.worker import Order
from phasemeter.record.clock import Clock
from phasemeter.record.engine import Outcome
from phasemeter.record.parts import Part, requests_of
from phasemeter.record.request import Cell
from phasemeter.record.timeline import Timeline


def lost_requests(
    order: Order, part: Part, opened_ns: Sequence[int], why: str, clock: Clock
) -> list[Timeline]:
    """The worker's requests of the last gate opened (`opened_ns`: every gate's start, the warm-up's first) that its
    part does not hold; their end is the moment at which we know."""
    stage = len(opened_ns) - 2
    if stage < 0:
        return []
    found: list[tuple[str, Cell, int]] = []
    if order.grid is not None:
        found = _of_grid(order, order.grid, part, stage)
    started_ns, end_ns = opened_ns[-1], clock.now_ns()
    return [_stamped(one, started_ns, end_ns, why) for one in found]


def _of_grid(order: Order, grid: Grid, part: Part, stage: int) -> list[tuple[str, Cell, int]]:
    visit = visits(grid)[stage]
    known = sum(timeline.cell == visit.cell for timeline in requests_of(part)) if part.path.exists() else 0
    missing = max(0, order.share.part(visit.requests) - known)
    run, mine = order.header.run_id, order.share.mine
    return [(f"{run}-lost-{mine}-{stage}-{i}", visit.cell, visit.cell.output_tokens) for i in range(missing)]


def _stamped(lost: tuple[str, Cell, int], started_ns: int, end_ns: int, why: str) -> Timeline:
    name, cell, max_tokens = lost
    return Timeline(
        id=name,
        cell=cell,
        max_tokens=max_tokens,
        outcome=Outcome.LOST,
        arrived_ns=started_ns,
        started_ns=started_ns,
        end_ns=max(started_ns, end_ns),
        error=why,
    )

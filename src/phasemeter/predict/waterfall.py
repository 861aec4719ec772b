"""From the floor to what was measured: floor, kernels, host, queue, front end, and what no term explains."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from phasemeter.predict.features import Cell, Query
from phasemeter.predict.foresee import Foreseen, foresee_phase
from phasemeter.predict.model import FittedModel
from phasemeter.predict.transfer import Target


class Step(Struct, frozen=True):
    """One step: floor, kernels, host, other requests, queue, front end or unexplained; milliseconds, the last of any
    sign."""

    name: str
    ms: float


class Waterfall(Struct, frozen=True):
    """One phase (first or decode) of one cell. The steps add up to `measured_ms`, the median over the blocks."""

    phase: str
    input_tokens: int
    output_tokens: int
    batch: int
    steps: tuple[Step, ...]
    measured_ms: float


def waterfalls(model: FittedModel, cells: Sequence[Cell]) -> tuple[Waterfall, ...]:
    """TTFT and TPOT of every cell that was measured and that the model tells."""
    seen = {(cell.phase, cell.query): cell.median_s * 1e3 for cell in cells}
    to = Target(model.roof)
    found: list[Waterfall] = []
    for query in dict.fromkeys(cell.query for cell in cells):
        for phase, steps in (
            ("first", _first(model, query, to, seen)),
            ("decode", _told(model, "decode", query, to)),
        ):
            measured = seen.get((phase, query))
            if measured is None or not steps:
                continue
            rest = Step("unexplained", measured - sum(step.ms for step in steps))
            found.append(
                Waterfall(
                    phase, query.input_tokens, query.output_tokens, query.batch, (*steps, rest), measured
                )
            )
    return tuple(found)


def _first(
    model: FittedModel, query: Query, to: Target, seen: dict[tuple[str, Query], float]
) -> tuple[Step, ...]:
    """Where the engine tells its part: prefill, the queue as it was measured, front end; else TTFT as a whole."""
    if "prefill" not in model.phases or "front_end" not in model.phases:
        return _told(model, "first", query, to)
    front_end = foresee_phase(model.phase("front_end"), query, to).ms.mid
    return (
        *_told(model, "prefill", query, to),
        Step("queue", seen.get(("queue", query), 0.0)),
        Step("front end", front_end),
    )


def _told(model: FittedModel, phase: str, query: Query, to: Target) -> tuple[Step, ...]:
    fit = model.phases.get(phase)
    if fit is None:
        return ()
    told: Foreseen = foresee_phase(fit, query, to)
    parts = {part.name: part.ms for part in told.parts}
    steps = [
        Step("floor", told.floor_ms),
        Step("kernels", max(0.0, parts["chip"] - told.floor_ms)),
        Step("host", parts["host"]),
    ]
    if parts["other requests"] > 0.0:
        steps.append(Step("other requests", parts["other requests"]))
    return tuple(steps)

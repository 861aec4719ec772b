"""The cold start, kept apart from the steady state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.columns import ABSENT
from phasemeter.explain.phases import Reading
from phasemeter.explain.readings import Readings, readings_of
from phasemeter.explain.shape_key import asked_of
from phasemeter.record.engine import Outcome

if TYPE_CHECKING:
    from phasemeter.explain.columns import Bools, Ints

SETTLED_RATIO = 0.20
SETTLED_NS = 1_000_000


class Cold(Struct, frozen=True):
    """What the first request paid. `steady_ttft_ms` is the median TTFT of the measured requests of the
    same input length that were sent, like the first one, with as many others in flight (a later one of a
    full load waits for those before it, and that is no warmth); where the record does not tell that, of
    the same concurrency. `requests_to_settle` counts such requests from the run's first one on, before
    two in a row came within 20 % (or 1 ms) of it, None where that never happened. All None where there
    was nothing to tell it from."""

    first_ttft_ms: float | None = None
    steady_ttft_ms: float | None = None
    requests_to_settle: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


def cold(readings: Sequence[Reading]) -> Cold:
    """From the requests of one clock, warm-up included."""
    import numpy as np

    columns = readings_of(readings)
    answered = columns.take(columns.where(Outcome.OK) & (columns.ns("ttft") != ABSENT))
    if not answered:
        return Cold()
    answered = answered.take(np.argsort(answered.told("started"), kind="stable"))
    cell = answered[0].timeline.cell
    alike = answered.take(_like_first(answered))
    ttft = alike.ns("ttft")
    steady = ttft[1:][~alike.told_of(lambda cell: cell.warmup)[1:]]
    steady_ns = float(np.median(steady)) if steady.size else None
    return Cold(
        first_ttft_ms=_ms(int(ttft[0])),
        steady_ttft_ms=_ms(steady_ns),
        requests_to_settle=None if steady_ns is None else _to_settle(ttft, steady_ns),
        input_tokens=cell.input_tokens,
        output_tokens=cell.output_tokens,
    )


def _like_first(answered: Readings) -> Bools:
    """Which requests were of the first one's length and sent with as many others in flight; the first one is."""
    import numpy as np

    cell = answered[0].timeline.cell
    in_flight = answered.told("in_flight")
    both_told = (in_flight != ABSENT) & (in_flight[0] != ABSENT)
    level = answered.told_of(lambda other: asked_of(other) == asked_of(cell))
    as_long = answered.told_of(lambda other: other.input_tokens == cell.input_tokens)
    return as_long & np.where(both_told, in_flight == in_flight[0], level)


def _to_settle(ttft_ns: Ints, steady_ns: float) -> int | None:
    """Requests before the first of two in a row (or of the last one alone) that lie near the steady value."""
    import numpy as np

    near = np.abs(ttft_ns - steady_ns) <= max(SETTLED_NS, SETTLED_RATIO * steady_ns)
    settled = near & np.append(near[1:], [True])
    return int(np.argmax(settled)) if settled.any() else None


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6

"""The cold start, kept apart from the steady state."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from phasemeter.explain.phases import Reading
from phasemeter.explain.shape_key import asked_of
from phasemeter.record.engine import Outcome

SETTLED_RATIO = 0.20
SETTLED_NS = 1_000_000
_IN_A_ROW = 2


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

    answered = sorted((r for r in readings if _answered(r)), key=lambda r: r.timeline.started_ns)
    if not answered:
        return Cold()
    first = answered[0]
    cell = first.timeline.cell
    alike = [r for r in answered if _alike(r, first)]
    steady = [
        r.ttft_ns for r in alike if not r.timeline.cell.warmup and r is not first and r.ttft_ns is not None
    ]
    steady_ns = float(np.median(steady)) if steady else None
    return Cold(
        first_ttft_ms=_ms(first.ttft_ns),
        steady_ttft_ms=_ms(steady_ns),
        requests_to_settle=None if steady_ns is None else _to_settle(alike, steady_ns),
        input_tokens=cell.input_tokens,
        output_tokens=cell.output_tokens,
    )


def _answered(reading: Reading) -> bool:
    return reading.timeline.outcome is Outcome.OK and reading.ttft_ns is not None


def _alike(reading: Reading, first: Reading) -> bool:
    a, b = reading.timeline, first.timeline
    if a.cell.input_tokens != b.cell.input_tokens:
        return False
    if a.in_flight is not None and b.in_flight is not None:
        return a.in_flight == b.in_flight
    return asked_of(a.cell) == asked_of(b.cell)


def _to_settle(readings: Sequence[Reading], steady_ns: float) -> int | None:
    """Requests before the first of two in a row (or of the last one alone) that lie near the steady value."""
    near = [
        abs(r.ttft_ns - steady_ns) <= max(SETTLED_NS, SETTLED_RATIO * steady_ns)
        for r in readings
        if r.ttft_ns is not None
    ]
    for i in range(len(near)):
        if all(near[i : i + _IN_A_ROW]):
            return i
    return None


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6

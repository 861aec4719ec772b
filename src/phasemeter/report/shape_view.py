"""One shape of a run as a `ShapeView`: medians, floors, budget, gaps and the rows of its requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from phasemeter.explain.floors import FloorCheck
from phasemeter.explain.phases import Basis, Reading
from phasemeter.explain.readings import Readings, readings_of
from phasemeter.explain.shapes import ShapeSummary
from phasemeter.record.engine import Outcome
from phasemeter.report.budget import (
    SPLIT,
    UNSPLIT,
    attributed_of,
    bound_of,
    is_split,
    median,
    phase_median,
    segments_of,
)
from phasemeter.report.levels import lengths, shape_short, shape_text
from phasemeter.report.parts import ABSENT, Histogram, Mark, Number, Row, ShapeView

if TYPE_CHECKING:
    from phasemeter.explain.stats import Floats

BINS = 40
ROWS = 500
_ROWS_ALL = 3000
_AT_ONCE = 1_000_000


def shape_view(
    shape: ShapeSummary, requests: Sequence[Reading], origin_ns: int, rows: int, lang: str
) -> ShapeView:
    """Everything shown of one shape. `requests` are all of it, warm-up included; `origin_ns` the first
    arrival of the run; `rows` how many requests are drawn at most."""
    key, floor = shape.key, shape.floor
    seen, data = shape.floor_measured, shape.floor_datasheet
    segments, total = segments_of(shape.phases, lang)
    readings = readings_of(requests)
    measured = readings.take(readings.told_of(lambda cell: not cell.warmup) & readings.where(Outcome.OK))
    drawn = drawn_of(readings, rows)
    return ShapeView(
        label=shape_text(key, lang),
        short=shape_short(key, lang),
        input_tokens=key.input_tokens,
        output_tokens=key.output_tokens,
        asked=key.asked,
        lengths=lengths(key),
        one_shape=key.one_shape,
        n=shape.ok,
        failed=shape.failed,
        ttft=median(shape.latency.ttft_ms),
        prefill=phase_median(shape.phases.prefill),
        prefill_floor=_calculated(floor.prefill_floor_ms if floor else None),
        prefill_floor_measured=_calculated(seen.prefill_floor_ms if seen else None),
        prefill_floor_datasheet=_calculated(data.prefill_floor_ms if data else None),
        prefill_ratio=_prefill_ratio(floor),
        tpot=median(shape.latency.tpot_ms),
        tpot_floor=_calculated(floor.tpot_floor_ms if floor else None),
        tpot_floor_measured=_calculated(seen.tpot_floor_ms if seen else None),
        tpot_floor_datasheet=_calculated(data.tpot_floor_ms if data else None),
        tpot_ratio=_ratio(floor.tpot_ratio if floor else None),
        e2e=median(shape.latency.e2e_ms),
        mean_context=floor.decode_context_tokens if floor else key.input_tokens + key.output_tokens // 2,
        bound=bound_of(shape, lang),
        segments=segments,
        total=total,
        split=is_split(shape.phases),
        attributed=attributed_of(shape.attribution, lang),
        itl=histogram(measured.gaps() / 1e6),
        rows=tuple(_row(reading, origin_ns) for reading in drawn),
        rows_left_out=len(readings) - len(drawn),
    )


def rows_each(shapes: int) -> int:
    """Requests drawn of each shape: 500, fewer where many shapes would make the page heavy."""
    return max(20, min(ROWS, _ROWS_ALL // max(1, shapes)))


def drawn_of(readings: Readings, rows: int) -> Readings:
    """The requests that are drawn, in order of arrival: all of at most `rows`; of more the slowest (a tenth of the
    rows, by end-to-end time) and of the others an even choice by arrival, the first and the last among them."""
    import numpy as np

    ordered = readings.take(np.argsort(readings.told("arrived"), kind="stable"))
    if len(ordered) <= rows:
        return ordered
    chosen = np.zeros(len(ordered), dtype=np.bool_)
    chosen[np.argsort(-ordered.ns("e2e"), kind="stable")[: rows // 10]] = True
    others = np.flatnonzero(~chosen)
    chosen[others[np.linspace(0, others.size - 1, rows - rows // 10).astype(np.int64)]] = True
    return ordered.take(chosen)


def histogram(values_ms: Sequence[float] | Floats, bins: int = BINS) -> Histogram | None:
    """Counts in bins of equal ratio between the smallest and the largest positive value; gaps of zero
    (pieces that came together) count in the first bin. None where there is no positive value."""
    import numpy as np

    values = np.asarray(values_ms, dtype=np.float64)
    if not (values > 0).any():
        return None
    low, high = float(values[values > 0].min()), float(values.max())
    if high / low < 1.02:  # all the same: one bin around them
        return Histogram((low * 0.99, high * 1.01), (int(values.size),))
    step = math.log(high / low) / bins
    edges = tuple(low * math.exp(i * step) for i in range(bins + 1))
    counts = np.zeros(bins, dtype=np.int64)
    for at in range(0, values.size, _AT_ONCE):
        part = np.maximum(values[at : at + _AT_ONCE], low)
        place = np.minimum((np.log(part / low) / step).astype(np.int64), bins - 1)
        counts += np.bincount(place, minlength=bins)
    return Histogram(edges, tuple(counts.tolist()))


def _calculated(value_ms: float | None) -> Number:
    return ABSENT if value_ms is None else Number(value_ms, mark=Mark.CALCULATED)


def _ratio(value: float | None, mark: Mark = Mark.OBSERVED) -> Number:
    return ABSENT if value is None else Number(value, unit="", mark=mark)


def _prefill_ratio(floor: FloorCheck | None) -> Number:
    if floor is None:
        return ABSENT
    # time to first token stood in for prefill: the ratio is then only an upper bound
    return _ratio(floor.prefill_ratio, Mark.OBSERVED if floor.prefill_from == "prefill" else Mark.INFERRED)


def _row(reading: Reading, origin_ns: int) -> Row:
    timeline, phases = reading.timeline, reading.phases
    spans: list[tuple[str, float, float, Mark]] = []
    at_ns = 0
    for name in SPLIT if phases.prefill is not None else UNSPLIT:
        span = getattr(phases, name)
        if span is None:
            continue
        mark = Mark.OBSERVED if span.basis is Basis.OBSERVED else Mark.INFERRED
        spans.append((name, round(at_ns / 1e6, 4), round(span.ns / 1e6, 4), mark))
        at_ns += span.ns
    return Row(
        name=timeline.id,
        outcome=timeline.outcome.value,
        arrived_ms=round((timeline.arrived_ns - origin_ns) / 1e6, 3),
        spans=tuple(spans),
        tokens=reading.tokens,
        warmup=timeline.cell.warmup,
    )

"""One shape of a run as a `ShapeView`: medians, floors, budget, gaps and the rows of its requests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from phasemeter.explain.floors import FloorCheck
from phasemeter.explain.phases import Basis, Reading
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

BINS = 40
ROWS = 500
_ROWS_ALL = 3000


def shape_view(
    shape: ShapeSummary, readings: Sequence[Reading], origin_ns: int, rows: int, lang: str
) -> ShapeView:
    """Everything shown of one shape. `readings` are its requests, warm-up included; `origin_ns` the first
    arrival of the run; `rows` how many requests are drawn at most."""
    key, floor = shape.key, shape.floor
    seen, data = shape.floor_measured, shape.floor_datasheet
    segments, total = segments_of(shape.phases, lang)
    measured = [r for r in readings if not r.timeline.cell.warmup and r.timeline.outcome is Outcome.OK]
    drawn = sorted(readings, key=lambda r: r.timeline.arrived_ns)
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
        itl=histogram([gap / 1e6 for reading in measured for gap in reading.gaps_ns]),
        rows=tuple(_row(reading, origin_ns) for reading in drawn[:rows]),
        rows_left_out=max(0, len(drawn) - rows),
    )


def rows_each(shapes: int) -> int:
    """Requests drawn of each shape: 500, fewer where many shapes would make the page heavy."""
    return max(20, min(ROWS, _ROWS_ALL // max(1, shapes)))


def histogram(values_ms: Sequence[float], bins: int = BINS) -> Histogram | None:
    """Counts in bins of equal ratio between the smallest and the largest positive value; gaps of zero
    (pieces that came together) count in the first bin. None where there is no positive value."""
    positive = [value for value in values_ms if value > 0]
    if not positive:
        return None
    low, high = min(positive), max(positive)
    if high / low < 1.02:  # all the same: one bin around them
        return Histogram((low * 0.99, high * 1.01), (len(values_ms),))
    step = math.log(high / low) / bins
    edges = tuple(low * math.exp(i * step) for i in range(bins + 1))
    counts = [0] * bins
    for value in values_ms:
        place = int(math.log(value / low) / step) if value > 0 else 0
        counts[min(max(place, 0), bins - 1)] += 1
    return Histogram(edges, tuple(counts))


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

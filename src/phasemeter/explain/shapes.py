"""One shape of work (input tokens, output tokens, level asked), or one bucket of shapes, and what was seen of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from phasemeter.explain.attribute import Attribution, Mean, attribute
from phasemeter.explain.columns import ABSENT, total
from phasemeter.explain.floors import FloorCheck, Load, floor_check, kv_us_per_token
from phasemeter.explain.front_end import FrontEndSplit, front_end_split
from phasemeter.explain.growth import DecodeSlope, Exponent, Point, decode_slopes, exponents
from phasemeter.explain.latency import Latency, PhaseDist, PhaseDists, latency, phase_dists, token_gaps_ns
from phasemeter.explain.load import Throughput, concurrency, throughput
from phasemeter.explain.phases import PHASE_NAMES, Reading
from phasemeter.explain.readings import Readings, clocks, milliseconds, readings_of
from phasemeter.explain.roof import DATASHEET, MEASURED, Roof
from phasemeter.explain.shape_key import Asked, ShapeKey, asked_of, cell_grouping, shape_key
from phasemeter.record.engine import Outcome

if TYPE_CHECKING:
    from phasemeter.explain.columns import Ints

__all__ = ["Latency", "PhaseDist", "PhaseDists", "ShapeKey", "ShapeSummary", "shape_key", "summarise_shapes"]

EAGER_ENGINES = frozenset({"local"})
"""Engines that launch their kernels one by one, so that the measured launch cost applies."""

SERIAL_ENGINES = frozenset({"local"})
"""Engines that serve one request at a time: the others wait in a queue and share no decode step."""


class ShapeSummary(Struct, frozen=True):
    """Everything about one shape. `floor_measured` uses the ceilings measured on this machine,
    `floor_datasheet` the hardware table; None where the model's shape or the hardware is not known."""

    key: ShapeKey
    ok: int
    failed: int
    blocks: int
    latency: Latency
    phases: PhaseDists
    floor_measured: FloorCheck | None = None
    floor_datasheet: FloorCheck | None = None
    attribution: tuple[Attribution, ...] = ()
    decode_slope: DecodeSlope | None = None
    throughput: Throughput = Throughput()
    seen_max: int | None = None
    seen_mean: float | None = None
    """Requests of this shape in flight at once."""
    front_end_split: FrontEndSplit | None = None

    @property
    def floor(self) -> FloorCheck | None:
        """The floor to compare with: measured ceilings where there are any, else the datasheet's."""
        return self.floor_measured or self.floor_datasheet


class Context(Struct, frozen=True):
    """What all shapes share: the ceilings, each request's clock, and the engine's kind."""

    roofs: tuple[Roof, ...]
    origin: dict[str, str]
    engine_kind: str

    def blocks(self, readings: Sequence[Reading]) -> Ints:
        """A number for each request's block; blocks of two clocks are two blocks."""
        import numpy as np

        columns = readings_of(readings)
        _, clock = clocks(columns, self.origin)
        _, block = np.unique(columns.by_cell(lambda cell: cell.block), return_inverse=True)
        _, first, number = np.unique(
            clock * (int(block.max(initial=0)) + 1) + block, return_index=True, return_inverse=True
        )
        return np.argsort(np.argsort(first))[number]  # numbered in order of their first request


def by_shape(readings: Sequence[Reading]) -> dict[ShapeKey, Readings]:
    """Requests by shape (or bucket of shapes), shapes in order."""
    columns = readings_of(readings)
    found = columns.grouped(cell_grouping(columns.cells()))
    return {key: found[key] for key in sorted(found, key=lambda key: key.order)}


def summarise_shapes(measured: Sequence[Reading], context: Context) -> tuple[ShapeSummary, ...]:
    """One summary for every shape among the measured requests, also for one whose requests all failed."""
    columns = readings_of(measured)
    decoding = _decoding(columns, context)
    return tuple(_summarise(key, rs, context, decoding[key.asked]) for key, rs in by_shape(columns).items())


def _decoding(measured: Readings, context: Context) -> dict[Asked, int]:
    """Sequences that shared a decode step at each level, on average: at least one."""
    busy_ns = {
        Asked(level.asked, level.rate_per_s): level.busy_s * 1e9
        for level in concurrency(measured, context.origin).levels
    }
    return {
        asked: max(1, int(total(readings.ns("decode")) / busy_ns[asked])) if busy_ns[asked] > 0 else 1
        for asked, readings in measured.grouped(asked_of).items()
    }


def growth(measured: Sequence[Reading], context: Context) -> tuple[Exponent, ...]:
    """Local exponents of prefill (or `first`) with input length, and of TPOT with mean context, along each
    line of shapes."""
    found: list[Exponent] = []
    ok = _ok(readings_of(measured))
    single = {key: readings for key, readings in by_shape(ok).items() if key.one_shape}
    for (asked, output_tokens), shapes in _lines(single):
        whole = all(bool((readings.ns("prefill") != ABSENT).all()) for _, readings in shapes)
        metric = "prefill" if whole else "first"
        starts = [_point(key.input_tokens, rs, context, metric) for key, rs in shapes]
        steps = [_point(key.input_tokens + key.output_tokens // 2, rs, context, "tpot") for key, rs in shapes]
        for name, points in ((metric, starts), ("tpot", steps)):
            found += exponents(name, points, output_tokens=output_tokens, asked=asked)
    return tuple(found)


_Shapes = list[tuple[ShapeKey, Readings]]


def _lines(shapes: dict[ShapeKey, Readings]) -> list[tuple[tuple[Asked, int | None], _Shapes]]:
    """Shapes that differ in input length, by (level, output length). Where every length has one output
    length of its own (paired lists) they are one line, its output length None: neither prefill nor a step at a
    given context depends on how long the answer will be."""
    by_load: defaultdict[Asked, _Shapes] = defaultdict(list)
    for key, readings in sorted(shapes.items(), key=lambda entry: entry[0].order):
        by_load[key.asked].append((key, readings))
    found: list[tuple[tuple[Asked, int | None], _Shapes]] = []
    for asked, line in sorted(by_load.items(), key=lambda entry: entry[0].order):
        outputs = sorted({key.output_tokens for key, _ in line})
        if len(outputs) > 1 and len({key.input_tokens for key, _ in line}) == len(line):
            found.append(((asked, None), line))
        else:
            found += [((asked, n), [entry for entry in line if entry[0].output_tokens == n]) for n in outputs]
    return found


def _summarise(key: ShapeKey, readings: Readings, context: Context, decoding: int) -> ShapeSummary:
    ok = _ok(readings)
    blocks = context.blocks(ok)
    levels = concurrency(readings, context.origin)
    seen, shape_phases = latency(ok, blocks), phase_dists(ok, blocks)
    together = decoding if key.concurrency is None else min(key.concurrency, levels.seen_max or 1)
    load = _load(key, ok, 1 if context.engine_kind in SERIAL_ENGINES else together)
    checks = (
        {roof.source: _floor_check(roof, load, seen, shape_phases) for roof in context.roofs} if ok else {}
    )
    roof = context.roofs[0] if context.roofs else None
    return ShapeSummary(
        key=key,
        ok=len(ok),
        failed=len(readings) - len(ok),
        blocks=int(blocks.max(initial=-1)) + 1,
        latency=seen,
        phases=shape_phases,
        floor_measured=checks.get(MEASURED),
        floor_datasheet=checks.get(DATASHEET),
        attribution=attribute(
            _means(shape_phases), roof, load, launches_one_by_one=context.engine_kind in EAGER_ENGINES
        ),
        decode_slope=decode_slopes(
            *token_gaps_ns(ok), blocks, None if roof is None else kv_us_per_token(roof, load)
        ),
        throughput=throughput(ok, readings, context.origin),
        seen_max=levels.seen_max,
        seen_mean=levels.seen_mean,
        front_end_split=front_end_split(ok, blocks),
    )


def _ok(readings: Readings) -> Readings:
    return readings.take(readings.where(Outcome.OK))


def _load(key: ShapeKey, ok: Readings, together: int) -> Load:
    import numpy as np

    n = max(1, len(ok))
    cached = cached_of(ok)
    mix: list[tuple[int, int, int]] = []
    if not key.one_shape and ok:
        pairs = np.stack((ok.by_cell(lambda cell: cell.input_tokens), cached))
        found, counts = np.unique(pairs, axis=1, return_counts=True)
        mix = [(int(t), int(c), int(n)) for t, c, n in zip(*found, counts, strict=True)]
    return Load(
        input_tokens=round(sum(tokens * count for tokens, _, count in mix) / n) or key.input_tokens,
        cached_tokens=round(total(cached) / n),
        output_tokens=total(ok.tokens()) / n,
        decode_batch=max(1, together),
        mix=tuple(mix),
    )


def cached_of(readings: Readings) -> Ints:
    """`cached_tokens` of each request."""
    import numpy as np

    most = np.maximum(readings.told("usage_cached"), readings.told("engine_cached"))
    return np.where(most == ABSENT, 0, most)


def cached_tokens(reading: Reading) -> int:
    """Prompt tokens that a cache answered, as server or engine report them; 0 where neither does."""
    usage, report = reading.timeline.usage, reading.timeline.report
    told = [
        usage.cached_tokens if usage is not None else None,
        report.cached_tokens if report is not None else None,
    ]
    return max((n for n in told if n is not None), default=0)


def _floor_check(roof: Roof, load: Load, seen: Latency, phases: PhaseDists) -> FloorCheck:
    stood_in = "prefill" if phases.prefill is not None else "first" if phases.first is not None else None
    start = phases.prefill or phases.first
    return floor_check(
        roof,
        load,
        prefill_ms=None if start is None else start.dist.p50,
        prefill_from=stood_in,
        tpot_ms=None if seen.tpot_ms is None else seen.tpot_ms.p50,
    )


def _means(phases: PhaseDists) -> dict[str, Mean]:
    means: dict[str, Mean] = {}
    for name in PHASE_NAMES:
        found: PhaseDist | None = getattr(phases, name)
        if found is not None:
            means[name] = Mean(found.dist.mean, found.basis)
    return means


def _point(tokens: int, readings: Readings, context: Context, metric: str) -> Point:
    if metric == "tpot":
        tpot, known = readings.tpot_ns()
        values = tpot[known] / 1e6
    else:
        values, known = milliseconds(readings.ns(metric))
    blocks = _global_blocks(readings, context)[known]
    return Point(
        tokens, tuple(cast("list[float]", values.tolist())), tuple(cast("list[int]", blocks.tolist()))
    )


def _global_blocks(readings: Readings, context: Context) -> Ints:
    """Block numbers that mean the same for every shape, so that two lengths can be drawn together."""
    import numpy as np

    every = sorted(set(context.origin.values()))
    names, clock = clocks(readings, context.origin)
    number = np.array([every.index(name) for name in names], dtype=np.int64)
    return number[clock] + len(every) * readings.by_cell(lambda cell: cell.block)

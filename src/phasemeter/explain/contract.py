"""The JSON of `phasemeter explain --json`, piece by piece: times in milliseconds, absent is null. Scripts
rely on these keys; add to them freely, change none without a decision record."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import to_builtins

from phasemeter.explain.front_end import FrontEndSplit
from phasemeter.explain.latency import Latency, PhaseDist, PhaseDists
from phasemeter.explain.shapes import ShapeSummary
from phasemeter.explain.stats import Dist

Json = dict[str, object]


def dist_json(dist: Dist | None) -> Json | None:
    """{"n", "mean", "p50", "p90", "p99", "ci95_p50": [lo, hi] or null}, or null."""
    if dist is None:
        return None
    ci95 = None if dist.ci95_p50 is None else list(dist.ci95_p50)
    return {
        "n": dist.n,
        "mean": dist.mean,
        "p50": dist.p50,
        "p90": dist.p90,
        "p99": dist.p99,
        "ci95_p50": ci95,
    }


def latency_json(latency: Latency) -> Json:
    """Every latency under its own name."""
    return {name: dist_json(getattr(latency, name)) for name in Latency.__struct_fields__}


def phases_json(phases: PhaseDists) -> Json:
    """Every phase as a DIST with its basis, or null."""
    return {name: _phase_json(getattr(phases, name)) for name in PhaseDists.__struct_fields__}


def struct_json(value: object) -> object:
    """A struct as it is, tuples as lists."""
    return to_builtins(value)


def shapes_json(shapes: Sequence[ShapeSummary]) -> list[Json]:
    """One object for every shape."""
    return [_shape_json(shape) for shape in shapes]


def _phase_json(phase: PhaseDist | None) -> Json | None:
    dist = None if phase is None else dist_json(phase.dist)
    return None if phase is None or dist is None else dist | {"basis": phase.basis.value}


def _front_end_json(split: FrontEndSplit | None) -> Json | None:
    if split is None:
        return None
    return {
        "api_process": _phase_json(split.api_process),
        "outside": _phase_json(split.outside),
        "before_engine": _phase_json(split.before_engine),
        "after_engine": _phase_json(split.after_engine),
    }


def _shape_json(shape: ShapeSummary) -> Json:
    floor, prefill = shape.floor, shape.phases.prefill
    return {
        "input_tokens": shape.key.input_tokens,
        "output_tokens": shape.key.output_tokens,
        "batch": shape.key.concurrency,
        "rate_per_s": shape.key.rate_per_s,
        "input_range": struct_json(shape.key.input_range),
        "output_range": struct_json(shape.key.output_range),
        "ok": shape.ok,
        "failed": shape.failed,
        "blocks": shape.blocks,
        **latency_json(shape.latency),
        "prefill_ms": None if prefill is None else dist_json(prefill.dist),
        "floor_prefill_ms": None if floor is None else floor.prefill_floor_ms,
        "floor_tpot_ms": None if floor is None else floor.tpot_floor_ms,
        "bound": None if floor is None else floor.prefill_bound,
        "bound_tpot": None if floor is None else floor.tpot_bound,
        "floors": {
            "measured": struct_json(shape.floor_measured),
            "datasheet": struct_json(shape.floor_datasheet),
        },
        "phases": phases_json(shape.phases),
        "front_end_split": _front_end_json(shape.front_end_split),
        "attribution": struct_json(shape.attribution),
        "decode_slope": struct_json(shape.decode_slope),
        "throughput": struct_json(shape.throughput),
        "concurrency": {
            "asked": shape.key.concurrency,
            "rate_per_s": shape.key.rate_per_s,
            "seen_max": shape.seen_max,
            "seen_mean": shape.seen_mean,
        },
    }

"""A run under load as a whole: its levels, the objectives, the capacity; and their JSON."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from phasemeter.explain.batch_means import Estimate
from phasemeter.explain.capacity import Capacity, capacities
from phasemeter.explain.contract import Json, dist_json, struct_json
from phasemeter.explain.levels import LevelLoad, Tail, levels_of
from phasemeter.explain.load import Concurrency
from phasemeter.explain.phases import Reading
from phasemeter.explain.readings import readings_of
from phasemeter.explain.slo import LevelSlo, Slo, judge_level
from phasemeter.explain.stage_table import stage_tables
from phasemeter.explain.steady import Steady, steady_of
from phasemeter.record.timeline import Timeline


class UnderLoad(Struct, frozen=True):
    """Every level, and what they say together."""

    levels: tuple[LevelLoad, ...] = ()
    capacities: tuple[Capacity, ...] = ()
    slo: Slo | None = None


def under_load(
    measured: Sequence[Reading], concurrency: Concurrency, origin: dict[str, str], slo: Slo | None
) -> UnderLoad:
    """From the measured requests of a run."""
    tables = stage_tables(measured, origin)
    levels = levels_of(tables, concurrency, slo)
    return UnderLoad(levels, capacities(tables, levels, slo), slo)


def load_json(found: UnderLoad) -> Json:
    """Key `load`."""
    return {"levels": [_level_json(level) for level in found.levels]}


def slo_json(found: UnderLoad) -> Json | None:
    """Key `slo`; null where none was asked."""
    if found.slo is None:
        return None
    return {
        "asked": found.slo.text,
        "conditions": struct_json(found.slo.conditions),
        "good_share": found.slo.good_share,
        "levels": [
            _asked_json(level) | _judged_json(level.slo) for level in found.levels if level.slo is not None
        ],
    }


def capacity_json(found: UnderLoad) -> list[Json]:
    """Key `capacity`: one entry for rates, one for concurrencies."""
    return [
        {
            "axis": one.axis,
            "levels": list(one.levels),
            "knee": struct_json(one.knee),
            "largest": struct_json(one.largest),
        }
        for one in found.capacities
    ]


def _asked_json(level: LevelLoad) -> Json:
    return {"concurrency": level.asked.concurrency, "rate_per_s": level.asked.rate_per_s}


def _judged_json(slo: LevelSlo) -> Json:
    return {
        "met": slo.met.value,
        "steady": slo.steady,
        "note": slo.note,
        "goodput": struct_json(slo.goodput),
        "conditions": struct_json(slo.conditions),
    }


def _level_json(level: LevelLoad) -> Json:
    return _asked_json(level) | {
        "stages": level.stages,
        "requests": level.requests,
        "ok": level.ok,
        "failed": level.failed,
        "arrived_per_s": level.arrived_per_s,
        "sent_per_s": level.sent_per_s,
        "seen_max": level.seen_max,
        "seen_mean": level.seen_mean,
        "ttft_ms": dist_json(level.ttft_ms),
        "tpot_ms": dist_json(level.tpot_ms),
        "e2e_ms": dist_json(level.e2e_ms),
        "ttft_p99": _tail_json(level.ttft_p99),
        "tpot_p99": _tail_json(level.tpot_p99),
        "completed_per_s": _estimate_json(level.completed_per_s),
        "output_tokens_per_s": _estimate_json(level.output_tokens_per_s),
        "in_flight": _estimate_json(level.in_flight),
        "steady": _steady_json(level.steady),
    }


def _steady_json(steady: Steady | None) -> Json | None:
    if steady is None:
        return None
    return {
        "state": steady.state.value,
        "evidence": steady.evidence,
        "windows": struct_json(steady.windows),
        "requests": steady.requests,
        "ttft_ms": dist_json(steady.ttft_ms),
        "ttft_from_arrival_ms": dist_json(steady.ttft_from_arrival_ms),
        "tpot_ms": dist_json(steady.tpot_ms),
        "e2e_ms": dist_json(steady.e2e_ms),
        "requests_per_s": _estimate_json(steady.requests_per_s),
        "output_tokens_per_s": _estimate_json(steady.output_tokens_per_s),
        "in_flight": _estimate_json(steady.in_flight),
    }


def _estimate_json(found: Estimate | None) -> object:
    return None if found is None else struct_json(found)


def _tail_json(tail: Tail) -> Json:
    return {"value_ms": tail.value_ms, "ci95_ms": list(tail.ci95_ms)}


def judge_timelines(timelines: Sequence[Timeline], slo: Slo) -> LevelSlo:
    """All measured requests of one level, of one clock, against `slo`."""
    tables = stage_tables(readings_of(timelines), dict.fromkeys((t.id for t in timelines), ""))
    return judge_level(tables, steady_of(tables), slo)

"""One metric of a comparison: its effect, its answer, and the reason where there is no answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from phasemeter.explain.compare_draws import Drawn
from phasemeter.explain.compare_effect import (
    Answer,
    Interval,
    Pair,
    Shared,
    absolute_effect,
    answer_of,
    level,
    relative_effect,
    relative_margin,
)
from phasemeter.explain.stats import MIN_FOR_INTERVAL

PARTS = ("queue_", "front_end_")
"""Parts of the time to the first token, often near zero: 3 % of next to nothing is nothing. They are judged by their
difference, against the margin's share of TTFT."""

LEAST = {"p50": MIN_FOR_INTERVAL, "p90": 10, "p99": 100, "mean": MIN_FOR_INTERVAL}
"""Values that a side needs in a stratum: at least one beyond the quantile."""


class Reason(StrEnum):
    """Why a comparison is undecided."""

    FEW_UNITS = "few_units"
    """Fewer than five independent repeats (blocks, or waves of requests)."""
    FEW_VALUES = "few_values"
    """Fewer values than the quantile needs."""
    NOT_POSITIVE = "not_positive"
    """A value of zero or below: there is no ratio."""
    WIDE = "wide"
    """The interval holds zero and reaches beyond the margin."""
    SMALL = "small"
    """Something changed, but whether by more than the margin is open."""
    RUNS_DIFFER = "runs_differ"
    """The interval would decide, were it not widened by how far the runs of one side lie apart."""


class Row(Struct, frozen=True):
    """One metric. `base` and `new` are pooled over `strata` of `strata_told` strata as geometric means (parts of the
    first token's time: as means); `effect` is new / base - 1, `absolute` new - base in `unit`; `new_level` is the new
    side's own interval, of a single stratum only. All ratios are shares, not per cent."""

    name: str
    unit: str
    lower_is_better: bool
    base: float
    new: float
    effect: Interval
    absolute: Interval
    answer: Answer
    reason: Reason | None
    strata: int
    strata_told: int
    base_n: int
    new_n: int
    new_level: Interval | None = None


def is_part(name: str) -> bool:
    """Whether a metric is judged as a part of TTFT."""
    return name.startswith(PARTS)


def stat_of(name: str) -> str:
    """p50, p90, p99 or mean; "rate" for a throughput."""
    return "rate" if name.endswith("_per_s") else name.rsplit("_", 1)[-1]


def reference_ms(name: str, tables: Sequence[Mapping[str, tuple[Drawn, Drawn]]]) -> float | None:
    """For a part: the mean over strata of TTFT's median, the same for the sides exchanged."""
    if not is_part(name):
        return None
    whole = [table["ttft_p50"] for table in tables if "ttft_p50" in table]
    if not whole:
        return None
    return sum(math.sqrt(max(b.value, 0.0) * max(n.value, 0.0)) for b, n in whole) / len(whole)


def metric_row(
    name: str,
    pairs: Sequence[Pair],
    shared: Shared,
    margin_ratio: float,
    *,
    reference: float | None = None,
    spread: float = 0.0,
) -> Row:
    """Judge one metric. Weights of `pairs` need not add up to 1. `reference` in milliseconds is for a part of TTFT;
    `spread` is how far runs of one side lie apart, as a difference of logarithms: intervals are widened to hold it."""
    kept, reason = _kept(name, pairs)
    total = sum(pair.weight for pair in kept)
    kept = [replace(pair, weight=pair.weight / total) for pair in kept]
    part = reference is not None
    narrow = relative_effect(kept, shared)
    base, new = _values(kept, geometric=narrow.mid is not None and not part)
    effect = widened_ratio(narrow, spread)
    difference = absolute_effect(kept, shared)
    absolute = _widened(difference, math.expm1(spread) * abs(base))
    lower_is_better = stat_of(name) != "rate"
    margin = (-margin_ratio * reference, margin_ratio * reference) if part else relative_margin(margin_ratio)
    judged = absolute if part else effect
    answer = answer_of(judged, margin, lower_is_better=lower_is_better)
    unwidened = answer_of(difference if part else narrow, margin, lower_is_better=lower_is_better)
    reason = reason or (Reason.RUNS_DIFFER if unwidened is not answer else _reason(judged, answer))
    return Row(
        name=name,
        unit="ms" if lower_is_better else "1/s",
        lower_is_better=lower_is_better,
        base=base,
        new=new,
        effect=effect,
        absolute=absolute,
        answer=answer,
        reason=reason if answer is Answer.UNDECIDED else None,
        strata=len(kept),
        strata_told=len(pairs),
        base_n=sum(pair.base.n for pair in kept),
        new_n=sum(pair.new.n for pair in kept),
        new_level=_scaled(level(kept[0].new), spread) if len(pairs) == 1 else None,
    )


def widened_ratio(effect: Interval, spread: float) -> Interval:
    """An effect (new / base - 1) whose interval reaches at least `spread` (in logarithms) to both sides."""
    if effect.lo is None or effect.mid is None or effect.hi is None or spread <= 0.0:
        return effect
    mid = math.log1p(effect.mid)
    return Interval(
        min(effect.lo, math.expm1(mid - spread)), effect.mid, max(effect.hi, math.expm1(mid + spread))
    )


def _widened(interval: Interval, reach: float) -> Interval:
    if interval.lo is None or interval.mid is None or interval.hi is None:
        return interval
    return Interval(
        min(interval.lo, interval.mid - reach), interval.mid, max(interval.hi, interval.mid + reach)
    )


def _scaled(interval: Interval, spread: float) -> Interval:
    return _widened(interval, math.expm1(spread) * abs(interval.mid or 0.0))


def _kept(name: str, pairs: Sequence[Pair]) -> tuple[list[Pair], Reason | None]:
    """The strata that can bear an interval; where there is none all of them, without one, and why."""
    least = LEAST.get(stat_of(name), 0)
    many = [pair for pair in pairs if min(pair.base.n, pair.new.n) >= least]
    if not many:
        return [_bare(pair) for pair in pairs], Reason.FEW_VALUES
    kept = [pair for pair in many if pair.base.draws is not None and pair.new.draws is not None]
    if not kept:
        return [_bare(pair) for pair in many], Reason.FEW_UNITS
    return kept, None


def _bare(pair: Pair) -> Pair:
    return Pair(replace(pair.base, draws=None), replace(pair.new, draws=None), pair.weight)


def _reason(judged: Interval, answer: Answer) -> Reason | None:
    if answer is not Answer.UNDECIDED:
        return None
    if judged.lo is None or judged.hi is None:
        return Reason.NOT_POSITIVE
    return Reason.WIDE if judged.lo <= 0 <= judged.hi else Reason.SMALL


def _values(pairs: Sequence[Pair], *, geometric: bool) -> tuple[float, float]:
    if geometric:
        base = math.exp(sum(p.weight * math.log(p.base.value) for p in pairs))
        return base, math.exp(sum(p.weight * math.log(p.new.value) for p in pairs))
    return sum(p.weight * p.base.value for p in pairs), sum(p.weight * p.new.value for p in pairs)

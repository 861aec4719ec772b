"""Service level objectives: goodput, and whether a level meets what was asked, with intervals.

A condition reads `METRIC[_pQ]=LIMIT`. Every condition bounds each request (`ttft_p99=200ms`: its TTFT is at most
200 ms; `itl_p99=30ms`: the 99th percentile of its own gaps; `itl=30ms`: its largest gap); a request that meets all of
them is good, a failed one never is. A condition with a percentile also bounds the level: at least Q % of its requests
(`itl`: of all its gaps) lie within the limit. That is the same as "percentile Q <= LIMIT" and has an interval even far
out in the tail: the share's, by Wilson with the effective sample size of batches (Korn and Graubard 1998). The
percentile's own interval is Woodruff's (1952): the share's, carried over to values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.batch_means import MIN_BATCHES, Estimate, lag_one, mean_of_batches, t_quantile
from phasemeter.explain.stage_table import LATENCIES, StageTable
from phasemeter.explain.steady import Member, State, Steady, members
from phasemeter.record.errors import InputError

if TYPE_CHECKING:
    from phasemeter.explain.stage_table import Bools, Ints
    from phasemeter.explain.stats import Floats

METRICS = (*LATENCIES, "itl")
GOOD_SHARE = 0.99
"""The goodput that is asked of a level where no condition names a percentile and none names goodput."""
_UNITS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_ITEM = re.compile(r"(?P<metric>[a-z0-9_]+?)(?:_p(?P<percentile>[0-9]+(?:\.[0-9]+)?))?=(?P<value>.+)")
_VALUE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s)")


class Condition(Struct, frozen=True):
    """One condition; `percentile` is None where it bounds single requests alone."""

    metric: str
    limit_ms: float
    percentile: float | None = None

    @property
    def name(self) -> str:
        """As it is written before the equals sign."""
        return self.metric if self.percentile is None else f"{self.metric}_p{self.percentile:g}"


class Slo(Struct, frozen=True):
    """What is asked. `good_share`: the share of good requests that a level must have; None where the percentiles say
    enough."""

    text: str
    conditions: tuple[Condition, ...]
    good_share: float | None


class Met(StrEnum):
    """Three answers; an interval on both sides of the limit decides nothing."""

    MET = "met"
    NOT_MET = "not met"
    UNDECIDED = "undecided"


class Judged(Struct, frozen=True):
    """A condition on a level: the percentile as seen (`value_ms` None: it lies among failed requests), the share within
    the limit (None: nothing has this latency), and the answer."""

    name: str
    limit_ms: float
    percentile: float
    value_ms: float | None
    ci95_ms: tuple[float | None, float | None]
    share: Estimate | None
    met: Met


class Goodput(Struct, frozen=True):
    """Requests that meet every condition: their share and their rate over the time in which they arrived."""

    good: int
    requests: int
    share: Estimate | None
    """None without a request (all were given up on purpose)."""
    per_s: Estimate | None
    asked_share: float | None = None
    met: Met | None = None
    """None where no share was asked."""


class LevelSlo(Struct, frozen=True):
    """One level against the objectives. `steady`: judged on its steady window, else on all of its requests. A level
    whose queue grows is not met whatever its numbers are so far."""

    goodput: Goodput
    conditions: tuple[Judged, ...]
    met: Met
    steady: bool
    note: str = ""


class Sampled(Struct, frozen=True, eq=False):
    """Values of one metric with the batch of each; a failed request's is infinite. `independent`: the most that they
    can count for."""

    values_ms: Floats
    batch: Ints
    independent: int


def parse_slo(text: str) -> Slo:
    """Read "ttft_p99=200ms,tpot=20ms,goodput=95%". Raises InputError with the item that cannot be read."""
    conditions: list[Condition] = []
    good_share: float | None = None
    names: list[str] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        found = _ITEM.fullmatch(item)
        if found is None:
            raise InputError(
                "--slo", item, "write METRIC[_pQ]=LIMIT, for example ttft_p99=200ms or goodput=95%"
            )
        if found["metric"] == "goodput" and found["percentile"] is None:
            good_share = _share(item, found["value"])
            names.append("goodput")
        else:
            conditions.append(_condition(item, found))
            names.append(conditions[-1].name)
    if not conditions:
        raise InputError("--slo", text, "give at least one bound, for example ttft_p99=200ms,tpot_p99=20ms")
    if len(set(names)) != len(names):
        raise InputError("--slo", text, "names a condition twice; keep one of them")
    if good_share is None and all(condition.percentile is None for condition in conditions):
        good_share = GOOD_SHARE
    return Slo(text, tuple(conditions), good_share)


def judge_level(tables: Sequence[StageTable], steady: Steady | None, slo: Slo) -> LevelSlo:
    """One level's stages against `slo`: on the steady windows where there are some, else on everything."""
    settled = steady is not None and steady.state is State.STEADY
    inside = members(tables, steady.windows if steady is not None and settled else None)
    goodput = _goodput(tables, inside, slo)
    judged = tuple(
        _judged(condition, sampled(tables, inside, condition.metric))
        for condition in slo.conditions
        if condition.percentile is not None
    )
    answers = [one.met for one in judged] + ([goodput.met] if goodput.met is not None else [])
    met, note = _worst(answers), ""
    if steady is not None and not settled:
        note = steady.evidence
        met = Met.NOT_MET if steady.state is State.GROWING else met
    return LevelSlo(goodput, judged, met, steady=settled, note=note)


def sampled(tables: Sequence[StageTable], inside: Sequence[Member], metric: str) -> Sampled:
    """All values of one metric at a level. TPOT and gaps that a successful request does not have are left out. A failed
    request stands for as many gaps as a successful one has on average."""
    import numpy as np

    values: list[Floats] = [np.empty(0)]
    batches: list[Ints] = [np.empty(0, dtype=np.int64)]
    n = 0
    for table, member in zip(tables, inside, strict=True):
        n += member.inside.size
        one, batch = _gaps(table, member) if metric == "itl" else _latencies(table, member, metric)
        values.append(one)
        batches.append(batch)
    return Sampled(np.concatenate(values), np.concatenate(batches), n)


def share_within(sample: Sampled, limit_ms: float) -> Estimate | None:
    """The share of values within the limit, with Wilson's interval at the batches' effective sample size; None without
    a value."""
    import numpy as np

    if sample.values_ms.size == 0:
        return None
    return _share_estimate(
        (sample.values_ms <= limit_ms).astype(np.float64), sample.batch, sample.independent
    )


def percentile_of(
    sample: Sampled, percentile: float
) -> tuple[float | None, tuple[float | None, float | None]]:
    """The percentile and Woodruff's interval; a value among failed requests, or a bound past the data, is None."""
    import numpy as np

    ordered = np.sort(sample.values_ms)
    if ordered.size == 0:
        return None, (None, None)
    q = percentile / 100
    value = _inverse(ordered, q)
    if value is None:
        return None, (_inverse(ordered, q), None)
    below = (sample.values_ms <= value).astype(np.float64)
    spread = _share_estimate(below, sample.batch, sample.independent, at=q)
    low = None if spread.lo is None else _inverse(ordered, spread.lo)
    past = spread.hi is None or spread.hi > 1 - 1 / (2 * ordered.size) or q >= 1
    return value, (low, None if past or spread.hi is None else _inverse(ordered, spread.hi))


def wilson(share: float, n: float, z: float) -> tuple[float, float]:
    """Wilson's score interval (1927) of a proportion seen in n trials."""
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    # at the ends the bound is the share itself, and rounding would leave a crumb beside it
    low = 0.0 if share <= 0.0 else max(0.0, middle - reach)
    return low, 1.0 if share >= 1.0 else min(1.0, middle + reach)


def _condition(item: str, found: re.Match[str]) -> Condition:
    if found["metric"] not in METRICS:
        raise InputError(
            "--slo", item, f"there is no such metric; use one of {', '.join(METRICS)} or goodput"
        )
    value = _VALUE.fullmatch(found["value"].strip())
    if value is None or float(value[1]) <= 0:
        raise InputError("--slo", item, "give a positive time with its unit: us, ms or s")
    percentile = None if found["percentile"] is None else float(found["percentile"])
    if percentile is not None and not 0 < percentile < 100:
        raise InputError(
            "--slo", item, "a percentile lies between 0 and 100; write the metric alone for all requests"
        )
    return Condition(found["metric"], float(value[1]) * _UNITS_MS[value[2]], percentile)


def _share(item: str, text: str) -> float:
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text)
    share = -1.0 if found is None else float(found[1]) / (100 if found[2] else 1)
    if not 0 < share < 1:
        raise InputError("--slo", item, "goodput is a share above 0 and below 1, for example 95%")
    return share


def _goodput(tables: Sequence[StageTable], inside: Sequence[Member], slo: Slo) -> Goodput:
    import numpy as np

    good = [misses(t, m, slo) <= 1.0 for t, m in zip(tables, inside, strict=True)]
    batch = np.concatenate([m.batch for m in inside])
    flat = np.concatenate(good)
    share = _share_estimate(flat.astype(np.float64), batch, flat.size) if flat.size else None
    met = None if slo.good_share is None else _answer(share, slo.good_share)
    return Goodput(int(flat.sum()), flat.size, share, _good_per_s(tables, inside, good), slo.good_share, met)


def _good_per_s(
    tables: Sequence[StageTable], inside: Sequence[Member], good: Sequence[Bools]
) -> Estimate | None:
    """Good requests a second, over the time in which they arrived. The one with which that time begins (a stage's first
    arrival) ends no gap, as in `arrived_per_s`; None where all came at one moment."""
    import numpy as np

    rates: list[Floats] = []
    widths: list[Floats] = []
    so_far = 0
    for table, member, hits in zip(tables, inside, good, strict=True):
        width_ns, n = (table.last_ns - member.from_ns) / member.batches, member.batches
        counted = hits & (member.inside > 0)
        own = (member.batch - so_far)[counted]
        so_far += n
        if width_ns > 0:
            rates.append(np.bincount(own, minlength=n).astype(np.float64) * (1e9 / width_ns))
            widths.append(np.full(n, width_ns))
    return mean_of_batches(np.concatenate(rates), np.concatenate(widths)) if rates else None


def misses(table: StageTable, member: Member, slo: Slo) -> Floats:
    """By how much each request misses its tightest condition: its worst latency over the limit, at most 1 where it is
    good, infinite where it failed. A latency that a request does not have breaks nothing."""
    import numpy as np

    worst = np.where(table.ok[member.inside], 0.0, math.inf)
    for condition in slo.conditions:
        if condition.metric == "itl":
            seen = _own_percentiles(table, member, condition.percentile)
        else:
            seen = table.ms[condition.metric][member.inside]
        worst = np.fmax(worst, seen / condition.limit_ms)
    return worst


def _own_percentiles(table: StageTable, member: Member, percentile: float | None) -> Floats:
    """Of each request's gaps, interpolated as everywhere (Hyndman and Fan's type 7); NaN without a gap."""
    import numpy as np

    gaps, sizes = table.gaps_ms(member.inside)
    ordered = gaps[np.lexsort((gaps, np.repeat(np.arange(sizes.size), sizes)))]
    found = np.full(sizes.size, math.nan)
    some = sizes > 0
    starts = (np.cumsum(sizes) - sizes)[some]
    at = (sizes[some] - 1) * ((percentile or 100.0) / 100)
    low = np.floor(at).astype(np.int64)
    high = np.minimum(low + 1, sizes[some] - 1)
    below, above = ordered[starts + low], ordered[starts + high]
    found[some] = below + (above - below) * (at - low)
    return found


def _latencies(table: StageTable, member: Member, metric: str) -> tuple[Floats, Ints]:
    import numpy as np

    values = np.where(table.ok[member.inside], table.ms[metric][member.inside], math.inf)
    there = ~np.isnan(values)
    return values[there], member.batch[there]


def _gaps(table: StageTable, member: Member) -> tuple[Floats, Ints]:
    import numpy as np

    ok = table.ok[member.inside]
    gaps, sizes = table.gaps_ms(member.inside[ok])
    usual = max(1, round(gaps.size / sizes.size)) if sizes.size else 1
    lost = np.repeat(member.batch[~ok], usual)
    batch = np.concatenate((np.repeat(member.batch[ok], sizes), lost))
    return np.concatenate((gaps, np.full(lost.size, math.inf))), batch


def _judged(condition: Condition, sample: Sampled) -> Judged:
    percentile = condition.percentile or 100.0
    value, ci95 = percentile_of(sample, percentile)
    share = share_within(sample, condition.limit_ms)
    met = _answer(share, percentile / 100)
    return Judged(condition.name, condition.limit_ms, percentile, value, ci95, share, met)


def _answer(share: Estimate | None, asked: float) -> Met:
    if share is None or share.lo is None or share.hi is None:
        return Met.UNDECIDED
    if share.lo >= asked:
        return Met.MET
    return Met.NOT_MET if share.hi < asked else Met.UNDECIDED


def _worst(answers: Sequence[Met]) -> Met:
    if Met.NOT_MET in answers:
        return Met.NOT_MET
    return Met.UNDECIDED if Met.UNDECIDED in answers or not answers else Met.MET


def _share_estimate(hits: Floats, batch: Ints, independent: int, at: float | None = None) -> Estimate:
    """Share of hits; `at` puts the interval around another share than the one seen (Woodruff)."""
    import numpy as np

    share = float(hits.mean())
    _, place = np.unique(batch, return_inverse=True)
    counts = np.bincount(place).astype(np.float64)
    sums = np.bincount(place, weights=hits)
    n = float(min(independent, hits.size))
    z = 1.959964
    if counts.size >= MIN_BATCHES and 0.0 < share < 1.0:
        off = sums - share * counts
        r = min(max(lag_one(off / counts), 0.0), 0.9)
        variance: float = counts.size / (counts.size - 1) * float(np.dot(off, off)) / float(counts.sum()) ** 2
        variance *= (1 + r) / (1 - r)
        n = min(n, share * (1 - share) / variance) if variance > 0 else n
        z = t_quantile(0.975, counts.size - 1)
    low, high = wilson(share if at is None else at, max(1.0, n), z)
    return Estimate(share, low, high)


def _inverse(ordered: Floats, share: float) -> float | None:
    """Smallest value with at least this share at or below it; None where it is infinite."""
    place = min(max(math.ceil(share * ordered.size - 1e-9), 1), ordered.size) - 1
    value = float(ordered[place])
    return value if math.isfinite(value) else None

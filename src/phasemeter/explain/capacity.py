"""How much load the measured server takes: the largest level that meets the objectives, and the saturation knee.

Largest level. More load makes nothing better, so each condition's percentile is taken to grow with the level (isotonic
regression, pool adjacent violators); between the last level that keeps the limit and the first that breaks it, the
crossing is interpolated in the logarithm of the percentile. The interval is the 95 % percentile interval of a bootstrap
that draws whole batches within every level. Where all levels keep the limit, or none does, only a bound is told.

Knee. The asymptotes of operational analysis (Denning and Buzen 1978): completions follow a line at low load and stop
at a plateau. The line is the load itself in an open loop, and N / R1 in a closed one (R1 from the lowest level); the
plateau is the best rate of completions of any level. The knee is where they cross. It is told only where the server was
pushed beyond it: a level's queue grows, or the highest level completes less than `SATURATED` of what the line promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from phasemeter.explain.batch_means import Estimate
from phasemeter.explain.levels import LevelLoad
from phasemeter.explain.shape_key import Asked
from phasemeter.explain.slo import Condition, Met, Sampled, Slo, misses, sampled
from phasemeter.explain.stage_table import StageTable, by_level
from phasemeter.explain.steady import Member, State, members

if TYPE_CHECKING:
    import numpy as np

    from phasemeter.explain.stage_table import Ints
    from phasemeter.explain.stats import Floats

Axis = Literal["concurrency", "rate_per_s"]
SATURATED = 0.9
_DRAWS = 400
_BINS = 1024
_SEED = 20_240_301


class Largest(Struct, frozen=True):
    """The largest level that meets the objectives. `met_at`: the largest level tried that met them with none below
    that did not; `not_met_at`: the smallest that did not. `level` is interpolated between levels; None where every
    level met them ("above"), none did ("below"), or nothing can be said."""

    level: float | None
    lo: float | None
    hi: float | None
    met_at: float | None
    not_met_at: float | None
    where: Literal["between", "above", "below", "unknown"]
    by_condition: dict[str, float | None] = {}


class Knee(Struct, frozen=True):
    """Where throughput stops following the load. `level` is None where the highest level is not saturated."""

    level: float | None
    lo: float | None
    hi: float | None
    plateau_per_s: Estimate
    saturated: bool


class Capacity(Struct, frozen=True):
    """What the levels of one kind (rates, or concurrencies) say together."""

    axis: Axis
    levels: tuple[float, ...]
    knee: Knee | None
    largest: Largest | None = None


def capacities(
    tables: Sequence[StageTable], levels: Sequence[LevelLoad], slo: Slo | None
) -> tuple[Capacity, ...]:
    """One for every kind of level of which at least two were measured."""
    stages = by_level(tables)
    found: list[Capacity] = []
    axes: tuple[Axis, ...] = ("concurrency", "rate_per_s")
    for axis in axes:
        mine = [level for level in levels if getattr(level.asked, axis) is not None]
        if len(mine) < 2:
            continue
        loads = tuple(float(getattr(level.asked, axis)) for level in mine)
        largest = None if slo is None else _largest(loads, mine, stages, slo)
        found.append(Capacity(axis, loads, _knee(axis, loads, mine), largest))
    return tuple(found)


def monotone(values: Floats, weights: Floats) -> Floats:
    """The nearest nondecreasing series by weighted least squares: pool adjacent violators."""
    import numpy as np

    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, mass, count = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, heavy, many = blocks.pop()
            whole = heavy + mass
            mean = before if before == mean else (before * heavy + mean * mass) / whole
            mass, count = whole, count + many
        blocks.append((mean, mass, count))
    return np.repeat([b[0] for b in blocks], [b[2] for b in blocks])


def crossing(loads: Sequence[float], over: Floats) -> float:
    """Where a nondecreasing series first rises above zero, interpolated; infinite above all loads, 0 below."""
    import numpy as np

    broken = np.flatnonzero(over > 0)
    if broken.size == 0:
        return float("inf")
    i = int(broken[0])
    if i == 0:
        return 0.0
    low, high = float(over[i - 1]), float(over[i])
    return loads[i - 1] + (loads[i] - loads[i - 1]) * (-low / (high - low))


def _largest(
    loads: tuple[float, ...], levels: Sequence[LevelLoad], stages: dict[Asked, list[StageTable]], slo: Slo
) -> Largest:
    import numpy as np

    met_at, not_met_at = _bracket(loads, levels)
    grows = [_grows(level) for level in levels]
    drawn: list[Floats] = []
    by_condition: dict[str, float | None] = {}
    for name, samples, share in _conditions(levels, stages, slo):
        limits = _drawn_crossings(loads, samples, share, grows)
        by_condition[name] = _finite(float(limits[0]))
        drawn.append(limits)
    least = np.min(np.stack(drawn), axis=0)
    level, draws = float(least[0]), least[1:]
    low, high = (float(v) for v in np.quantile(draws, (0.025, 0.975), method="inverted_cdf"))
    low, high = _held(low, high, loads, levels)
    if level == 0.0 or level == float("inf"):
        where: Literal["above", "below"] = "below" if level == 0.0 else "above"
        return Largest(None, _finite(low), _finite(high), met_at, not_met_at, where, by_condition)
    return Largest(level, _finite(low), _finite(high), met_at, not_met_at, "between", by_condition)


def _held(
    low: float, high: float, loads: tuple[float, ...], levels: Sequence[LevelLoad]
) -> tuple[float, float]:
    """The interval, held to the levels' own answers: few values drawn again look surer than they are, so it ends at no
    place that would call an undecided level met or not met, and not beyond a level that is not met."""
    met_at, not_met_at = _bracket(loads, levels)
    floor, ceiling = met_at or 0.0, float("inf") if not_met_at is None else not_met_at
    open_at = [
        load
        for load, level in zip(loads, levels, strict=True)
        if level.slo is not None and level.slo.met is Met.UNDECIDED and load < ceiling
    ]
    if any(load <= low for load in open_at):
        low = floor
    if any(load >= high for load in open_at):
        high = ceiling
    return low, min(high, ceiling)


def _bracket(loads: tuple[float, ...], levels: Sequence[LevelLoad]) -> tuple[float | None, float | None]:
    answers = [None if level.slo is None else level.slo.met for level in levels]
    not_met = [load for load, met in zip(loads, answers, strict=True) if met is Met.NOT_MET]
    first = min(not_met, default=None)
    met = [
        load
        for load, answer in zip(loads, answers, strict=True)
        if answer is Met.MET and (first is None or load < first)
    ]
    return max(met, default=None), first


_Series = tuple[str, list[tuple[Sampled, float]], float]


def _conditions(
    levels: Sequence[LevelLoad], stages: dict[Asked, list[StageTable]], slo: Slo
) -> list[_Series]:
    """Every condition that bounds a level: (name, (values, limit) by level, share that must lie within)."""
    found: list[_Series] = []
    for condition in slo.conditions:
        if condition.percentile is not None:
            samples = [(_sample(level, stages, condition), condition.limit_ms) for level in levels]
            found.append((condition.name, samples, condition.percentile / 100))
    if slo.good_share is not None:
        found.append(("goodput", [(_badness(level, stages, slo), 1.0) for level in levels], slo.good_share))
    return found


def _members(level: LevelLoad, stages: dict[Asked, list[StageTable]]) -> list[Member]:
    steady = level.steady
    settled = steady is not None and steady.state is State.STEADY
    return members(stages[level.asked], steady.windows if steady is not None and settled else None)


def _sample(level: LevelLoad, stages: dict[Asked, list[StageTable]], condition: Condition) -> Sampled:
    return sampled(stages[level.asked], _members(level, stages), condition.metric)


def _badness(level: LevelLoad, stages: dict[Asked, list[StageTable]], slo: Slo) -> Sampled:
    import numpy as np

    inside = _members(level, stages)
    worst = [misses(t, m, slo) for t, m in zip(stages[level.asked], inside, strict=True)]
    values = np.concatenate(worst)
    return Sampled(values, np.concatenate([m.batch for m in inside]), values.size)


def _drawn_crossings(
    loads: Sequence[float], samples: list[tuple[Sampled, float]], share: float, grows: list[bool]
) -> Floats:
    """The crossing as seen, then one for each bootstrap draw."""
    import numpy as np

    rng = np.random.default_rng(_SEED)
    logs = np.stack(
        [
            np.full(_DRAWS + 1, np.log(_FAR)) if growing else _log_ratios(sample, limit, share, rng)
            for (sample, limit), growing in zip(samples, grows, strict=True)
        ]
    )
    weights = np.asarray([float(max(1, sample.independent)) for sample, _ in samples])
    return np.asarray([crossing(loads, monotone(logs[:, i], weights)) for i in range(logs.shape[1])])


_FAR = 1e3
"""A percentile among failed requests, or at a level whose queue grows, counts as so many times the limit."""


def _log_ratios(sample: Sampled, limit_ms: float, share: float, rng: np.random.Generator) -> Floats:
    """ln(percentile / limit): of the sample, then of draws of whole batches. Of very many values neighbours share a
    bin, narrow ones around the percentile."""
    import numpy as np

    order = np.argsort(sample.values_ms, kind="stable")
    values = np.clip(sample.values_ms[order] / limit_ms, 1 / _FAR, _FAR)
    if values.size == 0:
        return np.zeros(_DRAWS + 1)
    names, place = np.unique(sample.batch, return_inverse=True)
    ends = _bin_ends(values.size, share)
    owner = np.searchsorted(ends, np.arange(values.size), side="left")
    cells = place.reshape(-1)[order] * ends.size + owner
    counts = np.bincount(cells, minlength=names.size * ends.size).reshape(names.size, ends.size)
    times = rng.multinomial(names.size, np.full(names.size, 1 / names.size), _DRAWS)
    times = np.concatenate((np.ones((1, names.size)), times))
    heap = times @ np.cumsum(counts, axis=1, dtype=np.float64)
    at = np.argmax(heap >= share * heap[:, -1:] - 1e-9, axis=1)
    return np.log(values[ends[at]])


def _bin_ends(n: int, share: float) -> Ints:
    """The last value of each bin, as places in order: every value where there are few."""
    import numpy as np

    if n <= 2 * _BINS:
        return np.arange(n, dtype=np.int64)
    near = 4 * min(share, 1 - share)
    coarse = np.linspace(0, n - 1, _BINS)
    fine = np.linspace(max(0.0, share - near) * (n - 1), min(1.0, share + near) * (n - 1), _BINS)
    return np.unique(np.concatenate((coarse, fine)).astype(np.int64))


def _knee(axis: Axis, loads: tuple[float, ...], levels: Sequence[LevelLoad]) -> Knee | None:
    rates = [(load, level.completed_per_s) for load, level in zip(loads, levels, strict=True)]
    seen = [(load, rate) for load, rate in rates if rate is not None and rate.value > 0]
    if len(seen) < 2:
        return None
    slope = 1.0 if axis == "rate_per_s" else seen[0][1].value / seen[0][0]
    plateau = max((rate for _, rate in seen), key=lambda rate: rate.value)
    if not _saturated(levels[-1], slope, seen[-1]) and not any(map(_grows, levels)):
        return Knee(None, None, None, plateau, saturated=False)
    low = None if plateau.lo is None else plateau.lo / slope
    high = None if plateau.hi is None else plateau.hi / slope
    return Knee(plateau.value / slope, low, high, plateau, saturated=True)


def _saturated(level: LevelLoad, slope: float, top: tuple[float, Estimate]) -> bool:
    """Whether the highest level completes clearly less than what came (in an open loop: what was seen to come)."""
    load, reached = top
    came = slope * load if level.arrived_per_s is None else level.arrived_per_s
    return reached.value < SATURATED * came and (reached.hi is None or reached.hi < came)


def _grows(level: LevelLoad) -> bool:
    return level.steady is not None and level.steady.state is State.GROWING


def _finite(value: float) -> float | None:
    return value if 0.0 < value < float("inf") else None

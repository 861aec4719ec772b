"""From draws of two sides to an effect with its interval, and from that to an answer.

The effect of a metric is new / base, taken within each stratum and pooled as a weighted geometric mean, so that the
effect of the sides exchanged is its reciprocal. The interval is the bootstrap's percentile interval, stretched for few
units as Hesterberg (2015, "What Teachers Should Know About the Bootstrap", section 3.5) does: by sqrt(m / (m - 1)) and
by Student's t over the normal quantile, with the degrees of freedom of Welch and Satterthwaite where units differ.
Argued in docs/decisions/005-comparison.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.batch_means import t_quantile
from phasemeter.explain.compare_draws import Drawn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_Z = 1.959963984540054
"""97.5th percentile of the normal distribution."""


class Answer(StrEnum):
    """What a comparison says of one metric."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    UNDECIDED = "undecided"


class Interval(Struct, frozen=True):
    """An estimate with its 95 % interval; None where there is none."""

    lo: float | None = None
    mid: float | None = None
    hi: float | None = None


NO_INTERVAL = Interval()


class Pair(Struct, frozen=True):
    """One stratum on both sides, and its share of the pooled effect."""

    base: Drawn
    new: Drawn
    weight: float


class Shared(Struct, frozen=True):
    """Whether a side's strata were drawn together (runs, blocks: one draw holds for all) or each for itself."""

    base: bool
    new: bool


def relative_effect(pairs: Sequence[Pair], shared: Shared) -> Interval:
    """new / base - 1, pooled geometrically. Empty where a value is not above zero, without lo and hi where a side
    has too few units."""
    import numpy as np

    if not pairs or any(drawn.value <= 0 for p in pairs for drawn in (p.base, p.new)):
        return NO_INTERVAL
    mid = sum(p.weight * (math.log(p.new.value) - math.log(p.base.value)) for p in pairs)
    if any(_not_positive(drawn) for p in pairs for drawn in (p.base, p.new)):
        return Interval(mid=math.expm1(mid))
    found = _interval(
        mid,
        _streams([_scaled(p.base, -p.weight, np.log) for p in pairs], joined=shared.base)
        + _streams([_scaled(p.new, p.weight, np.log) for p in pairs], joined=shared.new),
    )
    if found is None:
        return Interval(mid=math.expm1(mid))
    return Interval(math.expm1(found[0]), math.expm1(mid), math.expm1(found[1]))


def absolute_effect(pairs: Sequence[Pair], shared: Shared) -> Interval:
    """new - base in the metric's unit, pooled as a weighted mean."""
    if not pairs:
        return NO_INTERVAL
    mid = sum(p.weight * (p.new.value - p.base.value) for p in pairs)
    if any(drawn.draws is None for p in pairs for drawn in (p.base, p.new)):
        return Interval(mid=mid)
    found = _interval(
        mid,
        _streams([_scaled(p.base, -p.weight) for p in pairs], joined=shared.base)
        + _streams([_scaled(p.new, p.weight) for p in pairs], joined=shared.new),
    )
    return Interval(mid=mid) if found is None else Interval(found[0], mid, found[1])


def level(drawn: Drawn) -> Interval:
    """One number of one stratum and side with its interval."""
    if drawn.draws is None:
        return Interval(mid=drawn.value)
    found = _interval(drawn.value, [(drawn.draws, drawn.units)])
    return Interval(mid=drawn.value) if found is None else Interval(found[0], drawn.value, found[1])


def answer_of(effect: Interval, margin: tuple[float, float], *, lower_is_better: bool) -> Answer:
    """`same` when the whole interval lies within the margin; better or worse when it excludes zero and the estimate
    lies outside the margin; else undecided, because then either the data is too little or the change too small."""
    if effect.lo is None or effect.mid is None or effect.hi is None:
        return Answer.UNDECIDED
    low, high = margin
    if low < effect.lo and effect.hi < high:
        return Answer.SAME
    grew, shrank = effect.lo > 0 and effect.mid > high, effect.hi < 0 and effect.mid < low
    if not grew and not shrank:
        return Answer.UNDECIDED
    return Answer.WORSE if grew == lower_is_better else Answer.BETTER


def relative_margin(margin_ratio: float) -> tuple[float, float]:
    """The margin as (low, high) of new / base - 1, the same for the sides exchanged."""
    return -margin_ratio / (1.0 + margin_ratio), margin_ratio


_Stream = tuple["Floats", int]
"""Draws that do not depend on those of another stream, and how many units they were drawn from."""


def _not_positive(drawn: Drawn) -> bool:
    """Whether a logarithm of some draw would not exist."""
    import numpy as np

    return drawn.draws is None or bool((np.nan_to_num(drawn.draws, nan=1.0) <= 0).any())


def _scaled(drawn: Drawn, weight: float, change: np.ufunc | None = None) -> _Stream:
    assert drawn.draws is not None
    return weight * (drawn.draws if change is None else change(drawn.draws)), drawn.units


def _streams(parts: list[_Stream], *, joined: bool) -> list[_Stream]:
    if not joined:
        return parts
    total = parts[0][0].copy()
    for draws, _ in parts[1:]:
        total += draws
    return [(total, min(m for _, m in parts))]


def _interval(mid: float, streams: list[_Stream]) -> tuple[float, float] | None:
    """95 % interval of the streams' sum around `mid`; None where hardly a draw is left."""
    import numpy as np

    total = np.zeros(streams[0][0].size)
    above, below, spread = 0.0, 0.0, 0.0
    for draws, m in streams:
        kept = draws[~np.isnan(draws)]
        if kept.size < draws.size / 2:
            return None
        raw = float(kept.var(ddof=1))
        variance = raw * m / (m - 1)
        above, below, spread = above + variance, below + variance**2 / (m - 1), spread + raw
        total += draws
    low, high = np.nanpercentile(total, (2.5, 97.5))
    stretch = 1.0
    if spread > 0.0 and below > 0.0:
        stretch = math.sqrt(above / spread) * t_quantile(0.975, above**2 / below) / _Z
    return min(mid, mid + stretch * (float(low) - mid)), max(mid, mid + stretch * (float(high) - mid))

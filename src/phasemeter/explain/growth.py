"""How time grows with length: local exponents between neighbouring lengths, and the slope inside a
request."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.columns import by_size
from phasemeter.explain.shape_key import Asked
from phasemeter.explain.stats import MIN_FOR_INTERVAL, distribution, interval, medians_drawn

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from phasemeter.explain.stats import Blocks

SQUARE = 2.0
"""The exponent of "twice the length, four times the time"."""
_MIN_GAPS = 4


class Exponent(Struct, frozen=True):
    """d ln t / d ln N between two neighbouring lengths: 1 is linear, 2 is the square law, 0 does not grow.

    `metric` is "prefill", "first" (where prefill was not told apart; the constant part flattens it) or "tpot"
    (then the lengths are mean contexts). `output_tokens` is None where every length was measured with an
    output of its own. `excludes_square` is True when 2 lies outside the interval, None without an interval.
    """

    metric: str
    from_tokens: int
    to_tokens: int
    output_tokens: int | None
    concurrency: int | None
    exponent: float
    ci95: tuple[float, float] | None = None
    excludes_square: bool | None = None
    rate_per_s: float | None = None

    @property
    def asked(self) -> Asked:
        """The level of load it was measured at."""
        return Asked(self.concurrency, self.rate_per_s)


class DecodeSlope(Struct, frozen=True):
    """Growth of the gap between tokens with position inside a request, microseconds a token a token (median
    over `n` requests). `floor_us_per_token` is what reading one more token of KV cache costs at the
    ceilings; None without ceilings."""

    n: int
    us_per_token: float
    ci95: tuple[float, float] | None = None
    floor_us_per_token: float | None = None


class Point(Struct, frozen=True):
    """All values of one metric at one length, with the block each came from."""

    tokens: int
    values_ms: tuple[float, ...]
    blocks: tuple[int, ...]


def exponents(
    metric: str, points: Sequence[Point], *, output_tokens: int | None, asked: Asked
) -> list[Exponent]:
    """Local exponents between neighbours of `points`, ln(t2 / t1) / ln(N2 / N1) of the medians. Where both
    lengths were measured in the same blocks (five or more) they are resampled together. Lengths without a
    positive median are left out."""
    usable = sorted((p for p in points if p.values_ms and _median(p) > 0.0), key=lambda p: p.tokens)
    found: list[Exponent] = []
    for near, far in pairwise(usable):
        if near.tokens == far.tokens:
            continue
        span = math.log(far.tokens / near.tokens)
        ci95 = _interval(near, far, span)
        found.append(
            Exponent(
                metric=metric,
                from_tokens=near.tokens,
                to_tokens=far.tokens,
                output_tokens=output_tokens,
                concurrency=asked.concurrency,
                rate_per_s=asked.rate_per_s,
                exponent=math.log(_median(far) / _median(near)) / span,
                ci95=ci95,
                excludes_square=None if ci95 is None else not ci95[0] <= SQUARE <= ci95[1],
            )
        )
    return found


def decode_slope(
    gaps_ns: Sequence[NDArray[np.float64]], blocks: Blocks, floor_us_per_token: float | None
) -> DecodeSlope | None:
    """Does a token take longer the later it comes? Least squares of the gap on its position, request by
    request; None where no request has four gaps."""
    import numpy as np

    sizes = np.array([gaps.size for gaps in gaps_ns], dtype=np.int64)
    return decode_slopes(np.concatenate([np.empty(0), *gaps_ns]), sizes, blocks, floor_us_per_token)


def decode_slopes(
    gaps_ns: NDArray[np.float64] | NDArray[np.int64],
    sizes: NDArray[np.int64],
    blocks: Blocks,
    floor_us_per_token: float | None,
) -> DecodeSlope | None:
    """The same with the gaps of all requests one behind the other, and how many each has."""
    import numpy as np

    slopes, known = np.zeros(sizes.size), sizes >= _MIN_GAPS
    for members, gaps in by_size(gaps_ns, sizes):
        if gaps.shape[1] >= _MIN_GAPS:
            place = np.arange(gaps.shape[1], dtype=np.float64)
            place -= place.mean()
            slopes[members] = gaps.astype(np.float64) @ place / np.dot(place, place) / 1e3
    dist = distribution(slopes[known], np.asarray(blocks, dtype=np.int64)[known])
    if dist is None:
        return None
    return DecodeSlope(dist.n, dist.p50, dist.ci95_p50, floor_us_per_token)


def _median(point: Point) -> float:
    import numpy as np

    return float(np.median(point.values_ms))


def _interval(near: Point, far: Point, span: float) -> tuple[float, float] | None:
    import numpy as np

    if min(len(near.values_ms), len(far.values_ms)) < MIN_FOR_INTERVAL:
        return None
    together = set(near.blocks) == set(far.blocks) and len(set(near.blocks)) >= MIN_FOR_INTERVAL
    low = medians_drawn(near.values_ms, near.blocks, seed=1)
    high = medians_drawn(far.values_ms, far.blocks, seed=1 if together else 2)
    positive = (low > 0.0) & (high > 0.0)
    if not positive.all():
        return None
    return interval(np.log(high / low) / span)

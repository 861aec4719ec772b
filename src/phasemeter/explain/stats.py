"""Distributions with an interval on the median, exact on small samples and quick on millions of values.

Percentiles interpolate linearly between order statistics (numpy's "linear", Hyndman and Fan's type 7). The
interval of the median is the 2.5th to 97.5th percentile of a bootstrap with a fixed seed. Where the values
come from at least five blocks of a plan, whole blocks are drawn: values of one block share the machine's
mood and are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Blocks = Sequence[int] | NDArray[np.int64]

MIN_FOR_INTERVAL = 5
"""Fewer values than this get no interval; fewer blocks than this are not drawn as blocks."""

DRAWS = 1000
_SEED = 20_240_229
_BINS = 1024


class Dist(Struct, frozen=True):
    """A distribution in the unit that its field's name carries. `ci95_p50` is None for fewer than five
    values."""

    n: int
    mean: float
    p50: float
    p90: float
    p99: float
    ci95_p50: tuple[float, float] | None = None


def distribution(values: Sequence[float] | Floats, blocks: Blocks | None = None) -> Dist | None:
    """Describe `values`; `blocks` names the block each value came from. None when there is no value."""
    import numpy as np

    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        return None
    p50, p90, p99 = (float(q) for q in np.percentile(data, (50, 90, 99)))
    low, high = float(data.min()), float(data.max())
    return Dist(
        n=int(data.size),
        mean=min(max(float(data.mean()), low), high),
        p50=p50,
        p90=p90,
        p99=p99,
        ci95_p50=interval_of_median(data, blocks),
    )


def interval_of_median(
    values: Sequence[float] | Floats, blocks: Blocks | None = None
) -> tuple[float, float] | None:
    """95 % bootstrap interval of the median; None for fewer than five values."""
    import numpy as np

    data = np.asarray(values, dtype=np.float64)
    if data.size < MIN_FOR_INTERVAL:
        return None
    return interval(medians_drawn(data, blocks))


def interval(drawn: Floats) -> tuple[float, float]:
    """2.5th and 97.5th percentile of bootstrap draws."""
    import numpy as np

    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(low), float(high)


def medians_drawn(
    values: Sequence[float] | Floats, blocks: Blocks | None = None, seed: int = _SEED
) -> Floats:
    """Bootstrap draws of the median. Two samples given the same set of at least five blocks and the same
    seed draw the same blocks, so that their draws may be compared one by one (paired)."""
    import numpy as np

    data = np.asarray(values, dtype=np.float64)
    order = np.argsort(data, kind="stable")
    rng = np.random.default_rng(seed)
    if blocks is not None:
        names, member = np.unique(np.asarray(blocks), return_inverse=True)
        if names.size >= MIN_FOR_INTERVAL:
            return _by_block(data[order], member.reshape(-1)[order], names.size, rng)
    return _by_value(data[order], rng)


def _by_value(ordered: Floats, rng: np.random.Generator) -> Floats:
    """Medians of resampled values, drawn from their exact bootstrap distribution instead of by resampling:
    the m-th of n uniform order statistics is Beta(m, n - m + 1), and value number ceil(n U) stands at
    quantile U."""
    import numpy as np

    n = ordered.size
    lower = (n + 1) // 2
    u = rng.beta(lower, n - lower + 1, DRAWS)
    first = ordered[np.minimum((n * u).astype(np.int64), n - 1)]
    if n % 2:
        return first
    u = u + (1.0 - u) * rng.beta(1.0, n - lower, DRAWS)
    return (first + ordered[np.minimum((n * u).astype(np.int64), n - 1)]) / 2.0


def _by_block(ordered: Floats, member: NDArray[np.int64], n_blocks: int, rng: np.random.Generator) -> Floats:
    """Medians of resampled blocks: each draw weights every value by how often its block was drawn. Above
    1,024 values neighbours share a bin, so the median is exact to 0.1 % of the ranks."""
    import numpy as np

    weights = rng.multinomial(n_blocks, np.full(n_blocks, 1.0 / n_blocks), DRAWS).astype(np.float64)
    if ordered[0] == ordered[-1]:
        return np.full(DRAWS, ordered[0])
    bins = min(ordered.size, _BINS)
    place = (np.arange(ordered.size) * bins) // ordered.size
    counts = np.bincount(member * bins + place, minlength=n_blocks * bins).reshape(n_blocks, bins)
    representative = np.bincount(place, weights=ordered, minlength=bins) / np.bincount(place, minlength=bins)
    heap = weights @ np.cumsum(counts, axis=1, dtype=np.float64)
    total = heap[:, -1:]
    lower = np.argmax(heap >= total / 2.0, axis=1)
    upper = np.argmax(heap > total / 2.0, axis=1)
    return (representative[lower] + representative[upper]) / 2.0


def slope(x: Floats, y: Floats) -> float | None:
    """Least-squares slope of y on x; None where x does not vary."""
    import numpy as np

    centred = x - x.mean()
    spread = float(np.dot(centred, centred))
    return None if spread == 0.0 else float(np.dot(centred, y)) / spread


def theil_sen(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> tuple[float, float, float] | None:
    """Median of the slopes between all pairs, with its 95 % interval by Kendall's tau (Sen 1968, no tie
    correction). At most 400 points are looked at, evenly taken. None for fewer than five points or where x
    does not vary."""
    import numpy as np

    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if xs.size > 400:
        keep = np.linspace(0, xs.size - 1, 400).astype(np.int64)
        xs, ys = xs[keep], ys[keep]
    n = xs.size
    if n < MIN_FOR_INTERVAL:
        return None
    i, j = np.triu_indices(n, 1)
    dx = xs[j] - xs[i]
    moved = dx != 0.0
    if not moved.any():
        return None
    slopes = np.sort((ys[j] - ys[i])[moved] / dx[moved])
    reach = 1.96 * (n * (n - 1) * (2 * n + 5) / 18.0) ** 0.5
    low = max(int((slopes.size - reach) / 2.0), 0)
    high = min(int(np.ceil((slopes.size + reach) / 2.0)), slopes.size - 1)
    return float(slopes[low]), float(np.median(slopes)), float(slopes[high])

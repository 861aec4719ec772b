"""Distributions with an interval on the median, exact on small samples and quick on millions of values.

Percentiles interpolate linearly between order statistics (numpy's "linear", Hyndman and Fan's type 7). The
interval of the median is the 2.5th to 97.5th percentile of a bootstrap with a fixed seed. Where the values
come from at least five blocks of a plan, whole blocks are drawn: values of one block share the machine's
mood and are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Blocks = Sequence[int] | NDArray[np.int64]
    _Part = Callable[[int, int], tuple[Floats, NDArray[np.int64]]]
    """Values in ascending order and the number of each one's block, from one rank to another."""

MIN_FOR_INTERVAL = 5
"""Fewer values than this get no interval; fewer blocks than this are not drawn as blocks."""

DRAWS = 1000
_SEED = 20_240_229
_BINS = 1024
_AT_ONCE = 1_000_000


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


def grouped_distribution(
    values: NDArray[np.int64] | Floats, groups: NDArray[np.int64], sizes: NDArray[np.int64], scale: float
) -> Dist | None:
    """What `distribution(values / scale, np.repeat(groups, sizes))` says, for many millions of values in groups that
    stand one behind the other, in less memory."""
    import numpy as np

    if values.size == 0:
        return None
    data = values / scale
    low, high, mean = float(data.min()), float(data.max()), float(data.mean())
    p50, p90, p99 = (float(q) for q in np.percentile(data, (50, 90, 99), overwrite_input=True))
    del data  # as large as `values`, and what follows needs as much again
    ci95 = None
    if values.size >= MIN_FOR_INTERVAL:
        some = sizes > 0
        names, member = np.unique(groups[some], return_inverse=True)
        if names.size >= MIN_FOR_INTERVAL:
            whole = values.dtype == np.int64
            part = _packed(values.astype(np.int64, copy=False), member, sizes[some], scale) if whole else None
            part = part or _sorted_part(values / scale, np.repeat(member, sizes[some]))
            drawn = _by_block(part, values.size, names.size, np.random.default_rng(_SEED))
        else:
            drawn = _by_value(np.sort(values / scale), np.random.default_rng(_SEED))
        ci95 = interval(drawn)
    return Dist(int(values.size), min(max(mean, low), high), p50, p90, p99, ci95)


def medians_drawn(
    values: Sequence[float] | Floats, blocks: Blocks | None = None, seed: int = _SEED
) -> Floats:
    """Bootstrap draws of the median. Two samples given the same set of at least five blocks and the same
    seed draw the same blocks, so that their draws may be compared one by one (paired)."""
    import numpy as np

    data = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)
    if blocks is not None:
        names, member = np.unique(np.asarray(blocks), return_inverse=True)
        if names.size >= MIN_FOR_INTERVAL:
            return _by_block(_sorted_part(data, member.reshape(-1)), data.size, names.size, rng)
    return _by_value(np.sort(data), rng)


def _sorted_part(values: Floats, member: NDArray[np.int64]) -> _Part:
    import numpy as np

    order = np.argsort(values, kind="stable")
    return lambda begin, end: (values[order[begin:end]], member[order[begin:end]])


def _packed(
    values: NDArray[np.int64], member: NDArray[np.int64], sizes: NDArray[np.int64], scale: float
) -> _Part | None:
    """As `_sorted_part` of `values / scale`, three times as fast: each value is packed with its group into one integer,
    and these are sorted. None where they do not fit, or where equal values would not keep their order."""
    import numpy as np

    if bool((np.diff(member) < 0).any()):
        return None
    low, bits = int(values.min()), int(member.max()).bit_length()
    if (int(values.max()) - low).bit_length() + bits > 62:
        return None
    keys = values - low
    keys <<= bits
    keys += np.repeat(member, sizes)
    keys.sort()
    mask = (1 << bits) - 1
    return lambda begin, end: (((keys[begin:end] >> bits) + low) / scale, keys[begin:end] & mask)


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


def _by_block(part: _Part, n: int, n_blocks: int, rng: np.random.Generator) -> Floats:
    """Medians of resampled blocks: each draw weights every value by how often its block was drawn. Above
    1,024 values neighbours share a bin, so the median is exact to 0.1 % of the ranks."""
    import numpy as np

    weights = rng.multinomial(n_blocks, np.full(n_blocks, 1.0 / n_blocks), DRAWS).astype(np.float64)
    lowest, highest = part(0, 1)[0][0], part(n - 1, n)[0][0]
    if lowest == highest:
        return np.full(DRAWS, lowest)
    bins = min(n, _BINS)
    counts = np.zeros((n_blocks, bins), dtype=np.int64)
    representative = np.zeros(bins)
    together = max(1, bins * _AT_ONCE // n)
    for one in range(0, bins, together):
        end_bin = min(one + together, bins)
        begin, end = -(-one * n // bins), -(-end_bin * n // bins)  # the ranks that fall into these bins
        ordered, member = part(begin, end)
        place = np.arange(begin, end) * bins // n - one
        width = end_bin - one
        here = np.bincount(member * width + place, minlength=n_blocks * width)
        counts[:, one:end_bin] = here.reshape(n_blocks, width)
        representative[one:end_bin] = np.bincount(place, weights=ordered) / np.bincount(place)
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

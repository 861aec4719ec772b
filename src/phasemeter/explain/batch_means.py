"""Batch means: honest intervals and trends of values that depend on their neighbours in time.

Requests of a queue share its moods, so n of them are worth far fewer than n independent ones. Cut into batches much
longer than a mood, the batches' means are nearly independent (Law and Kelton, Simulation Modeling and Analysis, ch. 9).
What correlation is left between neighbouring batches widens the interval by (1 + r) / (1 - r), as for an AR(1) series.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from phasemeter.explain.stats import Floats

MIN_BATCHES = 5
_MOST_CORRELATION = 0.9


class Estimate(Struct, frozen=True):
    """A value with its 95 % interval; `lo` and `hi` are None where the data give no such bound."""

    value: float
    lo: float | None = None
    hi: float | None = None


def t_quantile(p: float, dof: float) -> float:
    """Quantile of Student's t: Abramowitz and Stegun 26.7.5, within 1 % from three degrees of freedom on."""
    x = NormalDist().inv_cdf(p)
    g1 = (x**3 + x) / 4
    g2 = (5 * x**5 + 16 * x**3 + 3 * x) / 96
    g3 = (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384
    g4 = (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160
    return x + g1 / dof + g2 / dof**2 + g3 / dof**3 + g4 / dof**4


def lag_one(values: Floats) -> float:
    """Correlation between neighbours, corrected for its bias of -1/n in short series; 0 where nothing varies."""
    import numpy as np

    centred = values - values.mean()
    spread = float(np.dot(centred, centred))
    if spread <= 0.0 or values.size < 3:
        return 0.0
    return float(np.dot(centred[1:], centred[:-1])) / spread + 1.0 / values.size


def mean_of_batches(values: Floats, widths: Floats | None = None) -> Estimate:
    """Mean of batch values with its t interval; no interval below five batches. Batches of unequal `widths` count by
    their width, so that a rate is what was counted over the time that it took; the interval is then a ratio
    estimator's (Cochran, Sampling Techniques, ch. 6). Of values that are never negative neither bound is."""
    import numpy as np

    n = values.size
    weights = np.ones(n) if widths is None else widths / float(widths.mean())
    value = float(np.dot(weights, values)) / n
    if n < MIN_BATCHES:
        return Estimate(value)
    off = weights * (values - value)
    r = min(max(lag_one(off), 0.0), _MOST_CORRELATION)
    error = (float(np.dot(off, off)) / (n - 1) * (1 + r) / (1 - r) / n) ** 0.5
    reach = t_quantile(0.975, n - 1) * error
    return Estimate(value, max(value - reach, min(0.0, float(values.min()))), value + reach)


class Trend(Struct, frozen=True):
    """A straight line through batch means: its change from first to last relative to the mean, and whether the slope
    differs from zero (1 % level, residuals taken as AR(1))."""

    change: float
    significant: bool


def trend_of(values: Floats) -> Trend | None:
    """None for fewer than five batches, or where the mean is not positive."""
    import numpy as np

    n = values.size
    middle = float(values.mean()) if n else 0.0
    if n < MIN_BATCHES or middle <= 0.0:
        return None
    x = np.arange(n, dtype=np.float64) - (n - 1) / 2
    spread = float(np.dot(x, x))
    slope = float(np.dot(x, values)) / spread
    rest = values - middle - slope * x
    r = min(max(lag_one(rest), 0.0), _MOST_CORRELATION)
    dof = max(2.0, n * (1 - r) / (1 + r) - 2)
    error = (float(np.dot(rest, rest)) / (n - 2) * (1 + r) / (1 - r) / spread) ** 0.5
    clear = abs(slope) > t_quantile(0.995, max(3.0, dof)) * error if error > 0 else slope != 0.0
    return Trend(slope * (n - 1) / middle, clear)


def mser(values: Floats) -> int:
    """How many values to cut from the start so that the mean of the rest has the smallest standard error (marginal
    standard error rule, White 1997): argmin over d of sum((x - mean)^2) / (n - d)^2. At least a tenth of the series is
    kept; a cut in the second half says that the series has not settled."""
    import numpy as np

    n = values.size
    kept = np.arange(n, 0, -1, dtype=np.float64)
    sums = np.cumsum(values[::-1])[::-1]
    squares = np.cumsum((values**2)[::-1])[::-1]
    spread = np.maximum(squares - sums**2 / kept, 0.0)
    return int(np.argmin((spread / kept**2)[: max(1, n - max(5, n // 10))]))

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.explain.stats import distribution, interval_of_median, medians_drawn, slope, theil_sen

_VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


def test_nothing_has_no_distribution():
    assert distribution([]) is None


def test_exact_on_small_samples():
    dist = distribution([4.0, 1.0, 3.0, 2.0])
    assert (dist.n, dist.mean, dist.p50) == (4, 2.5, 2.5)
    assert dist.p90 == pytest.approx(3.7)
    assert dist.p99 == pytest.approx(3.97)
    assert dist.ci95_p50 is None
    assert distribution([7.0]).p99 == 7.0


@given(_VALUES)
def test_order_and_bounds(values):
    dist = distribution(values)
    assert min(values) <= dist.p50 <= dist.p90 <= dist.p99 <= max(values)
    assert min(values) <= dist.mean <= max(values)
    if dist.ci95_p50 is None:
        assert len(values) < 5
    else:
        low, high = dist.ci95_p50
        assert min(values) <= low <= high <= max(values)


def test_interval_is_the_same_every_time():
    values = np.random.default_rng(3).normal(size=40)
    assert interval_of_median(values) == interval_of_median(values)


@pytest.mark.parametrize("n", [5, 6])
def test_draws_follow_the_exact_bootstrap(n):
    """Against every possible resample of n values (n^n of them, counted by their multiset)."""
    values = np.arange(n, dtype=float)
    medians = np.array([np.median(pick) for pick in itertools.product(values, repeat=n)])
    drawn = medians_drawn(values)
    assert drawn.mean() == pytest.approx(medians.mean(), abs=0.12)
    assert drawn.std() == pytest.approx(medians.std(), rel=0.1)
    assert set(np.unique(drawn)) <= set(np.unique(medians))


def test_blocks_widen_the_interval():
    rng = np.random.default_rng(5)
    blocks = np.repeat(np.arange(6), 50)
    values = rng.normal(size=6)[blocks] * 10 + rng.normal(size=300)
    low, high = interval_of_median(values, blocks)
    narrow_low, narrow_high = interval_of_median(values)
    assert high - low > 2 * (narrow_high - narrow_low)


def test_four_blocks_are_not_drawn_as_blocks():
    values = np.random.default_rng(1).normal(size=40)
    assert interval_of_median(values, [i % 4 for i in range(40)]) == interval_of_median(values)


def test_block_medians_are_weighted_medians():
    values, blocks = [1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0], [0, 0, 1, 2, 3, 4, 4]
    drawn = medians_drawn(values, blocks)
    rng = np.random.default_rng(20_240_229)
    for weights, median in zip(rng.multinomial(5, [0.2] * 5, 1000), drawn, strict=True):
        pooled = [v for v, b in zip(values, blocks, strict=True) for _ in range(weights[b])]
        assert median == pytest.approx(np.median(pooled))


def test_interval_covers_the_true_median():
    rng = np.random.default_rng(11)
    hits = 0
    for _ in range(200):
        low, high = interval_of_median(rng.exponential(size=25))
        hits += low <= np.log(2) <= high
    assert 175 <= hits <= 200


def test_large_block_sample_is_binned_closely():
    values = np.random.default_rng(2).normal(size=20_000)
    blocks = np.arange(20_000) % 10
    low, high = interval_of_median(values, blocks)
    assert low < np.median(values) < high
    assert high - low < 0.08


def test_slopes():
    x = np.arange(10.0)
    assert slope(x, 3 * x + 1) == pytest.approx(3.0)
    assert slope(np.ones(4), np.arange(4.0)) is None
    low, middle, high = theil_sen(x, 2 * x + np.array([0, 0, 0, 50, 0, 0, 0, 0, 0, 0]))
    assert middle == pytest.approx(2.0)
    assert low <= 2.0 <= high
    assert theil_sen([1, 2], [1, 2]) is None
    assert theil_sen([1] * 6, range(6)) is None


def test_theil_sen_of_noise_holds_zero():
    rng = np.random.default_rng(0)
    held = sum(
        low <= 0 <= high for low, _, high in (theil_sen(range(30), rng.normal(size=30)) for _ in range(100))
    )
    assert held >= 85


def test_theil_sen_thins_large_samples():
    assert theil_sen(np.arange(5000.0), np.arange(5000.0) * 4)[1] == pytest.approx(4.0)

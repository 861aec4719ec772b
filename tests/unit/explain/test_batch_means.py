from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from phasemeter.explain.batch_means import lag_one, mean_of_batches, mser, t_quantile, trend_of


@pytest.mark.parametrize("dof", [3, 4, 9, 19, 100])
@pytest.mark.parametrize("p", [0.6, 0.9, 0.975, 0.995])
def test_the_t_quantile_is_scipys(dof, p):
    assert t_quantile(p, dof) == pytest.approx(student.ppf(p, dof), rel=0.02)


def ar1(r, n, rng):
    found = [rng.normal()]
    for _ in range(n - 1):
        found.append(r * found[-1] + rng.normal())
    return np.asarray(found)


def test_lag_one_finds_the_correlation_of_neighbours():
    assert lag_one(ar1(0.6, 5000, np.random.default_rng(1))) == pytest.approx(0.6, abs=0.05)
    assert lag_one(np.ones(10)) == 0.0


@pytest.mark.parametrize("r", [0.0, 0.4])
def test_the_interval_covers_the_mean_as_often_as_it_says(r):
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(300):
        found = mean_of_batches(100 + ar1(r, 20, rng))
        hits += found.lo <= 100 <= found.hi
    assert 0.90 <= hits / 300 <= 0.99


def test_few_batches_have_no_interval():
    found = mean_of_batches(np.asarray([1.0, 2.0, 3.0]))
    assert (found.value, found.lo, found.hi) == (2.0, None, None)


def test_batches_of_unequal_width_count_by_their_time():
    """10 a second for 40 s and 40 a second for 20 s are 1,200 in 60 s, however each stretch was cut."""
    rates = np.asarray([10.0] * 4 + [40.0] * 8)
    widths = np.asarray([10.0] * 4 + [2.5] * 8)
    found = mean_of_batches(rates, widths)
    assert found.value == pytest.approx(1200 / 60)
    assert found.lo < found.value < found.hi
    alike, plain = mean_of_batches(rates, np.full(12, 7.0)), mean_of_batches(rates)
    assert (alike.value, alike.lo, alike.hi) == pytest.approx((plain.value, plain.lo, plain.hi))


def test_a_rate_has_no_negative_bound():
    assert mean_of_batches(np.asarray([0.0, 0.0, 0.0, 0.0, 9.0])).lo == 0.0
    assert mean_of_batches(np.asarray([-1.0, 1.0, -1.0, 1.0, 0.0])).lo < 0.0


def test_mser_cuts_the_ramp_and_nothing_of_a_level_series():
    rng = np.random.default_rng(3)
    flat = 10 + 0.3 * rng.normal(size=100)
    ramp = np.concatenate((np.linspace(0, 9, 20), flat[20:]))
    assert 18 <= mser(ramp) <= 30
    assert mser(flat) <= 50
    assert mser(np.linspace(0, 9, 100)) > 50  # never settles


def test_a_trend_is_told_and_noise_is_not():
    rng = np.random.default_rng(4)
    grows = trend_of(10 + np.linspace(0, 5, 20) + 0.3 * rng.normal(size=20))
    assert grows.significant
    assert grows.change == pytest.approx(0.4, abs=0.05)
    false = sum(trend_of(10 + ar1(0.3, 20, rng)).significant for _ in range(200))
    assert false <= 12
    assert trend_of(np.zeros(20)) is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_mser_always_keeps_something(values):
    assert 0 <= mser(np.asarray(values)) < len(values)

"""Largest level and knee of queues whose answer is known from a long simulation, or from theory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.explain.capacity import crossing, monotone
from phasemeter.explain.slo import parse_slo
from phasemeter.explain.summary import summarise, summary_json
from unit.explain.queues import arrivals, closed, md1, served, sweep


def capacity(whole, slo=None):
    return summarise(whole, slo=None if slo is None else parse_slo(slo)).under_load.capacities


def percentile_at(rate, q, service_s=0.1, n=30_000):
    came = arrivals(rate, n, seed=1234)
    spent = sorted(end - at for at, (_, end) in zip(came, served(came, lambda _: service_s), strict=True))
    return spent[int(q * n)] * 1e3


def rate_of(limit_ms, q):
    """The rate at which the percentile of an M/D/1 queue reaches the limit, by bisection of long runs."""
    low, high = 0.5, 9.9
    for _ in range(9):
        middle = (low + high) / 2
        low, high = (middle, high) if percentile_at(middle, q) <= limit_ms else (low, middle)
    return low


def test_the_largest_rate_of_a_queue_is_found_between_its_levels():
    truth = rate_of(400.0, 0.95)
    [found] = capacity(
        sweep(*[md1(r, 2000, seed=int(10 * r)) for r in (2, 4, 5, 6, 7, 8, 11)]), "ttft_p95=400ms"
    )
    largest = found.largest
    assert (found.axis, largest.where) == ("rate_per_s", "between")
    assert largest.met_at <= truth <= largest.not_met_at
    assert largest.level == pytest.approx(truth, rel=0.1)
    assert largest.lo <= largest.level <= largest.hi


def test_the_interval_covers_the_truth():
    truth = rate_of(300.0, 0.9)
    hits = 0
    for seed in range(7):
        stages = [md1(r, 600, seed=100 * seed + i) for i, r in enumerate((4, 6, 7, 8, 9))]
        [found] = capacity(sweep(*stages), "ttft_p90=300ms")
        low, high = found.largest.lo or 0.0, found.largest.hi or float("inf")
        hits += low <= truth <= high
    assert hits >= 4


def test_the_interval_ends_at_no_level_that_is_undecided_and_not_beyond_one_that_is_not_met():
    """32 requests leave a 99th percentile open, however good each of them was."""
    [found] = capacity(sweep(md1(2, 32, seed=3), md1(11, 600, seed=4)), "ttft_p99=600ms")
    largest = found.largest
    assert (largest.met_at, largest.not_met_at) == (None, 11)
    assert 2 < largest.level < 11
    assert largest.lo is None
    assert largest.hi is None or largest.hi <= 11


def test_where_all_levels_or_none_meet_only_a_bound_is_told():
    whole = sweep(*[md1(r, 600, seed=int(r)) for r in (2, 3, 4)])
    [above] = capacity(whole, "ttft_p90=60s")
    assert (above.largest.where, above.largest.level, above.largest.met_at) == ("above", None, 4.0)
    [below] = capacity(whole, "ttft_p90=1ms")
    assert (below.largest.where, below.largest.level, below.largest.not_met_at) == ("below", None, 2.0)


def test_goodput_bounds_the_rate_too():
    [found] = capacity(
        sweep(*[md1(r, 1500, seed=int(10 * r)) for r in (3, 5, 7, 9, 12)]), "ttft=400ms,goodput=95%"
    )
    assert found.largest.by_condition.keys() == {"goodput"}
    assert found.largest.level == pytest.approx(rate_of(400.0, 0.95), rel=0.12)


def test_the_knee_of_an_open_loop_is_what_the_server_gives():
    [found] = capacity(sweep(*[md1(r, 1000, seed=int(r)) for r in (4, 8, 12, 16)]))
    assert found.knee.saturated
    assert found.knee.level == pytest.approx(10.0, rel=0.03)
    assert found.largest is None


def test_the_knee_of_a_closed_loop_is_where_its_asymptotes_cross():
    """Four servers of a tenth of a second: 10 a second for each request in flight up to 40, so N* = 4."""
    [found] = capacity(sweep(*[closed(c, 1000, seed=c) for c in (1, 2, 4, 8, 16)]))
    assert (found.axis, found.knee.saturated) == ("concurrency", True)
    assert found.knee.level == pytest.approx(4.0, rel=0.15)


def test_no_knee_is_told_where_the_server_was_not_pushed():
    [found] = capacity(sweep(*[md1(r, 600, seed=int(r)) for r in (1, 2, 4)]))
    assert (found.knee.saturated, found.knee.level) == (False, None)


def test_one_level_says_nothing_of_capacity():
    assert capacity(sweep(md1(4.0, 300)), "ttft_p90=1s") == ()


def test_json():
    [told] = summary_json(summarise(sweep(md1(4.0, 300), md1(15.0, 300)), slo=parse_slo("ttft_p90=1s")))[
        "capacity"
    ]
    assert set(told) == {"axis", "levels", "knee", "largest"}
    assert set(told["largest"]) == {"level", "lo", "hi", "met_at", "not_met_at", "where", "by_condition"}


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(0.1, 10)), min_size=1, max_size=12))
def test_monotone_is_nondecreasing_and_keeps_the_mean(pairs):
    values, weights = (np.asarray(column) for column in zip(*pairs, strict=True))
    found = monotone(values, weights)
    assert (np.diff(found) >= -1e-9).all()
    assert np.average(found, weights=weights) == pytest.approx(np.average(values, weights=weights), abs=1e-6)
    assert np.allclose(monotone(found, weights), found)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=8))
def test_the_crossing_lies_between_the_levels_around_it(values):
    loads = [float(i + 1) for i in range(len(values))]
    over = np.sort(np.asarray(values))
    at = crossing(loads, over)
    below = [load for load, value in zip(loads, over, strict=True) if value <= 0]
    above = [load for load, value in zip(loads, over, strict=True) if value > 0]
    assert at == float("inf") if not above else at <= above[0]
    assert at == 0.0 if not below else at >= below[-1]

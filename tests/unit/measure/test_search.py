from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.explain.slo import Met
from phasemeter.measure.search import Search, Tried, found, next_level, parse_between
from phasemeter.record.errors import InputError


def searched(search, answer):
    """Run a search against `answer(level, stages so far)`; what it found and the levels in order."""
    tried, order = {}, []
    while (level := next_level(search, list(tried.values()))) is not None:
        stages = tried[level].stages + 1 if level in tried else 1
        tried[level] = Tried(level, answer(level, stages), stages)
        order.append(level)
        assert len(order) <= search.most_stages
    return found(search, list(tried.values())), order


def limit(at):
    return lambda level, _: Met.MET if level <= at else Met.NOT_MET


def test_it_doubles_then_halves_the_bracket():
    end, order = searched(Search("rate", 1.0, 64.0), limit(10.0))
    assert order[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert order[5] == pytest.approx((8 * 16) ** 0.5, rel=0.001)
    assert end.reason == "found"
    assert end.met_at <= 10.0 < end.not_met_at <= end.met_at * 1.05


def test_a_concurrency_is_found_to_the_one():
    end, order = searched(Search("concurrency", 1.0, 512.0), limit(37))
    assert (end.met_at, end.not_met_at) == (37.0, 38.0)
    assert all(level.is_integer() for level in order)


def test_above_and_below():
    above, order = searched(Search("rate", 1.0, 10.0), limit(100.0))
    assert (above.reason, above.met_at, above.not_met_at) == ("above", 10.0, None)
    assert order[-1] == 10.0
    below, order = searched(Search("rate", 1.0, 10.0), limit(0.5))
    assert (below.reason, below.met_at, below.not_met_at) == ("below", None, 1.0)
    assert order == [1.0]


def test_an_undecided_level_is_measured_again_and_then_passed_by():
    def answer(level, stages):
        if 9 < level < 11:
            return Met.UNDECIDED
        return Met.MET if level <= 10 else Met.NOT_MET

    end, order = searched(Search("rate", 1.0, 64.0), answer)
    again = [level for level in order if 9 < level < 11]
    assert again
    assert all(order.count(level) == 3 for level in set(again))
    assert end.reason == "undecided"
    assert end.met_at <= 9 < 11 <= end.not_met_at


def test_an_undecided_level_that_gets_decided_goes_on():
    def answer(level, stages):
        return limit(10.0)(level, stages) if stages > 1 else Met.UNDECIDED

    end, order = searched(Search("rate", 1.0, 64.0, most_stages=8), answer)
    assert (end.reason, order) == ("budget", [1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0])
    end, _ = searched(Search("rate", 1.0, 64.0, most_stages=60), answer)
    assert (end.reason, end.met_at <= 10.0 < end.not_met_at) == ("found", True)


def test_the_budget_ends_it_with_the_bracket_so_far():
    end, order = searched(Search("rate", 1.0, 64.0, most_stages=6), limit(10.0))
    assert (end.reason, end.met_at, end.not_met_at) == ("budget", 8.0, pytest.approx(11.31, rel=0.01))
    assert len(order) == end.stages == 6


def test_a_level_that_met_above_one_that_did_not_counts_for_nothing():
    tried = [Tried(1.0, Met.MET), Tried(2.0, Met.NOT_MET), Tried(4.0, Met.MET)]
    end = found(Search("rate", 1.0, 8.0, resolution=1.0), tried)
    assert (end.met_at, end.not_met_at) == (1.0, 2.0)


@given(
    st.sampled_from(["rate", "concurrency"]),
    st.integers(1, 50),
    st.integers(2, 1000),
    st.floats(0.1, 60_000),
    st.floats(1.0, 1.5),
)
def test_any_threshold_is_bracketed_within_the_bounds(axis, low, factor, at, blur):
    search = Search(axis, float(low), float(low * factor), most_stages=100)

    def answer(level, _):
        if at / blur < level <= at:
            return Met.UNDECIDED
        return Met.MET if level <= at else Met.NOT_MET

    end, order = searched(search, answer)
    assert all(search.low <= level <= search.high for level in order)
    assert end.met_at is None or end.met_at <= at
    assert end.not_met_at is None or end.not_met_at > at
    if blur == 1.0 and end.reason == "found":
        assert end.not_met_at <= max(end.met_at * 1.051, end.met_at + 1)


@pytest.mark.parametrize(
    "text", ["", "1", "1:", "2:1", "0:4", "-1:4", "1:2:3", "a:b", "1:1e9", "nan:4", "1:inf"]
)
def test_what_is_no_range_is_refused(text):
    with pytest.raises(InputError, match="--between"):
        parse_between(text, "rate")


def test_a_range_is_read():
    assert parse_between("0.5:8", "rate") == Search("rate", 0.5, 8.0)
    with pytest.raises(InputError, match="whole number"):
        parse_between("1:8.5", "concurrency")

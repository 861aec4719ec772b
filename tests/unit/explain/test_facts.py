"""A sum proves nothing; these facts must catch phases that were swapped, shifted or counted twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.explain.facts import contradictions, delivery_lag_ns
from phasemeter.explain.phases import BUDGET, e2e_ns, phases, read
from phasemeter.record.request import Usage
from unit.explain.builders import MS, report, timeline


def names(made):
    return {found.name for found in contradictions(made)}


def test_nothing_contradicts_itself():
    assert names(timeline(report=report(n_tokens=5))) == set()
    assert names(timeline()) == set()


def test_swapped_phases():
    made = timeline(report=report(queue=5, prefill=130, decode=40), first=50, gaps=(32.5,) * 4)
    assert names(made) == {"front_end", "decode"}


@given(prefill=st.integers(50, 500), decode=st.integers(600, 5000))
def test_prefill_and_decode_swapped_are_always_seen(prefill, decode):
    gaps = (decode / 4,) * 4
    right = timeline(first=prefill + 2, gaps=gaps, report=report(1, prefill, decode))
    assert names(right) == set()
    swapped = timeline(first=prefill + 2, gaps=gaps, report=report(1, decode, prefill))
    assert {"front_end", "decode"} <= names(swapped)
    cut = phases(swapped)
    assert sum(getattr(cut, name).ns for name in BUDGET) == e2e_ns(swapped)  # the sum alone sees nothing


def test_queue_counted_twice():
    assert names(timeline(report=report(queue=20, prefill=25 + 20))) == {"front_end"}
    assert names(timeline(report=report(queue=20, prefill=25))) == set()


@pytest.mark.parametrize(("excess_ms", "seen"), [(0.05, set()), (0.2, {"front_end"})])
def test_front_end_slack(excess_ms, seen):
    assert names(timeline(report=report(queue=10, prefill=40 + excess_ms))) == seen


@pytest.mark.parametrize(
    ("shift_ms", "seen"), [(4, set()), (-4, set()), (9, set()), (11, {"decode"}), (-6, {"decode"})]
)
def test_decode_shifted(shift_ms, seen):
    """The front end held the first token for 5 ms: decode may look shorter to the client by 5 more than the slack."""
    assert names(timeline(report=report(decode=40 + shift_ms))) == seen


@pytest.mark.parametrize(
    ("served_ms", "seen", "lag"),
    [
        (None, {"decode"}, None),
        (0, {"decode"}, None),
        (9, {"decode"}, None),
        (16, set(), 20_000_000),
        (90, set(), 20_000_000),
    ],
)
def test_tokens_that_waited_to_be_sent_are_told_apart_from_a_contradiction(served_ms, seen, lag):
    """The client saw decode take 20 ms longer. It is believed where the server's own front end saw the wait too."""
    e2e = None if served_ms is None else round((5 + 40 + 20 + served_ms) * 1e6)
    made = timeline(report=report(decode=20, e2e_ns=e2e))
    assert names(made) == seen
    assert delivery_lag_ns(read(made)) == lag


def test_long_decode_may_differ_by_5_percent():
    gaps = (250.0,) * 4
    assert names(timeline(gaps=gaps, report=report(decode=960))) == set()
    assert names(timeline(gaps=gaps, report=report(decode=900))) == {"decode"}


def test_engine_longer_than_the_whole_request():
    assert "engine_time" in names(timeline(report=report(prefill=40, decode=400)))


@pytest.mark.parametrize(
    "changes",
    [
        {"report": report(n_tokens=6)},
        {"usage": Usage(completion_tokens=7)},
        {"counts": (1, 1, 1, 1, 2)},
    ],
)
def test_tokens_told_differently(changes):
    assert names(timeline(**changes)) == {"tokens"}


def test_pieces_are_not_tokens_when_nobody_tells_counts():
    assert names(timeline(counts=None, usage=Usage(completion_tokens=7))) == set()


def test_stamps_out_of_order():
    assert "order" in names(timeline(sent_ns=500 * MS))

"""The budget adds up to the nanosecond, and latencies have the boundaries that the definitions give them."""

from __future__ import annotations

import pytest
from hypothesis import given

from phasemeter.explain.phases import (
    BUDGET,
    Basis,
    Span,
    e2e_ns,
    itl_ns,
    itl_token_ns,
    phases,
    read,
    tpot_ns,
    ttfa_ns,
    ttft_from_arrival_ns,
    ttft_ns,
)
from phasemeter.record.engine import Outcome
from phasemeter.record.request import Usage
from phasemeter.record.timeline import broken_invariants
from unit.explain.builders import MS, report, timeline, timelines


@given(timelines())
def test_budget_is_end_to_end_by_stamps(made):
    assert broken_invariants(made) == []
    cut = phases(made)
    spans = [getattr(cut, name) for name in BUDGET]
    assert sum(span.ns for span in spans if span is not None) == made.end_ns - made.arrived_ns
    assert all(span.ns >= 0 for span in spans if span is not None)


@given(timelines())
def test_first_is_split_exactly_or_not_at_all(made):
    cut = phases(made)
    if cut.prefill is None:
        assert cut.front_end is None
        assert cut.queue is None
    else:
        queue_ns = cut.queue.ns if cut.queue is not None else 0
        assert cut.first.ns == cut.front_end.ns + queue_ns + cut.prefill.ns
        assert cut.front_end.basis is Basis.INFERRED


@given(timelines())
def test_n_pieces_give_n_minus_1_gaps_that_sum_to_decode(made):
    gaps, cut = itl_ns(made), phases(made)
    assert len(gaps) == max(0, len(made.generated()) - 1)
    assert sum(gaps) == (cut.decode.ns if cut.decode is not None else 0)
    per_token = itl_token_ns(made)
    assert (per_token is None) == (made.counts is None)
    if per_token:
        assert sum(per_token) == pytest.approx(sum(gaps))
        assert len(per_token) == sum(n for _, n in made.generated()[1:])


def test_known_budget():
    cut = phases(timeline())
    assert [getattr(cut, name).ns / MS for name in BUDGET] == [1, 2, 50, 40, 3]
    assert (cut.front_end, cut.queue, cut.prefill, cut.engine_decode) == (None, None, None, None)
    assert e2e_ns(timeline()) == 96 * MS


def test_known_split_of_first():
    cut = phases(timeline(report=report(queue=5, prefill=40, decode=39)))
    assert cut.front_end == Span(5 * MS, Basis.INFERRED)
    assert cut.queue == Span(5 * MS)
    assert cut.prefill == Span(40 * MS)
    assert cut.engine_decode == Span(39 * MS)


def test_negative_front_end_is_kept():
    assert phases(timeline(report=report(queue=5, prefill=60))).front_end.ns == -15 * MS


def test_engine_without_queue_or_prefill():
    cut = phases(timeline(report=report(queue=None)))
    assert (cut.queue, cut.front_end.ns) == (None, 10 * MS)
    cut = phases(timeline(report=report(prefill=None)))
    assert (cut.queue, cut.prefill, cut.front_end) == (None, None, None)
    assert cut.engine_decode == Span(40 * MS)


def test_latencies():
    made = timeline()
    assert ttft_ns(made) == 50 * MS
    assert ttft_from_arrival_ns(made) == 53 * MS
    assert tpot_ns(made) == 10 * MS


def test_tpot_takes_the_servers_total():
    assert tpot_ns(timeline(usage=Usage(completion_tokens=9))) == 5 * MS
    assert tpot_ns(timeline(usage=None)) == 10 * MS


@pytest.mark.parametrize("usage", [None, Usage(completion_tokens=1), Usage(completion_tokens=0)])
def test_tpot_of_one_token_is_none(usage):
    assert tpot_ns(timeline(gaps=(), usage=usage)) is None


def test_one_token_has_a_decode_of_zero_and_no_gap():
    made = timeline(gaps=())
    assert phases(made).decode == Span(0)
    assert itl_ns(made) == []


def test_role_only_chunk_is_not_the_first_token():
    made = timeline(kinds="rtttt", counts=None)
    assert ttft_ns(made) == 60 * MS
    assert len(itl_ns(made)) == 3


def test_empty_content_is_a_token():
    assert ttft_ns(timeline(kinds="etttt")) == 50 * MS


def test_piece_of_k_tokens():
    made = timeline(counts=(1, 1, 4, 1, 1), usage=None)
    assert itl_ns(made) == [10 * MS] * 4
    assert itl_token_ns(made) == [10 * MS, *[2.5 * MS] * 4, 10 * MS, 10 * MS]
    assert read(made).tokens == 8


def test_reasoning_is_first_token_but_no_answer():
    made = timeline(kinds="ggttt")
    assert ttft_ns(made) == 50 * MS
    assert ttfa_ns(made) == 70 * MS
    assert ttfa_ns(timeline()) == 50 * MS
    assert ttfa_ns(timeline(kinds="ggggg")) is None


def test_failed_before_the_send():
    made = timeline(
        outcome=Outcome.CONNECT_FAILED,
        sent_ns=None,
        connected_ns=None,
        deltas_ns=(),
        kinds="",
        counts=None,
        usage=None,
    )
    cut = phases(made)
    assert (cut.connect, cut.first, cut.decode) == (None, None, None)
    assert cut.late.ns + cut.tail.ns == e2e_ns(made)
    assert (ttft_ns(made), ttft_from_arrival_ns(made), tpot_ns(made)) == (None, None, None)


def test_tokens_without_a_send_stamp_make_the_boundary_inferred():
    cut = phases(timeline(sent_ns=None))
    assert cut.connect == Span(0, Basis.INFERRED)
    assert cut.first == Span(52 * MS, Basis.INFERRED)

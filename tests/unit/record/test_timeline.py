"""One request's stamps."""

from __future__ import annotations

import msgspec
import pytest

from phasemeter.record.engine import Emission, EmissionKind, Outcome, Result
from phasemeter.record.event import Kind
from phasemeter.record.request import Cell, Request
from phasemeter.record.timeline import broken_invariants, events_of, kind_of, timeline_of

REQUEST = Request("1", Cell(3, 4), 4, token_ids=(5, 6, 7))


def made(*emissions: Emission, outcome: Outcome = Outcome.OK):
    result = Result(outcome, 200, connected_ns=20, sent_ns=30, first_byte_ns=40, emissions=emissions)
    return timeline_of(REQUEST, result, arrived_ns=5, started_ns=10)


def test_a_role_chunk_is_no_token_and_an_empty_one_is():
    line = made(
        Emission(40, EmissionKind.ROLE),
        Emission(50, EmissionKind.EMPTY),
        Emission(60, EmissionKind.TEXT, "a"),
        Emission(61, EmissionKind.KEEPALIVE),
        Emission(70, EmissionKind.FINISH),
        Emission(71, EmissionKind.USAGE),
        Emission(72, EmissionKind.DONE),
    )
    assert line.generated() == [(50, 1), (60, 1)]
    assert line.stamps_ns() == [40, 50, 60, 61, 70, 71, 72]
    assert [kind_of(letter) for letter in line.kinds][:2] == [EmissionKind.ROLE, EmissionKind.EMPTY]
    assert line.counts is None
    assert line.prompt_tokens_sent == 3


def test_told_counts_win_over_chunks():
    line = made(
        Emission(50, EmissionKind.TEXT, "ab", 2),
        Emission(60, EmissionKind.TEXT, "", 0),
        Emission(70, EmissionKind.TEXT, "c", 3),
    )
    assert line.generated() == [(50, 2), (70, 3)]
    assert line.counted_tokens() == 5


def test_text_is_kept_only_when_asked_for():
    result = Result(Outcome.OK, 200, emissions=(Emission(50, EmissionKind.TEXT, "secret"),))
    assert timeline_of(REQUEST, result, arrived_ns=0, started_ns=0).text is None
    assert timeline_of(REQUEST, result, arrived_ns=0, started_ns=0, keep_text=True).text == "secret"


def test_events_tell_the_same_story():
    events = events_of(made(Emission(50, EmissionKind.TEXT, "a")))
    assert [(e.kind, e.t_ns) for e in events] == [
        (Kind.ARRIVED, 5),
        (Kind.STARTED, 10),
        (Kind.CONNECTED, 20),
        (Kind.SENT, 30),
        (Kind.FIRST_BYTE, 40),
        (Kind.TOKENS, 50),
        (Kind.FINISHED, 200),
    ]
    assert events_of(made(outcome=Outcome.RESET))[-1].kind is Kind.FAILED
    assert events_of(made(outcome=Outcome.CANCELLED))[-1].kind is Kind.ABORTED


def test_a_good_timeline_breaks_nothing():
    assert broken_invariants(made(Emission(50, EmissionKind.TEXT, "a"))) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"arrived_ns": 11}, "started before it arrived"),
        ({"connected_ns": 9}, "connected before started"),
        ({"sent_ns": 19}, "sent before connected"),
        ({"first_byte_ns": 29}, "first byte before sent"),
        ({"end_ns": 39}, "end before first byte"),
        ({"deltas_ns": (40, -1), "kinds": "tt"}, "out of order"),
        ({"deltas_ns": (15,), "kinds": "t"}, "before the request was sent"),
        ({"deltas_ns": (500,), "kinds": "t"}, "after its end"),
    ],
)
def test_every_broken_order_is_named(changes, said):
    line = msgspec.structs.replace(made(Emission(50, EmissionKind.TEXT, "a")), **changes)
    assert any(said in sentence for sentence in broken_invariants(line))

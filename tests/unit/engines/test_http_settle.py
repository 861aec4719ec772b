"""Counting tokens, outcomes and Retry-After without a network."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.engines.http_settle import HttpReply, retry_after_s, settle
from phasemeter.engines.http_wire import Answer, End
from phasemeter.record.clock import ManualClock
from phasemeter.record.engine import Outcome

CLOCK = ManualClock()


def _event(text: str, completion: int | None = None) -> bytes:
    chunk: dict = {"choices": [{"delta": {"content": text}}]}
    if completion is not None:
        chunk["usage"] = {"completion_tokens": completion}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _answer(*pieces: bytes, end: End = End.COMPLETE, status: int | None = 200, **more: object) -> Answer:
    stamps = [1000 + i for i in range(len(pieces))]
    return Answer(end=end, end_ns=5000, status=status, stamps_ns=stamps, pieces=list(pieces), **more)


DONE = b"data: [DONE]\n\n"


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_counts_add_up_to_usage(steps: list[int]) -> None:
    totals = [sum(steps[: i + 1]) for i in range(len(steps))]
    result = settle(_answer(*(_event("x", total) for total in totals), DONE), CLOCK)
    assert [e.n_tokens for e in result.emissions] == [*steps, None]


def test_what_a_role_chunk_counts_belongs_to_the_next_token() -> None:
    role = b'data: {"choices":[{"delta":{"role":"assistant"}}],"usage":{"completion_tokens":1}}\n\n'
    result = settle(_answer(role, _event("a", 1), _event("b", 2), DONE), CLOCK)
    assert [e.n_tokens for e in result.emissions] == [0, 1, 1, None]


@pytest.mark.parametrize("totals", [[1, None, 3], [None, None, 3], [3, 2, 4]])
def test_counts_that_cannot_be_trusted_are_absent(totals: list[int | None]) -> None:
    result = settle(_answer(*(_event("x", total) for total in totals), DONE), CLOCK)
    assert [e.n_tokens for e in result.emissions] == [None] * 4
    assert result.outcome is Outcome.OK


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (End.COMPLETE, Outcome.TRUNCATED),
        (End.CLOSED, Outcome.TRUNCATED),
        (End.LOST, Outcome.RESET),
        (End.MALFORMED, Outcome.BAD_RESPONSE),
        (End.TIMEOUT_GAP, Outcome.TIMEOUT_GAP),
        (End.TIMEOUT_FIRST, Outcome.TIMEOUT_FIRST),
        (End.TIMEOUT_TOTAL, Outcome.TIMEOUT_TOTAL),
    ],
)
def test_how_a_stream_ended(end: End, outcome: Outcome) -> None:
    assert settle(_answer(_event("a"), end=end), CLOCK).outcome is outcome
    assert len(settle(_answer(_event("a"), end=end), CLOCK).emissions) == 1
    assert settle(_answer(_event("a"), DONE, end=end), CLOCK).outcome is Outcome.OK


@pytest.mark.parametrize("end", list(End))
def test_no_status(end: End) -> None:
    outcome = settle(_answer(end=end, status=None), CLOCK).outcome
    assert outcome is not Outcome.OK
    assert (outcome is Outcome.CONNECT_FAILED) == (end is End.CONNECT_FAILED)
    assert (outcome is Outcome.TIMEOUT_CONNECT) == (end is End.TIMEOUT_CONNECT)


def test_an_error_outweighs_everything() -> None:
    error = b'data: {"error":"boom"}\n\n'
    for end in (End.COMPLETE, End.LOST, End.TIMEOUT_GAP):
        result = settle(_answer(_event("a"), error, end=end), CLOCK)
        assert (result.outcome, result.error) == (Outcome.ERROR_IN_STREAM, "boom")


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        (b'{"error":{"message":"queue full","type":"ServiceUnavailable","code":503}}', Outcome.REFUSED),
        (b'{"error":{"message":"slow down","code":"429"}}', Outcome.REFUSED),
        (b'{"object":"error","message":"queue full","code":503}', Outcome.REFUSED),
        (b'{"error":{"message":"boom","code":500}}', Outcome.ERROR_IN_STREAM),
        (b'{"error":{"message":"boom","code":"rate_limit_exceeded"}}', Outcome.ERROR_IN_STREAM),
        (b'{"error":{"message":"boom","code":null}}', Outcome.ERROR_IN_STREAM),
        (b'{"error":["boom"]}', Outcome.ERROR_IN_STREAM),
    ],
)
def test_a_refusal_inside_a_200_is_a_refusal(body: bytes, outcome: Outcome) -> None:
    event = b"data: " + body + b"\n\n"
    assert settle(_answer(event, DONE), CLOCK).outcome is outcome
    named = b"event: error\n" + event
    assert settle(_answer(named), CLOCK).outcome is outcome
    assert settle(_answer(_event("a"), event), CLOCK).outcome is Outcome.ERROR_IN_STREAM  # it had begun


def test_html_is_no_stream() -> None:
    result = settle(_answer(b"<html>hi", headers=(("content-type", "text/html; charset=utf-8"),)), CLOCK)
    assert result.outcome is Outcome.BAD_RESPONSE


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ((), None),
        ((("retry-after", "2.5"),), 2.5),
        ((("retry-after", "-3"),), 0.0),
        ((("retry-after", "nan"),), None),
        ((("retry-after", "inf"),), None),
        ((("retry-after", "soon"),), None),
        ((("retry-after", "Wed, 01 Jan 2025 00:00:10 GMT"), ("date", "Wed, 01 Jan 2025 00:00:00 GMT")), 10.0),
        ((("retry-after", "Wed, 01 Jan 2025 00:00:00 GMT"), ("date", "Wed, 01 Jan 2025 00:00:10 GMT")), 0.0),
        ((("retry-after", "Wed, 01 Jan 2025 00:00:00 GMT"),), 0.0),
    ],
)
def test_retry_after(headers: tuple[tuple[str, str], ...], seconds: float | None) -> None:
    assert retry_after_s(_answer(status=429, headers=headers), CLOCK) == seconds


def test_settle_twice_is_one_result() -> None:
    reply = HttpReply(_answer(_event("a"), DONE), CLOCK)
    assert reply.settle() is reply.settle()


def test_the_secret_is_blotted_out() -> None:
    reply = HttpReply(_answer(b"key s3cret is bad", status=500), CLOCK, "s3cret")
    assert reply.settle().error == "key *** is bad"

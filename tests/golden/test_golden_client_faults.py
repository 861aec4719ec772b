"""Golden: every way in which a request can fail has its own outcome, and what was received is kept."""

from __future__ import annotations

import asyncio
import time

import pytest

from golden.golden_client import assert_same_times, kinds, one, request, tokens, with_engine
from golden.oracle import (
    CLOSE,
    LAST_CHUNK,
    RESET,
    SSE_HEAD,
    Oracle,
    chat,
    chunk,
    event,
    stream,
    usage_chunk,
    whole,
)
from phasemeter.engines.openai_http import HttpTimeouts, OpenAIHttp
from phasemeter.record.engine import Outcome

HANG = (20_000, b"")
FIRST = HttpTimeouts(first_token_s=0.25, total_s=20.0)
GAP = HttpTimeouts(first_token_s=5.0, inter_token_s=0.25, total_s=20.0)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_hang_before_the_first_token(loop: str) -> None:
    with Oracle(lambda _: [HANG]) as oracle:
        result = one(oracle, timeouts=FIRST, loop=loop)
        assert _client_left(oracle)
    assert result.outcome is Outcome.TIMEOUT_FIRST
    assert result.first_byte_ns is None
    assert 0.2e9 < result.end_ns - result.sent_ns < 2e9


def test_role_chunk_and_comments_do_not_answer_the_first_token_timeout() -> None:
    events = [(0, SSE_HEAD + chunk(event(chat("", role="assistant"))))]
    events += [(40 * i, chunk(b": ping\n\n")) for i in range(1, 30)]
    with Oracle(lambda _: [*events, HANG]) as oracle:
        result = one(oracle, timeouts=FIRST)
    assert result.outcome is Outcome.TIMEOUT_FIRST
    assert set(kinds(result)) == {"role", "keepalive"}


def test_a_slow_first_token_is_no_stall() -> None:
    """The limit for gaps does not count before the first token."""
    with Oracle(
        lambda _: stream([(0, chat("", role="assistant")), (600, chat("a", finish="stop"))])
    ) as oracle:
        result = one(oracle, timeouts=GAP)
    assert result.outcome is Outcome.OK


@pytest.mark.parametrize("comments", [False, True])
def test_hang_after_tokens(comments: bool) -> None:
    script: list = [(0, SSE_HEAD), (20, chunk(event(chat("a")))), (40, chunk(event(chat("b"))))]
    if comments:
        script += [(60 + 40 * i, chunk(b": still here\n\n")) for i in range(30)]
    with Oracle(lambda _: [*script, HANG]) as oracle:
        result = one(oracle, timeouts=GAP)
        seen = oracle.measured[0]
    assert result.outcome is Outcome.TIMEOUT_GAP
    assert len(tokens(result)) == 2
    assert 0.2e9 < result.end_ns - tokens(result)[-1].recv_ns < 2e9
    assert_same_times(result, seen, list(range(1, len(result.emissions) + 1)))


def test_a_stall_below_the_limit_is_kept_as_a_gap() -> None:
    with Oracle(lambda _: stream([(10, chat("a")), (300, chat("b", finish="stop"))])) as oracle:
        result = one(oracle, timeouts=HttpTimeouts(inter_token_s=5.0))
        seen = oracle.measured[0]
    assert result.outcome is Outcome.OK
    assert_same_times(result, seen, [1, 2, 3])


def test_total_timeout_in_mid_stream() -> None:
    with Oracle(lambda _: stream([(20 * i, chat("x")) for i in range(500)])) as oracle:
        result = one(oracle, timeouts=HttpTimeouts(total_s=0.4))
    assert result.outcome is Outcome.TIMEOUT_TOTAL
    assert 5 < len(tokens(result)) < 40


def test_total_timeout_before_any_byte() -> None:
    with Oracle(lambda _: [HANG]) as oracle:
        result = one(oracle, timeouts=HttpTimeouts(total_s=0.3))
    assert result.outcome is Outcome.TIMEOUT_TOTAL


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("how", [RESET, CLOSE], ids=["rst", "fin"])
def test_connection_lost_in_mid_stream_keeps_tokens(how: object, loop: str) -> None:
    script = [(0, SSE_HEAD), (20, chunk(event(chat("a")))), (40, chunk(event(chat("b")))), (80, how)]
    with Oracle(lambda _: script) as oracle:
        result = one(oracle, loop=loop)
        seen = oracle.measured[0]
    assert result.outcome is Outcome.RESET
    assert kinds(result) == ["text", "text"]
    assert_same_times(result, seen, [1, 2])
    assert result.reused_connection is True


def test_cut_inside_an_event_is_a_reset_not_garbage() -> None:
    script = [(0, SSE_HEAD), (20, chunk(event(chat("a")))), (40, chunk(event(chat("b"))[:20])), (60, CLOSE)]
    with Oracle(lambda _: script) as oracle:
        result = one(oracle)
    assert result.outcome is Outcome.RESET
    assert kinds(result) == ["text"]


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        ({"error": {"message": "out of\nblocks", "code": 503}}, b""),
        ({"error": "out of blocks"}, b""),
        ({"object": "error", "message": "out of blocks", "code": 400}, b""),
        ({"message": "out of blocks"}, b"event: error\n"),
        (b"out of blocks", b"event: error\n"),
    ],
)
def test_error_event_inside_a_200(payload: object, named: bytes) -> None:
    """Pitfall 40: an error and then [DONE] is no success."""
    script = [
        (0, SSE_HEAD),
        (20, chunk(event(chat("a")))),
        (40, chunk(named + event(payload))),
        (40, chunk(event(b"[DONE]")) + LAST_CHUNK),
    ]
    with Oracle(lambda _: script) as oracle:
        result = one(oracle)
    assert result.outcome is Outcome.ERROR_IN_STREAM
    assert result.error == "out of blocks"
    assert kinds(result) == ["text", "error", "done"]
    assert result.status == 200


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        ("400 Bad Request", Outcome.HTTP_ERROR),
        ("404 Not Found", Outcome.HTTP_ERROR),
        ("429 Too Many Requests", Outcome.REFUSED),
        ("500 Internal Server Error", Outcome.HTTP_ERROR),
        ("503 Service Unavailable", Outcome.REFUSED),
    ],
)
@pytest.mark.parametrize("retry", [None, "7", "date"])
def test_status(status: str, outcome: Outcome, retry: str | None) -> None:
    headers = {
        None: (),
        "7": ("Retry-After: 7",),
        "date": ("Date: Wed, 01 Jan 2025 00:00:00 GMT", "Retry-After: Wed, 01 Jan 2025 00:01:30 GMT"),
    }[retry]
    body = b'{"error":{"message":"queue  is full","type":"x"}}'
    with Oracle(lambda _: whole(status, body, *headers)) as oracle:
        result = one(oracle)
    assert result.outcome is outcome
    assert result.status == int(status[:3])
    assert result.error == "queue is full"
    assert result.retry_after_s == {None: None, "7": 7.0, "date": 90.0}[retry]
    assert result.emissions == ()


def test_a_long_error_is_cut() -> None:
    with Oracle(lambda _: whole("500 Oops", b"x" * 5000, kind="text/plain")) as oracle:
        result = one(oracle)
    assert len(result.error) == 300


def test_a_redirect_is_not_followed() -> None:
    with Oracle(
        lambda _: whole("307 Temporary Redirect", b"", "Location: http://127.0.0.1:1/v1/x")
    ) as oracle:
        result = one(oracle)
        assert len(oracle.measured) == 1
    assert result.outcome is Outcome.BAD_RESPONSE
    assert "redirects to http://127.0.0.1:1/v1/x" in result.error


@pytest.mark.parametrize("events", [[], [(0, chat("", role="assistant")), (0, chat(finish="stop"))]])
@pytest.mark.parametrize("done", [False, True])
def test_a_stream_without_a_token(events: list, done: bool) -> None:
    with Oracle(lambda _: stream(events, done=done)) as oracle:
        result = one(oracle)
    assert result.outcome is Outcome.EMPTY_STREAM


def test_missing_done_is_fine_with_a_finish_reason_and_truncated_without() -> None:
    answers = {"whole": [(10, chat("a", finish="stop"))], "cut": [(10, chat("a")), (20, chat("b"))]}
    with Oracle(lambda seen: stream(answers[seen.headers["x-request-id"]], done=False)) as oracle:
        assert one(oracle, ask=request("whole")).outcome is Outcome.OK
        cut = one(oracle, ask=request("cut"))
    assert cut.outcome is Outcome.TRUNCATED
    assert len(tokens(cut)) == 2


def test_a_response_left_open_after_done_is_closed_and_fine() -> None:
    split = event(b"[DONE]")
    script = [
        (0, SSE_HEAD),
        (20, chunk(event(chat("a", finish="stop")))),
        (40, chunk(split[:8])),
        (41, chunk(split[8:])),
    ]
    with Oracle(lambda _: [*script, HANG]) as oracle:
        begun = time.monotonic()
        result = one(oracle)
        took_s = time.monotonic() - begun
        seen = oracle.measured[0]
        assert _client_left(oracle)
    assert result.outcome is Outcome.OK
    assert took_s < 5
    assert_same_times(result, seen, [1, 3])
    assert result.end_ns == result.emissions[-1].recv_ns


def test_a_text_that_says_done_does_not_end_the_stream() -> None:
    events = [(10, chat("data: [DONE]")), (900, chat("b", finish="stop"))]
    with Oracle(lambda _: stream(events)) as oracle:
        result = one(oracle)
    assert kinds(result) == ["text", "text", "done"]


def test_garbage() -> None:
    scripts = {
        "json": [(0, SSE_HEAD), (10, chunk(event(chat("a")) + event(b"{nope")))],
        "shape": [(0, SSE_HEAD), (10, chunk(event(b'{"choices": 5}')))],
        "plain": [(0, SSE_HEAD), (10, chunk(b"hello, I am no stream"))],
    }
    with Oracle(lambda seen: [*scripts[seen.headers["x-request-id"]], (20, LAST_CHUNK)]) as oracle:
        for name in scripts:
            result = one(oracle, ask=request(name))
            assert result.outcome is Outcome.BAD_RESPONSE, name
    with Oracle(lambda _: [(0, b"SSH-2.0-OpenSSH_9.9\r\n")]) as oracle:
        assert one(oracle).outcome is Outcome.BAD_RESPONSE


def test_one_json_document_in_place_of_a_stream() -> None:
    with Oracle(lambda _: whole("200 OK", b'{"choices":[]}')) as oracle:
        result = one(oracle)
    assert result.outcome is Outcome.BAD_RESPONSE
    assert "not a stream" in result.error


def test_fewer_tokens_than_asked_is_seen_in_usage() -> None:
    """Pitfall 35: ignore_eos goes on the wire, and the record holds what really came."""
    with Oracle(
        lambda _: stream([(5, chat("a")), (5, chat("b", finish="stop")), (5, usage_chunk(2))])
    ) as oracle:
        result = one(oracle, ask=request(max_tokens=1000))
        assert oracle.measured[0].json["ignore_eos"] is True
    assert result.usage.completion_tokens == 2
    assert result.finish_reason == "stop"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_cancelling_closes_the_socket_at_once(loop: str) -> None:
    async def use(engine: OpenAIHttp) -> bool:
        task = asyncio.ensure_future(engine.generate(request()))
        await asyncio.sleep(0.15)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            # the loop must go on running: the socket has to close before the engine does
            for _ in range(200):
                if oracle.measured[0].closed_by_client:
                    return True
                await asyncio.sleep(0.01)
        return False

    with Oracle(lambda _: [(0, SSE_HEAD), (20, chunk(event(chat("a")))), HANG]) as oracle:
        assert with_engine(oracle, use, loop=loop)


def _client_left(oracle: Oracle) -> bool:
    for _ in range(200):
        if oracle.measured[0].closed_by_client:
            return True
        time.sleep(0.01)
    return False

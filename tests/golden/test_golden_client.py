"""Golden: the client's stamps, kinds and counts equal the oracle's log, script by script."""

from __future__ import annotations

import pytest

from golden.golden_client import (
    EACH_MS,
    MEDIAN_MS,
    assert_same_times,
    gaps_ms,
    kinds,
    one,
    request,
    text_of,
    tokens,
)
from golden.oracle import (
    LAST_CHUNK,
    SSE_HEAD,
    Oracle,
    chat,
    chunk,
    event,
    stream,
    text,
    usage_chunk,
)
from phasemeter.record.engine import Outcome
from phasemeter.record.timeline import broken_invariants, timeline_of

PIECES = ["你", "好", "，", "🌍", "👩‍🔬", " naïve", " 日本語", "\u2028"]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_role_chunk_then_tokens(loop: str) -> None:
    """Pitfalls 1 and 2: the role chunk at 0 is no token; N tokens give N - 1 gaps."""
    events = [
        (0, chat("", role="assistant")),
        (50, chat("a")),
        (70, chat("b")),
        (130, chat("c", finish="length")),
    ]
    with Oracle(lambda _: stream([*events, (130, usage_chunk(3))])) as oracle:
        result = one(oracle, loop=loop)
        seen = oracle.measured[0]
    assert kinds(result) == ["role", "text", "text", "text", "usage", "done"]
    assert_same_times(result, seen, [1, 2, 3, 4, 5, 6])
    assert result.outcome is Outcome.OK
    assert result.finish_reason == "length"
    assert len(gaps_ms([t.recv_ns for t in tokens(result)])) == 2
    assert tokens(result)[0].recv_ns >= seen.received_ns + 50e6
    timeline = timeline_of(
        request(), result, arrived_ns=result.connected_ns, started_ns=result.connected_ns, keep_text=True
    )
    assert broken_invariants(timeline) == []
    assert timeline.text == "abc"
    assert timeline.counted_tokens() == 3


def test_role_chunk_with_null_content() -> None:
    events = [
        (0, chat(None, role="assistant", null_content=True)),
        (40, chat("a")),
        (40, chat(finish="stop")),
    ]
    with Oracle(lambda _: stream(events)) as oracle:
        result = one(oracle)
    assert kinds(result) == ["role", "text", "finish", "done"]


def test_role_chunk_that_carries_text_is_text() -> None:
    events = [(30, chat("Hello", role="assistant")), (30, chat(finish="stop"))]
    with Oracle(lambda _: stream(events)) as oracle:
        result = one(oracle)
    assert kinds(result) == ["text", "finish", "done"]


def test_empty_delta_in_mid_stream_is_a_token() -> None:
    """Pitfall 3."""
    events = [(10, chat("a")), (30, chat("")), (50, chat("b")), (50, chat("", finish="stop"))]
    with Oracle(lambda _: stream(events)) as oracle:
        result = one(oracle)
        seen = oracle.measured[0]
    assert kinds(result) == ["text", "empty", "text", "finish", "done"]
    assert len(tokens(result)) == 3
    assert_same_times(result, seen, [1, 2, 3, 4, 5])


def test_completions_stream() -> None:
    events = [(20 * i, text(f"t{i}")) for i in range(1, 6)] + [(100, text("", "length"))]
    with Oracle(lambda _: stream(events)) as oracle:
        result = one(oracle, api="completions")
        seen = oracle.measured[0]
    assert kinds(result) == ["text"] * 5 + ["finish", "done"]
    assert_same_times(result, seen, [1, 2, 3, 4, 5, 6, 7])
    assert seen.path == "/v1/completions"


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_before_the_answer(field: str) -> None:
    """Pitfalls 11 and 17: both first moments can be told apart; usage holds the reasoning already."""
    events: list = [(10 * i, chat(**{field: "hm"})) for i in range(1, 9)]
    events += [(120, chat("42")), (120, chat(finish="stop"))]
    told = usage_chunk(9)
    told["usage"]["completion_tokens_details"] = {"reasoning_tokens": 8}
    with Oracle(lambda _: stream([*events, (120, told)])) as oracle:
        result = one(oracle)
        seen = oracle.measured[0]
    assert kinds(result) == ["reasoning"] * 8 + ["text", "finish", "usage", "done"]
    assert_same_times(result, seen, list(range(1, 13)))
    assert result.usage.completion_tokens == 9 == len(tokens(result))
    assert result.usage.reasoning_tokens == 8


def test_tool_calls_are_generated() -> None:
    call = [{"index": 0, "function": {"name": "add", "arguments": ""}}]
    more = [{"index": 0, "function": {"arguments": '{"a":1}'}}]
    events = [(0, chat(None, role="assistant")), (20, chat(tool_calls=call)), (40, chat(tool_calls=more))]
    events.append((40, chat(finish="tool_calls")))
    with Oracle(lambda _: stream(events)) as oracle:
        result = one(oracle)
    assert kinds(result) == ["role", "tool", "tool", "finish", "done"]
    assert text_of(result) == 'add{"a":1}'


def test_usage_in_every_chunk_counts_tokens_not_chunks() -> None:
    """Pitfall 5: three chunks with 5, 1 and 4 tokens; a chunk of nothing counts nothing."""
    events = [
        (0, chat("", role="assistant", usage=0)),
        (20, chat("five", usage=5)),
        (40, chat("", usage=5)),
        (60, chat("six", usage=6)),
        (80, chat("ten", usage=10, finish="length")),
        (80, usage_chunk(10)),
    ]
    with Oracle(lambda _: stream(events)) as oracle:
        result = one(oracle)
        seen = oracle.measured[0]
    assert [e.n_tokens for e in result.emissions] == [0, 5, 0, 1, 4, None, None]
    assert_same_times(result, seen, [1, 2, 3, 4, 5, 6, 7])
    timeline = timeline_of(request(), result, arrived_ns=result.sent_ns, started_ns=result.sent_ns)
    assert timeline.counted_tokens() == 10
    assert [n for _, n in timeline.generated()] == [5, 1, 4]


def test_usage_at_the_end_alone_does_not_count_chunks() -> None:
    last = chat("d", finish="stop", usage=7)
    events = [(10, chat("a")), (20, chat("b")), (30, last)]
    with Oracle(lambda _: stream(events)) as oracle:
        result = one(oracle)
    assert [e.n_tokens for e in result.emissions] == [None] * 4
    assert result.usage.completion_tokens == 7


def test_hidden_last_token_is_counted_where_the_server_counts_it() -> None:
    events = [(10, chat("a", usage=1)), (40, chat("", usage=2, finish="stop")), (40, usage_chunk(2))]
    with Oracle(lambda _: stream(events)) as oracle:
        result = one(oracle)
    assert kinds(result) == ["text", "empty", "usage", "done"]
    assert [e.n_tokens for e in result.emissions] == [1, 1, None, None]


def test_utf8_split_one_byte_a_chunk() -> None:
    """A character is never damaged, and each event carries the stamp of its last byte."""
    body = b"".join(event(chat(p)) for p in PIECES) + event(chat(finish="stop")) + event(b"[DONE]")
    script: list = [(0, SSE_HEAD)]
    script += [(20 + i // 40, chunk(body[i : i + 1])) for i in range(len(body))]
    script.append((script[-1][0], LAST_CHUNK))
    with Oracle(lambda _: script) as oracle:
        result = one(oracle)
        seen = oracle.measured[0]
    ends = [i + 1 for i in range(len(body)) if body[: i + 1].endswith(b"\n\n")]
    assert text_of(result) == "".join(PIECES)
    assert_same_times(result, seen, ends)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends(end: bytes) -> None:
    script: list = [(0, SSE_HEAD + chunk(b"\xef\xbb\xbf"))]
    script += [
        (20 * i, chunk(b"id: 7" + end + b"event: message" + end + event(chat(f"{i}"), end))) for i in (1, 2)
    ]
    script.append((60, chunk(event(chat(finish="stop"), end) + event(b"[DONE]", end)) + LAST_CHUNK))
    with Oracle(lambda _: script) as oracle:
        result = one(oracle)
        seen = oracle.measured[0]
    assert kinds(result) == ["text", "text", "finish", "done"]
    assert_same_times(result, seen, [1, 2, 3, 3])
    assert result.outcome is Outcome.OK


def test_data_over_several_lines() -> None:
    lines = b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"x"}}]}\n\n'
    script = [
        (0, SSE_HEAD),
        (10, chunk(lines)),
        (20, chunk(event(chat(finish="stop")) + event(b"[DONE]")) + LAST_CHUNK),
    ]
    with Oracle(lambda _: script) as oracle:
        result = one(oracle)
    assert text_of(result) == "x"
    assert result.outcome is Outcome.OK


def test_two_events_in_one_segment_and_one_over_three() -> None:
    """The first two carry one stamp; the third has the stamp of the piece that closed it."""
    third = event(chat("c"))
    script = [
        (0, SSE_HEAD),
        (30, chunk(event(chat("a")) + event(chat("b")))),
        (50, chunk(third[:9])),
        (80, chunk(third[9:-1])),
        (120, chunk(third[-1:])),
        (140, chunk(event(chat(finish="stop")) + event(b"[DONE]")) + LAST_CHUNK),
    ]
    with Oracle(lambda _: script) as oracle:
        result = one(oracle)
        seen = oracle.measured[0]
    assert kinds(result) == ["text", "text", "text", "finish", "done"]
    assert result.emissions[0].recv_ns == result.emissions[1].recv_ns
    assert_same_times(result, seen, [1, 1, 4, 5, 5])


def test_last_event_without_its_blank_line() -> None:
    script = [
        (0, SSE_HEAD),
        (20, chunk(event(chat("a")))),
        (40, chunk(event(chat("b", finish="stop"))[:-2])),
        (70, LAST_CHUNK),
    ]
    with Oracle(lambda _: script) as oracle:
        result = one(oracle)
        seen = oracle.measured[0]
    assert kinds(result) == ["text", "text"]
    assert_same_times(result, seen, [1, 2])
    assert result.outcome is Outcome.OK


def test_keepalive_comments_are_no_tokens() -> None:
    script: list = [(0, SSE_HEAD)]
    script += [(20 * i, chunk(b": ping\n\n")) for i in range(1, 4)]
    script += [
        (100, chunk(event(chat("a")))),
        (120, chunk(b": ping\n\n")),
        (140, chunk(event(chat("b", finish="stop")))),
    ]
    script.append((140, chunk(event(b"[DONE]")) + LAST_CHUNK))
    with Oracle(lambda _: script) as oracle:
        result = one(oracle)
        seen = oracle.measured[0]
    assert kinds(result) == ["keepalive"] * 3 + ["text", "keepalive", "text", "done"]
    assert_same_times(result, seen, [1, 2, 3, 4, 5, 6, 7])


def test_one_stall_in_many_gaps_shows_in_both_views() -> None:
    """Pitfall 12: one gap of 200 ms among gaps of 5 ms: in the pooled gaps and in the request's mean."""
    due = [10.0 + 5 * i + (200 if i >= 30 else 0) for i in range(60)]
    events: list = [(t, chat("x")) for t in due] + [(due[-1], chat(finish="length"))]
    with Oracle(lambda _: stream(events)) as oracle:
        result = one(oracle, loop="uvloop")
        seen = oracle.measured[0]
    assert_same_times(result, seen, list(range(1, 63)))
    gaps = gaps_ms([e.recv_ns for e in tokens(result)])
    assert len(gaps) == 59
    theirs = gaps_ms([t for t, _ in seen.sent[1:61]])
    assert max(theirs) > 150
    assert abs(max(gaps) - max(theirs)) < EACH_MS
    assert abs(sum(gaps) - sum(theirs)) / len(gaps) < MEDIAN_MS


def test_slow_drip() -> None:
    """An event that drips in over 80 ms is stamped when it is whole."""
    body = event(chat("slow"))
    step = 80 / len(body)
    script: list = [(0, SSE_HEAD)] + [(20 + step * i, chunk(body[i : i + 1])) for i in range(len(body))]
    script.append((110, chunk(event(chat(finish="stop")) + event(b"[DONE]")) + LAST_CHUNK))
    with Oracle(lambda _: script) as oracle:
        result = one(oracle)
        seen = oracle.measured[0]
    assert_same_times(result, seen, [len(body), len(body) + 1, len(body) + 1])


def test_one_token() -> None:
    """Pitfall 18: one token, no gap, no division."""
    with Oracle(lambda _: stream([(20, chat("x", finish="length")), (20, usage_chunk(1))])) as oracle:
        result = one(oracle)
    assert len(tokens(result)) == 1
    assert gaps_ms([e.recv_ns for e in tokens(result)]) == []
    assert result.outcome is Outcome.OK


def test_reports_of_engines() -> None:
    vllm = usage_chunk(2) | {
        "metrics": {
            "queue_time_ms": 0.5,
            "time_to_first_token_ms": 25.2,
            "generation_time_ms": 173.7,
            "mean_itl_ms": 7.5,
        }
    }
    vllm["usage"]["prompt_tokens_details"] = {"cached_tokens": 3}
    llama = chat(finish="stop") | {
        "timings": {"cache_n": 1, "prompt_n": 4, "prompt_ms": 12.5, "predicted_n": 2, "predicted_ms": 30.0}
    }
    answers = {
        "v": [(10, chat("a")), (20, chat("b", finish="stop")), (20, vllm)],
        "l": [(10, chat("a")), (20, chat("b")), (20, llama)],
    }
    with Oracle(lambda seen: stream(answers[seen.headers["x-request-id"]])) as oracle:
        from_vllm = one(oracle, ask=request("v"))
        from_llama = one(oracle, ask=request("l"))
    report = from_vllm.report
    assert (report.queue_ns, report.prefill_ns, report.decode_ns) == (500_000, 25_200_000, 173_700_000)
    assert report.source.startswith("vllm")
    assert from_vllm.usage.cached_tokens == 3
    report = from_llama.report
    assert (report.queue_ns, report.prefill_ns, report.decode_ns) == (None, 12_500_000, 30_000_000)
    assert (report.cached_tokens, report.n_tokens) == (1, 2)
    assert report.source.startswith("llama.cpp")

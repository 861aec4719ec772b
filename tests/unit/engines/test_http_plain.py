"""The quick way through a stream gives what the careful one gives, whatever the stream and however it is cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.engines.http_settle import settle
from phasemeter.engines.http_sse import plain_events, sse_events
from phasemeter.engines.http_wire import Answer, End
from phasemeter.record.clock import ManualClock

_USAGES = st.none() | st.integers(0, 200).map(lambda n: {"prompt_tokens": 5, "completion_tokens": n})
_DELTAS = st.sampled_from(
    [
        {"content": " word"},
        {"content": "é\n\n漢"},
        {"content": ""},
        {"role": "assistant", "content": ""},
        {"reasoning": "hm"},
        {},
        {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
    ]
)


@st.composite
def _chunks(draw):
    chunk = {"object": "chat.completion.chunk"}
    choices = [
        {"index": 0, "delta": draw(_DELTAS), "finish_reason": draw(st.sampled_from([None, None, "stop"]))}
    ]
    chunk["choices"] = draw(st.sampled_from([choices, choices, choices, [], None]))
    if (usage := draw(_USAGES)) is not None:
        chunk["usage"] = usage
    if draw(st.integers(0, 15)) == 0:
        chunk["error"] = draw(st.sampled_from([{"message": "broken", "code": 500}, None, "x"]))
    if draw(st.integers(0, 15)) == 0:
        chunk["timings"] = {"prompt_ms": 1.0, "predicted_ms": 2.0, "predicted_n": 3}
    return json.dumps(chunk, ensure_ascii=draw(st.booleans())).encode()


_DATA = st.lists(
    _chunks() | st.sampled_from([b"[DONE]", b"{}", b"", b"{", b"1,{}", b"null", b"[]"]), max_size=12
)
_SPACES = st.sampled_from(
    ["data: %s\n\n"] * 6 + ["data:%s\n\n", "data: %s\r\n\r\n", ": ping\n\n", "event: x\ndata: %s\n\n"]
)


@st.composite
def _streams(draw):
    plain = draw(st.booleans())
    text = b""
    for data in draw(_DATA):
        form = "data: %s\n\n" if plain else draw(_SPACES)
        text += form.encode().replace(b"%s", data)
    if draw(st.integers(0, 7)) == 0:
        text = text[: draw(st.integers(0, len(text)))]
    cuts = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=8))})
    pieces = [text[a:b] for a, b in itertools.pairwise(cuts)]
    return [1000 + 10 * i for i in range(len(pieces))], pieces


@given(_streams())
def test_a_plain_stream_has_the_events_that_the_standard_sees_in_it(stream):
    plain = plain_events(*stream)
    if plain is None:
        return
    careful = [event for event in sse_events(*stream) if event.data is not None]
    # the standard dispatches no event for an empty data buffer only where there was no data line
    assert plain == ([event.recv_ns for event in careful], [event.data for event in careful])


@given(_streams(), st.sampled_from([End.COMPLETE, End.LOST, End.TIMEOUT_GAP]))
def test_both_ways_settle_to_the_same_result(stream, end):
    stamps, pieces = stream
    answer = Answer(
        end=end, end_ns=9000, status=200, sent_ns=1, error="gone", stamps_ns=stamps, pieces=pieces
    )
    with pytest.MonkeyPatch.context() as patch:
        quick = settle(answer, ManualClock())
        patch.setattr("phasemeter.engines.http_settle.plain_events", lambda *_: None)
        careful = settle(answer, ManualClock())
    assert quick == careful


def test_the_common_stream_takes_the_quick_way():
    text = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
    found = plain_events([7, 9], [text[:10], text[10:]])
    assert found is not None
    assert found[0] == [9, 9]
    assert found[1][1] == b"[DONE]"

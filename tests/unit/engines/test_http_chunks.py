"""What one chunk is."""

from __future__ import annotations

import json

import msgspec
import pytest

from phasemeter.engines.http_chunks import UNREADABLE, first_token_ns, message_of, read_chunk
from phasemeter.record.engine import EmissionKind as K


def _delta(finish: str | None = None, **delta: object) -> bytes:
    return json.dumps({"choices": [{"delta": delta, "finish_reason": finish}]}).encode()


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (_delta(content="a"), K.TEXT, "a"),
        (_delta(content="a", role="assistant"), K.TEXT, "a"),
        (_delta(content="a", finish="stop"), K.TEXT, "a"),
        (_delta(content="", role="assistant"), K.ROLE, ""),
        (_delta(content=None, role="assistant"), K.ROLE, ""),
        (_delta(role="assistant"), K.ROLE, ""),
        (_delta(content=""), K.EMPTY, ""),
        (_delta(content="", finish="stop"), K.FINISH, ""),
        (_delta(finish="stop"), K.FINISH, ""),
        (_delta(reasoning="r"), K.REASONING, "r"),
        (_delta(reasoning_content="r", content=None), K.REASONING, "r"),
        (_delta(reasoning_content="r", content=""), K.REASONING, "r"),
        (_delta(reasoning_content="", content="a"), K.TEXT, "a"),
        (_delta(reasoning=""), K.EMPTY, ""),
        (_delta(tool_calls=[{"function": {"name": "f"}}]), K.TOOL, "f"),
        (_delta(tool_calls=[{"other": 1}]), K.TOOL, ""),
        (_delta(tool_calls=[], content="a"), K.TEXT, "a"),
        (_delta(tool_calls=None, content=""), K.EMPTY, ""),
        (_delta(), K.KEEPALIVE, ""),
        (_delta(content=None), K.KEEPALIVE, ""),
        (b'{"choices":[{"text":"t","finish_reason":null}]}', K.TEXT, "t"),
        (b'{"choices":[{"text":"","finish_reason":null}]}', K.EMPTY, ""),
        (b'{"choices":[{"text":"","finish_reason":"length"}]}', K.FINISH, ""),
        (b'{"choices":[],"usage":{"completion_tokens":3}}', K.USAGE, ""),
        (b'{"choices":[],"usage":null}', K.KEEPALIVE, ""),
        (b'{"type":"ping"}', K.KEEPALIVE, ""),
        (b"[DONE]", K.DONE, ""),
        (b'{"error":{"message":"no"}}', K.ERROR, ""),
        (b'{"error":null,"choices":[{"delta":{"content":"a"}}]}', K.TEXT, "a"),
        (b'{"object":"error","message":"no"}', K.ERROR, ""),
    ],
)
def test_kind(data: bytes, kind: K, text: str) -> None:
    fact = read_chunk(data)
    assert (fact.kind, fact.text) == (kind, text)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"5", b"[]", b'"x"', b'{"choices":1}', b'{"choices":[{"delta":{"content":"\xff"}}]}']
)
def test_unreadable(data: bytes) -> None:
    with pytest.raises(UNREADABLE):
        read_chunk(data)


def test_usage_details() -> None:
    usage = read_chunk(
        b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":8},'
        b'"completion_tokens_details":{"reasoning_tokens":2}}}'
    ).usage
    assert usage is not None
    assert msgspec.structs.asdict(usage) == {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "cached_tokens": 8,
        "reasoning_tokens": 2,
    }


@pytest.mark.parametrize("field", ["metrics", "timings"])
@pytest.mark.parametrize("value", ["null", "{}", "5", '{"other":1}', '{"prompt_ms":null}', '"x"'])
def test_foreign_metrics_are_no_report(field: str, value: str) -> None:
    assert read_chunk(f'{{"choices":[],"{field}":{value}}}'.encode()).report is None


def test_message() -> None:
    assert message_of(b'{"error":{"message":"a\\n b"}}') == "a b"
    assert message_of(b'{"detail":"d"}') == "d"
    assert message_of(b'{"error":{"code":5}}') == '{"error":{"code":5}}'
    assert message_of(b"\xff plain") == "\ufffd plain"
    assert len(message_of(b"x" * 1000)) == 300


def test_first_token_skips_what_is_none() -> None:
    pieces = [
        b": hi\n\n",
        b"data: " + _delta(role="assistant") + b"\n\n",
        b"data: {broken\n\n",
        b"data: " + _delta(content="a"),
    ]
    assert first_token_ns([1, 2, 3, 4], pieces) is None
    assert first_token_ns([1, 2, 3, 4, 5], [*pieces, b"\n\n"]) == 5


def test_first_token_does_bounded_work() -> None:
    pieces = [b"data: " + _delta(content="a") + b"\n\n"] + [b"x" * 1000] * 10_000
    assert first_token_ns(list(range(10_001)), pieces) == 0

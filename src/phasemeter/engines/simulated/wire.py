"""A plan as bytes: OpenAI's events, framed as HTTP chunks and cut into writes, each with the time at which
it is due.

Rendering is lazy, one write ahead of the wire, so that a burst of requests does not wait for a thousand
encodings.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import msgspec
from msgspec import Struct, structs

from phasemeter.engines.simulated.plan import ERROR_MESSAGE, End, Piece, Plan, stream
from phasemeter.engines.simulated.script import Behaviour
from phasemeter.record.engine import GENERATED, EmissionKind
from phasemeter.record.request import Usage

PART_GAP_NS = 1_000_000
"""Between the writes of one event, so that they arrive as separate reads."""

_encode = msgspec.json.encode


class Write(Struct, frozen=True):
    """Bytes for one call of `write`. `offset_ns` counts from the slot, or from the receipt where
    `at_receipt` is set.

    kind    an `EmissionKind`, "head", "part" (of an event that a later write completes), "body", "end",
            "reset" (reset the connection instead of writing) or "hang" (stop here)
    """

    offset_ns: int
    data: bytes
    kind: str
    n_tokens: int = 0
    at_receipt: bool = False


class Voice(Struct, frozen=True):
    """What every event of one answer says of itself. `created_s` is wall time, `chunked` HTTP/1.1's
    framing."""

    id: str
    model: str
    created_s: int
    chat: bool
    chunked: bool
    keep_alive: bool


def answer_writes(plan: Plan, behaviour: Behaviour, voice: Voice, *, streaming: bool) -> Iterator[Write]:
    """Every write of one answer, in order."""
    whole = _streamed(plan, behaviour, voice) if streaming else _at_once(plan, behaviour, voice)
    cut = behaviour.split_utf8 or behaviour.split_events or behaviour.slow_drip is not None
    return _cut(whole, behaviour) if cut else whole


def head(status: int, fields: dict[str, str]) -> bytes:
    """Status line and header fields."""
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}", *(f"{k}: {v}" for k, v in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def error_body(status: int, message: str, param: str | None = None, kind: str | None = None) -> bytes:
    """An error in OpenAI's format."""
    name = kind or _ERROR_KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return _encode({"error": {"message": message, "type": name, "param": param, "code": status}})


def _streamed(plan: Plan, behaviour: Behaviour, voice: Voice) -> Iterator[Write]:
    fields = {
        "content-type": "text/plain; charset=utf-8"
        if behaviour.wrong_content_type
        else "text/event-stream; charset=utf-8",
        "cache-control": "no-cache, no-transform",
        "x-accel-buffering": "no",
        "x-request-id": voice.id,
        "connection": "keep-alive" if voice.keep_alive else "close",
    }
    if voice.chunked:
        fields["transfer-encoding"] = "chunked"
    yield Write(0, head(200, fields), "head", at_receipt=True)
    events = _events(plan, behaviour, voice)
    yield from _paired(events) if behaviour.coalesce else events
    if plan.end is End.RESET or plan.end is End.HANG:
        yield Write(plan.end_ns, b"", plan.end.value)
    else:
        yield Write(plan.end_ns, b"0\r\n\r\n" if voice.chunked else b"", "end")


def _events(plan: Plan, behaviour: Behaviour, voice: Voice) -> Iterator[Write]:
    line_end = b"\r\n" if behaviour.crlf else b"\n"
    out = 0
    before, after = _around_text(plan, behaviour, voice)
    for piece in stream(plan):
        out += piece.n_tokens
        if piece.kind is EmissionKind.KEEPALIVE:
            line = b": keep-alive"
        elif piece.kind is EmissionKind.TEXT and piece.finish is None and not plan.usage_per_chunk:
            line = b"data: " + before + _encode(piece.text) + after
        else:
            line = b"data: " + _payload(piece, plan, behaviour, voice, out)
        data = line + line_end + line_end
        if voice.chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        yield Write(piece.offset_ns, data, piece.kind.value, piece.n_tokens, piece.kind is EmissionKind.ROLE)


def _around_text(plan: Plan, behaviour: Behaviour, voice: Voice) -> tuple[bytes, bytes]:
    """What stands around the text in the event of a text: encoded once an answer, not once a token."""
    event = _payload(Piece(0, EmissionKind.TEXT), plan, behaviour, voice, 0)
    key = b'"content":' if voice.chat else b'"text":'
    before, _, after = event.rpartition(key + b'""')
    return before + key, after


def _payload(piece: Piece, plan: Plan, behaviour: Behaviour, voice: Voice, out: int) -> bytes:
    if piece.garbage:
        return b'{"id": "' + voice.id.encode() + b'", "choices": [{"text": not json'
    if piece.kind is EmissionKind.DONE:
        return b"[DONE]"
    if piece.kind is EmissionKind.ERROR:
        return error_body(500, ERROR_MESSAGE, kind="server_error")
    event: dict[str, object] = {
        "id": _answer_id(voice),
        "object": "chat.completion.chunk" if voice.chat else "text_completion",
        "created": voice.created_s,
        "model": voice.model,
        "choices": [] if piece.kind is EmissionKind.USAGE else [_choice(piece, behaviour, voice)],
    }
    if piece.kind is EmissionKind.USAGE:
        event["usage"] = _usage(plan.usage)
    elif plan.usage_per_chunk:
        event["usage"] = _usage(structs.replace(plan.usage, completion_tokens=out, reasoning_tokens=None))
    return _encode(event)


def _choice(piece: Piece, behaviour: Behaviour, voice: Voice) -> dict[str, object]:
    if not voice.chat:
        return {"index": 0, "text": piece.text, "logprobs": None, "finish_reason": piece.finish}
    delta: dict[str, str] = {}
    if piece.kind is EmissionKind.ROLE:
        delta = {"role": "assistant", "content": ""}
    elif piece.kind is EmissionKind.REASONING:
        delta = {behaviour.reasoning_field or "reasoning": piece.text}
    elif piece.kind in GENERATED:
        delta = {"content": piece.text}
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": piece.finish}


def _usage(usage: Usage) -> dict[str, object]:
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    told: dict[str, object] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if usage.cached_tokens is not None:
        told["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    if usage.reasoning_tokens is not None:
        told["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return told


def _at_once(plan: Plan, behaviour: Behaviour, voice: Voice) -> Iterator[Write]:
    """The answer as one JSON document, when its last token is there."""
    if plan.end is End.RESET or plan.end is End.HANG:
        yield Write(plan.end_ns, b"", plan.end.value)
        return
    status = 500 if plan.end is End.ERROR else 200
    body = error_body(500, ERROR_MESSAGE) if plan.end is End.ERROR else _document(plan, behaviour, voice)
    fields = {
        "content-type": "text/plain" if behaviour.wrong_content_type else "application/json",
        "content-length": str(len(body)),
        "x-request-id": voice.id,
        "connection": "keep-alive" if voice.keep_alive else "close",
    }
    if plan.end is End.TRUNCATED:
        body = body[: len(body) // 2]
    elif any(piece.garbage for piece in plan.pieces):
        body = body.replace(b'"choices"', b'"choices', 1).ljust(len(body))
    yield Write(plan.end_ns, head(status, fields) + body, "body", plan.n_tokens if status == 200 else 0)
    yield Write(plan.end_ns, b"", "end")


def _document(plan: Plan, behaviour: Behaviour, voice: Voice) -> bytes:
    text = "".join(piece.text for piece in plan.pieces if piece.kind is EmissionKind.TEXT)
    reasoning = "".join(piece.text for piece in plan.pieces if piece.kind is EmissionKind.REASONING)
    choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": plan.finish}
    if voice.chat:
        message: dict[str, object] = {"role": "assistant", "content": text}
        if reasoning:
            message[behaviour.reasoning_field or "reasoning"] = reasoning
        choice["message"] = message
    else:
        choice["text"] = text
    document: dict[str, object] = {
        "id": _answer_id(voice),
        "object": "chat.completion" if voice.chat else "text_completion",
        "created": voice.created_s,
        "model": voice.model,
        "choices": [choice],
    }
    if behaviour.usage != "none":
        document["usage"] = _usage(plan.usage)
    return _encode(document)


def _answer_id(voice: Voice) -> str:
    return f"{'chatcmpl' if voice.chat else 'cmpl'}-{voice.id}"


def _paired(events: Iterator[Write]) -> Iterator[Write]:
    """Events with tokens go out together with the one behind them, at the time of that one."""
    for event in events:
        if event.n_tokens == 0:
            yield event
            continue
        after = next(events, None)
        if after is None:
            yield event
        else:
            yield Write(after.offset_ns, event.data + after.data, event.kind, event.n_tokens + after.n_tokens)


def _cut(writes: Iterator[Write], behaviour: Behaviour) -> Iterator[Write]:
    """Cut events into the writes that the behaviour asks for; an event counts when its last write is out."""
    free_ns = 0
    for write in writes:
        parts = [write.data] if write.kind == "head" else _parts(write.data, behaviour)
        gap_ns = PART_GAP_NS if behaviour.slow_drip is None else round(behaviour.slow_drip * 1e6)
        offset_ns = write.offset_ns if write.at_receipt else max(write.offset_ns, free_ns)
        for part in parts[:-1]:
            yield Write(offset_ns, part, "part", at_receipt=write.at_receipt)
            offset_ns += gap_ns
        yield structs.replace(write, offset_ns=offset_ns, data=parts[-1])
        free_ns = offset_ns + (gap_ns if behaviour.slow_drip is not None else 0)


def _parts(data: bytes, behaviour: Behaviour) -> list[bytes]:
    """The pieces of one event, at least one."""
    if behaviour.slow_drip is not None and data:
        return [data[i : i + 1] for i in range(len(data))]
    cuts: set[int] = set()
    if behaviour.split_utf8:
        inside = next((i for i, byte in enumerate(data) if byte & 0xC0 == 0x80), None)
        cuts |= set() if inside is None else {inside}
    if behaviour.split_events and len(data) >= 3:
        cuts |= {len(data) // 3, 2 * len(data) // 3}
    edges = [0, *sorted(cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_ERROR_KINDS = {404: "not_found_error", 429: "rate_limit_error", 503: "service_unavailable_error"}

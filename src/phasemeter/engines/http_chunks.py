"""What one JSON chunk of an OpenAI-style stream is: pure functions, bytes in, facts out.

Rules (the docs page on definitions holds them too):
    a chunk with a role and no content opens the message and is never a token;
    content "" without a role is a token whose text is hidden or incomplete;
    a chunk is not a token: tokens are counted from `usage` where every generated chunk carries it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from phasemeter.engines.http_sse import sse_events
from phasemeter.record.engine import GENERATED, EmissionKind, EngineReport
from phasemeter.record.request import Usage

_NS_PER_MS = 1_000_000
_FIRST_LOOK_BYTES = 16_384
_NOTHING = (b"", b"null", b"[]", b"{}", b"false", b'""')
_UNSET = Raw()


class _Delta(Struct, gc=False):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Raw = _UNSET


class _Choice(Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(Struct, gc=False):
    cached_tokens: int | None = None


class _CompletionDetails(Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None


class _Chunk(Struct, gc=False):
    # Raw where servers differ in shape: read only when there is something in it
    object: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Raw = _UNSET
    metrics: Raw = _UNSET
    timings: Raw = _UNSET


class _VllmMetrics(Struct):
    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None


class _LlamaTimings(Struct):
    cache_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(Struct):
    function: _Function | None = None


_chunk = msgspec.json.Decoder(_Chunk)
_vllm_metrics = msgspec.json.Decoder(_VllmMetrics)
_llama_timings = msgspec.json.Decoder(_LlamaTimings)
_tool_calls = msgspec.json.Decoder(list[_ToolCall])

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)
"""What decoding a chunk raises when it is not the JSON that it should be."""


class Fact(Struct, frozen=True):
    """What one chunk says. `completion_tokens` is the count so far where the chunk carries usage."""

    kind: EmissionKind
    text: str = ""
    completion_tokens: int | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    report: EngineReport | None = None
    error: str | None = None


def read_chunk(data: bytes, event_name: bytes = b"") -> Fact:
    """Read one event's data. Raises one of `UNREADABLE` when it is no JSON object of the expected shape."""
    if data == b"[DONE]":
        return Fact(EmissionKind.DONE)
    if event_name == b"error":
        return Fact(EmissionKind.ERROR, error=message_of(data))
    chunk = _chunk.decode(data)
    if _told(chunk.error) or chunk.object == "error":
        return Fact(EmissionKind.ERROR, error=message_of(data))
    usage = chunk.usage
    choice = chunk.choices[0] if chunk.choices else None
    kind, text = _content(choice)
    if choice is None and usage is not None:
        kind = EmissionKind.USAGE
    return Fact(
        kind=kind,
        text=text,
        completion_tokens=usage.completion_tokens if usage is not None else None,
        finish_reason=choice.finish_reason if choice is not None else None,
        usage=_usage(usage),
        report=_report(chunk),
    )


def first_token_ns(stamps_ns: Sequence[int], pieces: Sequence[bytes]) -> int | None:
    """Stamp of the first generated token among the first pieces of a stream, or None. Bounded work: a
    stream that shows none in its first 16 KiB is read to its end only if it is shorter than that."""
    size, upto = 0, 0
    for piece in pieces:
        upto += 1
        size += len(piece)
        if size >= _FIRST_LOOK_BYTES:
            break
    for event in sse_events(stamps_ns[:upto], pieces[:upto]):
        if event.data is None or not event.closed:
            continue
        try:
            fact = read_chunk(event.data, event.name)
        except UNREADABLE:
            continue
        if fact.kind in GENERATED:
            return event.recv_ns
    return None


def message_of(data: bytes, limit: int = 300) -> str:
    """The server's own words in an error body or event, on one line, at most `limit` characters."""
    try:
        told = _message(msgspec.json.decode(data))
    except UNREADABLE:
        told = None
    if told is None:
        told = data.decode("utf-8", "replace")
    told = " ".join(told.split())
    return told if len(told) <= limit else f"{told[: limit - 3]}..."


def _message(value: object) -> str | None:
    if isinstance(value, str):
        return value or None
    if isinstance(value, dict):
        for key in ("error", "message", "detail"):
            told = _message(value.get(key))  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            if told is not None:
                return told
    return None


def _content(choice: _Choice | None) -> tuple[EmissionKind, str]:
    if choice is None:
        return EmissionKind.KEEPALIVE, ""
    delta = choice.delta
    if delta is None:  # completions
        if choice.text:
            return EmissionKind.TEXT, choice.text
        return _without_text(choice, said_empty=choice.text is not None, role=None)
    if delta.content:
        return EmissionKind.TEXT, delta.content
    thought = delta.reasoning or delta.reasoning_content
    if thought:
        return EmissionKind.REASONING, thought
    if _told(delta.tool_calls):
        return EmissionKind.TOOL, _tool_text(delta.tool_calls)
    said_empty = "" in (delta.content, delta.reasoning, delta.reasoning_content)
    return _without_text(choice, said_empty=said_empty, role=delta.role)


def _without_text(choice: _Choice, *, said_empty: bool, role: str | None) -> tuple[EmissionKind, str]:
    if choice.finish_reason:
        return EmissionKind.FINISH, ""
    if role is not None:
        return EmissionKind.ROLE, ""
    # a chunk with nothing in it (prompt progress, a ping) is a sign of life, not a token
    return (EmissionKind.EMPTY if said_empty else EmissionKind.KEEPALIVE), ""


def _tool_text(calls: Raw) -> str:
    try:
        functions = [call.function for call in _tool_calls.decode(calls)]
    except UNREADABLE:
        return ""
    return "".join((f.name or "") + (f.arguments or "") for f in functions if f is not None)


def _told(raw: Raw) -> bool:
    """Whether a field was there with something in it. Nearly always it was not: that must cost nothing."""
    return raw is not _UNSET and bytes(raw) not in _NOTHING


def _usage(usage: _Usage | None) -> Usage | None:
    if usage is None:
        return None
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=prompt.cached_tokens if prompt is not None else None,
        reasoning_tokens=completion.reasoning_tokens if completion is not None else None,
    )


def _report(chunk: _Chunk) -> EngineReport | None:
    """vLLM (`--enable-per-request-metrics`): `time_to_first_token_ms` is first scheduled to first token,
    so prefill, not a client's TTFT; `generation_time_ms` is first to last token. llama.cpp (`timings`):
    `prompt_ms` ends with the first token, `predicted_ms` runs from there."""
    try:
        if _told(chunk.metrics):
            return _vllm_report(_vllm_metrics.decode(chunk.metrics))
        if _told(chunk.timings):
            return _llama_report(_llama_timings.decode(chunk.timings))
    except UNREADABLE:
        pass  # some other server's field of that name
    return None


def _vllm_report(told: _VllmMetrics) -> EngineReport | None:
    times = (told.queue_time_ms, told.time_to_first_token_ms, told.generation_time_ms)
    if all(time is None for time in times):
        return None
    queue_ns, prefill_ns, decode_ns = (_ns(time) for time in times)
    return EngineReport(
        "vllm response metrics", queue_ns=queue_ns, prefill_ns=prefill_ns, decode_ns=decode_ns
    )


def _llama_report(told: _LlamaTimings) -> EngineReport | None:
    if told.prompt_ms is None and told.predicted_ms is None:
        return None
    return EngineReport(
        "llama.cpp timings",
        prefill_ns=_ns(told.prompt_ms),
        decode_ns=_ns(told.predicted_ms),
        cached_tokens=told.cache_n,
        n_tokens=told.predicted_n,
    )


def _ns(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else round(milliseconds * _NS_PER_MS)

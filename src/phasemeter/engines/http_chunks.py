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

from phasemeter.engines.http_reports import UNREADABLE, Count, llama_report, sglang_report, vllm_report
from phasemeter.engines.http_sse import sse_events
from phasemeter.record.engine import GENERATED, EmissionKind, EngineReport
from phasemeter.record.request import Usage

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
    meta_info: Raw = _UNSET


class _PromptDetails(Struct, gc=False):
    cached_tokens: Count | None = None


class _CompletionDetails(Struct, gc=False):
    reasoning_tokens: Count | None = None


class _Usage(Struct, gc=False):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
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
    meta_info: Raw = _UNSET


class _Code(Struct):
    code: Raw = _UNSET


class _Coded(_Code):
    error: Raw = _UNSET


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(Struct):
    function: _Function | None = None


_chunk = msgspec.json.Decoder(_Chunk)
_chunks = msgspec.json.Decoder(_Chunk)
_coded = msgspec.json.Decoder(_Coded)
_code = msgspec.json.Decoder(_Code)
_tool_calls = msgspec.json.Decoder(list[_ToolCall])


class Fact(Struct, frozen=True, gc=False):
    """What one chunk says. `completion_tokens` is the count so far where the chunk carries usage."""

    kind: EmissionKind
    text: str = ""
    completion_tokens: int | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    report: EngineReport | None = None
    error: str | None = None
    code: int | None = None
    """The status that an error event names; a refusal may come inside a 200."""


def read_chunk(data: bytes, event_name: bytes = b"") -> Fact:
    """Read one event's data. Raises one of `UNREADABLE` when it is no JSON object of the expected shape."""
    if data == b"[DONE]":
        return Fact(EmissionKind.DONE)
    if event_name == b"error":
        return Fact(EmissionKind.ERROR, error=message_of(data), code=_status_of(data))
    chunk = _chunk.decode(data)
    return _fact(chunk, data, _usage(chunk.usage))


def read_chunks(lines: Sequence[bytes]) -> list[Fact]:
    """Read the data of many events without names, none with a line end in it, at once. The same facts as from
    `read_chunk`, but that `usage` stands only in the last chunk that has one: no other is asked for. Raises one of
    `UNREADABLE` when any of them is no JSON object of the expected shape."""
    done = bool(lines) and lines[-1] == b"[DONE]"
    chunks = _chunks.decode_lines(b"\n".join(lines[:-1] if done else lines))
    if len(chunks) != len(lines) - done:
        raise msgspec.DecodeError("an event without data")
    last = next(
        (i for i, c in reversed([*enumerate(chunks)]) if c.usage is not None and not _is_error(c)), -1
    )
    facts = [
        _fact(chunk, data, _usage(chunk.usage) if i == last else None)
        for i, (chunk, data) in enumerate(zip(chunks, lines, strict=False))
    ]
    if done:
        facts.append(Fact(EmissionKind.DONE))
    return facts


def _is_error(chunk: _Chunk) -> bool:
    return _told(chunk.error) or chunk.object == "error"


def _fact(chunk: _Chunk, data: bytes, usage: Usage | None) -> Fact:
    if _is_error(chunk):
        return Fact(EmissionKind.ERROR, error=message_of(data), code=_status_of(data))
    choices = chunk.choices
    if not choices:
        kind = EmissionKind.KEEPALIVE if chunk.usage is None else EmissionKind.USAGE
        report = _report(chunk, None)
        return Fact(kind, "", _count(chunk, report), None, usage, report)
    choice = choices[0]
    kind, text = _content(choice)
    report = _report(chunk, choice)
    return Fact(kind, text, _count(chunk, report), choice.finish_reason, usage, report)


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


def _status_of(data: bytes) -> int | None:
    """`code` of an error body, or of the object under `error`; servers write it as a number or as its digits."""
    try:
        whole = _coded.decode(data)
        inner = _code.decode(whole.error) if bytes(whole.error)[:1] == b"{" else whole
    except UNREADABLE:
        return None
    told = bytes(inner.code).strip(b'"')
    return int(told) if told.isdigit() and len(told) == 3 else None


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


def _content(choice: _Choice) -> tuple[EmissionKind, str]:
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


def _report(chunk: _Chunk, choice: _Choice | None) -> EngineReport | None:
    """What the server tells of its own times, by the field that holds it (see `http_reports`)."""
    if (
        chunk.metrics is _UNSET
        and chunk.timings is _UNSET
        and chunk.meta_info is _UNSET
        and (choice is None or choice.meta_info is _UNSET)
    ):
        return None  # nearly always
    info = chunk.meta_info if _told(chunk.meta_info) else choice.meta_info if choice is not None else _UNSET
    try:
        for raw, read in (
            (chunk.metrics, vllm_report),
            (chunk.timings, llama_report),
            (info, sglang_report),
        ):
            if _told(raw):
                return read(bytes(raw))
    except UNREADABLE:
        pass  # some other server's field of that name
    return None


def _count(chunk: _Chunk, report: EngineReport | None) -> int | None:
    """Tokens so far: usage in every chunk, or llama.cpp's `timings_per_token`."""
    if chunk.usage is not None:
        return chunk.usage.completion_tokens
    return report.n_tokens if report is not None and _told(chunk.timings) else None

"""The names that `--fault NAME[:ARG]` takes: one row a fault, with its arguments and one line of
explanation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from phasemeter.engines.simulated.script import Behaviour, behaviour_of, merged
from phasemeter.record.errors import InputError

Fields = dict[str, object]


class Fault(Struct, frozen=True):
    """How a fault is written, what it does, and how its arguments become fields of a `Behaviour`."""

    usage: str
    line: str
    least: int
    most: int
    fields: Callable[[Sequence[str]], Fields]


def parse_fault(text: str) -> Behaviour:
    """`NAME[:ARG[:ARG]]` as a behaviour. Raises InputError for unknown names and wrong arguments."""
    name, *args = text.split(":")
    fault = FAULTS.get(name)
    if fault is None:
        raise InputError("--fault", text, "unknown; `phasemeter simulate --list-faults` names them all")
    if not fault.least <= len(args) <= fault.most:
        raise InputError("--fault", text, f"write it as {fault.usage}")
    try:
        fields = fault.fields(args)
    except ValueError:
        raise InputError("--fault", text, f"an argument is no number; write it as {fault.usage}") from None
    return behaviour_of(fields, "--fault")


def parse_faults(texts: Sequence[str]) -> Behaviour:
    """Several faults laid over each other, the later ones on top."""
    behaviour = Behaviour()
    for text in texts:
        behaviour = merged(behaviour, parse_fault(text))
    return behaviour


def _flag(name: str, line: str) -> Fault:
    return Fault(name, line, 0, 0, lambda _: {name: True})


def _count(name: str, letter: str, line: str) -> Fault:
    return Fault(f"{name}:{letter}", line, 1, 1, lambda args: {name: int(args[0])})


def _interval(name: str, default_ms: float, line: str) -> Fault:
    return Fault(f"{name}[:MS]", line, 0, 1, lambda args: {name: float(args[0]) if args else default_ms})


def _word(name: str, words: str, line: str) -> Fault:
    return Fault(f"{name}:{words}", line, 1, 1, lambda args: {name: args[0]})


def _on_off(args: Sequence[str]) -> Fields:
    if args[0] not in ("on", "off"):
        raise InputError("--fault", f"role_first:{args[0]}", "write it as role_first:on or role_first:off")
    return {"role_first": args[0] == "on"}


def _empty(args: Sequence[str]) -> Fields:
    return {"empty_deltas": [int(chunk) for chunk in args[0].split(",")]}


def _reasoning(args: Sequence[str]) -> Fields:
    field: Fields = {"reasoning_field": args[1]} if len(args) > 1 else {}
    return {"reasoning": int(args[0])} | field


def _stall(args: Sequence[str]) -> Fields:
    return {"stall": {"after": int(args[0]), "ms": float(args[1])}}


def _status(args: Sequence[str]) -> Fields:
    wait = {"retry_after_s": float(args[1])} if len(args) > 1 else {}
    return {"status": {"code": int(args[0])} | wait}


FAULTS: dict[str, Fault] = {
    "role_first": Fault(
        "role_first:on|off", "chat: a chunk with the role alone, at once (default on)", 1, 1, _on_off
    ),
    "empty_deltas": Fault(
        "empty_deltas:I[,I...]", 'chunks I (from 0) carry tokens but the text ""', 1, 1, _empty
    ),
    "reasoning": Fault("reasoning:K[:FIELD]", "the first K chunks are reasoning (chat)", 1, 2, _reasoning),
    "usage": _word(
        "usage", "none|end|chunk", "usage nowhere, at the end or in every chunk, whatever was asked"
    ),
    "usage_lie": _count("usage_lie", "N", "usage claims N completion tokens"),
    "cached_tokens": _count(
        "cached_tokens", "N", "N prompt tokens come from a cache: no prefill, shown in usage"
    ),
    "short_output": _count("short_output", "N", "ends after N tokens with finish reason stop"),
    "finish": _word("finish", "REASON", "the finish reason to give (default length)"),
    "finish_with_last": _flag(
        "finish_with_last", "the finish reason comes with the last text, not behind it"
    ),
    "no_done": _flag("no_done", "the stream ends without [DONE]"),
    "keepalive_comments": _interval("keepalive_comments", 15.0, "an SSE comment every MS milliseconds (15)"),
    "hang_before_first": _flag("hang_before_first", "headers (and role), then nothing more"),
    "hang_after": _count("hang_after", "K", "nothing more after K tokens"),
    "stall": Fault("stall:K:MS", "after K tokens everything comes MS milliseconds later", 2, 2, _stall),
    "reset_after": _count("reset_after", "K", "the connection is reset (RST) when the token after K is due"),
    "truncate_after": _count(
        "truncate_after", "K", "the stream ends in good order after K tokens, unfinished"
    ),
    "error_event_after": _count(
        "error_event_after", "K", "an error event inside the 200 after K tokens, then [DONE]"
    ),
    "garbage_json": _count(
        "garbage_json", "K", "an event that is no JSON after K tokens; the stream goes on"
    ),
    "empty_stream": _flag("empty_stream", "a 200 and [DONE] without one token"),
    "status": Fault("status:CODE[:S]", "answers with this error status (and Retry-After: S)", 1, 2, _status),
    "not_streaming": _flag("not_streaming", "one application/json answer although a stream was asked for"),
    "wrong_content_type": _flag("wrong_content_type", "the events are sent as text/plain"),
    "split_utf8": _flag("split_utf8", "Chinese and emoji text, every event cut inside a character"),
    "split_events": _flag("split_events", "every event goes out in three writes"),
    "slow_drip": _interval("slow_drip", 1.0, "one byte a write, every MS milliseconds (1)"),
    "coalesce": _flag("coalesce", "two events a write, at the time of the second"),
    "crlf": _flag("crlf", "events end their lines with CR LF"),
    "close_connection": _flag(
        "close_connection", "Connection: close, and the connection ends with the answer"
    ),
}
"""All faults, in the order in which they are listed."""

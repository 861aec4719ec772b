"""What will be sent for one request, decided whole before the first byte: pieces at absolute offsets, and an
end.

Pure: the server renders a `Plan` into bytes, the engine in process into emissions, so both tell the same
truth.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from random import Random

from msgspec import Struct, structs

from phasemeter.engines.simulated.script import Behaviour, truth_for
from phasemeter.engines.simulated.truth import Truth, queue_ns, schedule
from phasemeter.engines.simulated.words import chunk_text
from phasemeter.record.engine import EmissionKind
from phasemeter.record.errors import InputError
from phasemeter.record.request import Usage

ERROR_MESSAGE = "the simulated engine failed as scripted"
"""What an error event says."""


class Ask(Struct, frozen=True):
    """What a request wants, as far as the plan depends on it."""

    prompt_tokens: int
    max_tokens: int
    chat: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


class Piece(Struct, frozen=True):
    """One event of the stream, due `offset_ns` after the slot was got. `garbage`: an event that is no
    JSON."""

    offset_ns: int
    kind: EmissionKind
    text: str = ""
    n_tokens: int = 0
    finish: str | None = None
    garbage: bool = False


class End(StrEnum):
    """How the stream ends."""

    COMPLETE = "complete"
    TRUNCATED = "truncated"
    ERROR = "error"
    RESET = "reset"
    HANG = "hang"


class Plan(Struct, frozen=True):
    """Everything one request will do. Durations and offsets are nanoseconds from the slot.

    queue_ns, prefill_ns, decode_ns   the phases of what is sent; decode_ns and prefill_ns are None without a
                                      token
    n_tokens                          tokens sent, which a fault may make fewer than were asked for
    faults                            names of the faults that act in this request
    """

    pieces: tuple[Piece, ...]
    end: End
    end_ns: int
    queue_ns: int
    prefill_ns: int | None
    decode_ns: int | None
    n_tokens: int
    usage: Usage
    finish: str | None
    usage_per_chunk: bool = False
    keepalive_ns: int | None = None
    faults: tuple[str, ...] = ()

    @property
    def busy_ns(self) -> int | None:
        """When the engine is done with the request and its slot is free; None: never (it hangs)."""
        return None if self.end is End.HANG else self.end_ns


def make_plan(truth: Truth, behaviour: Behaviour, ask: Ask, request_number: int, rng: Random) -> Plan:
    """Decide what one request will do. `request_number` counts earlier requests of the same shape.

    Raises InputError when truth and behaviour together cannot be.
    """
    truth = truth_for(truth, behaviour)
    cached = behaviour.cached_tokens or 0
    n = min(ask.max_tokens, behaviour.short_output or ask.max_tokens)
    stop = behaviour.short_output is not None and behaviour.short_output < ask.max_tokens
    chunks = _stalled(schedule(truth, request_number, ask.prompt_tokens, n, rng, cached), behaviour)
    end, kept, end_ns = _cut(chunks, behaviour)
    finish = behaviour.finish or ("stop" if stop else "length")
    sent = chunks[:kept]
    pieces = list(_opening(behaviour, ask))
    pieces += _with_garbage(_content(sent, behaviour, ask), chunks, behaviour)
    usage = _usage(sent, behaviour, ask)
    mode = behaviour.usage or _usage_asked(ask)
    pieces += _closing(end, end_ns, behaviour, finish=finish if sent else None, usage=mode != "none")
    if behaviour.finish_with_last and end is End.COMPLETE:
        pieces = _finish_moved(pieces)
    queue = queue_ns(truth)
    return Plan(
        pieces=tuple(pieces),
        end=end,
        end_ns=end_ns,
        queue_ns=queue,
        prefill_ns=sent[0][0] - queue if sent else None,
        decode_ns=sent[-1][0] - sent[0][0] if sent else None,
        n_tokens=sum(tokens for _, tokens in sent),
        usage=usage,
        finish=finish if sent and end is End.COMPLETE else None,
        usage_per_chunk=mode == "chunk",
        keepalive_ns=_ms_to_ns(behaviour.keepalive_comments),
        faults=_acting(behaviour, end),
    )


def stream(plan: Plan) -> Iterator[Piece]:
    """The pieces in order, with the keep-alive comments between them; a stream that hangs keeps them
    coming."""
    step = plan.keepalive_ns
    due = step
    for piece in plan.pieces:
        while step is not None and due is not None and due < piece.offset_ns:
            yield Piece(due, EmissionKind.KEEPALIVE)
            due += step
        yield piece
    while step is not None and due is not None and (plan.end is End.HANG or due < plan.end_ns):
        yield Piece(due, EmissionKind.KEEPALIVE)
        due += step


_Chunk = tuple[int, int]


def _stalled(chunks: tuple[_Chunk, ...], behaviour: Behaviour) -> tuple[_Chunk, ...]:
    stall = behaviour.stall
    if stall is None:
        return chunks
    keep = _chunks_with(chunks, stall.after)
    late_ns = round(stall.ms * 1e6)
    return chunks[:keep] + tuple((offset + late_ns, n) for offset, n in chunks[keep:])


def _chunks_with(chunks: tuple[_Chunk, ...], tokens: int) -> int:
    """How many chunks it takes until at least `tokens` tokens are out."""
    out = 0
    for i, (_, n) in enumerate(chunks):
        if out >= tokens:
            return i
        out += n
    return len(chunks)


def _cut(chunks: tuple[_Chunk, ...], behaviour: Behaviour) -> tuple[End, int, int]:
    """(how the stream ends, chunks sent before, offset of the end). The earliest of several faults wins."""
    wishes = [
        (0 if behaviour.hang_before_first else None, End.HANG),
        (behaviour.hang_after, End.HANG),
        (behaviour.reset_after, End.RESET),
        (behaviour.error_event_after, End.ERROR),
        (behaviour.truncate_after, End.TRUNCATED),
        (0 if behaviour.empty_stream else None, End.COMPLETE),
    ]
    total = sum(n for _, n in chunks)
    reached = [(after, end) for after, end in wishes if after is not None and after <= total]
    if not reached:
        return End.COMPLETE, len(chunks), chunks[-1][0]
    after, end = min(reached, key=lambda wish: wish[0])
    kept = _chunks_with(chunks, after)
    return end, kept, _offset_after(chunks, kept)


def _offset_after(chunks: tuple[_Chunk, ...], kept: int) -> int:
    """When the chunk behind the first `kept` ones is due; behind the last one, a gap like the last one
    later."""
    if kept < len(chunks):
        return chunks[kept][0]
    last_two = [offset for offset, _ in chunks[-2:]]
    return last_two[-1] + last_two[-1] - last_two[0]


def _opening(behaviour: Behaviour, ask: Ask) -> Iterator[Piece]:
    if ask.chat and behaviour.role_first is not False:
        yield Piece(0, EmissionKind.ROLE)


def _content(chunks: tuple[_Chunk, ...], behaviour: Behaviour, ask: Ask) -> list[Piece]:
    pieces: list[Piece] = []
    done = 0
    empty = frozenset(behaviour.empty_deltas or ())
    reasoning = (behaviour.reasoning or 0) if ask.chat else 0
    for i, (offset, n) in enumerate(chunks):
        if i in empty:
            pieces.append(Piece(offset, EmissionKind.EMPTY, n_tokens=n))
        else:
            kind = EmissionKind.REASONING if i < reasoning else EmissionKind.TEXT
            pieces.append(Piece(offset, kind, chunk_text(done, n, wide=bool(behaviour.split_utf8)), n))
        done += n
    return pieces


def _with_garbage(pieces: list[Piece], chunks: tuple[_Chunk, ...], behaviour: Behaviour) -> list[Piece]:
    if behaviour.garbage_json is None or behaviour.garbage_json > sum(n for _, n in chunks):
        return pieces
    at = _chunks_with(chunks, behaviour.garbage_json)
    if at > len(pieces):
        return pieces
    offset = chunks[min(at, len(chunks) - 1)][0]
    return [*pieces[:at], Piece(offset, EmissionKind.ERROR, garbage=True), *pieces[at:]]


def _closing(
    end: End, end_ns: int, behaviour: Behaviour, *, finish: str | None, usage: bool
) -> Iterator[Piece]:
    if end is End.ERROR:
        yield Piece(end_ns, EmissionKind.ERROR)
    elif end is not End.COMPLETE:
        return
    else:
        if finish is not None:
            yield Piece(end_ns, EmissionKind.FINISH, finish=finish)
        if usage and finish is not None:
            yield Piece(end_ns, EmissionKind.USAGE)
    if not behaviour.no_done:
        yield Piece(end_ns, EmissionKind.DONE)


def _finish_moved(pieces: list[Piece]) -> list[Piece]:
    """The finish reason on the last piece with tokens instead of behind it."""
    at = max((i for i, piece in enumerate(pieces) if piece.n_tokens), default=None)
    if at is None:
        return pieces
    finish = next(piece.finish for piece in pieces if piece.kind is EmissionKind.FINISH)
    moved = [*pieces[:at], structs.replace(pieces[at], finish=finish), *pieces[at + 1 :]]
    return [piece for piece in moved if piece.kind is not EmissionKind.FINISH]


def _usage(chunks: tuple[_Chunk, ...], behaviour: Behaviour, ask: Ask) -> Usage:
    sent = sum(n for _, n in chunks)
    if behaviour.cached_tokens is not None and behaviour.cached_tokens > ask.prompt_tokens:
        raise InputError(
            "cached_tokens", behaviour.cached_tokens, f"the prompt has {ask.prompt_tokens} tokens"
        )
    reasoning = sum(n for _, n in chunks[: behaviour.reasoning or 0]) if ask.chat else 0
    return Usage(
        prompt_tokens=ask.prompt_tokens,
        completion_tokens=sent if behaviour.usage_lie is None else behaviour.usage_lie,
        cached_tokens=behaviour.cached_tokens,
        reasoning_tokens=reasoning or None,
    )


def _usage_asked(ask: Ask) -> str:
    if not ask.include_usage:
        return "none"
    return "chunk" if ask.continuous_usage else "end"


_CUTS = (
    "hang_before_first",
    "hang_after",
    "reset_after",
    "truncate_after",
    "error_event_after",
    "empty_stream",
)
_OUTWARD = (
    *("stall", "no_done", "garbage_json", "usage_lie", "short_output", "slow_drip", "not_streaming"),
    *("wrong_content_type", "close_connection", "split_utf8", "split_events", "coalesce", "crlf"),
)
_CUT_ENDS = {
    "hang_before_first": End.HANG,
    "hang_after": End.HANG,
    "reset_after": End.RESET,
    "truncate_after": End.TRUNCATED,
    "error_event_after": End.ERROR,
    "empty_stream": End.COMPLETE,
}


def _acting(behaviour: Behaviour, end: End) -> tuple[str, ...]:
    asked = [name for name in _OUTWARD if getattr(behaviour, name) not in (None, False)]
    cuts = [
        name for name in _CUTS if getattr(behaviour, name) not in (None, False) and _CUT_ENDS[name] is end
    ]
    return tuple(cuts + asked)


def _ms_to_ns(value_ms: float | None) -> int | None:
    return None if value_ms is None else round(value_ms * 1e6)

"""From the bytes of an answer to a `Result`: what was generated and when, and how the request ended."""

from __future__ import annotations

from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from msgspec import Struct
from msgspec.structs import replace

from phasemeter.engines.http_chunks import UNREADABLE, Fact, message_of, read_chunk, read_chunks
from phasemeter.engines.http_sse import plain_events, sse_events
from phasemeter.engines.http_wire import Answer, End
from phasemeter.record.clock import Clock, anchor
from phasemeter.record.engine import GENERATED, Emission, EmissionKind, Outcome, Result

_REFUSALS = frozenset({429, 503})
_TIMEOUTS = {
    End.TIMEOUT_CONNECT: Outcome.TIMEOUT_CONNECT,
    End.TIMEOUT_FIRST: Outcome.TIMEOUT_FIRST,
    End.TIMEOUT_GAP: Outcome.TIMEOUT_GAP,
    End.TIMEOUT_TOTAL: Outcome.TIMEOUT_TOTAL,
}


class HttpReply:
    """A stream that has ended; parsed once, when asked. `secret` is blotted out of what a server echoes."""

    def __init__(self, answer: Answer, clock: Clock, secret: str | None = None) -> None:
        self._held: Answer | Result = answer
        self._clock = clock
        self._secret = secret

    @property
    def connected(self) -> bool:
        """Whether there was a connection at all; costs no parsing."""
        return self._held.connected_ns is not None

    def settle(self) -> Result:
        """Parse and return what came of the request; later calls return the same result."""
        if isinstance(self._held, Answer):  # the bytes are not needed any more after this
            self._held = _without_secret(settle(self._held, self._clock), self._secret)
        return self._held


class _Stream(Struct, frozen=True):
    """The events of a stream, read. `garbage` tells of the first event that could not be."""

    stamps_ns: tuple[int, ...]
    facts: tuple[Fact, ...]
    garbage: str | None = None

    @property
    def finish_reason(self) -> str | None:
        return next((fact.finish_reason for fact in reversed(self.facts) if fact.finish_reason), None)

    @property
    def error(self) -> str | None:
        return next((fact.error for fact in self.facts if fact.kind is EmissionKind.ERROR), None)

    @property
    def refused(self) -> bool:
        """A refusal inside a 200: vLLM has sent its headers by the time it finds its queue full."""
        first = next((fact for fact in self.facts if fact.kind is EmissionKind.ERROR), None)
        return first is not None and first.code in _REFUSALS and not self.generated

    @property
    def done(self) -> bool:
        return any(fact.kind is EmissionKind.DONE for fact in self.facts)

    @property
    def generated(self) -> bool:
        return any(fact.kind in GENERATED for fact in self.facts)


def settle(answer: Answer, clock: Clock) -> Result:
    """Parse an answer. `clock` is only used to turn a Retry-After date into seconds when the server sent
    no Date."""
    bare = Result(
        outcome=Outcome.OK,
        end_ns=answer.end_ns,
        connected_ns=answer.connected_ns,
        sent_ns=answer.sent_ns,
        first_byte_ns=answer.first_byte_ns,
        status=answer.status,
        reused_connection=answer.reused,
        error=answer.error,
    )
    if answer.end is End.CONNECT_FAILED:
        return replace(bare, outcome=Outcome.CONNECT_FAILED)
    if answer.status is None:
        outcome = (
            Outcome.BAD_RESPONSE if answer.end is End.MALFORMED else _TIMEOUTS.get(answer.end, Outcome.RESET)
        )
        return replace(bare, outcome=outcome)
    if answer.status != HTTPStatus.OK:
        return _not_ok(bare, answer, answer.status, clock)
    return _streamed(bare, answer)


def _not_ok(bare: Result, answer: Answer, status: int, clock: Clock) -> Result:
    told = message_of(answer.body())
    if status >= HTTPStatus.BAD_REQUEST:
        outcome = Outcome.REFUSED if status in _REFUSALS else Outcome.HTTP_ERROR
        return replace(
            bare, outcome=outcome, error=told or _phrase(status), retry_after_s=retry_after_s(answer, clock)
        )
    if status >= HTTPStatus.MULTIPLE_CHOICES:
        place = answer.header("location") or "an unnamed place"
        return replace(
            bare,
            outcome=Outcome.BAD_RESPONSE,
            error=f"{status} redirects to {place}; redirects are not followed",
        )
    return replace(bare, outcome=Outcome.BAD_RESPONSE, error=f"status {status} is no event stream")


def _streamed(bare: Result, answer: Answer) -> Result:
    kind = (answer.header("content-type") or "").partition(";")[0].strip().lower()
    if kind in {"application/json", "text/html"}:
        what = "one JSON document, not a stream" if kind == "application/json" else "a web page, not a stream"
        told = message_of(answer.body(), limit=200)
        return replace(bare, outcome=Outcome.BAD_RESPONSE, error=f"the server sent {what}: {told}")
    coding = (answer.header("content-encoding") or "identity").strip().lower()
    if coding != "identity":
        told = f"the server compressed the stream ({coding}) although it was asked not to"
        return replace(bare, outcome=Outcome.BAD_RESPONSE, error=told)
    stream = _read(answer.stamps_ns, answer.pieces)
    outcome, error = _outcome(stream, answer)
    usages = [fact.usage for fact in stream.facts if fact.usage is not None]
    reports = [fact.report for fact in stream.facts if fact.report is not None]
    return replace(
        bare,
        outcome=outcome,
        error=error,
        emissions=_emissions(stream),
        finish_reason=stream.finish_reason,
        usage=usages[-1] if usages else None,
        report=reports[-1] if reports else None,
    )


def _read(stamps_ns: Sequence[int], pieces: Sequence[bytes]) -> _Stream:
    plain = plain_events(stamps_ns, pieces)
    if plain is not None:
        try:
            return _Stream(tuple(plain[0]), tuple(read_chunks(plain[1])))
        except UNREADABLE:
            pass  # one by one, to say which and to keep the rest
    return _read_any(stamps_ns, pieces)


def _read_any(stamps_ns: Sequence[int], pieces: Sequence[bytes]) -> _Stream:
    stamps: list[int] = []
    facts: list[Fact] = []
    garbage: str | None = None
    for event in sse_events(stamps_ns, pieces):
        if event.data is None:
            fact = Fact(EmissionKind.KEEPALIVE)
        else:
            try:
                fact = read_chunk(event.data, event.name)
            except UNREADABLE:
                # an event that the end of the stream cut is no garbage; how the stream ended tells of it
                if event.closed and garbage is None:
                    garbage = message_of(event.data, limit=120)
                continue
        stamps.append(event.recv_ns)
        facts.append(fact)
    return _Stream(tuple(stamps), tuple(facts), garbage)


def _outcome(stream: _Stream, answer: Answer) -> tuple[Outcome, str | None]:
    """What the server says of the request weighs most, then how the bytes ended, then what was missing."""
    if stream.error is not None:
        return Outcome.REFUSED if stream.refused else Outcome.ERROR_IN_STREAM, stream.error
    if answer.end is End.CANCELLED and not stream.done:
        return Outcome.CANCELLED, answer.error
    if answer.end in _TIMEOUTS and not stream.done:
        return _TIMEOUTS[answer.end], answer.error
    if stream.garbage is not None:
        return Outcome.BAD_RESPONSE, f"an event of the stream is no JSON chunk: {stream.garbage}"
    if answer.end is End.MALFORMED and not stream.done:
        return Outcome.BAD_RESPONSE, answer.error
    if answer.end is End.LOST and not stream.done:
        return Outcome.RESET, answer.error
    if not stream.facts and answer.body().strip():
        return Outcome.BAD_RESPONSE, f"the body is no event stream: {message_of(answer.body(), limit=120)}"
    if not stream.generated:
        return Outcome.EMPTY_STREAM, "the stream ended without one generated token"
    if not stream.done and stream.finish_reason is None:
        return Outcome.TRUNCATED, "the stream ended without a finish reason and without [DONE]"
    return Outcome.OK, None


def _emissions(stream: _Stream) -> tuple[Emission, ...]:
    counts = _counts(stream.facts)
    return tuple(
        # a last chunk with a finish reason, no text and one more token counted holds a hidden token
        Emission(stamp, EmissionKind.EMPTY if fact.kind in _MAY_HIDE and n else fact.kind, fact.text, n)
        for stamp, fact, n in zip(stream.stamps_ns, stream.facts, counts, strict=True)
    )


_MAY_HIDE = frozenset({EmissionKind.FINISH, EmissionKind.KEEPALIVE})


def _counts(facts: Sequence[Fact]) -> list[int | None]:
    """Tokens of each chunk, as the difference of `usage.completion_tokens`; None throughout unless every
    generated chunk carries it and it never falls: usage in the last chunk alone says nothing about the
    ones before."""
    none: list[int | None] = [None] * len(facts)
    if any(fact.completion_tokens is None for fact in facts if fact.kind in GENERATED):
        return none
    if not any(fact.kind in GENERATED for fact in facts):
        return none
    counts: list[int | None] = []
    before = 0
    for fact in facts:
        now = fact.completion_tokens
        if now is None or fact.kind is EmissionKind.USAGE:
            counts.append(None)
            continue
        if fact.kind is EmissionKind.ROLE:  # no token itself: what it counts belongs to the next chunk
            counts.append(0)
            continue
        if now < before:
            return none
        counts.append(now - before)
        before = now
    return counts


def retry_after_s(answer: Answer, clock: Clock) -> float | None:
    """Seconds that the server asks to wait (RFC 9110, 10.2.3: seconds or a date), or None. A date is read
    against the server's own Date header where there is one."""
    told = answer.header("retry-after")
    if told is None:
        return None
    try:
        return max(0.0, float(told)) if float(told) < float("inf") else None
    except ValueError:
        pass
    due_s = _epoch_s(told)
    if due_s is None:
        return None
    now_s = _epoch_s(answer.header("date"))
    if now_s is None:
        now = anchor(clock)
        now_s = (now.wall_ns - (now.clock_ns - answer.end_ns)) / 1e9
    return max(0.0, due_s - now_s)


def _epoch_s(date: str | None) -> float | None:
    if date is None:
        return None
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"status {status}"


def _without_secret(result: Result, secret: str | None) -> Result:
    if not secret or result.error is None or secret not in result.error:
        return result
    return replace(result, error=result.error.replace(secret, "***"))

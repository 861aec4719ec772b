"""The seam between a driver and whatever makes a request happen.

An engine's `generate` returns a `Reply` as soon as the stream has ended; `Reply.settle()` turns what was received
into a `Result`. The two are apart on purpose: an HTTP engine stamps bytes in the socket's callback and parses them
in `settle`, when no request is being timed (decision 003).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct

from phasemeter.record.request import Request, Usage


class EmissionKind(StrEnum):
    """What one received piece of a stream was. Only the first four can hold generated tokens."""

    __hash__ = str.__hash__  # Enum's own is Python code, and every token of a run is looked up by its kind

    TEXT = "text"
    REASONING = "reasoning"
    TOOL = "tool"
    EMPTY = "empty"
    """Content "" with no role: a real token whose text is hidden or incomplete (vLLM sends these)."""
    ROLE = "role"
    """A chunk that only opens the message; never the first token."""
    FINISH = "finish"
    """A chunk that carries a finish reason and no content."""
    USAGE = "usage"
    ERROR = "error"
    DONE = "done"
    """The `[DONE]` sentinel."""
    KEEPALIVE = "keepalive"
    """An SSE comment."""


GENERATED = frozenset({EmissionKind.TEXT, EmissionKind.REASONING, EmissionKind.TOOL, EmissionKind.EMPTY})


class Emission(Struct, frozen=True):
    """One received piece. `recv_ns` is the run's clock in the socket's callback, before any parsing (in process:
    after the device has synchronised). `n_tokens` is the number of tokens in it where the server tells the count,
    else None: a chunk is not a token."""

    recv_ns: int
    kind: EmissionKind
    text: str = ""
    n_tokens: int | None = None


class EngineReport(Struct, frozen=True, omit_defaults=True):
    """What the engine itself saw: durations in the engine's own clock, never stamps of it. Absent is None.

    queue_ns    accepted by the engine until first scheduled
    prefill_ns  first scheduled until first token
    decode_ns   first token until last token
    e2e_ns      accepted by the server's front end until finished there, where the engine tells it
    before_ns   handed to the engine until accepted by it, where one clock of the engine's tells both; None otherwise
    after_ns    first token until the first output was back from the engine, where one clock tells both; None otherwise
    """

    source: str
    queue_ns: int | None = None
    prefill_ns: int | None = None
    decode_ns: int | None = None
    e2e_ns: int | None = None
    cached_tokens: int | None = None
    preemptions: int | None = None
    n_tokens: int | None = None
    before_ns: int | None = None
    after_ns: int | None = None


class Outcome(StrEnum):
    """How a request ended. Everything but OK is a failure; a failed request is data, not an exception."""

    OK = "ok"
    CONNECT_FAILED = "connect_failed"
    HTTP_ERROR = "http_error"
    """A status of 400 and above other than a refusal."""
    REFUSED = "refused"
    """429 or 503."""
    BAD_RESPONSE = "bad_response"
    """A 200 that is no event stream, or events that are no JSON."""
    ERROR_IN_STREAM = "error_in_stream"
    """An error event inside a 200."""
    EMPTY_STREAM = "empty_stream"
    """A 200 that ended without one generated token."""
    TRUNCATED = "truncated"
    """The stream ended without finish reason and without `[DONE]`."""
    RESET = "reset"
    TIMEOUT_CONNECT = "timeout_connect"
    TIMEOUT_FIRST = "timeout_first_token"
    TIMEOUT_GAP = "timeout_inter_token"
    TIMEOUT_TOTAL = "timeout_total"
    CANCELLED = "cancelled"
    """Given up by us: Ctrl-C or a scripted abort."""
    LOST = "lost"
    """Planned for a client process that died; nobody knows what came of it."""
    ENGINE_ERROR = "engine_error"
    """An in-process engine refused or broke on this request (out of memory, context too long)."""


class Result(Struct, frozen=True):
    """What came of one request. Stamps are on the run's clock; a stage that was not reached is None."""

    outcome: Outcome
    end_ns: int
    connected_ns: int | None = None
    """A connection was ready (in process: the request was handed over)."""
    sent_ns: int | None = None
    """The request's last byte was handed to the socket."""
    first_byte_ns: int | None = None
    """First byte of the response, headers included."""
    emissions: tuple[Emission, ...] = ()
    status: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    report: EngineReport | None = None
    retry_after_s: float | None = None
    reused_connection: bool | None = None


class SeenRequest(Struct, frozen=True, omit_defaults=True, tag="engine_report"):
    """What an engine said of one request by another way than its stream (a plugin's file, a log), joined by id when a
    run is read. `index` tells the sequences of one request apart (n > 1); `engine_ns` is when it finished, on the
    engine's own clock: to place it among `EngineStep`s, never to compare with a stamp of ours. `engine` is the number
    of the engine core that served it, where the server tells it."""

    request: str
    report: EngineReport
    index: int = 0
    engine_ns: int | None = None
    engine: int | None = None


class EngineStep(Struct, frozen=True, omit_defaults=True, tag="engine_step"):
    """One step of a batching engine, as it told. `engine_ns` is its end on the engine's own clock; `engine` the number
    of the engine core that made it (a server runs several with data parallelism). Absent is None."""

    engine_ns: int
    duration_ns: int | None = None
    prefill_requests: int | None = None
    prefill_tokens: int | None = None
    decode_requests: int | None = None
    decode_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage_ratio: float | None = None
    engine: int | None = None


class Reply(Protocol):
    """A stream that has ended but may not have been parsed yet."""

    def settle(self) -> Result:
        """Parse (once; later calls return the same result) and return what came of the request."""
        ...


class Settled:
    """A reply that has nothing left to parse."""

    def __init__(self, result: Result) -> None:
        self._result = result

    def settle(self) -> Result:
        """The result it was made with."""
        return self._result


class EngineInfo(Struct, frozen=True, omit_defaults=True):
    """What the engine says of itself; goes into the run's header. None where it is not known."""

    kind: str
    """The `--engine` name."""
    model: str
    version: str | None = None
    dtype: str | None = None
    device: str | None = None
    url: str | None = None
    api: str | None = None
    weights: str | None = None
    """Where the weights came from, for example "checkpoint" or "random, seed 0"."""
    takes_token_ids: bool = False
    honours_ignore_eos: bool | None = None
    max_context_tokens: int | None = None
    vocab_tokens: int | None = None
    details: dict[str, str] = {}
    versions: dict[str, str] = {}


class Engine(Protocol):
    """Makes one request happen; knows nothing of load or files."""

    @property
    def info(self) -> EngineInfo:
        """What this engine is; complete after `start`."""
        ...

    async def start(self) -> None:
        """Load, connect or check. Raises EngineError (nothing reached, died) or InputError (cannot be used)."""
        ...

    async def generate(self, request: Request) -> Reply:
        """Run one request to the end of its stream. A failed request is a Result with its Outcome, not an exception.
        Cancellation closes the connection (or stops the generation) at once and re-raises."""
        ...

    async def close(self) -> None:
        """Free everything. Safe to call twice."""
        ...


@runtime_checkable
class Attentive(Protocol):
    """An engine that can tell the moments at which the client's own work does least harm."""

    def awaits_first(self) -> bool:
        """Whether a request in flight has yet to get its first token, as far as can be told without parsing."""
        ...


@runtime_checkable
class Insider(Protocol):
    """An engine that also tells what it saw inside, some time after the stream has ended."""

    def seen(self) -> Sequence[SeenRequest | EngineStep]:
        """What has become known since the last call; quick, never blocks."""
        ...

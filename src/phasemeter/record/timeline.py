"""One request's stamps, whole and frozen, with the invariants of their order.

A `Timeline` is what the record keeps of a request. Everything else (TTFT, TPOT, phases) is derived from it in
`phasemeter.explain`.
"""

from __future__ import annotations

from itertools import pairwise

from msgspec import Struct

from phasemeter.record.engine import GENERATED, EmissionKind, EngineReport, Outcome, Result
from phasemeter.record.event import By, Event, Kind
from phasemeter.record.request import Cell, Request, Usage

_LETTERS: dict[EmissionKind, str] = {
    EmissionKind.TEXT: "t",
    EmissionKind.REASONING: "g",
    EmissionKind.TOOL: "c",
    EmissionKind.EMPTY: "e",
    EmissionKind.ROLE: "r",
    EmissionKind.FINISH: "f",
    EmissionKind.USAGE: "u",
    EmissionKind.ERROR: "x",
    EmissionKind.DONE: "d",
    EmissionKind.KEEPALIVE: "k",
}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}
GENERATED_LETTERS = frozenset(_LETTERS[kind] for kind in GENERATED)


class Timeline(Struct, frozen=True, omit_defaults=True, tag="request"):
    """What happened to one request. All stamps are nanoseconds on the run's clock; a stage not reached is None.

    deltas_ns   one entry a received piece: gap to the piece before (the first: to `started_ns`)
    kinds       one letter a piece (see `kind_of`); same length as `deltas_ns`
    counts      tokens a piece where the server told the count, else None: then each generated piece counts one
                and `explain` says that tokens were counted by chunk
    """

    id: str
    cell: Cell
    max_tokens: int
    outcome: Outcome
    arrived_ns: int
    started_ns: int
    end_ns: int
    connected_ns: int | None = None
    sent_ns: int | None = None
    first_byte_ns: int | None = None
    deltas_ns: tuple[int, ...] = ()
    kinds: str = ""
    counts: tuple[int, ...] | None = None
    prompt_tokens_sent: int | None = None
    """Tokens in the prompt as we sent it, where we know (token ids, or our own tokenizer)."""
    status: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    report: EngineReport | None = None
    retry_after_s: float | None = None
    reused_connection: bool | None = None
    in_flight: int | None = None
    """Requests in flight on this client when this one was started, itself included."""
    by: By = By.CLIENT
    text: str | None = None
    """Kept only when asked for."""
    tags: dict[str, str] = {}

    @property
    def given_up(self) -> bool:
        """Cancelled as the load was asked to cancel: neither a success nor a failure."""
        return self.outcome is Outcome.CANCELLED and self.tags.get("cancel") == "planned"

    def stamps_ns(self) -> list[int]:
        """Absolute stamp of every received piece."""
        stamps: list[int] = []
        t_ns = self.started_ns
        for delta in self.deltas_ns:
            t_ns += delta
            stamps.append(t_ns)
        return stamps

    def generated(self) -> list[tuple[int, int]]:
        """(stamp, tokens) of every piece that held generated tokens, in order of arrival."""
        counts = self.counts
        return [
            (stamp, counts[i] if counts is not None else 1)
            for i, (stamp, letter) in enumerate(zip(self.stamps_ns(), self.kinds, strict=True))
            if letter in GENERATED_LETTERS and (counts is None or counts[i] > 0)
        ]

    def counted_tokens(self) -> int:
        """Generated tokens as counted from the stream."""
        return sum(n for _, n in self.generated())


def kind_of(letter: str) -> EmissionKind:
    """The emission kind that a letter of `Timeline.kinds` stands for."""
    return _KINDS[letter]


def timeline_of(
    request: Request,
    result: Result,
    *,
    arrived_ns: int,
    started_ns: int,
    in_flight: int | None = None,
    keep_text: bool = False,
) -> Timeline:
    """Join what was intended with what came of it."""
    deltas: list[int] = []
    last = started_ns
    for emission in result.emissions:
        deltas.append(emission.recv_ns - last)
        last = emission.recv_ns
    told = any(e.n_tokens is not None for e in result.emissions)
    return Timeline(
        id=request.id,
        cell=request.cell,
        max_tokens=request.max_tokens,
        outcome=result.outcome,
        arrived_ns=arrived_ns,
        started_ns=started_ns,
        end_ns=result.end_ns,
        connected_ns=result.connected_ns,
        sent_ns=result.sent_ns,
        first_byte_ns=result.first_byte_ns,
        deltas_ns=tuple(deltas),
        kinds="".join(_LETTERS[e.kind] for e in result.emissions),
        counts=tuple(e.n_tokens or 0 for e in result.emissions) if told else None,
        prompt_tokens_sent=len(request.token_ids) if request.token_ids is not None else None,
        status=result.status,
        error=result.error,
        finish_reason=result.finish_reason,
        usage=result.usage,
        report=result.report,
        retry_after_s=result.retry_after_s,
        reused_connection=result.reused_connection,
        in_flight=in_flight,
        text="".join(e.text for e in result.emissions) if keep_text else None,
        tags=request.tags,
    )


def broken_invariants(timeline: Timeline) -> list[str]:
    """Orders that must hold whatever the server does; each broken one as a sentence. Flagged, never clamped."""
    found: list[str] = []
    if timeline.started_ns < timeline.arrived_ns:
        found.append("started before it arrived")
    stages: list[tuple[str, int | None]] = [
        ("started", timeline.started_ns),
        ("connected", timeline.connected_ns),
        ("sent", timeline.sent_ns),
        ("first byte", timeline.first_byte_ns),
        ("end", timeline.end_ns),
    ]
    reached = [(name, t_ns) for name, t_ns in stages if t_ns is not None]
    for (early_name, early), (late_name, late) in pairwise(reached):
        if late < early:
            found.append(f"{late_name} before {early_name}")
    if any(delta < 0 for delta in timeline.deltas_ns):
        found.append("pieces of the stream out of order")
    stamps = timeline.stamps_ns()
    if stamps and timeline.sent_ns is not None and stamps[0] < timeline.sent_ns:
        found.append("a piece of the stream before the request was sent")
    if stamps and stamps[-1] > timeline.end_ns:
        found.append("a piece of the stream after its end")
    return found


def events_of(timeline: Timeline) -> list[Event]:
    """The request's life as events, for sinks that read what happened live."""
    name, by = timeline.id, timeline.by
    events = [
        Event(timeline.arrived_ns, name, Kind.ARRIVED, by),
        Event(timeline.started_ns, name, Kind.STARTED, by),
    ]
    for t_ns, kind in (
        (timeline.connected_ns, Kind.CONNECTED),
        (timeline.sent_ns, Kind.SENT),
        (timeline.first_byte_ns, Kind.FIRST_BYTE),
    ):
        if t_ns is not None:
            events.append(Event(t_ns, name, kind, by))
    events += [Event(t_ns, name, Kind.TOKENS, by, n) for t_ns, n in timeline.generated()]
    last = {Outcome.OK: Kind.FINISHED, Outcome.CANCELLED: Kind.ABORTED}.get(timeline.outcome, Kind.FAILED)
    events.append(Event(timeline.end_ns, name, last, by))
    return events

"""One request cut into phases by its stamps, and the latencies that are read off them.

    ARRIVED --late-- STARTED --connect-- SENT --first-- first token --decode-- last token --tail-- END
                                               |
                      with an engine's report: front_end + queue + prefill

late + connect + first + decode + tail is the time from the intended arrival to the end, exact in nanoseconds,
for every request, also a failed one: a phase whose closing stamp was never reached is None and the time after
the last stamp that was reached is `tail`. Formulas and boundaries: docs/definitions.md.
"""

from __future__ import annotations

import itertools
from enum import StrEnum

from msgspec import Struct

from phasemeter.record.timeline import Timeline


class Basis(StrEnum):
    """How a duration is known. A duration that is not known is None."""

    OBSERVED = "observed"
    INFERRED = "inferred"


class Span(Struct, frozen=True):
    """A duration in nanoseconds. A remainder may be negative: it is flagged, never clamped."""

    ns: int
    basis: Basis = Basis.OBSERVED


class Phases(Struct, frozen=True):
    """The budget of one request; None where nobody saw it.

    late          intended arrival to start: our own fault, never the server's
    connect       start to the request's last byte handed over
    first         sent to the first generated token
    front_end     remainder of `first` beside the engine's queue and prefill: HTTP, tokenising, IPC,
    detokenising
    queue         accepted by the engine until scheduled (the engine's clock)
    prefill       scheduled until the first token (the engine's clock)
    decode        first to last generated token
    engine_decode the same as the engine saw it
    tail          last token (or the last stamp that was reached) to the end
    """

    late: Span | None = None
    connect: Span | None = None
    first: Span | None = None
    front_end: Span | None = None
    queue: Span | None = None
    prefill: Span | None = None
    decode: Span | None = None
    engine_decode: Span | None = None
    tail: Span | None = None


PHASE_NAMES = Phases.__struct_fields__
BUDGET = ("late", "connect", "first", "decode", "tail")
"""The phases that add up to the end-to-end time."""

_ANSWER_LETTERS = frozenset("tc")
_REASONING_LETTER = "g"


class Reading(Struct, frozen=True):
    """One request read once: its phases, latencies (ns) and gaps. None where there is nothing to read.

    `tokens` is usage.completion_tokens where the server tells it, else what was counted from the stream;
    `gaps_ns` are the gaps between generated pieces, `gap_tokens` the tokens in the piece that ended each
    gap, None where the server did not tell.
    """

    timeline: Timeline
    phases: Phases
    e2e_ns: int
    tokens: int
    counted: int
    ttft_ns: int | None
    ttft_from_arrival_ns: int | None
    ttfa_ns: int | None
    tpot_ns: float | None
    gaps_ns: tuple[int, ...]
    gap_tokens: tuple[int, ...] | None
    first_token_ns: int | None
    """Stamp of the first generated piece."""


def read(timeline: Timeline) -> Reading:
    """Read everything off one request in one pass over its pieces."""
    generated = timeline.generated()
    sent_ns, _ = _sent(timeline, began=bool(generated))
    first_ns = generated[0][0] if generated else None
    counted = sum(n for _, n in generated)
    usage = timeline.usage
    told = usage.completion_tokens if usage is not None else None
    tokens = counted if told is None else told
    gaps = tuple(b - a for (a, _), (b, _) in itertools.pairwise(generated))
    return Reading(
        timeline=timeline,
        phases=_phases(timeline, generated),
        e2e_ns=timeline.end_ns - timeline.arrived_ns,
        tokens=tokens,
        counted=counted,
        ttft_ns=_difference(first_ns, sent_ns),
        ttft_from_arrival_ns=_difference(first_ns, timeline.arrived_ns),
        ttfa_ns=_difference(_first_answer_ns(timeline, first_ns), sent_ns),
        tpot_ns=(generated[-1][0] - generated[0][0]) / (tokens - 1) if generated and tokens > 1 else None,
        gaps_ns=gaps,
        gap_tokens=tuple(n for _, n in generated[1:]) if timeline.counts is not None else None,
        first_token_ns=first_ns,
    )


def phases(timeline: Timeline) -> Phases:
    """The budget of one request."""
    return _phases(timeline, timeline.generated())


def e2e_ns(timeline: Timeline) -> int:
    """Intended arrival to the end of the stream (or to the failure)."""
    return timeline.end_ns - timeline.arrived_ns


def ttft_ns(timeline: Timeline) -> int | None:
    """Sent to the first generated token (answer, reasoning or tool call); None without one."""
    return read(timeline).ttft_ns


def ttft_from_arrival_ns(timeline: Timeline) -> int | None:
    """Intended arrival to the first generated token; None without one."""
    return read(timeline).ttft_from_arrival_ns


def ttfa_ns(timeline: Timeline) -> int | None:
    """Sent to the first answer token (text or tool call after any reasoning). Equal to TTFT where there was
    no reasoning; None where there was nothing but reasoning."""
    return read(timeline).ttfa_ns


def tpot_ns(timeline: Timeline) -> float | None:
    """decode / (n - 1), n from usage.completion_tokens where told, else counted; None for n <= 1."""
    return read(timeline).tpot_ns


def itl_ns(timeline: Timeline) -> list[int]:
    """Every gap between generated pieces: N pieces give N - 1 gaps; the first token is in none of them."""
    return list(read(timeline).gaps_ns)


def itl_token_ns(timeline: Timeline) -> list[float] | None:
    """The gaps per token: a piece of k tokens gives its gap / k, k times. None where the server did not tell
    the counts."""
    reading = read(timeline)
    if reading.gap_tokens is None:
        return None
    return [gap / k for gap, k in zip(reading.gaps_ns, reading.gap_tokens, strict=True) for _ in range(k)]


def _sent(timeline: Timeline, *, began: bool) -> tuple[int | None, Basis]:
    """When the request was out. Tokens without that stamp (a record of another observer) came after the
    connection or the start: then the boundary is inferred."""
    if timeline.sent_ns is not None:
        return timeline.sent_ns, Basis.OBSERVED
    if not began:
        return None, Basis.OBSERVED
    fallback = timeline.connected_ns if timeline.connected_ns is not None else timeline.started_ns
    return fallback, Basis.INFERRED


def _phases(timeline: Timeline, generated: list[tuple[int, int]]) -> Phases:
    sent_ns, basis = _sent(timeline, began=bool(generated))
    late = Span(timeline.started_ns - timeline.arrived_ns)
    if sent_ns is None:
        return Phases(late=late, tail=Span(timeline.end_ns - timeline.started_ns))
    connect = Span(sent_ns - timeline.started_ns, basis)
    if not generated:
        return Phases(late=late, connect=connect, tail=Span(timeline.end_ns - sent_ns))
    first_ns, last_ns = generated[0][0], generated[-1][0]
    first = Span(first_ns - sent_ns, basis)
    front_end, queue, prefill, engine_decode = _engine_side(timeline, first)
    return Phases(
        late=late,
        connect=connect,
        first=first,
        front_end=front_end,
        queue=queue,
        prefill=prefill,
        decode=Span(last_ns - first_ns),
        engine_decode=engine_decode,
        tail=Span(timeline.end_ns - last_ns),
    )


def _engine_side(
    timeline: Timeline, first: Span
) -> tuple[Span | None, Span | None, Span | None, Span | None]:
    """(front_end, queue, prefill, engine_decode). Only durations of the engine are used, never its stamps.
    An engine without a queue of its own reports none: then the remainder is all that is not prefill."""
    report = timeline.report
    if report is None:
        return None, None, None, None
    engine_decode = Span(report.decode_ns) if report.decode_ns is not None else None
    if report.prefill_ns is None:
        return None, None, None, engine_decode
    queue = Span(report.queue_ns) if report.queue_ns is not None else None
    rest = first.ns - report.prefill_ns - (queue.ns if queue is not None else 0)
    return Span(rest, Basis.INFERRED), queue, Span(report.prefill_ns), engine_decode


def _first_answer_ns(timeline: Timeline, first_ns: int | None) -> int | None:
    if first_ns is None or _REASONING_LETTER not in timeline.kinds:
        return first_ns
    counts = timeline.counts
    for i, (stamp, letter) in enumerate(zip(timeline.stamps_ns(), timeline.kinds, strict=True)):
        if letter in _ANSWER_LETTERS and (counts is None or counts[i] > 0):
            return stamp
    return None


def _difference(late: int | None, early: int | None) -> int | None:
    return None if late is None or early is None else late - early

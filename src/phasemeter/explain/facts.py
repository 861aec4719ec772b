"""Facts that can contradict a record. A remainder makes any sum come out right, so sums prove nothing; these
compare what two parties saw of the same thing. Each contradiction is told, none is mended."""

from __future__ import annotations

from msgspec import Struct

from phasemeter.explain.phases import Reading, Span, read
from phasemeter.record.timeline import Timeline, broken_invariants

FRONT_END_SLACK_NS = 100_000
"""How far below zero the front end may be: two clocks tick apart by less than 0.1 ms a request."""
DECODE_SLACK_NS = 5_000_000
DECODE_SLACK_RATIO = 0.05
"""Engine and client may see decode differ by the larger of the two: delivery of first and last token
varies. More than that needs a reason in the record: the front end."""


class Contradiction(Struct, frozen=True):
    """Two facts of one request that cannot both be true. `name` is one of: order, front_end, engine_time,
    decode, tokens."""

    name: str
    evidence: str


def contradictions(timeline: Timeline) -> list[Contradiction]:
    """Everything in one request that contradicts itself; empty when nothing does."""
    return contradictions_of(read(timeline))


def contradictions_of(reading: Reading) -> list[Contradiction]:
    """As `contradictions`, of a request that was read already."""
    found = [Contradiction("order", text) for text in broken_invariants(reading.timeline)]
    for fact in (_front_end, _engine_time, _decode, _tokens):
        evidence = fact(reading)
        if evidence is not None:
            found.append(Contradiction(fact.__name__.lstrip("_"), evidence))
    return found


def _front_end(reading: Reading) -> str | None:
    rest = reading.phases.front_end
    if rest is None or rest.ns >= -FRONT_END_SLACK_NS:
        return None
    return f"queue and prefill of the engine exceed the time to the first token by {_ms(-rest.ns)}"


def _engine_time(reading: Reading) -> str | None:
    phases = reading.phases
    seen = [span.ns for span in (phases.prefill, phases.engine_decode) if span is not None]
    if not seen or sum(seen) <= reading.e2e_ns:
        return None
    return (
        f"the engine's prefill and decode take {_ms(sum(seen))}, the whole request only {_ms(reading.e2e_ns)}"
    )


def _decode(reading: Reading) -> str | None:
    client, engine = reading.phases.decode, reading.phases.engine_decode
    if client is None or engine is None:
        return None
    later_ns, slack = client.ns - engine.ns, _slack(client, engine)
    # A first token that waited in the front end shortens what the client sees of decode by as much.
    waited_ns = max(0, reading.phases.front_end.ns) if reading.phases.front_end is not None else 0
    if -slack - waited_ns <= later_ns <= slack + _served_ns(reading):
        return None
    return f"decode took {_ms(client.ns)} for the client and {_shown(engine)} for the engine"


def delivery_lag_ns(reading: Reading) -> int | None:
    """How much longer decode took for the client than in the engine, where that is more than the slack and the server's
    own front end saw as much: tokens that waited to be sent. None where nothing waited or nobody can tell."""
    client, engine = reading.phases.decode, reading.phases.engine_decode
    if client is None or engine is None:
        return None
    later_ns, slack = client.ns - engine.ns, _slack(client, engine)
    return later_ns if slack < later_ns <= slack + _served_ns(reading) else None


def _slack(client: Span, engine: Span) -> float:
    return max(DECODE_SLACK_NS, DECODE_SLACK_RATIO * max(client.ns, engine.ns))


def _served_ns(reading: Reading) -> int:
    """How much longer the server's front end saw the request than its engine did; 0 where it does not tell."""
    report = reading.timeline.report
    if report is None or None in (report.e2e_ns, report.queue_ns, report.prefill_ns, report.decode_ns):
        return 0
    inside = (report.queue_ns or 0) + (report.prefill_ns or 0) + (report.decode_ns or 0)
    return max(0, (report.e2e_ns or 0) - inside)


def _tokens(reading: Reading) -> str | None:
    timeline = reading.timeline
    told: list[tuple[str, int]] = []
    if timeline.report is not None and timeline.report.n_tokens is not None:
        told.append(("engine", timeline.report.n_tokens))
    if timeline.usage is not None and timeline.usage.completion_tokens is not None:
        told.append(("usage", timeline.usage.completion_tokens))
    if timeline.counts is not None and reading.counted > 0:
        told.append(("stream", reading.counted))
    if len({n for _, n in told}) <= 1:
        return None
    return "tokens: " + ", ".join(f"{who} {n}" for who, n in told)


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3g} ms"


def _shown(span: Span) -> str:
    return _ms(span.ns)

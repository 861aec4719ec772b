"""Facts that can contradict a record. A remainder makes any sum come out right, so sums prove nothing; these
compare what two parties saw of the same thing. Each contradiction is told, none is mended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.columns import ABSENT
from phasemeter.explain.phases import Reading, Span, read
from phasemeter.explain.readings import Readings
from phasemeter.record.timeline import Timeline, broken_invariants

if TYPE_CHECKING:
    from phasemeter.explain.columns import Bools, Ints

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


def all_contradictions(readings: Readings) -> dict[str, list[Contradiction]]:
    """`contradictions_of` by request id, of those requests that have any; columns tell which to look at."""
    import numpy as np

    found: dict[str, list[Contradiction]] = {}
    for place in np.flatnonzero(_doubtful(readings)).tolist():
        reading = readings[place]
        if told := contradictions_of(reading):
            found[reading.timeline.id] = told
    return found


def _doubtful(readings: Readings) -> Bools:
    """No request outside of these contradicts itself: the conditions of the facts below, or wider ones."""
    import numpy as np

    prefill, engine = readings.ns("prefill"), readings.ns("engine_decode")
    client, front_end, e2e = readings.ns("decode"), readings.ns("front_end"), readings.ns("e2e")
    found = readings.told("disordered") == 1
    found |= (front_end != ABSENT) & (front_end < -FRONT_END_SLACK_NS)
    found |= np.where(prefill == ABSENT, 0, prefill) + np.where(engine == ABSENT, 0, engine) > e2e
    longest = np.maximum(client, engine)
    apart = np.abs(client - engine) > np.maximum(DECODE_SLACK_NS, DECODE_SLACK_RATIO * longest)
    found |= (client != ABSENT) & (engine != ABSENT) & apart
    counted = readings.told("counted")
    stream = np.where((readings.told("counts_told") == 1) & (counted > 0), counted, ABSENT)
    told = np.stack((readings.told("engine_tokens"), readings.told("usage_completion"), stream))
    least = np.where(told == ABSENT, -ABSENT - 1, told).min(axis=0)
    return found | (told.max(axis=0) > least)


def delivery_lags_ns(readings: Readings) -> Ints:
    """`delivery_lag_ns` of each request; `ABSENT` where nothing waited or nobody can tell."""
    import numpy as np

    client, engine = readings.ns("decode"), readings.ns("engine_decode")
    parts = [readings.told(name) for name in ("engine_e2e", "queue", "prefill", "engine_decode")]
    whole, queue, prefill, decode = parts
    all_told = np.all([part != ABSENT for part in parts], axis=0)
    served = np.where(all_told, np.maximum(0, whole - queue - prefill - decode), 0)
    later, slack = (
        client - engine,
        np.maximum(DECODE_SLACK_NS, DECODE_SLACK_RATIO * np.maximum(client, engine)),
    )
    waited = (client != ABSENT) & (engine != ABSENT) & (slack < later) & (later <= slack + served)
    return np.where(waited, later, ABSENT)


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

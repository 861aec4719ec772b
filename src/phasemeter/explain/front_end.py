"""The front end cut in two, where the engine tells how long its API process held the request.

`front_end` is what is left of `first` beside queue and prefill. An engine that also tells the end-to-end time
of its API process (`EngineReport.e2e_ns`; vLLM: from before tokenising until the last token came back from the
engine process) lets the rest be placed on either side of that process's own clock:

    api_process = e2e - queue - prefill - engine decode    tokenising, the way to the engine and back
    outside     = first + decode - e2e                     HTTP, detokenising, SSE, the network

Together they are front_end + (decode - engine decode), so nothing is counted twice. Both are remainders:
inferred, never clamped. vLLM takes e2e from the wall clock, which NTP may step.

Where one clock saw both sides of the hand-over (vLLM in process), two parts of front_end stand beside them:

    before_engine = EngineReport.before_ns    handed over until queued: input processing, the way to the engine process
    after_engine  = EngineReport.after_ns     first token until the first output was back: the way back, detokenising

front_end - before_engine - after_engine is then the way between the client and what holds the engine.
api_process = before_engine + the last token's way back, so after_engine (the first token's) is no part of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from phasemeter.explain.latency import PhaseDist
from phasemeter.explain.phases import Basis, Reading
from phasemeter.explain.stats import distribution


class FrontEndParts(Struct, frozen=True):
    """The two parts of one request, and those of its front end, nanoseconds. None where the engine does not tell."""

    api_process_ns: int
    outside_ns: int
    before_engine_ns: int | None = None
    after_engine_ns: int | None = None


class FrontEndSplit(Struct, frozen=True):
    """The two parts over the requests whose engine told enough, milliseconds; those of the front end over the
    requests that have them, None where there are none."""

    api_process: PhaseDist
    outside: PhaseDist
    before_engine: PhaseDist | None = None
    after_engine: PhaseDist | None = None


def front_end_parts(reading: Reading) -> FrontEndParts | None:
    """The two parts of one request; None unless the engine told its phases and its end-to-end time."""
    report, phases = reading.timeline.report, reading.phases
    if report is None or phases.first is None or phases.decode is None:
        return None
    inside = (report.queue_ns, report.prefill_ns, report.decode_ns)
    known = [ns for ns in inside if ns is not None]
    if report.e2e_ns is None or len(known) < len(inside):
        return None
    return FrontEndParts(
        api_process_ns=report.e2e_ns - sum(known),
        outside_ns=phases.first.ns + phases.decode.ns - report.e2e_ns,
        before_engine_ns=report.before_ns,
        after_engine_ns=report.after_ns,
    )


def front_end_split(readings: Sequence[Reading], blocks: Sequence[int]) -> FrontEndSplit | None:
    """The two parts over many requests; `blocks` names the block of each. None where nobody told."""
    parts: list[FrontEndParts] = []
    kept: list[int] = []
    for reading, block in zip(readings, blocks, strict=True):
        found = front_end_parts(reading)
        if found is not None:
            parts.append(found)
            kept.append(block)
    inside = _part([part.api_process_ns for part in parts], kept)
    outside = _part([part.outside_ns for part in parts], kept)
    if inside is None or outside is None:
        return None
    return FrontEndSplit(
        inside,
        outside,
        before_engine=_part([part.before_engine_ns for part in parts], kept),
        after_engine=_part([part.after_engine_ns for part in parts], kept),
    )


def _part(values_ns: Sequence[int | None], blocks: Sequence[int]) -> PhaseDist | None:
    told = [(ns, block) for ns, block in zip(values_ns, blocks, strict=True) if ns is not None]
    dist = distribution([ns / 1e6 for ns, _ in told], [block for _, block in told])
    return None if dist is None else PhaseDist(dist, Basis.INFERRED)

"""The front end cut in two, where the engine tells how long its API process held the request.

`front_end` is what is left of `first` beside queue and prefill. An engine that also tells the end-to-end time
of its API process (`EngineReport.e2e_ns`; vLLM: from before tokenising until the last token came back from the
engine process) lets the rest be placed on either side of that process's own clock:

    api_process = e2e - queue - prefill - engine decode    tokenising, the way to the engine and back
    outside     = first + decode - e2e                     HTTP, detokenising, SSE, the network

Together they are front_end + (decode - engine decode), so nothing is counted twice. Both are remainders:
inferred, never clamped. vLLM takes e2e from the wall clock, which NTP may step.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from phasemeter.explain.latency import PhaseDist
from phasemeter.explain.phases import Basis, Reading
from phasemeter.explain.stats import distribution


class FrontEndParts(Struct, frozen=True):
    """The two parts of one request, nanoseconds."""

    api_process_ns: int
    outside_ns: int


class FrontEndSplit(Struct, frozen=True):
    """The two parts over the requests whose engine told enough, milliseconds."""

    api_process: PhaseDist
    outside: PhaseDist


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
    inside = distribution([part.api_process_ns / 1e6 for part in parts], kept)
    outside = distribution([part.outside_ns / 1e6 for part in parts], kept)
    if inside is None or outside is None:
        return None
    return FrontEndSplit(PhaseDist(inside, Basis.INFERRED), PhaseDist(outside, Basis.INFERRED))

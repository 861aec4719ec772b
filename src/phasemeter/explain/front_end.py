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
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.columns import ABSENT
from phasemeter.explain.latency import PhaseDist
from phasemeter.explain.phases import Basis, Reading
from phasemeter.explain.readings import milliseconds, readings_of
from phasemeter.explain.stats import distribution

if TYPE_CHECKING:
    from phasemeter.explain.columns import Ints
    from phasemeter.explain.stats import Blocks


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


def front_end_split(readings: Sequence[Reading], blocks: Blocks) -> FrontEndSplit | None:
    """The two parts over many requests; `blocks` names the block of each. None where nobody told."""
    import numpy as np

    columns = readings_of(readings)
    queue, prefill, decode = (columns.told(name) for name in ("queue", "prefill", "engine_decode"))
    whole = columns.told("engine_e2e")
    there = columns.told("pieces") > 0
    for told in (queue, prefill, decode, whole):
        there &= told != ABSENT
    api_process = np.where(there, whole - queue - prefill - decode, ABSENT)
    outside = np.where(there, columns.ns("first") + columns.ns("decode") - whole, ABSENT)
    inside, beyond = _part(api_process, blocks), _part(outside, blocks)
    if inside is None or beyond is None:
        return None
    return FrontEndSplit(
        inside,
        beyond,
        before_engine=_part(np.where(there, columns.told("engine_before"), ABSENT), blocks),
        after_engine=_part(np.where(there, columns.told("engine_after"), ABSENT), blocks),
    )


def _part(ns: Ints, blocks: Blocks) -> PhaseDist | None:
    import numpy as np

    values, found = milliseconds(ns)
    dist = distribution(values, np.asarray(blocks, dtype=np.int64)[found])
    return None if dist is None else PhaseDist(dist, Basis.INFERRED)

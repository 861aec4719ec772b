"""The budget of one shape as segments that add up, and what each phase's time is spent on."""

from __future__ import annotations

from collections.abc import Sequence

from phasemeter.explain.attribute import Attribution, Cause
from phasemeter.explain.phases import Basis
from phasemeter.explain.shapes import PhaseDist, PhaseDists, ShapeSummary
from phasemeter.explain.stats import Dist
from phasemeter.report.parts import ABSENT, Attributed, Mark, Number, Part, Segment
from phasemeter.report.words import phase_name, word

SPLIT = ("late", "connect", "front_end", "queue", "prefill", "decode", "tail")
UNSPLIT = ("late", "connect", "first", "decode", "tail")

_MARKS = {Basis.OBSERVED: Mark.OBSERVED, Basis.INFERRED: Mark.INFERRED}
_BOUND_WORDS = {
    Cause.ARITHMETIC: "bound_arithmetic",
    Cause.TRAFFIC: "bound_traffic",
    Cause.HOST: "bound_host",
}


def median(dist: Dist | None, mark: Mark = Mark.OBSERVED) -> Number:
    """The median with its interval; absent where nothing was seen."""
    if dist is None:
        return ABSENT
    lo, hi = dist.ci95_p50 if dist.ci95_p50 is not None else (None, None)
    return Number(dist.p50, mark=mark, lo=lo, hi=hi, n=dist.n)


def phase_median(phase: PhaseDist | None) -> Number:
    """The median of a phase with its basis."""
    return ABSENT if phase is None else median(phase.dist, _MARKS[phase.basis])


def phase_mean(phase: PhaseDist | None) -> Number:
    """The mean of a phase with its basis."""
    return ABSENT if phase is None else Number(phase.dist.mean, mark=_MARKS[phase.basis], n=phase.dist.n)


def is_split(phases: PhaseDists) -> bool:
    """Whether every request that has a first token also has the engine's prefill: only then the means of the
    parts add up to the mean of the whole."""
    whole, prefill, front = phases.first, phases.prefill, phases.front_end
    if whole is None or prefill is None or front is None:
        return False
    queue_fits = phases.queue is None or phases.queue.dist.n == whole.dist.n
    return prefill.dist.n == whole.dist.n == front.dist.n and queue_fits


def segments_of(phases: PhaseDists, lang: str) -> tuple[tuple[Segment, ...], Number]:
    """Means of the phases in order, and their sum. A phase that nobody saw stays in the list as absent."""
    names = SPLIT if is_split(phases) else UNSPLIT
    means = {name: phase_mean(getattr(phases, name)) for name in names}
    known = [number.value for number in means.values() if number.value is not None]
    total = sum(known)
    segments: list[Segment] = []
    start_ms = 0.0
    for name, number in means.items():
        value = number.value
        segments.append(
            Segment(
                phase=name,
                label=phase_name(lang, name),
                number=number,
                start_ms=start_ms,
                share=value / total if value is not None and total > 0 else None,
            )
        )
        start_ms += value or 0.0
    return tuple(segments), Number(total) if known else ABSENT


def attributed_of(attribution: Sequence[Attribution], lang: str) -> tuple[Attributed, ...]:
    """Prefill (or an unsplit first) and decode, split by cause; other phases are one cause each and left
    out."""
    found: list[Attributed] = []
    for entry in attribution:
        if entry.phase not in ("prefill", "first", "decode"):
            continue
        parts = tuple(
            Part(
                name=share.cause.value,
                label=word(lang, share.cause.value),
                number=Number(share.ms, mark=Mark.INFERRED if share.cause is Cause.HOST else Mark.CALCULATED),
                share=share.ms / entry.mean_ms if entry.mean_ms > 0 else None,
            )
            for share in entry.shares
        )
        found.append(
            Attributed(
                phase=entry.phase,
                label=phase_name(lang, entry.phase),
                parts=parts,
                bound=word(lang, _bound_key(entry)),
                below_floor=entry.below_floor,
                note=entry.note,
            )
        )
    return tuple(found)


def bound_of(shape: ShapeSummary, lang: str) -> str:
    """What holds prefill and decode, for example "arithmetic / memory": the largest share of each."""
    by_phase = {entry.phase: word(lang, _bound_key(entry)) for entry in shape.attribution}
    before = by_phase.get("prefill") or by_phase.get("first")
    unknown = word(lang, "bound_unknown")
    pair = (before or unknown, by_phase.get("decode") or unknown)
    return unknown if pair == (unknown, unknown) else " / ".join(pair)


def _bound_key(entry: Attribution) -> str:
    if entry.mean_ms <= 0:
        return "bound_unknown"
    largest = max(entry.shares, key=lambda share: share.ms, default=None)
    if entry.phase == "first" and largest is not None and largest.cause is Cause.HOST:
        return "bound_waits"  # queue, network and front end are in that remainder: nobody saw whose it was
    return "bound_unknown" if largest is None else _BOUND_WORDS.get(largest.cause, "bound_unknown")

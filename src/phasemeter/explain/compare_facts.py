"""What is said of two sides beside their numbers: who they are, whether they may be believed, what to bear in mind."""

from __future__ import annotations

import math

from msgspec import Struct

from phasemeter.explain.compare_samples import Drawing, Side
from phasemeter.explain.summary import summarise
from phasemeter.explain.verdict import Verdict


class SideFacts(Struct, frozen=True):
    """What stands on one side. `unit` is what was drawn again: run, block or batch (of consecutive requests)."""

    name: str
    runs: int
    blocks: int
    unit: str
    ok: int
    failed: int
    verdict: str
    evidence: tuple[str, ...]
    """Of the checks that call the run invalid."""


class Note(Struct, frozen=True):
    """Something to say with the numbers: a key of the report's sentences, and what is put in."""

    key: str
    numbers: dict[str, str] = {}


def facts_of(side: Side, drawing: Drawing) -> SideFacts:
    """What is said of one side beside its numbers."""
    summary = summarise(side.run)
    return SideFacts(
        name=summary.name,
        runs=side.runs,
        blocks=side.blocks,
        unit=drawing.kind,
        ok=summary.requests.ok,
        failed=summary.requests.failed,
        verdict=summary.verdict.value,
        evidence=tuple(f"{c.name}: {c.evidence}" for c in summary.checks if c.verdict is Verdict.INVALID),
    )


def notes_of(
    facts: tuple[SideFacts, SideFacts],
    sides: tuple[Side, Side],
    left_out: tuple[int, int],
    spreads: tuple[dict[str, float], dict[str, float]],
    *,
    grouped: bool,
) -> tuple[Note, ...]:
    """What a reader must know before the numbers. `left_out` counts requests of each side that the other has no
    stratum for; `spreads` is how far runs of one side lie apart, by metric."""
    found: list[Note] = []
    if min(side.blocks for side in sides) == 1:
        found.append(Note("one_block"))
    if min(side.runs for side in sides) == 1:
        found.append(Note("one_run"))
    if grouped:
        found.append(Note("grouped"))
    if any(left_out):
        found.append(Note("left_out", {"base": f"{left_out[0]:,}", "new": f"{left_out[1]:,}"}))
    shares = [fact.failed / max(1, fact.ok + fact.failed) for fact in facts]
    if abs(shares[0] - shares[1]) > 0.01:
        found.append(Note("failures", {"base": f"{shares[0]:.1%}", "new": f"{shares[1]:.1%}"}))
    found.append(_gap_note(sides))
    apart = [max((s.get(name, 0.0) for s in spreads), default=0.0) for name in ("ttft_p50", "tpot_p50")]
    if any(spreads):
        ttft, tpot = (f"{math.expm1(spread):.1%}" for spread in apart)
        found.append(Note("run_spread", {"ttft": ttft, "tpot": tpot}))
    return tuple(found)


def _gap_note(sides: tuple[Side, Side]) -> Note:
    told = [side.by_token for side in sides]
    if None in told or told[0] != told[1]:
        return Note("itl_mixed")
    return Note("itl_token" if told[0] else "itl_chunk")

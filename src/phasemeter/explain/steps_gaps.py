"""The client's gaps between tokens over the engine's steps: which of them held the prefill of others, and what it cost.

The client's clock and the engine's are never subtracted. A gap is matched by the number of its token: in every step
with decoding requests a request gets one token, so its k-th token after the first came from the k-th such step of its
decode phase, and the gap that ended with it spans that step (or several, where one piece brought several tokens). This
holds only where there are exactly as many steps as tokens after the first; otherwise (speculation, preemption, steps
that were not told) no gap is matched.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from phasemeter.explain.phases import Reading
from phasemeter.explain.steps_life import Life, StepRow, excess_ms

MANY = "several answers share one stream, so its gaps are not one sequence's"
UNEVEN = "it was not one token a step, so no gap can be matched with a step"
BY_CHUNK = "the server does not tell how many tokens a piece holds, so no gap can be matched with a step"
CUT = "not all of its steps are kept"


class Gap(Struct, frozen=True):
    """One gap of the client and the steps that it spans. `token` is the number of the last token in the piece that
    ended it (the first token is 1); `gap_ms` the client's time and `engine_ms` the engine's; `prefill_tokens` those of
    others, computed in `prefill_steps` of the steps, which cost `prefill_steps_ms`, `excess_ms` of it beyond their
    baseline (None without one)."""

    token: int
    gap_ms: float
    engine_ms: float
    steps: int
    prefill_steps: int
    prefill_tokens: int
    prefill_steps_ms: float
    excess_ms: float | None


class Gaps(Struct, frozen=True):
    """All gaps of one request. `beside` of them held a prefill of others and lasted `beside_ms` in all, the share
    `beside_share` of the client's decode time; medians are of those and of the others. `excess_ms` sums what is known
    of the gaps'; None where it is not known of one."""

    gaps: tuple[Gap, ...]
    beside: int
    beside_ms: float
    beside_share: float | None
    median_beside_ms: float | None
    median_alone_ms: float | None
    excess_ms: float | None


def gaps_over(reading: Reading, life: Life, sequences: int) -> tuple[Gaps | None, str]:
    """The gaps of one request over its life, or None and why not."""
    if sequences > 1:
        return None, MANY
    if life.cut:
        return None, CUT
    told = reading.gap_tokens
    pieces = len(reading.gaps_ns)
    if told is None and reading.tokens != pieces + 1:
        return None, BY_CHUNK
    tokens = told if told is not None else (1,) * pieces
    first = reading.counted - sum(tokens)
    spans = _spans(life.rows)
    # the tokens of the first piece beyond the first one came from steps of which no gap tells
    if len(spans) != reading.tokens - 1 or reading.counted != reading.tokens or first < 1:
        return None, UNEVEN
    found: list[Gap] = []
    number = first
    for gap_ns, count in zip(reading.gaps_ns, tokens, strict=True):
        rows = [row for span in spans[number - 1 : number - 1 + count] for row in span]
        number += count
        found.append(_gap(number, gap_ns / 1e6, rows))
    return _gaps(found, reading), ""


def _spans(rows: Sequence[StepRow]) -> list[list[StepRow]]:
    """The decode phase cut after every step in which the request got a token."""
    spans: list[list[StepRow]] = []
    pending: list[StepRow] = []
    for row in rows:
        if row.part != "decode":
            continue
        pending.append(row)
        if row.decode_requests:
            spans.append(pending)
            pending = []
    return spans


def _gap(token: int, gap_ms: float, rows: Sequence[StepRow]) -> Gap:
    beside = [row for row in rows if row.prefill_tokens]
    over = [excess_ms(row) for row in beside]
    return Gap(
        token=token,
        gap_ms=gap_ms,
        engine_ms=sum(row.cost_ms or 0.0 for row in rows),
        steps=len(rows),
        prefill_steps=len(beside),
        prefill_tokens=sum(row.prefill_tokens or 0 for row in beside),
        prefill_steps_ms=sum(row.cost_ms or 0.0 for row in beside),
        excess_ms=_known_sum(over),
    )


def _gaps(gaps: Sequence[Gap], reading: Reading) -> Gaps:
    beside = [gap for gap in gaps if gap.prefill_steps]
    alone = [gap.gap_ms for gap in gaps if not gap.prefill_steps]
    beside_ms = sum(gap.gap_ms for gap in beside)
    decode = reading.phases.decode
    return Gaps(
        gaps=tuple(gaps),
        beside=len(beside),
        beside_ms=beside_ms,
        beside_share=beside_ms * 1e6 / decode.ns if decode is not None and decode.ns > 0 else None,
        median_beside_ms=median(gap.gap_ms for gap in beside) if beside else None,
        median_alone_ms=median(alone) if alone else None,
        excess_ms=_known_sum([gap.excess_ms for gap in beside]),
    )


def _known_sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None

"""How fast a time may grow with length: between a host that hides the chip and a chip at its least efficient.

An exponent e means time ~ length^e over the range. Prefill: at least that of floor + slowest host, at most that of its
FLOPs with attention at its least efficient. TPOT: at most what the cache's bytes add, read slowly, and one step of the
attention kernel. All decode: between a constant step and the floor of the growing cache.
"""

from __future__ import annotations

import math
from itertools import pairwise

from msgspec import Struct

from phasemeter.explain.audit.chip import decode_pass, decode_total_pass, prefill_flops, prefill_pass
from phasemeter.explain.audit.claims import Claims, Growth, Row, time_of
from phasemeter.explain.audit.place import Chip, Place
from phasemeter.explain.audit.spans import quick_host_ms
from phasemeter.explain.audit.tables import bounds
from phasemeter.explain.audit.verdict import REFUTED, Finding, Line, Verdict, line, undecidable

_STATED_TOLERANCE = 0.15
"""Of a stated exponent: 11 % a doubling. "About four times" is not 4.00."""
_MEASURED_TOLERANCE = 0.1
"""Of end / start where two times were measured, and of TPOT: medians of one start of the H200's server that should be
equal differ by up to 5 % (benchmarks/h200: TPOT over the article's three shapes, prefill from 64 to 256 tokens)."""
_LAW_WITHIN = 0.25
_ORDERS = {"O(1)": 0, "O(N)": 1, "O(N^2)": 2, "O(N^3)": 3}
_OWN_TOLERANCE = 0.1


class Range(Struct, frozen=True):
    """The exponents that are possible, how they were got, and the order far beyond all lengths."""

    low: float
    high: float
    lines: tuple[Line, ...]
    far: int


def judge_growth(claim: Growth, claims: Claims, place: Place) -> Finding:
    """The verdict on one statement of growth."""
    if place.shape is None:
        return undecidable(place.missing or line("missing_model_name"))
    own = _own(claim, claims)
    possible = _possible(claim, own, place)
    if possible is None:
        return undecidable(place.missing or line("missing_hardware_name"))
    said = _said(claim)
    working = [
        line(
            "growth_claimed", metric=claim.metric, low=claim.from_tokens, high=claim.to_tokens, exponent=said
        )
    ]
    working += [
        *possible.lines,
        line("growth_possible", low_exponent=possible.low, high_exponent=possible.high),
    ]
    fitted, unlike = _own_lines(own, said)
    working += fitted
    bound: dict[str, object] = {
        "exponent": [possible.low, possible.high],
        "claimed_exponent": said,
        "own_exponent": _fit(own),
        "own_rows_agree": None if len(own) < 2 else not unlike,
    }
    verdict = _law(said, possible) if claim.law else _number(claim, said, possible)
    if claim.metric == "tpot" and verdict in REFUTED:
        working.append(line("host_grows"))
    return Finding(verdict, _reason(verdict, claim, said, possible, unlike=unlike), tuple(working), bound)


def _said(claim: Growth) -> float:
    if claim.law is not None:
        return float(_ORDERS[claim.law])
    if claim.exponent is not None:
        return claim.exponent
    if claim.factor_per_doubling is not None:
        return math.log2(claim.factor_per_doubling)
    return math.log(claim.factor or 1.0) / math.log(claim.to_tokens / claim.from_tokens)


def _law(said: float, possible: Range) -> Verdict:
    if said - _LAW_WITHIN <= possible.low and possible.high <= said + _LAW_WITHIN:
        return Verdict.TRUE
    if possible.low <= said + _LAW_WITHIN and possible.high >= said - _LAW_WITHIN:
        return Verdict.PLAUSIBLE
    return Verdict.MISLEADING if possible.far == round(said) else Verdict.FALSE


def _number(claim: Growth, said: float, possible: Range) -> Verdict:
    tolerance = _STATED_TOLERANCE
    if claim.factor is not None or claim.metric == "tpot":
        tolerance = _exponent(claim, 1.0, 1.0 + _MEASURED_TOLERANCE)
    if possible.low - tolerance <= said <= possible.high + tolerance:
        must = max(said - possible.low, possible.high - said) <= tolerance
        return Verdict.TRUE if must else Verdict.PLAUSIBLE
    # two measured times may be wrong or come from a strange host; a law is a sentence
    return Verdict.IMPLAUSIBLE if claim.factor is not None else Verdict.FALSE


def _reason(verdict: Verdict, claim: Growth, said: float, possible: Range, *, unlike: bool) -> Line:
    inside = verdict in {Verdict.TRUE, Verdict.PLAUSIBLE}
    key = "growth_inside" if inside else "growth_law" if verdict is Verdict.MISLEADING else "growth_outside"
    if unlike and not inside:
        key = "growth_outside_own"
    return line(
        key, law=claim.law or "", low=claim.from_tokens, high=claim.to_tokens, exponent=said, low_exponent=possible.low,
        high_exponent=possible.high,
    )  # fmt: skip


def _possible(claim: Growth, own: list[tuple[int, float]], place: Place) -> Range | None:
    if claim.metric in {"prefill", "ttft"}:
        return _prefill_range(claim, place)
    if place.chip is None:
        return None
    if claim.metric == "tpot":
        return _tpot_range(claim, own, place, place.chip)
    return _decode_range(claim, place.chip)


def _exponent(claim: Growth, first: float, last: float) -> float:
    return math.log(last / first) / math.log(claim.to_tokens / claim.from_tokens)


def _prefill_range(claim: Growth, place: Place) -> Range | None:
    shape = place.shape
    if shape is None:
        return None
    ends = [prefill_flops(shape, tokens) for tokens in (claim.from_tokens, claim.to_tokens)]
    slow = [linear + bounds().attention_most_ratio * attention for linear, attention in ends]
    shares = [attention / (linear + attention) for linear, attention in ends]
    plain = _exponent(claim, sum(ends[0]), sum(ends[1]))
    lines = [
        line("crossover", tokens=round(shape.crossover_tokens())),
        line(
            "attention_shares",
            low=claim.from_tokens,
            low_share=shares[0],
            high=claim.to_tokens,
            high_share=shares[1],
        ),
        line(
            "flops_exponent",
            exponent=plain,
            ratio=bounds().attention_most_ratio,
            high_exponent=_exponent(claim, *slow),
        ),
    ]
    low = 0.0
    if place.chip is not None:
        floors = [
            prefill_pass(place.chip, tokens).floor_ms for tokens in (claim.from_tokens, claim.to_tokens)
        ]
        lines.append(
            line("floor_growth", low=claim.from_tokens, low_ms=floors[0], high=claim.to_tokens, high_ms=floors[1],
                 exponent=_exponent(claim, *floors))
        )  # fmt: skip
        if place.host is not None:
            seen = place.host.prefill if claim.metric == "prefill" else place.host.ttft
            host_ms = place.host.multiple * seen.seen_ms
            low = _exponent(claim, floors[0] + host_ms, floors[1] + host_ms)
    far = 1 if shape.sliding_layers >= shape.layers and shape.sliding_window else 2
    return Range(low, max(1.0, low, _exponent(claim, *slow)), tuple(lines), far)


def _tpot_range(claim: Growth, own: list[tuple[int, float]], place: Place, chip: Chip) -> Range:
    first, last = (decode_pass(chip, context) for context in (claim.from_tokens, claim.to_tokens))
    more_ms = bounds().kernel_most_ratio * (last.floor_ms - first.floor_ms)
    step_ms = bounds().attention_step_ms_per_layer * chip.shape.layers
    host_ms = quick_host_ms(place.host, "tpot") if place.host is not None else 0.0
    start_ms = own[0][1] if own else first.floor_ms + host_ms
    factor = 1.0 + (more_ms + step_ms) / start_ms
    lines = (
        line("floor_growth", low=claim.from_tokens, low_ms=first.floor_ms, high=claim.to_tokens, high_ms=last.floor_ms,
             exponent=_exponent(claim, first.floor_ms, last.floor_ms)),
        line("tpot_growth", floor_share=last.floor_ms / first.floor_ms - 1.0, more_ms=more_ms, step_ms=step_ms,
             start_ms=start_ms, most_share=factor - 1.0),
    )  # fmt: skip
    far = 0 if chip.shape.sliding_layers >= chip.shape.layers and chip.shape.sliding_window else 1
    return Range(0.0, _exponent(claim, 1.0, factor), lines, far)


def _decode_range(claim: Growth, chip: Chip) -> Range:
    ends = (claim.from_tokens, claim.to_tokens)
    floors = [decode_total_pass(chip, claim.input_tokens, max(1, tokens - 1)).floor_ms for tokens in ends]
    constant = _exponent(claim, *(float(max(1, tokens - 1)) for tokens in ends))
    grown = _exponent(claim, *floors)
    lines = (
        line("floor_growth", low=ends[0], low_ms=floors[0], high=ends[1], high_ms=floors[1], exponent=grown),
        line("constant_step", exponent=constant),
    )
    return Range(min(constant, grown), max(constant, grown), lines, 2)


def _own(claim: Growth, claims: Claims) -> list[tuple[int, float]]:
    """The source's own points, by length; of tpot by mean context, of decode_total by output."""
    points: list[tuple[int, float]] = []
    for name in claim.rows:
        placed = claims.row(name)
        if placed is None or not isinstance(placed.claim, Row):
            continue
        row = placed.claim
        ms, length = time_of(row, claim.metric), _length(row, claim)
        if ms is not None and length is not None:
            points.append((length, ms))
    return sorted(points)


def _length(row: Row, claim: Growth) -> int | None:
    if claim.metric == "decode_total":
        return row.output_tokens
    if claim.metric == "tpot" and row.input_tokens is not None:
        return row.input_tokens + (row.output_tokens or 0) // 2
    return row.input_tokens


def _own_lines(own: list[tuple[int, float]], said: float) -> tuple[list[Line], bool]:
    """The steps of the source's own rows, and whether one of them contradicts what is said of them."""
    lines: list[Line] = []
    unlike = False
    for (near, near_ms), (far, far_ms) in pairwise(own):
        if near == far:
            continue
        step = math.log(far_ms / near_ms) / math.log(far / near)
        unlike = unlike or abs(step - said) * math.log(2.0) > math.log(1.0 + _OWN_TOLERANCE)
        lines.append(
            line(
                "own_step",
                low=near,
                high=far,
                low_ms=near_ms,
                high_ms=far_ms,
                factor=far_ms / near_ms,
                exponent=step,
            )
        )
    fitted = _fit(own)
    if fitted is not None and len(own) > 2:
        lines.append(line("own_fit", exponent=fitted))
    return lines, unlike


def _fit(own: list[tuple[int, float]]) -> float | None:
    """Least squares of ln t on ln N."""
    if len({length for length, _ in own}) < 2:
        return None
    logs = [(math.log(length), math.log(ms)) for length, ms in own]
    mean_x, mean_y = (math.fsum(pair[i] for pair in logs) / len(logs) for i in (0, 1))
    return math.fsum((x - mean_x) * (y - mean_y) for x, y in logs) / math.fsum(
        (x - mean_x) ** 2 for x, _ in logs
    )

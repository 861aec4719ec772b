"""Gates: limits on how much worse a metric may get, or on its value, judged by the whole interval.

    ttft_p50:5%        the median TTFT gets worse by less than 5 %
    tpot_p50:2ms       by less than 2 ms
    ttft_p99:<=200ms   NEW's own value, in every shape (throughput: >=)

A gate passes when the interval's far end keeps the limit, fails when the near end breaks it, and is undecided between.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from phasemeter.explain.compare import METRICS, Comparison
from phasemeter.explain.compare_effect import Interval
from phasemeter.explain.compare_rows import Row
from phasemeter.record.errors import InputError


class GateAnswer(StrEnum):
    """What a gate says."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"


class LimitKind(StrEnum):
    """What a limit bounds."""

    RATIO = "ratio"
    """How much worse, as a share of the base (`5%` is 0.05)."""
    ABSOLUTE = "absolute"
    """How much worse, in the metric's unit."""
    LEVEL = "level"
    """The new side's value, in the metric's unit."""


class Gate(Struct, frozen=True):
    """One limit; `text` as it was written."""

    text: str
    metric: str
    kind: LimitKind
    limit: float


class GateResult(Struct, frozen=True):
    """One gate judged. `worsening` (for a level: the value of the shape that decides) is in the limit's unit; `reason`
    says why it is undecided: a row's reason, "invalid" with the evidence, or "between"."""

    gate: Gate
    worsening: Interval
    answer: GateAnswer
    reason: str = ""
    evidence: str = ""
    shape: int | None = None
    """Place in `Comparison.shapes` of the shape that decides a level."""


_SPEC = re.compile(
    r"(?P<metric>[a-z0-9_]+)\s*(?::|(?=[<>]))\s*(?P<sign><=|>=)?\s*(?P<number>[0-9.]+)\s*(?P<unit>[^\s\d]*)"
)
_TO_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}
_PER_S = frozenset({"", "/s", "1/s"})


def read_gates(text: str) -> tuple[Gate, ...]:
    """Read a list of gates parted by commas. Raises InputError for one that cannot be read, naming the metrics."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise InputError("--gate", text, "name at least one, such as ttft_p50:5%")
    return tuple(_read(part) for part in parts)


def check_gates(gates: Sequence[Gate], comparison: Comparison) -> None:
    """Raises InputError for a metric that these runs do not have."""
    told = [row.name for row in comparison.rows]
    for gate in gates:
        if gate.metric not in told:
            raise InputError("--gate", gate.text, f"these runs do not tell it; they tell {', '.join(told)}")


def judge(
    gates: Sequence[Gate], comparison: Comparison, *, even_invalid: bool = False
) -> tuple[GateResult, ...]:
    """Judge every gate. A run that its checks call invalid leaves every gate undecided, unless `even_invalid`."""
    check_gates(gates, comparison)
    evidence = "" if even_invalid else _invalid(comparison)
    results = tuple(_judge(gate, comparison) for gate in gates)
    if not evidence:
        return results
    return tuple(
        GateResult(r.gate, r.worsening, GateAnswer.UNDECIDED, "invalid", evidence, r.shape) for r in results
    )


def gate_of(results: Sequence[GateResult]) -> GateAnswer | None:
    """All gates together: failed as soon as one failed, passed when all passed; None without a gate."""
    answers = {result.answer for result in results}
    for answer in (GateAnswer.FAIL, GateAnswer.UNDECIDED, GateAnswer.PASS):
        if answer in answers:
            return answer
    return None


def _read(text: str) -> Gate:
    found = _SPEC.fullmatch(text)
    if found is None:
        raise InputError(
            "--gate", text, "write METRIC:LIMIT, such as ttft_p50:5%, tpot_p50:2ms or ttft_p99:<=200ms"
        )
    metric, sign, unit = found["metric"], found["sign"], found["unit"]
    if metric not in METRICS:
        raise InputError("--gate", text, f"there is no metric {metric}; there are {', '.join(METRICS)}")
    is_rate = metric.endswith("_per_s")
    number = _number(found["number"], text)
    if sign is None and unit == "%":
        return Gate(text, metric, LimitKind.RATIO, number / 100.0)
    if sign is not None and (sign == ">=") != is_rate:
        raise InputError("--gate", text, "a latency is limited by <=, a throughput by >=")
    scale = (1.0 if unit in _PER_S else None) if is_rate else _TO_MS.get(unit)
    if scale is None:
        units = "% or none (a second)" if is_rate else "%, ms, s or us"
        raise InputError("--gate", text, f"give the limit's unit: {units}; a level (<=, >=) is no share")
    return Gate(text, metric, LimitKind.ABSOLUTE if sign is None else LimitKind.LEVEL, number * scale)


def _number(text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError("--gate", whole, f"{text} is no number") from None


def _invalid(comparison: Comparison) -> str:
    sides = [side for side in (comparison.base, comparison.new) if side.verdict == "invalid"]
    return "; ".join(f"{side.name}: {evidence}" for side in sides for evidence in side.evidence[:2])


def _judge(gate: Gate, comparison: Comparison) -> GateResult:
    if gate.kind is LimitKind.LEVEL:
        return _judge_level(gate, comparison)
    row = comparison.row(gate.metric)
    assert row is not None  # check_gates
    worsening = worsening_of(row, ratio=gate.kind is LimitKind.RATIO)
    return _within(gate, worsening, row)


def worsening_of(row: Row, *, ratio: bool) -> Interval:
    """How much worse NEW is: the effect for a latency, the loss for a throughput."""
    effect = row.effect if ratio else row.absolute
    if row.lower_is_better:
        return effect
    return Interval(_minus(effect.hi), _minus(effect.mid), _minus(effect.lo))


def _within(gate: Gate, worsening: Interval, row: Row) -> GateResult:
    if worsening.lo is None or worsening.hi is None:
        reason = "not_positive" if row.reason is None else row.reason.value
        return GateResult(gate, worsening, GateAnswer.UNDECIDED, reason)
    if worsening.hi < gate.limit:
        return GateResult(gate, worsening, GateAnswer.PASS)
    if worsening.lo > gate.limit:
        return GateResult(gate, worsening, GateAnswer.FAIL)
    return GateResult(gate, worsening, GateAnswer.UNDECIDED, "between")


def _judge_level(gate: Gate, comparison: Comparison) -> GateResult:
    """Every shape must keep a level; the one nearest to breaking it decides. Rates of mixed lengths have no shapes:
    their pooled row stands for them."""
    rows = [
        (i, row) for i, shape in enumerate(comparison.shapes) for row in shape.rows if row.name == gate.metric
    ]
    levels = [(i, row) for i, row in rows if row.new_level is not None]
    if not levels:
        row = comparison.row(gate.metric)
        assert row is not None  # check_gates
        levels = [(-1, row)]
    results = [_level(gate, row, i if i >= 0 else None) for i, row in levels]
    order = (GateAnswer.FAIL, GateAnswer.UNDECIDED, GateAnswer.PASS)
    return min(results, key=lambda r: (order.index(r.answer), -_badness(gate, r)))


def _badness(gate: Gate, result: GateResult) -> float:
    value = result.worsening.mid
    return 0.0 if value is None else -value if gate.metric.endswith("_per_s") else value


def _level(gate: Gate, row: Row, shape: int | None) -> GateResult:
    held = row.new_level or Interval(mid=row.new)
    if held.lo is None or held.hi is None:
        return GateResult(
            gate,
            held,
            GateAnswer.UNDECIDED,
            "few_units" if row.reason is None else row.reason.value,
            shape=shape,
        )
    near, far = (held.lo, held.hi) if row.lower_is_better else (-held.hi, -held.lo)
    limit = gate.limit if row.lower_is_better else -gate.limit
    answer = GateAnswer.PASS if far <= limit else GateAnswer.FAIL if near > limit else GateAnswer.UNDECIDED
    return GateResult(gate, held, answer, "between" if answer is GateAnswer.UNDECIDED else "", shape=shape)


def _minus(value: float | None) -> float | None:
    return None if value is None else -value

"""The JSON of `phasemeter compare --json`. Scripts rely on these keys; add freely, change none without a decision
record. Effects are per cent, absolute differences in the metric's `unit`; absent is null."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import asdict

from phasemeter.explain.compare import Comparison, ShapeRows
from phasemeter.explain.compare_effect import Interval
from phasemeter.explain.compare_facts import SideFacts
from phasemeter.explain.compare_gate import GateResult, LimitKind, gate_of
from phasemeter.explain.compare_rows import Row
from phasemeter.explain.contract import Json


def comparison_json(comparison: Comparison, gates: Sequence[GateResult]) -> Json:
    """The whole comparison; `gate` is null without a gate."""
    gate = gate_of(gates)
    return {
        "base": _side(comparison.base),
        "new": _side(comparison.new),
        "differs": [asdict(d) for d in comparison.differs],
        "margin_percent": comparison.margin_ratio * 100,
        "comparisons": comparison.comparisons,
        "metrics": [_row(row) for row in comparison.rows],
        "by_shape": [_shape(shape) for shape in comparison.shapes],
        "notes": [{"key": note.key, **note.numbers} for note in comparison.notes],
        "gate": None if gate is None else gate.value,
        "gates": [_gate(result, comparison) for result in gates],
    }


def _side(side: SideFacts) -> Json:
    return {**asdict(side), "evidence": list(side.evidence)}


def _row(row: Row) -> Json:
    return {
        "name": row.name,
        "unit": row.unit,
        "lower_is_better": row.lower_is_better,
        "base": row.base,
        "new": row.new,
        "effect": _interval(row.effect, 100.0) | {"unit": "%"},
        "absolute": _interval(row.absolute) | {"unit": row.unit},
        "answer": row.answer.value,
        "reason": None if row.reason is None else row.reason.value,
        "shapes": row.strata,
        "shapes_told": row.strata_told,
        "n": [row.base_n, row.new_n],
        "new_level": None if row.new_level is None else _interval(row.new_level),
    }


def _shape(shape: ShapeRows) -> Json:
    key = shape.stratum
    return {
        "input_tokens": [key.input_low, key.input_high],
        "output_tokens": [key.output_low, key.output_high],
        "batch": key.concurrency,
        "rate_per_s": key.rate_per_s,
        "requests": [shape.base_requests, shape.new_requests],
        "metrics": [_row(row) for row in shape.rows],
    }


def _gate(result: GateResult, comparison: Comparison) -> Json:
    gate = result.gate
    ratio = gate.kind is LimitKind.RATIO
    row = comparison.row(gate.metric)
    return {
        "gate": gate.text,
        "metric": gate.metric,
        "kind": gate.kind.value,
        "limit": gate.limit * 100 if ratio else gate.limit,
        "unit": "%" if ratio or row is None else row.unit,
        "worsening": _interval(result.worsening, 100.0 if ratio else 1.0),
        "answer": result.answer.value,
        "reason": result.reason or None,
        "evidence": result.evidence or None,
        "shape": result.shape,
    }


def _interval(interval: Interval, scale: float = 1.0) -> Json:
    return {name: None if value is None else value * scale for name, value in asdict(interval).items()}

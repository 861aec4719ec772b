"""A comparison as texts; a terminal, a Markdown comment and a JUnit file lay them out and compute nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from phasemeter.explain.compare import Comparison, ShapeRows
from phasemeter.explain.compare_effect import Answer, Interval
from phasemeter.explain.compare_facts import SideFacts
from phasemeter.explain.compare_gate import GateAnswer, GateResult, LimitKind, gate_of
from phasemeter.explain.compare_rows import Row, stat_of
from phasemeter.explain.compare_samples import Stratum
from phasemeter.report.compare_words import metric_name, say_compared
from phasemeter.report.digits import DASH, plain

_SIGNS = {"better": "✓", "worse": "✗", "same": "=", "undecided": "?", "pass": "✓", "fail": "✗"}
_BRIEF = frozenset({"ttft_from_arrival", "queue", "front_end"})
"""Shown by their medians unless all is asked for."""
_BY_SHAPE = ("ttft_p50", "prefill_p50", "tpot_p50")
_MOST_NAMED = 6


class Cell(Struct, frozen=True):
    """A text and the answer that colours it ("" for none)."""

    text: str
    answer: str = ""


class MetricLine(Struct, frozen=True):
    """One metric: name, values, effect in per cent with its interval, difference, answer, and why it is undecided."""

    name: str
    base: str
    new: str
    effect: str
    difference: str
    answer: Cell
    why: str


class ShapeLine(Struct, frozen=True):
    """One shape: its name, requests of both sides, and the effect on each of `CompareView.shape_heads`."""

    name: str
    n: str
    cells: tuple[Cell, ...]


class GateLine(Struct, frozen=True):
    """One gate as written, what was seen, its answer and why it is undecided."""

    text: str
    seen: str
    answer: Cell
    why: str


class CompareView(Struct, frozen=True):
    """Everything that is shown."""

    lang: str
    title: str
    sides: tuple[tuple[str, str, str], ...]
    """(base or new, name, facts)."""
    differs: tuple[str, ...]
    warnings: tuple[str, ...]
    note: str
    lines: tuple[MetricLine, ...]
    shape_heads: tuple[str, ...]
    shapes: tuple[ShapeLine, ...]
    gates: tuple[GateLine, ...]
    gate: str
    gate_text: str
    notes: tuple[str, ...]


def compare_view(
    comparison: Comparison, gates: Sequence[GateResult], lang: str, *, everything: bool = False
) -> CompareView:
    """Write a comparison down. Metrics of a gate are always shown, the rest in brief unless `everything`."""
    named = {result.gate.metric for result in gates}
    rows = [row for row in comparison.rows if everything or row.name in named or _is_brief(row.name)]
    heads = tuple(name for name in _BY_SHAPE if comparison.row(name) is not None)
    many = len(comparison.shapes) > 1
    gate = gate_of(gates)
    margin = f"{comparison.margin_ratio * 100:g} %"
    return CompareView(
        lang=lang,
        title=say_compared(lang, "title", base=comparison.base.name, new=comparison.new.name),
        sides=(_side("base", comparison.base, lang), _side("new", comparison.new, lang)),
        differs=tuple(
            f"{d.field}: {_or_absent(d.base, lang)} → {_or_absent(d.new, lang)}" for d in comparison.differs
        ),
        warnings=_warnings(comparison, lang),
        note=say_compared(
            lang, "metrics_note_grouped" if comparison.grouped else "metrics_note", margin=margin
        ),
        lines=tuple(_line(row, lang) for row in rows),
        shape_heads=tuple(metric_name(lang, name) for name in heads) if many else (),
        shapes=tuple(_shape(shape, heads) for shape in comparison.shapes) if many else (),
        gates=tuple(_gate(result, comparison, lang) for result in gates),
        gate="" if gate is None else gate.value,
        gate_text="" if gate is None else say_compared(lang, f"gate_{gate.value}"),
        notes=_notes(comparison, lang, gated=gate is not None),
    )


def shape_name(key: Stratum) -> str:
    """A stratum in a few characters: "128 → 64 ×4", lengths grouped "128–255 → 64–127", open loop "@ 10/s"."""
    lengths = f"{_range(key.input_low, key.input_high)} → {_range(key.output_low, key.output_high)}"
    if key.concurrency is not None:
        return lengths if key.concurrency == 1 else f"{lengths} ×{key.concurrency}"
    return lengths if key.rate_per_s is None else f"{lengths} @ {key.rate_per_s:g}/s"


def percent_interval(interval: Interval) -> str:
    """An effect as "+6.2 [+4.1, +8.0]", per cent."""
    return _with_ends(interval, _percent)


def _is_brief(name: str) -> bool:
    stat = stat_of(name)
    return stat == "p50" or (stat != "mean" and name.removesuffix(f"_{stat}") not in _BRIEF)


def _side(role: str, side: SideFacts, lang: str) -> tuple[str, str, str]:
    facts = say_compared(
        lang,
        "side",
        ok=f"{side.ok:,}",
        failed=f"{side.failed:,}",
        runs=side.runs,
        blocks=side.blocks,
        unit=say_compared(lang, f"unit_{side.unit}"),
        verdict=side.verdict,
    )
    return say_compared(lang, role), side.name, facts


def _or_absent(value: str | None, lang: str) -> str:
    return say_compared(lang, "absent") if value is None else value


def _warnings(comparison: Comparison, lang: str) -> tuple[str, ...]:
    return tuple(
        say_compared(lang, "invalid", name=side.name, evidence="; ".join(side.evidence))
        for side in (comparison.base, comparison.new)
        if side.verdict == "invalid"
    )


def _line(row: Row, lang: str) -> MetricLine:
    why = "" if row.reason is None else say_compared(lang, row.reason.value)
    if row.strata < row.strata_told:
        part = say_compared(lang, "part_of", n=row.strata, all=row.strata_told)
        why = f"{why}; {part}" if why else part
    return MetricLine(
        name=metric_name(lang, row.name),
        base=plain(row.base),
        new=plain(row.new),
        effect=percent_interval(row.effect),
        difference=f"{_signed(row.absolute.mid)} {row.unit}",
        answer=_answer(row.answer, lang),
        why=why,
    )


def _answer(answer: Answer | GateAnswer, lang: str) -> Cell:
    return Cell(f"{_SIGNS[answer.value]} {say_compared(lang, answer.value)}", answer.value)


def _shape(shape: ShapeRows, heads: Sequence[str]) -> ShapeLine:
    rows = {row.name: row for row in shape.rows}
    cells = [
        Cell(f"{percent_interval(rows[n].effect)} {_SIGNS[rows[n].answer.value]}", rows[n].answer.value)
        if n in rows
        else Cell(DASH)
        for n in heads
    ]
    return ShapeLine(
        shape_name(shape.stratum), f"{shape.base_requests:,} / {shape.new_requests:,}", tuple(cells)
    )


def _gate(result: GateResult, comparison: Comparison, lang: str) -> GateLine:
    kind, row = result.gate.kind, comparison.row(result.gate.metric)
    unit = "" if row is None else row.unit
    if kind is LimitKind.RATIO:
        seen = f"{say_compared(lang, 'worsening')} {percent_interval(result.worsening)} %"
    elif kind is LimitKind.ABSOLUTE:
        seen = f"{say_compared(lang, 'worsening')} {_with_ends(result.worsening, _signed)} {unit}"
    else:
        seen = f"{say_compared(lang, 'level')} {_with_ends(result.worsening, plain)} {unit}"
    if result.shape is not None and len(comparison.shapes) > 1:
        seen += f" ({shape_name(comparison.shapes[result.shape].stratum)})"
    why = result.evidence if result.reason == "invalid" else ""
    if result.reason and result.reason != "invalid":
        why = say_compared(lang, result.reason)
    return GateLine(result.gate.text, seen, _answer(result.answer, lang), why)


def _notes(comparison: Comparison, lang: str, *, gated: bool) -> tuple[str, ...]:
    notes = [say_compared(lang, note.key, **note.numbers) for note in comparison.notes]
    notes += _disagreeing(comparison, lang)
    notes.append(say_compared(lang, "count" if gated else "count_plain", n=comparison.comparisons))
    return tuple(notes)


def _disagreeing(comparison: Comparison, lang: str) -> list[str]:
    """Shapes that are worse where the whole is not: a mean over shapes can hide one of them."""
    found: list[str] = []
    for name in _BY_SHAPE:
        pooled = comparison.row(name)
        if pooled is None or pooled.answer is Answer.WORSE or len(comparison.shapes) < 2:
            continue
        bad = [
            s.stratum
            for s in comparison.shapes
            if any(r.name == name and r.answer is Answer.WORSE for r in s.rows)
        ]
        if bad:
            shapes = ", ".join(map(shape_name, bad[:_MOST_NAMED])) + (", …" if len(bad) > _MOST_NAMED else "")
            answer = say_compared(lang, "worse")
            total = len(comparison.shapes)
            name_there = metric_name(lang, name)
            found.append(
                say_compared(
                    lang, "disagree", metric=name_there, answer=answer, n=len(bad), all=total, shapes=shapes
                )
            )
    return found


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _percent(value: float | None) -> str:
    if value is None:
        return DASH
    size = abs(value * 100)
    places = 2 if size < 1 else 1 if size < 10 else 0
    return f"{round(value * 100, places) + 0.0:+,.{places}f}"


def _signed(value: float | None) -> str:
    if value is None:
        return DASH
    return f"+{plain(value)}" if value > 0 else plain(value)


def _with_ends(interval: Interval, text: Callable[[float | None], str]) -> str:
    if interval.mid is None:
        return DASH
    if interval.lo is None or interval.hi is None:
        return text(interval.mid)
    return f"{text(interval.mid)} [{text(interval.lo)}, {text(interval.hi)}]"

"""Charts against length: prefill by input tokens and time per token by context, with their floors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import cast

from phasemeter.report.digits import interval, power, with_unit
from phasemeter.report.figure import MARGIN, Figure, layout_of, legend, log_axis, short
from phasemeter.report.levels import level_text, lowest
from phasemeter.report.parts import Number, RunView, ShapeView
from phasemeter.report.words import word

SERIES = ("#2b7fc4", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "star")


def prefill_chart(run: RunView, lang: str) -> Figure | None:
    """Prefill (or time to first token) against input length on log axes, with floors and local exponents."""
    split = any(shape.split for shape in run.shapes)
    traces: list[Figure] = []
    for i, group in enumerate(_groups(run.shapes)):
        points = [(s.input_tokens, s.prefill if split else s.ttft) for s in group]
        points = [
            (x, n) for x, n in points if n.value is not None and n.value > 0
        ]  # what a log axis can hold
        name = f"{word(lang, 'prefill_short') if split else 'TTFT'}, {_group_name(group, lang)}"
        traces += _line(points, name, i)
    traces += _floors(run.shapes, "prefill", lang)
    if not any(y > 0 for trace in traces for y in cast("list[float]", trace["y"])):
        return None  # a simulated prefill of 0 ms has no place on a log axis
    layout = layout_of(word(lang, "axis_input"), word(lang, "axis_ms"), 440)
    ticks = sorted({shape.input_tokens for shape in run.shapes})
    layout["xaxis"] = log_axis(word(lang, "axis_input"), ticks)
    layout["yaxis"] = log_axis(word(lang, "axis_ms"), _nice_ticks(traces))
    layout["annotations"] = _exponent_notes(run, "prefill" if split else "first", split=split, lang=lang)
    layout |= {"legend": legend(), "margin": MARGIN | {"t": 50}}
    return {"data": traces, "layout": layout}


def tpot_chart(run: RunView, lang: str) -> Figure | None:
    """Time per output token against the mean context of its decode steps, with floors."""
    traces: list[Figure] = []
    by_load = sorted(run.shapes, key=lambda s: (s.asked.order, s.mean_context))
    for i, (asked, group) in enumerate(groupby(by_load, key=lambda s: s.asked)):
        points = [(shape.mean_context, shape.tpot) for shape in group]
        traces += _line(points, f"TPOT, {level_text(asked, lang)}", i)
    if not traces:
        return None
    traces += _floors(run.shapes, "tpot", lang)
    layout = layout_of(word(lang, "axis_context"), word(lang, "axis_ms"), 400)
    layout["xaxis"] = log_axis(word(lang, "axis_context"), sorted({s.mean_context for s in run.shapes}))
    layout["yaxis"] = {"title": {"text": word(lang, "axis_ms")}, "rangemode": "tozero"}
    layout |= {"legend": legend(), "margin": MARGIN | {"t": 50}}
    return {"data": traces, "layout": layout}


def _groups(shapes: Sequence[ShapeView]) -> list[list[ShapeView]]:
    """Shapes that differ in nothing but input length, most of them first; single ones pooled by
    concurrency."""
    ordered = sorted(shapes, key=lambda s: (s.asked.order, s.output_tokens, s.input_tokens))
    groups = [list(g) for _, g in groupby(ordered, key=lambda s: (s.asked, s.output_tokens))]
    if all(len(group) == 1 for group in groups):  # paired lengths: prefill does not know the answer's length
        groups = [list(g) for _, g in groupby(ordered, key=lambda s: s.asked)]
    return groups


def _group_name(group: Sequence[ShapeView], lang: str) -> str:
    outputs = {shape.output_tokens for shape in group}
    name = level_text(group[0].asked, lang)
    return name if len(outputs) > 1 else f"{name}, {word(lang, 'output')} {outputs.pop()}"


def _line(points: Sequence[tuple[int, Number]], name: str, i: int) -> list[Figure]:
    seen = [(x, n, n.value) for x, n in points if n.value is not None]
    if not seen:
        return []
    colour = SERIES[i % len(SERIES)]
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": [x for x, _, _ in seen],
            "y": [short(value) for _, _, value in seen],
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [short((n.hi if n.hi is not None else value) - value) for _, n, value in seen],
                "arrayminus": [short(value - (n.lo if n.lo is not None else value)) for _, n, value in seen],
                "thickness": 1.5,
                "width": 5,
            },
            "line": {"color": colour, "width": 2},
            "marker": {"size": 9, "color": colour, "symbol": SYMBOLS[i % len(SYMBOLS)]},
            "hovertext": [f"{name}<br>{x:,}: {with_unit(n)} {interval(n)}" for x, n, _ in seen],
            "hoverinfo": "text",
        }
    ]


def _floors(shapes: Sequence[ShapeView], what: str, lang: str) -> list[Figure]:
    """Floor lines of the lowest level: measured ceilings dashed, datasheet dotted."""
    low = lowest(shapes)
    chosen = [shape for shape in shapes if shape.asked == low]
    traces: list[Figure] = []
    for source, dash in (("measured", "dash"), ("datasheet", "dot")):
        points: dict[int, float] = {}
        for shape in chosen:
            floor = _floor_number(shape, what, source)
            if floor.value is not None:
                points[shape.input_tokens if what == "prefill" else shape.mean_context] = short(floor.value)
        if points:
            name = f"{word(lang, f'floor_{source}')}"
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": name,
                    "x": sorted(points),
                    "y": [points[x] for x in sorted(points)],
                    "line": {"color": "ink", "width": 1.5, "dash": dash},
                    "marker": {"size": 4, "color": "#7d8894"},
                    "hovertemplate": f"{name}<br>%{{x:,}}: %{{y:.4g}} ms<extra></extra>",
                }
            )
    return traces


def _floor_number(shape: ShapeView, what: str, source: str) -> Number:
    if source == "datasheet":
        return shape.prefill_floor_datasheet if what == "prefill" else shape.tpot_floor_datasheet
    return shape.prefill_floor_measured if what == "prefill" else shape.tpot_floor_measured


def _exponent_notes(run: RunView, metric: str, *, split: bool, lang: str) -> list[Figure]:
    """The local exponent in the middle of each stretch, for the lowest level and its longest
    answers."""
    found = [entry for entry in run.growth if entry.metric == metric]
    if not found:
        return []
    low = lowest(found)
    output = max((entry.output_tokens for entry in found if entry.asked == low), key=lambda n: n or 0)
    at = {
        s.input_tokens: (s.prefill if split else s.ttft).value
        for s in run.shapes
        if s.asked == low and (output is None or s.output_tokens == output)
    }
    notes: list[Figure] = []
    for entry in found:
        near, far = at.get(entry.low), at.get(entry.high)
        if (entry.asked, entry.output_tokens) != (low, output) or not near or not far or min(near, far) <= 0:
            continue
        notes.append(
            {
                "x": (math.log10(entry.low) + math.log10(entry.high)) / 2,
                "y": (math.log10(near) + math.log10(far)) / 2,
                "text": f"{word(lang, 'exponent')} {_power_text(entry.exponent)}",
                "showarrow": False,
                "yshift": 16,
                "xanchor": "right",
                "font": {"size": 12},
            }
        )
    return notes


def _power_text(number: Number) -> str:
    text = power(number.value or 0.0)
    if number.lo is None or number.hi is None:
        return text
    return f"{text} [{power(number.lo)}, {power(number.hi)}]"


def _nice_ticks(traces: Sequence[Figure]) -> list[float]:
    """1, 2, 5 in every decade that the lines cross; whole decades where that would be too many."""
    values = [float(y) for trace in traces for y in cast("list[float]", trace["y"]) if y > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if high - low <= 3 else (1,)
    return [step * 10.0**power_of_ten for power_of_ten in range(low, high + 1) for step in steps]

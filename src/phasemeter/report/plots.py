"""The charts of a page as plain Plotly figures (data and layout); theme colours are laid on by the page.

Only geometry is worked out here; every number comes from the view. Text that comes from a run is escaped, because
Plotly reads a little HTML in labels and hovers.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from itertools import groupby
from typing import cast

from phasemeter.report.digits import interval, percent, plain, power, with_unit
from phasemeter.report.palette import COLOURS
from phasemeter.report.parts import Mark, Number, Row, RunView, Segment, ShapeView
from phasemeter.report.words import phase_name, word

Figure = dict[str, object]
Charts = dict[str, dict[str, object]]

SERIES = ("#2b7fc4", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "star")
_MARGIN = {"l": 64, "r": 20, "t": 12, "b": 48}


def charts_of(run: RunView, index: int, lang: str) -> Charts:
    """Every chart of one run by its name; a chart is one figure, or one for each shape."""
    return {
        f"overview-{index}": {"one": overview(run.shapes, lang)},
        f"waterfall-{index}": {"by_shape": [waterfall(shape, lang) for shape in run.shapes]},
        f"prefill-{index}": {"one": prefill_chart(run, lang)},
        f"tpot-{index}": {"one": tpot_chart(run, lang)},
        f"gaps-{index}": {"by_shape": [gaps_chart(shape, lang) for shape in run.shapes]},
        f"timeline-{index}": {"by_shape": [timeline_chart(shape, lang) for shape in run.shapes]},
    }


def overview(shapes: Sequence[ShapeView], lang: str) -> Figure | None:
    """The mean budget of every shape as stacked bars."""
    if not shapes:
        return None
    names: dict[str, str] = {}
    for shape in shapes:
        names |= {segment.phase: segment.label for segment in shape.segments}
    traces = [_stack(phase, names[phase], shapes, lang) for phase in COLOURS if phase in names]
    height = 90 + 38 * len(shapes)
    layout = _layout(word(lang, "axis_ms"), "", height)
    layout |= {"barmode": "stack", "yaxis": {"autorange": "reversed", "type": "category"}, "legend": _legend()}
    layout["margin"] = _MARGIN | {"l": 110, "t": 40}
    return {"data": traces, "layout": layout}


def waterfall(shape: ShapeView, lang: str) -> Figure | None:
    """One bar a phase, each starting where the one before ended."""
    seen = [segment for segment in shape.segments if segment.number.value is not None]
    if not seen:
        return None
    names = [segment.label for segment in seen] + [word(lang, "total")]
    values = [segment.number.value or 0.0 for segment in seen]
    total = shape.total.value or 0.0
    texts = [f"{with_unit(s.number)} · {percent(s.share)}" for s in seen] + [f"<b>{with_unit(shape.total)}</b>"]
    traces: list[Figure] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [segment.label],
            "x": [_short(segment.number.value or 0.0)],
            "base": [_short(segment.start_ms)],
            "marker": _bar_marker(segment.phase, inferred=segment.number.mark is Mark.INFERRED),
            "hovertext": [f"{segment.label}: {_basis_text(segment, lang)}"],
            "hoverinfo": "text",
        }
        for segment in seen
    ]
    traces.append(
        {
            "type": "bar",
            "orientation": "h",
            "y": [names[-1]],
            "x": [_short(total)],
            "marker": {"color": "#7d8894"},
            "hovertext": [texts[-1]],
            "hoverinfo": "text",
        }
    )
    layout = _layout(word(lang, "axis_ms"), "", 70 + 36 * len(names))
    layout |= {"showlegend": False, "barmode": "overlay"}
    layout["yaxis"] = {"autorange": "reversed", "type": "category", "categoryarray": names, "categoryorder": "array"}
    layout["margin"] = _MARGIN | {"l": 110}
    layout["xaxis"] = {"title": {"text": word(lang, "axis_ms")}, "range": [min(0.0, *values), total * 1.28]}
    # a label right of each bar: small phases are too thin to hold one
    layout["annotations"] = [
        {
            "x": _short(max(start, start + value)),
            "y": name,
            "text": text,
            "xanchor": "left",
            "xshift": 5,
            "showarrow": False,
        }
        for name, start, value, text in zip(
            names, [s.start_ms for s in seen] + [0.0], [*values, total], texts, strict=True
        )
    ]
    return {"data": traces, "layout": layout}


def prefill_chart(run: RunView, lang: str) -> Figure | None:
    """Prefill (or time to first token) against input length on log axes, with floors and local exponents."""
    split = any(shape.split for shape in run.shapes)
    traces: list[Figure] = []
    for i, group in enumerate(_groups(run.shapes)):
        points = [(s.input_tokens, s.prefill if split else s.ttft) for s in group]
        name = f"{word(lang, 'prefill_short') if split else 'TTFT'}, {_group_name(group, lang)}"
        traces += _line(points, name, i)
    traces += _floors(run.shapes, "prefill", lang)
    if not traces:
        return None
    layout = _layout(word(lang, "axis_input"), word(lang, "axis_ms"), 440)
    ticks = sorted({shape.input_tokens for shape in run.shapes})
    layout["xaxis"] = _log_axis(word(lang, "axis_input"), ticks)
    layout["yaxis"] = _log_axis(word(lang, "axis_ms"), _nice_ticks(traces))
    layout["annotations"] = _exponent_notes(run, "prefill" if split else "first", split=split, lang=lang)
    layout |= {"legend": _legend(), "margin": _MARGIN | {"t": 50}}
    return {"data": traces, "layout": layout}


def tpot_chart(run: RunView, lang: str) -> Figure | None:
    """Time per output token against the mean context of its decode steps, with floors."""
    traces: list[Figure] = []
    by_load = sorted(run.shapes, key=lambda s: (s.concurrency, s.mean_context))
    for i, (concurrency, group) in enumerate(groupby(by_load, key=lambda s: s.concurrency)):
        points = [(shape.mean_context, shape.tpot) for shape in group]
        traces += _line(points, f"TPOT, {word(lang, 'at_concurrency')} {concurrency}", i)
    if not traces:
        return None
    traces += _floors(run.shapes, "tpot", lang)
    layout = _layout(word(lang, "axis_context"), word(lang, "axis_ms"), 400)
    layout["xaxis"] = _log_axis(word(lang, "axis_context"), sorted({s.mean_context for s in run.shapes}))
    layout["yaxis"] = {"title": {"text": word(lang, "axis_ms")}, "rangemode": "tozero"}
    layout |= {"legend": _legend(), "margin": _MARGIN | {"t": 50}}
    return {"data": traces, "layout": layout}


def gaps_chart(shape: ShapeView, lang: str) -> Figure | None:
    """Histogram of the gaps between tokens, counts linear or logarithmic."""
    if shape.itl is None:
        return None
    edges, counts = shape.itl.edges_ms, shape.itl.counts
    pairs = list(zip(edges, edges[1:], strict=False))
    trace: Figure = {
        "type": "bar",
        "x": [_short((lo + hi) / 2) for lo, hi in pairs],
        "width": [_short(hi - lo) for lo, hi in pairs],
        "y": list(counts),
        "marker": {"color": COLOURS["decode"]},
        "hovertext": [f"{plain(lo)}–{plain(hi)} ms: {n}" for (lo, hi), n in zip(pairs, counts, strict=True)],
        "hoverinfo": "text",
    }
    wide = edges[-1] / edges[0] > 5
    modes: dict[str, Figure] = {}
    for mode in ("linear", "log"):
        layout = _layout(word(lang, "axis_gap"), word(lang, "axis_count"), 340)
        layout["xaxis"] = {"title": {"text": word(lang, "axis_gap")}, "type": "log" if wide else "linear"}
        layout["yaxis"] = {"title": {"text": word(lang, "axis_count")}, "type": mode}
        if len(counts) == 1:  # one bin would fill the whole chart
            layout["xaxis"] = {"title": {"text": word(lang, "axis_gap")}, "range": [0, edges[-1] * 1.5]}
        layout |= {"showlegend": False, "bargap": 0}
        modes[mode] = {"data": [trace], "layout": layout}
    return {"modes": modes}


def timeline_chart(shape: ShapeView, lang: str) -> Figure | None:
    """One row a request, phases in colour: from its own arrival, or in the time of the run."""
    if not shape.rows:
        return None
    modes: dict[str, Figure] = {}
    for mode in ("aligned", "wall"):
        traces = [_phase_rows(phase, shape.rows, mode, lang) for phase in COLOURS]
        axis = word(lang, "axis_ms" if mode == "aligned" else "axis_s")
        layout = _layout(axis, word(lang, "axis_request"), min(900, 130 + 16 * len(shape.rows)))
        layout |= {"barmode": "overlay", "bargap": 0.25, "legend": _legend()}
        layout["margin"] = _MARGIN | {"t": 44}
        layout["yaxis"] = {"title": {"text": word(lang, "axis_request")}, "autorange": "reversed", "dtick": _dtick(shape)}
        modes[mode] = {"data": [trace for trace in traces if trace["x"]], "layout": layout}
    return {"modes": modes}


def _stack(phase: str, label: str, shapes: Sequence[ShapeView], lang: str) -> Figure:
    found = [
        (shape, segment)
        for shape in shapes
        for segment in shape.segments
        if segment.phase == phase and segment.number.value is not None
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": label,
        "y": [shape.short for shape, _ in found],
        "x": [_short(segment.number.value or 0.0) for _, segment in found],
        "marker": _bar_marker(phase, inferred=any(s.number.mark is Mark.INFERRED for _, s in found)),
        "hovertext": [f"{shape.short}: {label} {_basis_text(segment, lang)}" for shape, segment in found],
        "hoverinfo": "text",
    }


def _basis_text(segment: Segment, lang: str) -> str:
    return f"{with_unit(segment.number)} · {percent(segment.share)} · {word(lang, segment.number.mark.value)}"


def _bar_marker(phase: str, *, inferred: bool) -> Figure:
    """The phase's colour; hatched where the number is inferred."""
    colour = COLOURS[phase]
    if not inferred:
        return {"color": colour}
    return {"color": colour, "pattern": {"shape": "/", "bgcolor": colour, "fgcolor": "#ffffff", "size": 6}}


def _groups(shapes: Sequence[ShapeView]) -> list[list[ShapeView]]:
    """Shapes that differ in nothing but input length, most of them first; single ones pooled by concurrency."""
    ordered = sorted(shapes, key=lambda s: (s.concurrency, s.output_tokens, s.input_tokens))
    groups = [list(g) for _, g in groupby(ordered, key=lambda s: (s.concurrency, s.output_tokens))]
    if all(len(group) == 1 for group in groups):  # paired lengths: prefill does not know the answer's length
        groups = [list(g) for _, g in groupby(ordered, key=lambda s: s.concurrency)]
    return groups


def _group_name(group: Sequence[ShapeView], lang: str) -> str:
    outputs = {shape.output_tokens for shape in group}
    name = f"{word(lang, 'at_concurrency')} {group[0].concurrency}"
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
            "y": [_short(value) for _, _, value in seen],
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [_short((n.hi if n.hi is not None else value) - value) for _, n, value in seen],
                "arrayminus": [_short(value - (n.lo if n.lo is not None else value)) for _, n, value in seen],
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
    """Floor lines of the lowest concurrency: measured ceilings dashed, datasheet dotted."""
    low = min((shape.concurrency for shape in shapes), default=1)
    chosen = [shape for shape in shapes if shape.concurrency == low]
    traces: list[Figure] = []
    for source, dash in (("measured", "dash"), ("datasheet", "dot")):
        points: dict[int, float] = {}
        for shape in chosen:
            floor = _floor_number(shape, what, source)
            if floor.value is not None:
                points[shape.input_tokens if what == "prefill" else shape.mean_context] = _short(floor.value)
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
    """The local exponent in the middle of each stretch, for the lowest concurrency and its longest answers."""
    found = [entry for entry in run.growth if entry.metric == metric]
    if not found:
        return []
    low = min(entry.concurrency for entry in found)
    output = max(entry.output_tokens for entry in found if entry.concurrency == low)
    at = {
        s.input_tokens: (s.prefill if split else s.ttft).value
        for s in run.shapes
        if s.concurrency == low and s.output_tokens in (output, -1)
    }
    notes: list[Figure] = []
    for entry in found:
        near, far = at.get(entry.low), at.get(entry.high)
        if (entry.concurrency, entry.output_tokens) != (low, output) or not near or not far:
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


def _phase_rows(phase: str, rows: Sequence[Row], mode: str, lang: str) -> Figure:
    label = phase_name(lang, phase)
    xs: list[float] = []
    bases: list[float] = []
    ys: list[int] = []
    hovers: list[str] = []
    for i, row in enumerate(rows):
        for name, start, length, mark in row.spans:
            if name != phase:
                continue
            scale, offset = (1.0, 0.0) if mode == "aligned" else (1e-3, row.arrived_ms)
            bases.append(_short((start + offset) * scale))
            xs.append(_short(length * scale))
            ys.append(i)
            warm = f" ({word(lang, 'warmup')})" if row.warmup else ""
            number = Number(length, mark=mark)
            hovers.append(
                f"{html.escape(row.name)}{warm}, {html.escape(row.outcome)}, {row.tokens} {word(lang, 'tokens')}"
                f"<br>{label}: {with_unit(number)} ({word(lang, mark.value)})"
            )
    return {
        "type": "bar",
        "orientation": "h",
        "name": label,
        "x": xs,
        "base": bases,
        "y": ys,
        "marker": {"color": COLOURS[phase]},
        "hovertext": hovers,
        "hoverinfo": "text",
    }


def _dtick(shape: ShapeView) -> int:
    return max(1, round(len(shape.rows) / 20))


def _layout(x: str, y: str, height: int) -> Figure:
    return {
        "height": height,
        "margin": dict(_MARGIN),
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
        "hovermode": "closest",
    }


def _legend() -> Figure:
    return {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left", "traceorder": "normal"}


def _nice_ticks(traces: Sequence[Figure]) -> list[float]:
    """1, 2, 5 in every decade that the lines cross; whole decades where that would be too many."""
    values = [float(y) for trace in traces for y in cast("list[float]", trace["y"]) if y > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if high - low <= 3 else (1,)
    return [step * 10.0**power_of_ten for power_of_ten in range(low, high + 1) for step in steps]


def _log_axis(title: str, ticks: Sequence[float] = ()) -> Figure:
    axis: Figure = {"title": {"text": title}, "type": "log"}
    if 0 < len(ticks) <= 12:
        axis |= {"tickvals": list(ticks), "ticktext": [f"{tick:,.6g}" for tick in ticks]}
    return axis


def _short(value: float) -> float:
    """Six significant digits: enough for a picture, short in the page."""
    return float(f"{value:.6g}")

"""The charts of a page as plain Plotly figures (data and layout); theme colours are laid on by the page.

Only geometry is worked out here; every number comes from the view. Text that comes from a run is escaped,
because Plotly reads a little HTML in labels and hovers.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from phasemeter.report.beside_plot import beside_chart
from phasemeter.report.digits import percent, plain, with_unit
from phasemeter.report.figure import MARGIN, Figure, layout_of, legend, short
from phasemeter.report.length_plots import prefill_chart, tpot_chart
from phasemeter.report.life_plot import life_chart
from phasemeter.report.load_plot import load_chart
from phasemeter.report.palette import COLOURS
from phasemeter.report.parts import Mark, Number, Row, RunView, Segment, ShapeView
from phasemeter.report.words import phase_name, word

Charts = dict[str, dict[str, object]]


def charts_of(run: RunView, index: int, lang: str) -> Charts:
    """Every chart of one run by its name; a chart is one figure, or one for each shape."""
    charts: Charts = {
        f"overview-{index}": {"one": overview(run.shapes, lang)},
        f"waterfall-{index}": {"by_shape": [waterfall(shape, lang) for shape in run.shapes]},
        f"prefill-{index}": {"one": prefill_chart(run, lang)},
        f"tpot-{index}": {"one": tpot_chart(run, lang)},
        f"gaps-{index}": {"by_shape": [gaps_chart(shape, lang) for shape in run.shapes]},
        f"timeline-{index}": {"by_shape": [timeline_chart(shape, lang) for shape in run.shapes]},
    }
    if run.load is not None:
        for i, chart in enumerate(run.load.charts):
            charts[f"load{i}-{index}"] = {"one": load_chart(chart)}
    if run.inside is not None and run.inside.lives:
        charts[f"life-{index}"] = {"by_life": [life_chart(life, lang) for life in run.inside.lives]}
    if run.beside is not None:
        charts[f"beside-{index}"] = {"one": beside_chart(run.beside, lang)}
    return charts


def overview(shapes: Sequence[ShapeView], lang: str) -> Figure | None:
    """The mean budget of every shape as stacked bars."""
    if not shapes:
        return None
    names: dict[str, str] = {}
    for shape in shapes:
        names |= {segment.phase: segment.label for segment in shape.segments}
    traces = [_stack(phase, names[phase], shapes, lang) for phase in COLOURS if phase in names]
    height = 90 + 38 * len(shapes)
    layout = layout_of(word(lang, "axis_ms"), "", height)
    layout |= {
        "barmode": "stack",
        "yaxis": {"autorange": "reversed", "type": "category"},
        "legend": legend(),
    }
    layout["margin"] = MARGIN | {"l": 110, "t": 40}
    return {"data": traces, "layout": layout}


def waterfall(shape: ShapeView, lang: str) -> Figure | None:
    """One bar a phase, each starting where the one before ended."""
    seen = [segment for segment in shape.segments if segment.number.value is not None]
    if not seen:
        return None
    names = [segment.label for segment in seen] + [word(lang, "total")]
    values = [segment.number.value or 0.0 for segment in seen]
    total = shape.total.value or 0.0
    texts = [f"{with_unit(s.number)} · {percent(s.share)}" for s in seen] + [
        f"<b>{with_unit(shape.total)}</b>"
    ]
    traces: list[Figure] = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [segment.label],
            "x": [short(segment.number.value or 0.0)],
            "base": [short(segment.start_ms)],
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
            "x": [short(total)],
            "marker": {"color": "#7d8894"},
            "hovertext": [texts[-1]],
            "hoverinfo": "text",
        }
    )
    layout = layout_of(word(lang, "axis_ms"), "", 70 + 36 * len(names))
    layout |= {"showlegend": False, "barmode": "overlay"}
    layout["yaxis"] = {
        "autorange": "reversed",
        "type": "category",
        "categoryarray": names,
        "categoryorder": "array",
    }
    layout["margin"] = MARGIN | {"l": 110}
    layout["xaxis"] = {"title": {"text": word(lang, "axis_ms")}, "range": [min(0.0, *values), total * 1.28]}
    # a label right of each bar: small phases are too thin to hold one
    layout["annotations"] = [
        {
            "x": short(max(start, start + value)),
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


def gaps_chart(shape: ShapeView, lang: str) -> Figure | None:
    """Histogram of the gaps between tokens, counts linear or logarithmic."""
    if shape.itl is None:
        return None
    edges, counts = shape.itl.edges_ms, shape.itl.counts
    pairs = list(pairwise(edges))
    trace: Figure = {
        "type": "bar",
        "x": [short((lo + hi) / 2) for lo, hi in pairs],
        "width": [short(hi - lo) for lo, hi in pairs],
        "y": list(counts),
        "marker": {"color": COLOURS["decode"]},
        "hovertext": [f"{plain(lo)}–{plain(hi)} ms: {n}" for (lo, hi), n in zip(pairs, counts, strict=True)],
        "hoverinfo": "text",
    }
    wide = edges[-1] / edges[0] > 5
    modes: dict[str, Figure] = {}
    for mode in ("linear", "log"):
        layout = layout_of(word(lang, "axis_gap"), word(lang, "axis_count"), 340)
        layout["xaxis"] = {"title": {"text": word(lang, "axis_gap")}, "type": "log" if wide else "linear"}
        layout["yaxis"] = {"title": {"text": word(lang, "axis_count")}, "type": mode}
        if mode == "log":  # a count of one must stand above the axis
            layout["yaxis"] = cast("Figure", layout["yaxis"]) | {
                "range": [math.log10(0.6), math.log10(max(counts) * 1.5)],
                "dtick": 1,
            }
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
        layout = layout_of(axis, word(lang, "axis_request"), min(900, 130 + 16 * len(shape.rows)))
        layout |= {"barmode": "overlay", "bargap": 0.25, "legend": legend()}
        layout["margin"] = MARGIN | {"t": 44}
        layout["yaxis"] = {
            "title": {"text": word(lang, "axis_request")},
            "autorange": "reversed",
            "dtick": _dtick(shape),
        }
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
        "x": [short(segment.number.value or 0.0) for _, segment in found],
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


def _phase_rows(phase: str, rows: Sequence[Row], mode: str, lang: str) -> Figure:
    label = phase_name(lang, phase)
    xs: list[float] = []
    bases: list[float] = []
    ys: list[int] = []
    hovers: list[str] = []
    opacities: list[float] = []
    for i, row in enumerate(rows):
        for name, start, length, mark in row.spans:
            if name != phase:
                continue
            scale, offset = (1.0, 0.0) if mode == "aligned" else (1e-3, row.arrived_ms)
            bases.append(short((start + offset) * scale))
            xs.append(short(length * scale))
            ys.append(i)
            opacities.append(0.45 if row.warmup else 1.0)
            warm = f" ({word(lang, 'warmup')})" if row.warmup else ""
            number = Number(length, mark=mark)
            hovers.append(
                f"{html.escape(row.name)}{warm}, {html.escape(row.outcome)}, "
                f"{row.tokens} {word(lang, 'tokens')}"
                f"<br>{label}: {with_unit(number)} ({word(lang, mark.value)})"
            )
    return {
        "type": "bar",
        "orientation": "h",
        "name": label,
        "x": xs,
        "base": bases,
        "y": ys,
        "marker": {"color": COLOURS[phase], "opacity": opacities},
        "hovertext": hovers,
        "hoverinfo": "text",
    }


def _dtick(shape: ShapeView) -> int:
    return max(1, round(len(shape.rows) / 20))

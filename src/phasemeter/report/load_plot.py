"""Throughput and latency against load: three panels over one axis, one figure for each kind of level."""

from __future__ import annotations

from collections.abc import Callable

from phasemeter.report.figure import MARGIN, Figure, layout_of, legend, short
from phasemeter.report.load_parts import LoadChart, Point

_PANEL_PX = 210
_GAP = 0.05
_COLOURS = {"p50": "#2b7fc4", "p99": "#d55e00", "done": "#009e73"}
_Value = tuple[float, float | None, float | None]


def load_chart(chart: LoadChart) -> Figure | None:
    """None where no level completed anything."""
    if not any(point.completed is not None for point in chart.points):
        return None
    layout = layout_of(chart.axis, "", 140 + 3 * _PANEL_PX)
    layout["margin"] = MARGIN | {"l": 84, "t": 60}
    layout["legend"] = legend()
    layout["xaxis"] = {"title": {"text": chart.axis}, "anchor": "y3", "rangemode": "tozero"}
    titles = ("requests/s", "TTFT, ms", "TPOT, ms")
    for i, title in enumerate(titles):
        top = 1.0 - i / 3
        axis: Figure = {
            "title": {"text": title},
            "domain": [round(top - 1 / 3 + (_GAP if i < 2 else 0.0), 4), round(top, 4)],
        }
        axis["rangemode"] = "tozero"
        if i and _wide(chart, i):
            axis |= {"type": "log", "rangemode": "normal"}
        layout[f"yaxis{i + 1 if i else ''}"] = axis
    traces = [
        *_keeps_up(chart),
        _trace(chart, "completed", "y", "done", lambda p: p.completed),
        _trace(chart, "TTFT p50", "y2", "p50", lambda p: _alone(p.ttft_p50_ms)),
        _trace(chart, "TTFT p99", "y2", "p99", lambda p: p.ttft_p99),
        _trace(chart, "TPOT p50", "y3", "p50", lambda p: _alone(p.tpot_p50_ms)),
        _trace(chart, "TPOT p99", "y3", "p99", lambda p: p.tpot_p99),
        *_limits(chart),
    ]
    layout["shapes"] = [
        {
            "type": "line",
            "x0": short(load),
            "x1": short(load),
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": "#7d8894", "width": 1, "dash": "dot"},
        }
        for load, _ in chart.marks
    ]
    layout["annotations"] = [
        {
            "x": short(load),
            "yref": "paper",
            "y": 1.0,
            "yanchor": "top",
            "yshift": -14 * i,
            "xanchor": "left",
            "xshift": 3,
            "text": text,
            "showarrow": False,
            "font": {"size": 11},
        }
        for i, (load, text) in enumerate(chart.marks)
    ]
    return {"data": [trace for trace in traces if trace["x"]], "layout": layout}


def _alone(value: float | None) -> _Value | None:
    return None if value is None else (value, None, None)


def _wide(chart: LoadChart, panel: int) -> bool:
    """Latencies of an overloaded level are a hundred times the others': then the axis is logarithmic."""
    picks = [(p.ttft_p50_ms, p.ttft_p99) if panel == 1 else (p.tpot_p50_ms, p.tpot_p99) for p in chart.points]
    values = [v for low, high in picks for v in (low, None if high is None else high[0]) if v is not None]
    return bool(values) and min(values) > 0 and max(values) / min(values) > 20


def _trace(
    chart: LoadChart, name: str, axis: str, colour: str, pick: Callable[[Point], _Value | None]
) -> Figure:
    """A line through the levels; a level without a steady window has an open marker."""
    seen = [(point, value) for point in chart.points if (value := pick(point)) is not None]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [short(point.load) for point, _ in seen],
        "y": [short(value[0]) for _, value in seen],
        "yaxis": axis,
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [short((v[2] if v[2] is not None else v[0]) - v[0]) for _, v in seen],
            "arrayminus": [short(v[0] - (v[1] if v[1] is not None else v[0])) for _, v in seen],
            "thickness": 1.5,
            "width": 4,
        },
        "line": {"color": _COLOURS[colour], "width": 2},
        "marker": {
            "size": 9,
            "color": _COLOURS[colour],
            "symbol": ["circle" if point.steady else "circle-open" for point, _ in seen],
        },
        "hovertext": [f"{name}, {point.label}: {value[0]:.4g}" for point, value in seen],
        "hoverinfo": "text",
    }


def _keeps_up(chart: LoadChart) -> list[Figure]:
    if chart.slope is None or not chart.points:
        return []
    top = max(point.load for point in chart.points)
    best = max((p.completed[0] for p in chart.points if p.completed is not None), default=0.0)
    end = min(top, 1.3 * best / chart.slope) if chart.slope > 0 else top
    return [_dashed("keeps up", "y", [0.0, short(end)], [0.0, short(end * chart.slope)])]


def _limits(chart: LoadChart) -> list[Figure]:
    loads = [point.load for point in chart.points]
    axes = {"ttft": "y2", "ttft_from_arrival": "y2", "tpot": "y3"}
    return [
        _dashed(
            f"{metric} {limit:g} ms", axes[metric], [short(min(loads)), short(max(loads))], [limit, limit]
        )
        for metric, limit in chart.limits_ms.items()
        if metric in axes and loads
    ]


def _dashed(name: str, axis: str, x: list[float], y: list[float]) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": x,
        "y": y,
        "yaxis": axis,
        "line": {"color": "ink", "width": 1.5, "dash": "dash"},
        "hoverinfo": "name",
    }

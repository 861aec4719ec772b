"""What every chart shares: a figure as Plotly reads it, its axes and its legend."""

from __future__ import annotations

from collections.abc import Sequence

Figure = dict[str, object]

MARGIN = {"l": 64, "r": 20, "t": 12, "b": 48}


def layout_of(x: str, y: str, height: int) -> Figure:
    """Axis titles, height in pixels, and margins."""
    return {
        "height": height,
        "margin": dict(MARGIN),
        "xaxis": {"title": {"text": x}},
        "yaxis": {"title": {"text": y}},
        "hovermode": "closest",
    }


def legend() -> Figure:
    """A legend in a line above the chart."""
    return {
        "orientation": "h",
        "y": 1.02,
        "yanchor": "bottom",
        "x": 0,
        "xanchor": "left",
        "traceorder": "normal",
    }


def log_axis(title: str, ticks: Sequence[float] = ()) -> Figure:
    """A logarithmic axis with ticks where the values are."""
    axis: Figure = {"title": {"text": title}, "type": "log"}
    if 0 < len(ticks) <= 12:
        axis |= {"tickvals": list(ticks), "ticktext": [f"{tick:,.6g}" for tick in ticks]}
    return axis


def short(value: float) -> float:
    """Six significant digits: enough for a picture, short in the page."""
    return float(f"{value:.6g}")

"""The chart of "Beside the run": panels one above the other over one time axis."""

from __future__ import annotations

from phasemeter.report.beside import BesideView, Series
from phasemeter.report.figure import MARGIN, Figure, layout_of, legend, short
from phasemeter.report.words import word

_PANEL_PX = 120
_GAP = 0.03


def beside_chart(beside: BesideView, lang: str) -> Figure | None:
    """One figure; None without panels."""
    n = len(beside.panels)
    if not n:
        return None
    layout = layout_of(word(lang, "axis_s"), "", 110 + _PANEL_PX * n)
    layout["margin"] = MARGIN | {"l": 84, "t": 60}
    layout["legend"] = legend()
    layout["xaxis"] = {"title": {"text": word(lang, "axis_s")}, "anchor": f"y{n}" if n > 1 else "y"}
    traces: list[Figure] = []
    for i, panel in enumerate(beside.panels):
        top = 1.0 - i / n
        number = "" if i == 0 else str(i + 1)
        layout[f"yaxis{number}"] = {
            "title": {"text": panel.axis},
            "domain": [round(top - 1.0 / n + (_GAP if i < n - 1 else 0.0), 4), round(top, 4)],
            "rangemode": "tozero",
        }
        traces += [_trace(series, f"y{number}") for series in panel.series]
    return {"data": traces, "layout": layout}


def _trace(series: Series, axis: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines" if series.steps or len(series.t_s) > 60 else "lines+markers",
        "name": series.label,
        "x": [short(t) for t in series.t_s],
        "y": [short(value) for value in series.values],
        "yaxis": axis,
        "line": {
            "color": "ink" if series.steps else series.colour,
            "shape": "hv" if series.steps else "linear",
        },
        "marker": {"color": series.colour, "size": 4},
    }

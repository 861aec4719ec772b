"""The picture of a request's life over one time axis: what each step cost, what it prefilled, who ran and waited."""

from __future__ import annotations

import html
from collections.abc import Sequence

from phasemeter.report.figure import MARGIN, Figure, legend, short
from phasemeter.report.inside import LifeChoice, LifeMark
from phasemeter.report.life_words import life_word
from phasemeter.report.palette import COLOURS

LIFE_COLOURS = {
    "queue": COLOURS["queue"],
    "prefill": COLOURS["prefill"],
    "decode": COLOURS["decode"],
    "beside": COLOURS["first"],
}
"""What the request did in a step; "beside" is what others' prefills made late."""
_NAMES = {"prefill": "trace_prefill", "beside": "trace_beside"}
_PANELS = ((0.52, 1.0), (0.26, 0.45), (0.0, 0.19))
_MOST_EDGED = 150


def life_chart(choice: LifeChoice, lang: str) -> Figure | None:
    """One figure; None without steps."""
    marks = choice.marks
    if not marks:
        return None
    traces = [trace for kind in LIFE_COLOURS if (trace := _costs(marks, kind, lang)) is not None]
    traces += _baseline(marks, lang)
    traces += _tokens(marks, lang)
    traces += _requests(marks, lang)
    axes = ("axis_cost", "axis_tokens", "axis_requests")
    layout: Figure = {
        "height": 620,
        "margin": MARGIN | {"l": 72, "t": 64},
        "hovermode": "closest",
        "barmode": "overlay",
        "bargap": 0,
        "legend": legend(),
        "xaxis": {"title": {"text": life_word(lang, "axis")}, "anchor": "y3"},
    }
    for i, (key, domain) in enumerate(zip(axes, _PANELS, strict=True)):
        layout[f"yaxis{i + 1 if i else ''}"] = {
            "title": {"text": life_word(lang, key)},
            "domain": list(domain),
            "rangemode": "tozero",
            "nticks": 6 if i == 0 else 4,
        } | ({"tickformat": "d"} if i else {})
    return {"data": traces, "layout": layout}


def _costs(marks: Sequence[LifeMark], kind: str, lang: str) -> Figure | None:
    """Steps of one kind: as wide and as high as they took."""
    found = [mark for mark in marks if mark.kind == kind]
    if not found:
        return None
    return _bars(found, [mark.cost_ms for mark in found], "y") | {
        "name": life_word(lang, _NAMES.get(kind, kind)),
        "legendgroup": kind,
        "marker": {"color": LIFE_COLOURS[kind], "line": _edges(len(marks))},
        "text": ["<br>".join(html.escape(line) for line in mark.text) for mark in found],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
    }


def _baseline(marks: Sequence[LifeMark], lang: str) -> list[Figure]:
    """What each decode step would have cost without a prefill: a line through the bars."""
    x: list[float | None] = []
    y: list[float | None] = []
    for mark in marks:
        if mark.baseline_ms is None:
            x.append(None)
            y.append(None)
            continue
        x += [short(mark.start_ms), short(mark.end_ms)]
        y += [short(mark.baseline_ms)] * 2
    if not any(value is not None for value in y):
        return []
    line: Figure = {
        "type": "scatter",
        "mode": "lines",
        "name": life_word(lang, "baseline"),
        "x": x,
        "y": y,
        "yaxis": "y",
        "line": {"color": "ink", "width": 1.5, "dash": "dot"},
        "hoverinfo": "skip",
    }
    return [line]


def _tokens(marks: Sequence[LifeMark], lang: str) -> list[Figure]:
    """Prefill tokens: others' on top of its own, and apart from both what cannot be told apart."""
    own = [mark.own_tokens or 0 for mark in marks]
    others = [mark.other_tokens or 0 for mark in marks]
    unknown = [mark.prefill_tokens or 0 if mark.own_tokens is None else 0 for mark in marks]
    parts = (
        ("trace_own", "prefill", own),
        ("trace_others", "beside", others),
        ("trace_unknown", "", unknown),
    )
    above = {mark.kind for mark in marks}
    found: list[Figure] = []
    for key, kind, values in parts:
        kept = [j for j, value in enumerate(values) if value]
        if not kept:
            continue
        bars = _bars([marks[j] for j in kept], [values[j] for j in kept], "y2")
        bars |= {
            "name": life_word(lang, key),
            "showlegend": kind not in above,  # a colour of the panel above is explained there
            "marker": {"color": LIFE_COLOURS.get(kind, COLOURS["late"]), "line": _edges(len(kept))},
            "base": [own[j] if key == "trace_others" else 0 for j in kept],
            "customdata": [values[j] for j in kept],
            "hovertemplate": "%{customdata}<extra>%{fullData.name}</extra>",
        }
        found.append(bars)
    return found


def _requests(marks: Sequence[LifeMark], lang: str) -> list[Figure]:
    """Who ran and who waited at the end of each step."""
    found: list[Figure] = []
    for name, dash in (("running", "solid"), ("waiting", "dot")):
        values = [getattr(mark, name) for mark in marks]
        if all(value is None for value in values):
            continue
        found.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": life_word(lang, f"trace_{name}"),
                "x": [short(mark.end_ms) for mark in marks],
                "y": values,
                "yaxis": "y3",
                "line": {
                    "color": "ink" if name == "running" else LIFE_COLOURS["queue"],
                    "shape": "vh",
                    "width": 1.5,
                    "dash": dash,
                },
            }
        )
    return found


def _edges(n: int) -> Figure:
    """A thin edge tells equal steps that follow each other apart, as long as they are not too narrow for it."""
    return {"width": 0.6 if n <= _MOST_EDGED else 0, "color": "rgba(255,255,255,0.55)"}


def _bars(marks: Sequence[LifeMark], heights: Sequence[float], axis: str) -> Figure:
    return {
        "type": "bar",
        "x": [short((mark.start_ms + mark.end_ms) / 2) for mark in marks],
        "width": [short(max(mark.end_ms - mark.start_ms, 1e-3)) for mark in marks],
        "y": [short(height) for height in heights],
        "yaxis": axis,
    }

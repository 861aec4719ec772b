"""A capacity plan as one HTML page that works offline: the table, and the frontier of replicas or cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from phasemeter.predict.capacity import Ask, Option, Point
from phasemeter.record.errors import InputError
from phasemeter.report.capacity_view import columns, notes, rows, title
from phasemeter.report.capacity_words import say
from phasemeter.report.figure import Figure, layout_of, legend, short

_COLOURS = ("#2b7fc4", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#b3a32e", "#8c8c8c")
"""Okabe and Ito's, as in `palette`."""
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.3rem .8rem;border-bottom:1px solid #ccc;text-align:right}"
    "td:first-child,th:first-child{text-align:left}p{color:#555}"
)


def write_plan(ask: Ask, options: Sequence[Option], path: Path, lang: str) -> None:
    """Write the page. Raises InputError where plotly is not installed or the file cannot be written."""
    page = "".join(_page(ask, options, lang))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError("--output", str(path), f"cannot be written ({error.strerror})") from None


def frontier(options: Sequence[Option], lang: str) -> Figure:
    """A line an option: the fullest limit's use over replicas, over dollars an hour where all have a price; its band is
    the model's interval. Points without a number (overload) are left out."""
    priced = all(option.usd_per_hour is not None for option in options)
    layout = layout_of(say(lang, "cost_axis" if priced else "replicas"), say(lang, "frontier_axis"), 460)
    layout["legend"] = legend()
    layout["margin"] = {"l": 64, "r": 20, "t": 60, "b": 48}
    layout["yaxis"] = {
        "title": {"text": say(lang, "frontier_axis")},
        "tickformat": ".0%",
        "rangemode": "tozero",
    }
    traces: list[Figure] = []
    xs: list[float] = []
    for place, option in enumerate(options):
        each = 1.0 if not priced else (option.usd_per_hour or 0.0) / (option.replicas[1] or 1)
        points = [
            (short(point.replicas * each), point, point.mid)
            for point in option.frontier
            if point.mid is not None
        ]
        xs += [x for x, *_ in points]
        traces.append(_line(option.machine, points, _COLOURS[place % len(_COLOURS)]))
    if xs:
        traces.append({
            "type": "scatter", "mode": "lines", "name": say(lang, "limit_line"), "hoverinfo": "name",
            "x": [min(xs), max(xs)], "y": [1, 1], "line": {"color": "#222", "width": 1.5, "dash": "dash"},
        })  # fmt: skip
    return {"data": traces, "layout": layout}


def _line(name: str, points: Sequence[tuple[float, Point, float]], colour: str) -> Figure:
    """`points`: (x, point, its middle)."""
    highs = [mid if point.hi is None else point.hi for _, point, mid in points]
    lows = [mid if point.lo is None else point.lo for _, point, mid in points]
    mids = [mid for *_, mid in points]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": [x for x, *_ in points],
        "y": [short(mid) for mid in mids],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "thickness": 1.5,
            "width": 4,
            "array": [short(high - mid) for high, mid in zip(highs, mids, strict=True)],
            "arrayminus": [short(mid - low) for low, mid in zip(lows, mids, strict=True)],
        },
        "line": {"color": colour, "width": 2},
        "marker": {"size": 8, "color": colour},
    }


def _page(ask: Ask, options: Sequence[Option], lang: str) -> Iterator[str]:
    head = escape(title(ask, lang))
    yield f'<!DOCTYPE html>\n<html lang="{"zh-CN" if lang == "zh" else "en"}">\n<head>\n<meta charset="utf-8">\n'
    yield f'<link rel="icon" href="data:,">\n<title>{head}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n'
    yield f"<h1>{head}</h1>\n<table>\n<tr>"
    yield "".join(f"<th>{escape(text)}</th>" for text in columns(options, lang)) + "</tr>\n"
    for row in rows(ask, options, lang):
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n"
    yield f"</table>\n<h2>{escape(say(lang, 'frontier'))}</h2>\n{_plot(frontier(options, lang))}\n"
    yield "".join(f"<p>{escape(note)}</p>\n" for note in notes(options, lang)) + "</body>\n</html>\n"


def _plot(figure: Figure) -> str:
    try:
        import plotly.io  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise InputError(
            "--output", "page", "plotly is not installed; install it with: pip install 'phasemeter[report]'"
        ) from None
    text: str = plotly.io.to_html(figure, include_plotlyjs=True, full_html=False)  # pyright: ignore[reportUnknownMemberType]
    return text

"""A view as one HTML file that works offline: style, script, data and Plotly are inside it."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path

from phasemeter.record.errors import InputError
from phasemeter.report.page import page_body
from phasemeter.report.parts import View
from phasemeter.report.plots import charts_of
from phasemeter.report.words import word


def write_html(view: View, path: Path) -> None:
    """Write the page. Raises InputError where plotly is not installed; OSError where `path` cannot be
    written."""
    page = html_page(view)
    path.write_text(page, encoding="utf-8")


def html_page(view: View) -> str:
    """The page as text. Raises InputError where plotly is not installed."""
    return "".join(_page(view, _packed_plotly()))


def _page(view: View, plotly: str) -> Iterator[str]:
    lang = view.lang
    models = ", ".join(dict.fromkeys(run.title for run in view.runs))
    charts: dict[str, dict[str, object]] = {}
    for index, run in enumerate(view.runs):
        charts |= charts_of(run, index, lang)
    chart_words = {key: word(lang, key) for key in ("no_chart", "no_data")}
    yield f'<!DOCTYPE html>\n<html lang="{word(lang, "page_lang")}">\n<head>\n<meta charset="utf-8">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    # the page may load nothing at all; a browser holds it to that
    yield (
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data: blob:; font-src data:\">\n"
    )
    yield '<link rel="icon" href="data:,">\n'
    yield f"<title>{escape(models)} · {escape(view.title)}</title>\n"
    yield f"<style>\n{_template('page.css')}</style>\n</head>\n"
    yield f"<body>\n{page_body(view)}\n"
    yield f'<script type="application/json" id="charts">{_json(charts)}</script>\n'
    yield f'<script type="application/json" id="chart-words">{_json(chart_words)}</script>\n'
    yield f'<script type="application/octet-stream" id="plotly">{plotly}</script>\n'
    yield f"<script>\n{_template('page.js')}</script>\n</body>\n</html>\n"


def _json(value: object) -> str:
    """JSON that cannot end its script element, whatever a model is called."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _template(name: str) -> str:
    return resources.files("phasemeter.report").joinpath("templates", name).read_text("utf-8")


@cache
def _packed_plotly() -> str:
    """Plotly.js from the installed package, gzipped and in base64: 2 MB instead of 4.8 MB."""
    try:
        from plotly.offline import get_plotlyjs  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
    except ImportError:
        raise InputError(
            "report", "page", "plotly is not installed; install it with: pip install 'phasemeter[report]'"
        ) from None
    source: str = get_plotlyjs()
    return base64.b64encode(gzip.compress(source.encode(), compresslevel=9, mtime=0)).decode("ascii")

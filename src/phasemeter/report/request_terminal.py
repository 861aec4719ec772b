"""Print one request on a terminal; nothing is worked out here."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from phasemeter.explain.one_request import RequestExplained
from phasemeter.report.life_words import life_word
from phasemeter.report.request_view import request_budget, request_facts, request_life
from phasemeter.report.terminal import fact_grid, heading, prose, show, told_table


def render_request(explained: RequestExplained, lang: str, console: Console) -> None:
    """Print it; no line is longer than the console is wide."""
    show(_blocks(explained, lang, console.width), console)


def _blocks(explained: RequestExplained, lang: str, width: int) -> Iterator[RenderableType]:
    yield Text()
    title = life_word(lang, "request", id=explained.reading.timeline.id)
    yield Text(title, style="bold", overflow="fold")
    yield fact_grid(request_facts(explained, lang))
    budget = request_budget(explained.reading, lang)
    yield heading(budget.title)
    yield told_table(budget)
    sentences, table, note = request_life(explained, lang)
    yield heading(life_word(lang, "life"), note)
    if table is not None:
        shown = told_table(table)
        for column in shown.columns[:2]:
            column.no_wrap = True
        yield shown
    for sentence in sentences:
        yield prose(sentence, width)
    yield Text()

"""Tables and small pieces of the page, as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from phasemeter.report.digits import interval, marked, plain, times
from phasemeter.report.levels import level_cell
from phasemeter.report.parts import SHAPE_COLUMNS, ArticleView, Line, Mark, Number, ShapeView
from phasemeter.report.words import word


def shape_table(shapes: Sequence[ShapeView], lang: str) -> str:
    """One row a shape: medians with intervals, floors, ratios, bound."""
    keys = (*SHAPE_COLUMNS, "bound")
    rows = [
        [
            *shape.lengths,
            level_cell(shape.asked, lang),
            str(shape.n),
            _with_interval(shape.ttft),
            _with_interval(shape.prefill),
            marked(shape.prefill_floor),
            times(shape.prefill_ratio),
            _with_interval(shape.tpot),
            marked(shape.tpot_floor),
            times(shape.tpot_ratio),
            escape(shape.bound),
        ]
        for shape in shapes
    ]
    return table([label(lang, key) for key in keys], rows, caption=label(lang, "medians"))


def article_table(article: ArticleView, lang: str) -> str:
    """The article's claims beside this run, and what may be compared."""
    keys = (
        "article_what",
        "tokens",
        "claimed",
        "floor_claimed",
        "claimed_ratio",
        "measured",
        "floor_here",
        "measured_ratio",
    )
    rows = [
        [
            escape(row.what),
            escape(row.lengths),
            plain(row.claimed_ms),
            marked(row.floor_claimed),
            times(row.claimed_ratio),
            _with_interval(row.measured),
            marked(row.floor_here),
            times(row.measured_ratio),
        ]
        for row in article.rows
    ]
    return table([label(lang, key) for key in keys], rows, caption="ms") + sentences(article.notes)


def sentences(texts: Sequence[str]) -> str:
    """Paragraphs; all after the eighth are folded away."""
    return "".join(f"<p>{escape(text)}</p>" for text in texts[:8]) + (
        f"<details><summary>…</summary>{''.join(f'<p>{escape(text)}</p>' for text in texts[8:])}</details>"
        if len(texts) > 8
        else ""
    )


def numbers_table(lines: Sequence[Line], lang: str) -> str:
    """Every number of a run, by section, each with how it is known."""
    heads = [
        label(lang, "quantity"),
        label(lang, "unit"),
        "n",
        "mean",
        "p50",
        "95 %",
        "p90",
        "p99",
        label(lang, "known"),
    ]
    parts: list[str] = []
    section = ""
    for line in lines:
        if line.section != section:
            section = line.section
            parts.append(f'<tr class="part"><th colspan="9" scope="rowgroup">{escape(section)}</th></tr>')
        parts.append(_number_row(line, lang))
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "".join(parts)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _number_row(line: Line, lang: str) -> str:
    number = line.number
    known = label(lang, number.mark.value)
    if number.mark is Mark.ABSENT:
        cells = ["", "", *[plain(None)] * 5]
    elif line.columns:
        mean, p50, p90, p99 = map(marked, line.columns)
        cells = [number.unit, str(number.n), mean, p50, interval(number), p90, p99]
    else:
        count = "" if number.n is None else str(number.n)
        cells = [number.unit, count, "", marked(number), interval(number), "", ""]
    data = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><td class="text">{escape(line.name)}</td>{data}<td>{known}</td></tr>'


def _with_interval(number: Number) -> str:
    span = interval(number)
    return f'{marked(number)}<span class="ci">{span}</span>' if span else marked(number)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Cells are HTML already; whatever comes from a run was escaped by the caller."""
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    above = f"<caption>{caption}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def swatch(colour: str) -> str:
    """A small square of a colour."""
    return f'<span class="swatch" style="background:{colour}" aria-hidden="true"></span>'


def label(lang: str, key: str) -> str:
    """A word of the page, escaped."""
    return escape(word(lang, key))

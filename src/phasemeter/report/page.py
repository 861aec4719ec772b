"""The body of the page: sections of one run after the other, each chart with its numbers as a table beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from phasemeter.report.digits import interval, marked, percent, plain, times, with_unit
from phasemeter.report.glossary import GLOSSARY
from phasemeter.report.palette import CAUSES, COLOURS
from phasemeter.report.parts import ArticleView, CheckLine, Fact, Line, Mark, Number, RunView, ShapeView, View
from phasemeter.report.words import say, word

_SIGNS = {"ok": "✓", "warn": "!", "invalid": "✗"}


def page_body(view: View) -> str:
    """Everything between <body> and the data."""
    return "\n".join(_body(view))


def _body(view: View) -> Iterator[str]:
    lang = view.lang
    for index, run in enumerate(view.runs):
        yield _top(run, index, view)
        yield "<main>"
        if index == 0:
            yield from (f'<div class="note" role="alert">{escape(text)}</div>' for text in view.warnings)
        yield from _run(run, index, lang)
        yield "</main>"
    yield f'<main><section class="card" id="glossary"><h2>{_w(lang, "glossary")}</h2><dl class="words">'
    for key, (term, text, section) in GLOSSARY[lang].items():
        yield f'<dt id="word-{key}"><a href="#{section}-0">{escape(term)}</a></dt><dd>{escape(text)}</dd>'
    yield f"</dl></section></main>\n<footer>{_w(lang, 'footer')}</footer>"


def _top(run: RunView, index: int, view: View) -> str:
    lang = view.lang
    keys = ["closing", "checks", "shapes", "budget", "attribution", "prefill_chart", "tpot_chart", "itl_chart"]
    keys += ["timeline", "cold", "article", "numbers", "glossary"]
    links = {
        key: f"#{_anchor(key)}-{index}" if key != "glossary" else "#glossary"
        for key in keys
        if (key != "cold" or run.cold) and (key != "article" or run.article)
    }
    toc = "".join(f'<a href="{link}">{_w(lang, key)}</a>' for key, link in links.items())
    loud = "".join(f' <span class="loud">{escape(f"{fact.label}: {fact.text}")}</span>' for fact in run.facts if fact.loud)
    return (
        f'<header class="top" id="run-{index}"><h1>{escape(run.title)}{loud}</h1>'
        f'<p class="lead">{escape(run.device)} · {escape(run.engine)} · {escape(run.name)}</p>'
        f'<nav class="toc" aria-label="{_w(lang, "contents")}">{toc}</nav></header>'
    )


def _anchor(key: str) -> str:
    return {"prefill_chart": "prefill", "tpot_chart": "decode", "itl_chart": "gaps"}.get(key, key)


def _run(run: RunView, index: int, lang: str) -> Iterator[str]:
    verdict = f'<span class="verdict {run.verdict}">{_SIGNS[run.verdict]} {escape(run.verdict)}</span>'
    closing = "".join(f"<p>{escape(text)}</p>" for text in run.closing)
    yield _section("closing", index, lang, f'<p>{verdict} {escape(run.verdict_text)}</p><div class="closing">{closing}</div>')
    yield _section("setup", index, lang, _facts((*run.facts, *run.counts)) + _settings(run.settings, lang))
    yield _section("checks", index, lang, _checks(run.checks, lang))
    if run.shapes:
        yield _section("shapes", index, lang, _shape_table(run.shapes, lang))
        yield _section("budget", index, lang, _budget(run, index, lang))
        yield _section("attribution", index, lang, _attribution(run.shapes, lang))
        yield from _length_sections(run, index, lang)
        yield _section("gaps", index, lang, _gaps(run, index, lang), title="itl_chart")
        yield _section("timeline", index, lang, _timeline(run, index, lang))
    if run.cold is not None:
        yield _section("cold", index, lang, f"<p>{escape(run.cold.sentence)}</p>")
    if run.article is not None:
        yield _section("article", index, lang, _article(run.article, lang))
    yield _section("numbers", index, lang, _numbers(run.lines, lang))


def _section(key: str, index: int, lang: str, body: str, title: str | None = None) -> str:
    head = f"{key}-{index}"
    return (
        f'<section class="card" id="{head}" aria-labelledby="h-{head}">'
        f'<h2 id="h-{head}">{_w(lang, title or key)}</h2>{body}</section>'
    )


def _facts(facts: Sequence[Fact]) -> str:
    rows = (
        f"<div><dt>{escape(fact.label)}</dt><dd>"
        + (f'<span class="loud">{escape(fact.text)}</span>' if fact.loud else escape(fact.text))
        + "</dd></div>"
        for fact in facts
    )
    return f'<dl class="facts">{"".join(rows)}</dl>'


def _settings(settings: Sequence[Fact], lang: str) -> str:
    return f"<details><summary>{_w(lang, 'settings')}</summary>{_facts(settings)}</details>" if settings else ""


def _checks(checks: Sequence[CheckLine], lang: str) -> str:
    loud = [check for check in checks if check.verdict != "ok"]
    good = [check for check in checks if check.verdict == "ok"]
    found = f'<ul class="checks">{"".join(_check(check, lang) for check in loud)}</ul>' if loud else ""
    if not good:
        return found
    names = ", ".join(check.name for check in good)
    items = "".join(_check(check, lang) for check in good)
    return (
        f'{found}<details><summary><span class="ok">✓ {_w(lang, "checks_ok")}</span>: {escape(names)}</summary>'
        f'<ul class="checks">{items}</ul></details>'
    )


def _check(check: CheckLine, lang: str) -> str:
    mend = f'<span class="mend">{_w(lang, "mend")}: {escape(check.mend)}</span>' if check.mend else ""
    sign = f'<strong class="{check.verdict}">{_SIGNS[check.verdict]} {escape(check.name)}</strong>'
    return f"<li>{sign}: {escape(check.evidence)}{mend}</li>"


def _shape_table(shapes: Sequence[ShapeView], lang: str) -> str:
    keys = ("input", "output", "conc", "n", "ttft", "prefill_ms", "floor", "ratio", "tpot_ms", "floor", "ratio", "bound")
    rows = [
        [
            f"{shape.input_tokens:,}",
            f"{shape.output_tokens:,}",
            str(shape.concurrency),
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
    return _table([_w(lang, key) for key in keys], rows, caption=_w(lang, "medians"))


def _budget(run: RunView, index: int, lang: str) -> str:
    names: dict[str, str] = {}
    for shape in run.shapes:
        names |= {segment.phase: segment.label for segment in shape.segments}
    phases = [phase for phase in COLOURS if phase in names]
    rows = [[_swatch(COLOURS[phase]) + escape(names[phase])] + [_phase(shape, phase) for shape in run.shapes] for phase in phases]
    rows.append([f"<strong>{_w(lang, 'total')}</strong>"] + [f"<strong>{plain(s.total.value)}</strong>" for s in run.shapes])
    heads = [_w(lang, "phase")] + [escape(shape.short) for shape in run.shapes]
    return (
        f"<p>{_w(lang, 'budget_note')} {_w(lang, 'legend')}</p><h3>{_w(lang, 'overview')}</h3>"
        + _chart("overview", index, say(lang, "alt_overview"))
        + _table(heads, rows)
        + f"<h3>{_w(lang, 'waterfall')}</h3>{_pick_shape(run.shapes, index, lang)}"
        + _chart("waterfall", index, _waterfall_alt(run, lang))
    )


def _phase(shape: ShapeView, phase: str) -> str:
    for segment in shape.segments:
        if segment.phase == phase and segment.number.value is not None:
            return f'{marked(segment.number)} <span class="ci">{percent(segment.share)}</span>'
    return plain(None)


def _waterfall_alt(run: RunView, lang: str) -> str:
    first = run.shapes[0]
    parts = ", ".join(f"{s.label} {with_unit(s.number)}" for s in first.segments)
    return say(lang, "alt_waterfall", shape=first.label, parts=parts)


def _attribution(shapes: Sequence[ShapeView], lang: str) -> str:
    causes = ("arithmetic", "memory traffic", "host and kernel inefficiency")
    heads = [_w(lang, "shape"), _w(lang, "phase"), ""] + [_swatch(CAUSES[cause]) + _w(lang, cause) for cause in causes]
    rows: list[list[str]] = []
    for shape in shapes:
        for entry in shape.attributed:
            parts = {part.name: part for part in entry.parts}
            bar = "".join(
                f'<span style="width:{max(0.0, min(1.0, part.share or 0.0)):.1%};background:{CAUSES[part.name]}"></span>'
                for part in entry.parts
            )
            cells = [
                f'{marked(parts[cause].number)} ms <span class="ci">{percent(parts[cause].share)}</span>'
                if cause in parts
                else plain(None)
                for cause in causes
            ]
            strip = f'<span class="strip" aria-hidden="true">{bar}</span>'
            rows.append([escape(shape.short), escape(entry.label), strip, *cells])
    return _table(heads, rows, caption=_w(lang, "attribution_note")) if rows else f"<p>{say(lang, 'no_floor')}</p>"


def _length_sections(run: RunView, index: int, lang: str) -> Iterator[str]:
    split = any(shape.split for shape in run.shapes)
    first = [entry for entry in run.growth if entry.metric != "tpot"]
    later = [entry for entry in run.growth if entry.metric == "tpot"]
    title = "prefill_chart" if split else "first_chart"
    body = _chart("prefill", index, say(lang, "alt_prefill")) + _sentences([entry.sentence for entry in first])
    yield _section("prefill", index, lang, body, title=title)
    body = _chart("tpot", index, say(lang, "alt_tpot")) + _sentences([entry.sentence for entry in later])
    yield _section("decode", index, lang, body, title="tpot_chart")


def _sentences(texts: Sequence[str]) -> str:
    return "".join(f"<p>{escape(text)}</p>" for text in texts[:8]) + (
        f"<details><summary>…</summary>{''.join(f'<p>{escape(text)}</p>' for text in texts[8:])}</details>"
        if len(texts) > 8
        else ""
    )


def _gaps(run: RunView, index: int, lang: str) -> str:
    return (
        _pick_shape(run.shapes, index, lang, _pick_mode("gaps", index, ("linear", "log"), lang), shared=True)
        + _chart("gaps", index, say(lang, "alt_itl"))
    )


def _timeline(run: RunView, index: int, lang: str) -> str:
    left = "".join(
        f'<p data-of-run="{index}" data-shape="{i}" hidden>{say(lang, "left_out", count=shape.rows_left_out)}</p>'
        for i, shape in enumerate(run.shapes)
        if shape.rows_left_out
    )
    return (
        _pick_shape(run.shapes, index, lang, _pick_mode("timeline", index, ("aligned", "wall"), lang), shared=True)
        + _chart("timeline", index, say(lang, "alt_timeline"))
        + left
    )


def _pick_shape(shapes: Sequence[ShapeView], index: int, lang: str, more: str = "", *, shared: bool = False) -> str:
    """A choice of the shape; every one of a run moves with the others."""
    options = "".join(f'<option value="{i}">{escape(shape.label)}</option>' for i, shape in enumerate(shapes))
    kind = "shape follower" if shared else "shape"
    return (
        f'<div class="pick"><label>{_w(lang, "shape")} <select class="{kind}" data-run="{index}" autocomplete="off">'
        f"{options}</select></label>{more}</div>"
    )


def _pick_mode(chart: str, index: int, modes: Sequence[str], lang: str) -> str:
    options = "".join(f'<option value="{mode}">{_w(lang, f"mode_{mode}")}</option>' for mode in modes)
    return (
        f'<label>{_w(lang, "view")} <select class="mode" data-chart="{chart}-{index}" autocomplete="off">'
        f"{options}</select></label>"
    )


def _chart(name: str, index: int, alt: str) -> str:
    return f'<div class="chart" data-chart="{name}-{index}" data-run="{index}" role="img" aria-label="{escape(alt)}"></div>'


def _article(article: ArticleView, lang: str) -> str:
    keys = ("article_what", "tokens", "claimed", "floor_claimed", "claimed_ratio", "measured", "floor_here", "measured_ratio")
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
    return _table([_w(lang, key) for key in keys], rows, caption="ms") + _sentences(article.notes)


def _numbers(lines: Sequence[Line], lang: str) -> str:
    heads = [_w(lang, "quantity"), _w(lang, "unit"), "n", "mean", "p50", "95 %", "p90", "p99", _w(lang, "known")]
    parts: list[str] = []
    section = ""
    for line in lines:
        if line.section != section:
            section = line.section
            parts.append(f'<tr class="part"><th colspan="9" scope="rowgroup">{escape(section)}</th></tr>')
        parts.append(_number_row(line, lang))
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(parts)}</tbody></table></div>'


def _number_row(line: Line, lang: str) -> str:
    number = line.number
    known = _w(lang, number.mark.value)
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


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Cells are HTML already; whatever comes from a run was escaped by the caller."""
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    above = f"<caption>{caption}</caption>" if caption else ""
    return f'<div class="scroll"><table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _swatch(colour: str) -> str:
    return f'<span class="swatch" style="background:{colour}" aria-hidden="true"></span>'


def _w(lang: str, key: str) -> str:
    return escape(word(lang, key))

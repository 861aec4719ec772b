"""The body of the page: one run after the other, each chart with its numbers in a table beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from phasemeter.report.digits import marked, percent, plain, with_unit
from phasemeter.report.glossary import GLOSSARY
from phasemeter.report.palette import CAUSES, COLOURS
from phasemeter.report.parts import CheckLine, Fact, RunView, ShapeView, View
from phasemeter.report.steps_view import inside_html, text_table
from phasemeter.report.tables import (
    article_table,
    label,
    numbers_table,
    sentences,
    shape_table,
    swatch,
    table,
)
from phasemeter.report.words import say

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
    yield f'<main><section class="card" id="glossary"><h2>{label(lang, "glossary")}</h2><dl class="words">'
    for key, (term, text, section) in GLOSSARY[lang].items():
        yield f'<dt id="word-{key}"><a href="#{section}-0">{escape(term)}</a></dt><dd>{escape(text)}</dd>'
    yield f"</dl></section></main>\n<footer>{label(lang, 'footer')}</footer>"


def _top(run: RunView, index: int, view: View) -> str:
    lang = view.lang
    keys = [
        "closing",
        "checks",
        "shapes",
        "budget",
        "attribution",
        "prefill_chart",
        "tpot_chart",
        "itl_chart",
    ]
    keys += ["timeline", "under_load", "inside", "beside", "cold", "article", "numbers", "glossary"]
    links = {
        key: f"#{_anchor(key)}-{index}" if key != "glossary" else "#glossary"
        for key in keys
        if (key != "cold" or run.cold)
        and (key != "article" or run.article)
        and (key != "inside" or run.inside)
        and (key != "under_load" or run.load)
        and (key != "beside" or run.beside)
    }
    toc = "".join(f'<a href="{link}">{label(lang, key)}</a>' for key, link in links.items())
    loud = "".join(
        f' <span class="loud">{escape(f"{fact.label}: {fact.text}")}</span>'
        for fact in run.facts
        if fact.loud
    )
    return (
        f'<header class="top" id="run-{index}"><h1>{escape(run.title)}{loud}</h1>'
        f'<p class="lead">{escape(run.device)} · {escape(run.engine)} · {escape(run.name)}</p>'
        f'<nav class="toc" aria-label="{label(lang, "contents")}">{toc}</nav></header>'
    )


def _anchor(key: str) -> str:
    return {"prefill_chart": "prefill", "tpot_chart": "decode", "itl_chart": "gaps"}.get(key, key)


def _run(run: RunView, index: int, lang: str) -> Iterator[str]:
    verdict = f'<span class="verdict {run.verdict}">{_SIGNS[run.verdict]} {escape(run.verdict)}</span>'
    closing = "".join(f"<p>{escape(text)}</p>" for text in run.closing)
    yield _section(
        "closing",
        index,
        lang,
        f'<p>{verdict} {escape(run.verdict_text)}</p><div class="closing">{closing}</div>',
    )
    yield _section("setup", index, lang, _facts((*run.facts, *run.counts)) + _settings(run.settings, lang))
    yield _section("checks", index, lang, _checks(run.checks, lang))
    if run.shapes:
        yield _section("shapes", index, lang, shape_table(run.shapes, lang))
        yield _section("budget", index, lang, _budget(run, index, lang))
        yield _section("attribution", index, lang, _attribution(run.shapes, lang))
        yield from _length_sections(run, index, lang)
        yield _section("gaps", index, lang, _gaps(run, index, lang), title="itl_chart")
        yield _section("timeline", index, lang, _timeline(run, index, lang))
    if run.load is not None:
        charts = "".join(_chart(f"load{i}", index, run.load.alt) for i in range(len(run.load.charts)))
        body = sentences(run.load.sentences) + charts + "".join(text_table(t) for t in run.load.tables)
        yield _section("under_load", index, lang, body)
    if run.inside is not None:
        yield _section("inside", index, lang, inside_html(run.inside, index, lang))
    if run.beside is not None:
        body = f"<p>{escape(run.beside.note)}</p>{_chart('beside', index, run.beside.alt)}"
        yield _section("beside", index, lang, body + text_table(run.beside.table))
    if run.cold is not None:
        yield _section("cold", index, lang, f"<p>{escape(run.cold.sentence)}</p>")
    if run.article is not None:
        yield _section("article", index, lang, article_table(run.article, lang))
    yield _section("numbers", index, lang, numbers_table(run.lines, lang))


def _section(key: str, index: int, lang: str, body: str, title: str | None = None) -> str:
    head = f"{key}-{index}"
    return (
        f'<section class="card" id="{head}" aria-labelledby="h-{head}">'
        f'<h2 id="h-{head}">{label(lang, title or key)}</h2>{body}</section>'
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
    return (
        f"<details><summary>{label(lang, 'settings')}</summary>{_facts(settings)}</details>"
        if settings
        else ""
    )


def _checks(checks: Sequence[CheckLine], lang: str) -> str:
    loud = [check for check in checks if check.verdict != "ok"]
    good = [check for check in checks if check.verdict == "ok"]
    found = f'<ul class="checks">{"".join(_check(check, lang) for check in loud)}</ul>' if loud else ""
    if not good:
        return found
    names = ", ".join(check.name for check in good)
    items = "".join(_check(check, lang) for check in good)
    return (
        f'{found}<details><summary><span class="ok">✓ {label(lang, "checks_ok")}</span>: {escape(names)}'
        "</summary>"
        f'<ul class="checks">{items}</ul></details>'
    )


def _check(check: CheckLine, lang: str) -> str:
    mend = f'<span class="mend">{label(lang, "mend")}: {escape(check.mend)}</span>' if check.mend else ""
    sign = f'<strong class="{check.verdict}">{_SIGNS[check.verdict]} {escape(check.name)}</strong>'
    return f"<li>{sign}: {escape(check.evidence)}{mend}</li>"


def _budget(run: RunView, index: int, lang: str) -> str:
    names: dict[str, str] = {}
    for shape in run.shapes:
        names |= {segment.phase: segment.label for segment in shape.segments}
    phases = [phase for phase in COLOURS if phase in names]
    rows = [
        [swatch(COLOURS[phase]) + escape(names[phase])] + [_phase(shape, phase) for shape in run.shapes]
        for phase in phases
    ]
    rows.append(
        [f"<strong>{label(lang, 'total')}</strong>"]
        + [f"<strong>{plain(s.total.value)}</strong>" for s in run.shapes]
    )
    heads = [label(lang, "phase")] + [escape(shape.short) for shape in run.shapes]
    return (
        f"<p>{label(lang, 'budget_note')} {label(lang, 'legend')}</p><h3>{label(lang, 'overview')}</h3>"
        + _chart("overview", index, say(lang, "alt_overview"))
        + table(heads, rows)
        + f"<h3>{label(lang, 'waterfall')}</h3>{_pick_shape(run.shapes, index, lang)}"
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
    heads = [label(lang, "shape"), label(lang, "phase"), ""] + [
        swatch(CAUSES[cause]) + label(lang, cause) for cause in causes
    ]
    rows: list[list[str]] = []
    for shape in shapes:
        for entry in shape.attributed:
            parts = {part.name: part for part in entry.parts}
            bar = "".join(
                f'<span style="width:{_width(part.share)};background:{CAUSES[part.name]}"></span>'
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
    note = label(lang, "attribution_note")
    if any(entry.phase == "first" for shape in shapes for entry in shape.attributed):
        note += (" " if lang == "en" else "") + label(lang, "attribution_first")
    return table(heads, rows, caption=note) if rows else f"<p>{say(lang, 'no_floor')}</p>"


def _length_sections(run: RunView, index: int, lang: str) -> Iterator[str]:
    split = any(shape.split for shape in run.shapes)
    first = [entry for entry in run.growth if entry.metric != "tpot"]
    later = [entry for entry in run.growth if entry.metric == "tpot"]
    title = "prefill_chart" if split else "first_chart"
    body = _chart("prefill", index, say(lang, "alt_prefill")) + sentences([entry.sentence for entry in first])
    yield _section("prefill", index, lang, body, title=title)
    body = _chart("tpot", index, say(lang, "alt_tpot")) + sentences([entry.sentence for entry in later])
    yield _section("decode", index, lang, body, title="tpot_chart")


def _gaps(run: RunView, index: int, lang: str) -> str:
    return _pick_shape(
        run.shapes, index, lang, _pick_mode("gaps", index, ("linear", "log"), lang), shared=True
    ) + _chart("gaps", index, say(lang, "alt_itl"))


def _timeline(run: RunView, index: int, lang: str) -> str:
    left = "".join(
        f'<p data-of-run="{index}" data-shape="{i}" hidden>'
        f"{say(lang, 'left_out', count=shape.rows_left_out)}</p>"
        for i, shape in enumerate(run.shapes)
        if shape.rows_left_out
    )
    return (
        _pick_shape(
            run.shapes, index, lang, _pick_mode("timeline", index, ("aligned", "wall"), lang), shared=True
        )
        + _chart("timeline", index, say(lang, "alt_timeline"))
        + f"<p>{label(lang, 'paler')}</p>"
        + left
    )


def _pick_shape(
    shapes: Sequence[ShapeView], index: int, lang: str, more: str = "", *, shared: bool = False
) -> str:
    """A choice of the shape; every one of a run moves with the others."""
    options = "".join(f'<option value="{i}">{escape(shape.label)}</option>' for i, shape in enumerate(shapes))
    kind = "shape follower" if shared else "shape"
    return (
        f'<div class="pick"><label>{label(lang, "shape")} '
        f'<select class="{kind}" data-run="{index}" autocomplete="off">'
        f"{options}</select></label>{more}</div>"
    )


def _pick_mode(chart: str, index: int, modes: Sequence[str], lang: str) -> str:
    options = "".join(f'<option value="{mode}">{label(lang, f"mode_{mode}")}</option>' for mode in modes)
    return (
        f'<label>{label(lang, "view")} <select class="mode" data-chart="{chart}-{index}" autocomplete="off">'
        f"{options}</select></label>"
    )


def _chart(name: str, index: int, alt: str) -> str:
    return (
        f'<div class="chart" data-chart="{name}-{index}" data-run="{index}" role="img" '
        f'aria-label="{escape(alt)}"></div>'
    )


def _width(share: float | None) -> str:
    return f"{max(0.0, min(1.0, share or 0.0)):.1%}"

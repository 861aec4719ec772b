"""From runs and their summaries to a `View`: everything a page shows, before any renderer sees it."""

from __future__ import annotations

from collections.abc import Sequence

from phasemeter.explain.readings import Readings, readings_of
from phasemeter.explain.shape_key import cell_grouping
from phasemeter.explain.summary import Summary
from phasemeter.record.errors import InputError
from phasemeter.record.run import Run, differences
from phasemeter.report.article import article_of
from phasemeter.report.beside_view import beside_of
from phasemeter.report.facts import counts_of, device_of, engine_of, facts_of, settings_of
from phasemeter.report.load_view import load_of
from phasemeter.report.numbers import lines_of
from phasemeter.report.parts import CheckLine, RunView, ShapeView, View
from phasemeter.report.prose import closing_of, cold_of, growth_of
from phasemeter.report.shape_view import rows_each, shape_view
from phasemeter.report.steps_view import inside_of
from phasemeter.report.words import check_lang, word

__all__ = ["RunView", "View", "view_of"]


def view_of(runs: Sequence[tuple[Run, Summary]], lang: str = "en") -> View:
    """The view of one or several runs, in "en" or "zh". Several are shown one after the other and never
    merged; where they differ in machine, model, engine or settings a warning names the fields. Raises
    InputError for no run or an unknown language."""
    check_lang(lang)
    if not runs:
        raise InputError("runs", "none", "give at least one run file")
    return View(
        lang=lang,
        title=word(lang, "title"),
        runs=tuple(_run_view(run, summary, lang) for run, summary in runs),
        warnings=_warnings(runs, lang),
    )


def _warnings(runs: Sequence[tuple[Run, Summary]], lang: str) -> tuple[str, ...]:
    first, first_summary = runs[0]
    found: list[str] = []
    for other, summary in runs[1:]:
        fields = differences(first.header, other.header)
        if fields:
            pair = f"{first_summary.name}, {summary.name}: "
            found.append(f"{word(lang, 'differ')} {pair}" + "; ".join(fields[:6]))
    return tuple(found)


def _run_view(run: Run, summary: Summary, lang: str) -> RunView:
    readings = readings_of(run.requests if summary.readings is None else summary.readings)
    shapes = _shape_views(readings, summary, lang)
    growth = growth_of(summary.growth, lang)
    return RunView(
        name=summary.name,
        title=summary.header.engine.model,
        device=device_of(summary),
        engine=engine_of(summary),
        facts=facts_of(summary, lang),
        settings=settings_of(summary, lang),
        verdict=summary.verdict.value,
        verdict_text=word(lang, f"verdict_{summary.verdict.value}"),
        checks=tuple(
            CheckLine(check.name, check.verdict.value, check.evidence, check.mend) for check in summary.checks
        ),
        counts=counts_of(summary, lang),
        shapes=shapes,
        growth=growth,
        cold=cold_of(summary.cold, lang),
        closing=closing_of(summary, shapes, growth, lang),
        lines=lines_of(summary, lang),
        article=article_of(summary, lang),
        ceilings_measured=any(ceiling.source == "measured" for ceiling in summary.ceilings),
        inside=inside_of(summary, lang, run),
        beside=beside_of(run, lang, readings),
        load=load_of(summary.under_load, lang),
    )


def _shape_views(readings: Readings, summary: Summary, lang: str) -> tuple[ShapeView, ...]:
    measured = readings.take(readings.told_of(lambda cell: not cell.warmup))
    by_shape = readings.grouped(cell_grouping(measured.cells()))
    origin_ns = int(readings.told("arrived").min()) if readings else 0
    rows = rows_each(len(summary.shapes))
    return tuple(
        shape_view(shape, by_shape[shape.key], origin_ns, rows, lang)
        for shape in sorted(summary.shapes, key=lambda shape: (shape.key.asked.order, shape.key.order))
    )

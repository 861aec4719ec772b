"""A fit and a prediction on a terminal: readable at 100 columns, plain text when piped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from phasemeter.predict.design import NextCell
from phasemeter.predict.features import Query
from phasemeter.predict.foresee import Forecast, Foreseen, Prediction
from phasemeter.predict.model import FittedModel
from phasemeter.predict.phase import PhaseFit
from phasemeter.predict.units import Coefficient, coefficients
from phasemeter.record.visible import visible
from phasemeter.report.digits import plain
from phasemeter.report.predict_words import say_predicted as say


def render_fit(
    model: FittedModel, ask: Query | None, cells: Sequence[NextCell], lang: str, console: Console
) -> None:
    """Print what was fitted, its coefficients in human units, and the cells to measure next."""
    _print(_fit_blocks(model, ask, cells, lang), console)


def render_forecast(model: FittedModel, forecast: Forecast, lang: str, console: Console) -> None:
    """Print a prediction with its floors, parts and limits."""
    _print(_forecast_blocks(model, forecast, lang), console)


def _print(blocks: Iterator[RenderableType], console: Console) -> None:
    with console.capture() as capture:
        for block in blocks:
            console.print(block)
    console.file.write("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")


def _fit_blocks(
    model: FittedModel, ask: Query | None, cells: Sequence[NextCell], lang: str
) -> Iterator[RenderableType]:
    unknown = say(lang, "unknown")
    title = say(
        lang,
        "fitted",
        model=model.model,
        dtype=model.dtype or unknown,
        engine=model.engine,
        version=model.engine_version or "",
        machine=model.machine,
    )
    yield Text(f"\n{visible(title)}", style="bold", overflow="fold")
    yield _text(say(lang, "from", runs=", ".join(model.runs)), "dim")
    for name, fit in model.phases.items():
        yield Text(f"\n{say(lang, 'form', phase=say(lang, name), form=fit.form.name)}", style="bold")
        yield _text("  " + _quality(fit, lang))
        yield _coefficients(coefficients(fit, model.roof), lang)
    for note in model.notes:
        yield _text(say(lang, "note", note=note), "yellow")
    if cells:
        yield Text()
        what = (
            say(lang, "next_all")
            if ask is None
            else say(lang, "next_ask", input=ask.input_tokens, output=ask.output_tokens, batch=ask.batch)
        )
        yield Text(say(lang, "next", what=what), style="bold")
        for cell in cells:
            why = say(lang, "narrows", phase=say(lang, cell.phase), share=_percent(cell.narrows))
            yield _text(
                f"  --input-tokens {cell.input_tokens} --output-tokens {cell.output_tokens}"
                f" --concurrency {cell.batch}   {why}"
            )
    yield Text()


def _quality(fit: PhaseFit, lang: str) -> str:
    noise = say(lang, "unknown") if fit.noise is None else _percent(math.expm1(fit.noise))
    told = say(lang, "cells", cells=len(fit.residuals), score=_percent(math.expm1(fit.score)), noise=noise)
    widths = say(
        lang,
        "interval",
        alone=_percent(math.expm1(fit.widths.alone)),
        together=_percent(math.expm1(fit.widths.together)),
    )
    return f"{told}; {widths}"


def _coefficients(found: Sequence[Coefficient], lang: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for key in ("coefficient", "value", "range", "share"):
        table.add_column(say(lang, key), justify="left" if key == "coefficient" else "right")
    for one in found:
        share = "" if one.share is None else _percent(one.share)
        table.add_row(
            one.term,
            f"{plain(one.value)} {one.unit}",
            f"{plain(one.lo)} .. {plain(one.hi)}",
            share if one.told else f"{share} ({say(lang, 'untold')})",
        )
    return table


def _forecast_blocks(model: FittedModel, forecast: Forecast, lang: str) -> Iterator[RenderableType]:
    query, roof = forecast.query, forecast.target.roof
    title = say(
        lang,
        "asked",
        input=query.input_tokens,
        output=query.output_tokens,
        batch=query.batch,
        model=model.model if roof is None else roof.shape.name,
        dtype=(model.dtype if roof is None else roof.dtype) or say(lang, "unknown"),
        hardware=model.machine if roof is None else roof.hardware.title,
    )
    yield Text(f"\n{visible(title)}", style="bold", overflow="fold")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for key in ("phase", "predicted", "range", "floor"):
        table.add_column(say(lang, key), justify="left" if key == "phase" else "right")
    phases = [found for found in (forecast.prefill, forecast.ttft, forecast.tpot) if found is not None]
    for found in phases:
        floor = plain(found.floor_ms) if found.floor_ms else ""
        table.add_row(say(lang, found.phase), plain(found.ms.mid), _range(found.ms), floor)
    if forecast.e2e_ms is not None:
        table.add_row(say(lang, "e2e"), plain(forecast.e2e_ms.mid), _range(forecast.e2e_ms), "")
    yield table
    yield Text(say(lang, "parts"), style="bold")
    yield _parts(phases, lang)
    if forecast.inside_domain:
        yield _text(say(lang, "inside"))
    else:
        why = dict.fromkeys(reason for found in phases for reason in found.outside)
        yield _text(say(lang, "outside", why="; ".join(why)), "yellow")
    if forecast.target.changed:
        yield _text(say(lang, "kept_host"), "yellow")
    yield Text()


def _parts(phases: Sequence[Foreseen], lang: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for key in ("phase", "part", "ms", "uncertainty"):
        table.add_column(say(lang, key), justify="left" if key in ("phase", "part") else "right")
    for found in phases:
        for part in found.parts:
            if part.ms > 0.0 or part.share_of_uncertainty > 0.0:
                table.add_row(
                    say(lang, found.phase),
                    say(lang, part.name),
                    plain(part.ms) if part.ms > 0.0 else "",
                    _percent(part.share_of_uncertainty),
                )
    return table


def _range(ms: Prediction) -> str:
    return f"{plain(ms.lo)} .. {plain(ms.hi)}"


def _percent(share: float) -> str:
    return f"{share * 100:.3g} %"


def _text(text: str, style: str = "") -> Text:
    return Text(visible(text), style=style, overflow="fold")

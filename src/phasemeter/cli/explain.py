"""`phasemeter explain`: where the time of a run went, and why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from phasemeter.cli.explain_request import request_flag, show_request
from phasemeter.cli.flags import json_flag, lang_flag
from phasemeter.cli.run_files import read_given
from phasemeter.cli.slo_flag import slo_flag, slo_of
from phasemeter.record.file import read_run
from phasemeter.record.run import Run, merge

if TYPE_CHECKING:
    from phasemeter.explain.slo import Slo
    from phasemeter.predict.waterfall import Waterfall


@click.command("explain")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--hardware", metavar="NAME", help="Compute floors for this hardware instead of the run's own.")
@click.option("--model-shape", metavar="NAME|config.json", help="Compute floors for this model shape.")
@slo_flag
@request_flag
@click.option(
    "--fit",
    type=click.Path(path_type=Path),
    metavar="MODEL.json",
    help="Show each cell from its floor to what was measured, by this fit.",
)
@click.option("--strict", is_flag=True, help="Exit 1 when the run's verdict is invalid.")
@json_flag
@lang_flag
def command(
    runs: tuple[Path, ...],
    hardware: str | None,
    model_shape: str | None,
    slo: str | None,
    request: str | None,
    fit: Path | None,
    strict: bool,
    as_json: bool,
    lang: str,
) -> int:
    """Say where the time of a run went, and why. Several runs of one measurement are merged; runs that differ in
    machine, model, engine or settings are refused.

    \b
    Example:
      phasemeter explain runs/20261130T101500-local-ernie-4.5-0.3b/run.jsonl
      phasemeter explain run.jsonl --request slowest-itl
    """
    asked = slo_of(slo)
    run = merge([read_given(path) for path in runs])
    if request is not None:
        whole = {
            "--hardware": hardware,
            "--model-shape": model_shape,
            "--slo": slo,
            "--fit": fit,
            "--strict": strict,
        }
        return show_request(run, request, as_json=as_json, lang=lang, merged=len(runs) > 1, others=whole)
    invalid = show(
        run, as_json=as_json, lang=lang, hardware=hardware, model_shape=model_shape, slo=asked, fit=fit
    )
    return 1 if strict and invalid else 0


def show(
    run: Run | Path,
    *,
    as_json: bool,
    lang: str,
    hardware: str | None = None,
    model_shape: str | None = None,
    slo: Slo | None = None,
    fit: Path | None = None,
) -> bool:
    """Print the explanation on stdout; True when the run's verdict is invalid."""
    from phasemeter.explain.summary import summarise, summary_json

    whole = run if isinstance(run, Run) else read_run(run)
    summary = summarise(whole, hardware=hardware, model_shape=model_shape, slo=slo)
    steps = None if fit is None else _waterfalls(whole, fit)
    if as_json:
        told = summary_json(summary) | ({} if steps is None else {"waterfall": msgspec.to_builtins(steps)})
        click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
    else:
        from rich.console import Console

        from phasemeter.report.terminal import render_terminal
        from phasemeter.report.view import view_of

        # Piped output keeps a readable width; a terminal its own.
        console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
        render_terminal(view_of([(whole, summary)], lang), console)
        if steps is not None:
            from phasemeter.report.predict_waterfall import render_waterfalls

            render_waterfalls(steps, lang, console)
    return summary.verdict == "invalid"


def _waterfalls(run: Run, fit: Path) -> tuple[Waterfall, ...]:
    from phasemeter.predict.cells import cells_of
    from phasemeter.predict.model import load
    from phasemeter.predict.waterfall import waterfalls

    return waterfalls(load(fit), cells_of(run))

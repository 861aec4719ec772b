"""`phasemeter fit`: what one machine, model and engine takes for any length and batch, learnt from its runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import msgspec

from phasemeter.cli.flags import json_flag, lang_flag
from phasemeter.cli.run_files import read_given
from phasemeter.record.errors import InputError


@click.command("fit")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option("--out", type=click.Path(path_type=Path), metavar="MODEL.json", help="Where to save the model.")
@click.option(
    "--hardware", metavar="NAME", help="The machine's row in the table, where the run does not tell it."
)
@click.option(
    "--model-shape", metavar="NAME|config.json", help="The model's shape, where the run does not tell it."
)
@click.option(
    "--next",
    "ask_next",
    metavar="IN,OUT[,BATCH]|auto",
    help="Say which three cells to measure next to narrow a prediction for this (auto: whatever is known least).",
)
@json_flag
@lang_flag
def command(
    runs: tuple[Path, ...],
    out: Path | None,
    hardware: str | None,
    model_shape: str | None,
    ask_next: str | None,
    as_json: bool,
    lang: str,
) -> int:
    """Fit a model of prefill, TTFT, TPOT and front end to runs of one machine. Forms are compared by leaving out whole
    lengths and batches; runs that differ in machine, model, engine or settings are refused.

    \b
    Examples:
      phasemeter fit run.jsonl --out MODEL.json
      phasemeter fit run.jsonl --out MODEL.json --next 20000,128
    """
    # The matrices are tiny: threads of the linear algebra would wait for each other ten times as long as they work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from phasemeter.predict.design import next_cells
    from phasemeter.predict.features import Query, checked_query
    from phasemeter.predict.model import fit_runs, save

    asked: Query | None = None
    if ask_next is not None and ask_next != "auto":
        asked = checked_query(Query(*_numbers(ask_next)))
    if out is not None and out.exists():
        raise InputError("--out", str(out), "exists already; name a new file")
    model = fit_runs([read_given(path) for path in runs], hardware=hardware, model_shape=model_shape)
    if out is not None:
        save(model, out)
    told = [fit for name, fit in model.phases.items() if name in ("prefill", "first", "decode")]
    cells = () if ask_next is None else next_cells(told, model.roof, asked)
    if as_json:
        from phasemeter.report.predict_json import fit_json

        click.echo(msgspec.json.format(msgspec.json.encode(fit_json(model, cells)), indent=2).decode())
        return 0
    from rich.console import Console

    from phasemeter.report.predict_terminal import render_fit
    from phasemeter.report.predict_words import say_predicted

    render_fit(
        model, asked, cells, lang, Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    )
    if out is not None:
        click.echo(say_predicted(lang, "saved", path=out))
    return 0


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (2, 3) or not all(part.isascii() and part.isdigit() for part in parts):
        raise InputError(
            "--next", text, "give input and output tokens, and a batch if it is not 1: 20000,128,4"
        )
    return [int(part) for part in parts]

"""`phasemeter predict`: ask a fitted model for a length, batch, number format, model or chip that was not measured."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from phasemeter.cli.flags import json_flag, lang_flag


@click.command("predict")
@click.argument("path", metavar="MODEL", type=click.Path(path_type=Path))
@click.option("--input-tokens", type=int, required=True, metavar="N", help="Tokens of each prompt.")
@click.option("--output-tokens", type=int, required=True, metavar="M", help="Tokens of each answer.")
@click.option(
    "--batch", type=int, default=1, show_default=True, metavar="B", help="Requests in flight together."
)
@click.option(
    "--cached-tokens", type=int, default=0, show_default=True, metavar="N", help="Prompt tokens in the cache."
)
@click.option(
    "--hardware", metavar="NAME", help="Another chip of the table: its part by the ratio of ceilings."
)
@click.option("--model-shape", metavar="NAME|config.json", help="Another model's shape.")
@click.option(
    "--dtype", metavar="NAME", help="Another number format of weights and cache, such as float8 or int4."
)
@json_flag
@lang_flag
def command(
    path: Path,
    input_tokens: int,
    output_tokens: int,
    batch: int,
    cached_tokens: int,
    hardware: str | None,
    model_shape: str | None,
    dtype: str | None,
    as_json: bool,
    lang: str,
) -> int:
    """Predict prefill, TTFT, TPOT and E2E with 90 % intervals, from a model that `phasemeter fit` saved. What lies
    outside of the measured lengths and batches, or on another machine, is marked and its interval is wider.

    \b
    Examples:
      phasemeter predict MODEL.json --input-tokens 512 --output-tokens 128
      phasemeter predict MODEL.json --input-tokens 256 --output-tokens 512 --hardware a100-40gb-sxm
    """
    from phasemeter.predict.features import Query
    from phasemeter.predict.foresee import foresee
    from phasemeter.predict.model import load

    model = load(path)
    query = Query(input_tokens, output_tokens, batch, cached_tokens, model.budget_tokens)
    forecast = foresee(model, query, hardware=hardware, model_shape=model_shape, dtype=dtype)
    if as_json:
        from phasemeter.report.predict_json import forecast_json

        told = msgspec.json.encode(forecast_json(model, forecast))
        click.echo(msgspec.json.format(told, indent=2).decode())
        return 0
    from rich.console import Console

    from phasemeter.report.predict_terminal import render_forecast

    render_forecast(
        model, forecast, lang, Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    )
    return 0

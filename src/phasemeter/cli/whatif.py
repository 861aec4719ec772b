"""`phasemeter whatif`: latencies of a load that was never sent, by simulation of an engine that a fit describes."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from phasemeter.cli.flags import FiniteRange, json_flag, lang_flag
from phasemeter.cli.load_flags import given
from phasemeter.cli.traffic_flags import (
    engine_settings_flags,
    is_steady,
    settings_of,
    traffic_flags,
    traffic_of,
)


@click.command("whatif")
@click.argument("path", metavar="MODEL", type=click.Path(path_type=Path))
@traffic_flags
@click.option(
    "--concurrency", type=click.IntRange(1, 100_000), metavar="N", help="Closed loop of N users instead."
)
@click.option(
    "--think-s",
    type=FiniteRange(0, 86_400),
    metavar="S",
    help="Closed loop: a user's mean pause. [default: 0]",
)
@engine_settings_flags
@click.option(
    "--replicas", type=click.IntRange(1, 1024), default=1, show_default=True, metavar="N", help="Engines."
)
@click.option("--hardware", metavar="NAME", help="Another chip of the table, by transfer.")
@json_flag
@lang_flag
def command(
    path: Path, replicas: int, hardware: str | None, as_json: bool, lang: str, **options: object
) -> int:
    """Simulate a load on an engine as a fitted model describes it: TTFT, TPOT, E2E and queue, with the interval that
    the model's own intervals leave.

    \b
    Examples:
      phasemeter whatif MODEL.json --rate 8 --input-tokens 512 --output-tokens 128
      phasemeter whatif MODEL.json --rate 8 --arrivals gamma:3 --input-tokens lognormal:512:0.8 \\
          --output-tokens uniform:16:256 --max-num-seqs 64 --replicas 2
      phasemeter whatif MODEL.json --trace sample:azure --prefix-caching
    """
    from phasemeter.predict.model import load
    from phasemeter.predict.whatif_fitted import machine_of
    from phasemeter.predict.whatif_told import What, what_if

    model = load(path)
    machine = machine_of(model, hardware)
    chosen = given()
    told = what_if(
        What(
            traffic_of(options, chosen),
            settings_of(options, model.budget_tokens),
            replicas,
            str(options["routing"]),
            seed=int(str(options["seed"])),
            steady=is_steady(options, chosen),
        ),
        machine,
    )
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
        return 0
    from rich.console import Console

    from phasemeter.report.capacity_terminal import render_what

    render_what(told, Console(width=None if sys.stdout.isatty() else 110, highlight=False), lang)
    return 0

"""`phasemeter capacity`: replicas, machine, flags and headroom for a traffic within objectives, by simulation."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from phasemeter.cli.flags import FiniteRange, json_flag, lang_flag
from phasemeter.cli.load_flags import given
from phasemeter.cli.slo_flag import slo_of
from phasemeter.cli.traffic_flags import (
    engine_settings_flags,
    fixed_flags,
    is_steady,
    settings_of,
    traffic_flags,
    traffic_of,
)
from phasemeter.record.errors import InputError

if TYPE_CHECKING:
    from phasemeter.predict.capacity import Ask, Option
    from phasemeter.predict.model import FittedModel
    from phasemeter.predict.whatif_fitted import Machine

_CODES = {"met": 0, "undecided": 3, "not met": 1}


@click.command("capacity")
@click.argument("path", metavar="MODEL", type=click.Path(path_type=Path))
@traffic_flags
@click.option(
    "--slo", required=True, metavar="LIMITS", help="The objectives, such as ttft_p99=200ms,tpot_p99=20ms."
)
@click.option(
    "--headroom",
    type=FiniteRange(0, 10),
    default=0.2,
    show_default=True,
    metavar="SHARE",
    help="Plan for so much more traffic than asked.",
)
@click.option(
    "--replicas-max",
    type=click.IntRange(1, 1024),
    default=64,
    show_default=True,
    metavar="N",
    help="Most to try.",
)
@click.option(
    "--hardware", metavar="NAME,...", help="Chips to compare, by transfer. [default: the fitted machine]"
)
@click.option("--price", multiple=True, metavar="NAME=USD", help="Dollars an hour of one replica on a chip.")
@engine_settings_flags
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="PLAN.html",
    help="Write the plan and its plot.",
)
@json_flag
@lang_flag
def command(
    path: Path,
    slo: str,
    headroom: float,
    replicas_max: int,
    hardware: str | None,
    price: tuple[str, ...],
    output: Path | None,
    as_json: bool,
    lang: str,
    **options: object,
) -> int:
    """Say how many replicas carry a traffic within objectives, on which chip, with which flags, with what headroom, and
    at what price. Exit 0: met even with the model at the slow end of its intervals; 3: at their middle; 1: not met.

    \b
    Examples:
      phasemeter capacity MODEL.json --rate 40 --input-tokens lognormal:512:0.8 --output-tokens uniform:16:256 \\
          --slo ttft_p99=200ms,tpot_p99=20ms
      phasemeter capacity MODEL.json --trace sample:azure --slo ttft_p99=500ms,goodput=95% \\
          --hardware a100-80,h100 --price a100-80=1.8 --price h100=3.2 -o plan.html
    """
    from phasemeter.predict.capacity import Ask, plans
    from phasemeter.predict.model import load

    model = load(path)
    chosen = given()
    machines = _machines(model, hardware)
    prices = _prices(price, machines)
    objectives = slo_of(slo)
    assert objectives is not None  # --slo is required
    ask = Ask(
        traffic=traffic_of(options, chosen),
        slo=objectives,
        settings=settings_of(options, model.budget_tokens),
        steady=is_steady(options, chosen),
        headroom=headroom,
        replicas_max=replicas_max,
        policy=str(options["routing"]),
        fixed=fixed_flags(options),
        seed=int(str(options["seed"])),
    )
    found = plans(ask, machines, prices)
    if output is not None:
        from phasemeter.report.capacity_page import write_plan

        write_plan(ask, found, output, lang)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_told(ask, found)), indent=2).decode())
    else:
        from rich.console import Console

        from phasemeter.report.capacity_terminal import render_plan

        render_plan(ask, found, Console(width=None if sys.stdout.isatty() else 110, highlight=False), lang)
    return _CODES[found[0].told]


def _told(ask: Ask, options: tuple[Option, ...]) -> dict[str, object]:
    """The JSON: what was asked, then every option."""
    return {
        "rate_per_s": len(ask.traffic.input_tokens) / ask.lasts_s if ask.lasts_s > 0 else None,
        "requests": len(ask.traffic.input_tokens),
        "headroom": ask.headroom,
        "slo": ask.slo.text,
        "options": [_option(option) for option in options],
    }


def _option(option: Option) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(option)
    low, mid, high = option.replicas
    return {"answer": option.told, **fields, "replicas": {"lo": low, "mid": mid, "hi": high}}


def _machines(model: FittedModel, hardware: str | None) -> tuple[Machine, ...]:
    from phasemeter.predict.whatif_fitted import machine_of

    names = [name.strip() for name in (hardware or "").split(",") if name.strip()]
    if not names:
        return (machine_of(model),)
    return tuple(machine_of(model, name) for name in dict.fromkeys(names))


def _prices(texts: tuple[str, ...], machines: tuple[Machine, ...]) -> dict[str, float]:
    """Dollars an hour by machine. A name is one of the machines' or of the table's."""
    from phasemeter.roofline.hardware import find_hardware

    known = {machine.name: machine.name for machine in machines}
    known |= {machine.roof.hardware.name: machine.name for machine in machines if machine.roof is not None}
    found: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            usd = float(number)
        except ValueError:
            usd = math.nan
        if not equals or not (math.isfinite(usd) and usd >= 0.0):
            raise InputError(
                "--price", text, "write NAME=USD, dollars an hour of one replica, such as h100=3.2"
            )
        place = known.get(name.strip()) or known.get(find_hardware(name.strip()).name)
        if place is None:
            raise InputError("--price", text, f"is not planned for; the machines are {', '.join(known)}")
        found[place] = usd
    return found

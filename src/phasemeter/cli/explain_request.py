"""`phasemeter explain RUN --request ID`: one request of a run on its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import click
import msgspec

from phasemeter.record.errors import InputError
from phasemeter.record.run import Run

request_flag: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--request",
    metavar="ID",
    help="Explain one request: its id, the beginning of it, or slowest-ttft, slowest-itl, slowest-e2e.",
)


def show_request(
    run: Run, asked: str, *, as_json: bool, lang: str, merged: bool, others: Mapping[str, object]
) -> int:
    """Print one request on stdout. `others` are options that only speak of a whole run. Raises InputError where one
    of them is given, or where no one request is named."""
    from phasemeter.explain.one_request import explain_request, request_json
    from phasemeter.explain.pick_request import pick_request

    for name, value in others.items():
        if value:
            raise InputError(name, "given", "it speaks of a whole run; leave it or --request out")
    explained = explain_request(run, pick_request(run, asked), merged=merged)
    if as_json:
        told = {"request": request_json(explained)}
        click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
        return 0
    from rich.console import Console

    from phasemeter.report.request_terminal import render_request

    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    render_request(explained, lang, console)
    return 0

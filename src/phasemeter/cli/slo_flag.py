"""The option --slo, as every command that judges by objectives has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from phasemeter.explain.slo import Slo

F = TypeVar("F", bound=Callable[..., object])


def slo_flag(function: F) -> F:
    """--slo TEXT, as `slo`."""
    return click.option(
        "--slo",
        metavar="LIMITS",
        help="Judge every level of load, such as ttft_p99=200ms,tpot_p99=20ms,e2e=5s,goodput=95%.",
    )(function)


def slo_of(text: str | None) -> Slo | None:
    """The objectives; None where none were given. Raises InputError for what cannot be read."""
    from phasemeter.explain.slo import parse_slo

    return None if text is None else parse_slo(text)

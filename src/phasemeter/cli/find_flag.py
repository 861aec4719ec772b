"""The options that search for the largest level of load: --find, --between, --slo."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar, cast

import click

from phasemeter.cli.flags import number_of, text_of
from phasemeter.cli.progress import note
from phasemeter.cli.slo_flag import slo_flag
from phasemeter.explain.slo import LevelSlo, parse_slo
from phasemeter.measure.find import Quest
from phasemeter.measure.search import Axis, Found, Tried, parse_between
from phasemeter.record.errors import InputError

F = TypeVar("F", bound=Callable[..., object])
_CHOSEN_BY_FIND = ("rate", "concurrency", "trace", "requests", "repeats")


def find_flags(function: F) -> F:
    """Search instead of a list of levels."""
    function = slo_flag(function)
    function = click.option(
        "--between", metavar="LO:HI", help="With --find: the lowest and the highest level, such as 1:64."
    )(function)
    return click.option(
        "--find",
        type=click.Choice(["rate", "concurrency"]),
        help="Search for the largest level that meets --slo, a stage of --duration at a time.",
    )(function)


def quest_of(options: dict[str, object], given: Collection[str], *, quiet: bool = False) -> Quest | None:
    """The search asked for; None without --find. Raises InputError for what is missing or does not belong to it."""
    axis = text_of(options, "find")
    slo, between = text_of(options, "slo"), text_of(options, "between")
    if axis is None:
        for name, value in (("--between", between), ("--slo", slo)):
            if value is not None:
                raise InputError(name, value, "belongs to --find rate or --find concurrency; give that, too")
        return None
    for name in _CHOSEN_BY_FIND:
        if name in given:
            raise InputError(f"--{name}", str(options[name]), "--find chooses the levels; leave it out")
    duration_s = number_of(options, "duration")
    if slo is None or between is None or duration_s is None:
        raise InputError("--find", axis, "give --slo, --between LO:HI and --duration S, too")
    search = parse_between(between, cast("Axis", axis))
    return Quest(search, parse_slo(slo), round(duration_s * 1e9), None if quiet else _tell)


def first_level(quest: Quest | None, options: dict[str, object]) -> frozenset[str]:
    """Put the search's lowest level where a load's first stage is read from; returns the options that are given so."""
    if quest is None:
        return frozenset()
    options[quest.search.axis] = f"{quest.search.low:.10g}"
    return frozenset({quest.search.axis, "duration"})


def found_text(quest: Quest, found: Found) -> str:
    """The end of the search in one line."""
    unit = "/s" if quest.search.axis == "rate" else ""
    met = "none" if found.met_at is None else f"{found.met_at:g}{unit}"
    not_met = "none" if found.not_met_at is None else f"{found.not_met_at:g}{unit}"
    why = {
        "found": "",
        "above": "; the highest level still meets them, give a higher --between",
        "below": "; the lowest level does not meet them, give a lower --between",
        "undecided": "; between them no level could be decided, give a longer --duration",
        "budget": "; stages were used up before the bracket was narrow",
    }[found.reason]
    return (
        f"largest {quest.search.axis} that meets {quest.slo.text}: {met} met, {not_met} not met "
        f"({found.stages} stages){why}"
    )


def _tell(tried: Tried, judged: LevelSlo) -> None:
    good = judged.goodput
    note(f"level {tried.level:g}: {tried.met.value}, {good.good} of {good.requests} requests good")

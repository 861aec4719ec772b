"""A capacity plan as rows of text, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence

from phasemeter.predict.capacity import Ask, Option
from phasemeter.predict.whatif_load import EngineSettings
from phasemeter.report.capacity_words import say


def title(ask: Ask, lang: str) -> str:
    """What was asked."""
    rate = len(ask.traffic.input_tokens) / ask.lasts_s if ask.lasts_s > 0 else float("inf")
    return say(lang, "plan", rate=f"{rate:.4g}", headroom=f"{ask.headroom:.0%}", slo=ask.slo.text)


def columns(options: Sequence[Option], lang: str) -> list[str]:
    """Headings; prices only where there are some."""
    keys = ["machine", "replicas", "answer", "used", "carries", "busy", "flags"]
    if any(option.usd_per_hour is not None for option in options):
        keys += ["per_hour", "per_output", "per_token"]
    return [say(lang, key) for key in keys]


def rows(ask: Ask, options: Sequence[Option], lang: str) -> list[list[str]]:
    """One row an option, in the order of the columns."""
    priced = any(option.usd_per_hour is not None for option in options)
    found: list[list[str]] = []
    for option in options:
        row = [
            option.machine,
            _replicas(option, ask.replicas_max, lang),
            say(lang, option.told),
            share_text(option.standing.used, lang),
            "–" if option.carries is None else f"{option.carries:.2f} ×",
            f"{option.busy_ratio:.0%}",
            _flags(option, ask.replicas_max, lang),
        ]
        if priced:
            prices = (option.usd_per_hour, option.usd_per_million_output, option.usd_per_million_tokens)
            row += ["–" if price is None else f"{price:.4g}" for price in prices]
        found.append(row)
    return found


def conditions(option: Option) -> list[list[str]]:
    """(condition, value, limit, share of the limit) of one option."""
    return [
        [
            one.name,
            "–" if one.value is None else _unit(one.name, one.value),
            _unit(one.name, one.limit),
            "–" if one.used is None else f"{one.used:.0%}",
        ]
        for one in option.standing.kept
    ]


def notes(options: Sequence[Option], lang: str) -> list[str]:
    """What must be known beside the table."""
    found = [say(lang, "range"), say(lang, "carries_note")]
    if any(option.changed for option in options):
        found.append(say(lang, "changed"))
    for option in options:
        if option.outside and not option.changed:
            found.append(say(lang, "outside", why="; ".join(option.outside)))
        if option.preemptions:
            found.append(f"{option.machine}: {say(lang, 'preempted', n=option.preemptions)}")
        if option.kv_assumed:
            found.append(f"{option.machine}: {blocks_text(option.settings, lang, assumed=True)}")
    return [*found, say(lang, "simulated")]


def blocks_text(settings: EngineSettings, lang: str, *, assumed: bool) -> str:
    """The cache of one replica."""
    if settings.kv_blocks is None:
        return say(lang, "no_blocks")
    key = "blocks_assumed" if assumed else "blocks"
    return say(lang, key, blocks=f"{settings.kv_blocks:,}", size=settings.block_size)


def share_text(used: float | None, lang: str) -> str:
    """A share of a limit; None is overload."""
    return say(lang, "overload") if used is None else f"{used:.0%}"


def _replicas(option: Option, most: int, lang: str) -> str:
    low, mid, high = ("> " + str(most) if n is None else str(n) for n in option.replicas)
    return say(lang, "too_many", n=most) if option.replicas[1] is None else f"{mid} [{low}, {high}]"


def _flags(option: Option, most: int, lang: str) -> str:
    if not option.flags:
        return say(lang, "none")
    text = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in option.flags.items())
    if option.plain_replicas != option.replicas[1]:
        n = option.plain_replicas
        text += f" ({say(lang, 'without', n=n if n is not None else f'> {most}')})"
    return text


def _unit(name: str, value: float) -> str:
    return f"{value:.1%}" if name == "goodput" else f"{value:.4g} ms"

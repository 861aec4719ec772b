"""A simulated load and a capacity plan on a terminal: readable at 100 columns, plain text when piped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from phasemeter.predict.capacity import Ask, Option
from phasemeter.predict.whatif_told import Level, Told
from phasemeter.record.visible import visible
from phasemeter.report.capacity_view import blocks_text, columns, conditions, notes, rows, title
from phasemeter.report.capacity_words import say

_STYLES = {"met": "green", "undecided": "yellow", "not met": "bold red"}


def render_what(told: Told, console: Console, lang: str) -> None:
    """Print a simulated load."""
    _print(_what(told, lang), console)


def render_plan(ask: Ask, options: Sequence[Option], console: Console, lang: str) -> None:
    """Print a capacity plan."""
    _print(_plan(ask, options, lang), console)


def _print(blocks: Iterator[RenderableType], console: Console) -> None:
    with console.capture() as capture:
        for block in blocks:
            console.print(block)
    console.file.write("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")


def _what(told: Told, lang: str) -> Iterator[RenderableType]:
    yield Text()
    head = say(lang, "what", requests=f"{told.requests:,}", replicas=told.replicas, machine=told.machine)
    yield Text(visible(head), style="bold", overflow="fold")
    settings = told.settings
    yield Text(
        say(
            lang,
            "settings",
            seqs=settings.max_num_seqs,
            budget=settings.max_num_batched_tokens,
            blocks=blocks_text(settings, lang, assumed=told.kv_assumed),
        )
    )
    yield Text(
        say(
            lang,
            "load",
            rate=_level(told.requests_per_s),
            tokens=_level(told.output_tokens_per_s),
            running=f"{told.running:.4g}",
            waiting=f"{told.waiting:.4g}",
            busy=f"{told.busy_ratio:.0%}",
        )
    )
    yield _table([say(lang, "metric"), "p50", "p90", "p99"], [
        [metric, *(_level(levels[share]) for share in ("p50", "p90", "p99"))] for metric, levels in told.ms.items()
    ])  # fmt: skip
    if told.growing:
        yield Text(f"✗ {say(lang, 'growing')}", style="bold red")
    for note in _what_notes(told, lang):
        yield Text(visible(note), style="dim")


def _what_notes(told: Told, lang: str) -> Iterator[str]:
    if told.preemptions:
        yield say(lang, "preempted", n=told.preemptions)
    if told.cached_ratio:
        yield say(lang, "cached", share=f"{told.cached_ratio:.1%}")
    if told.kv_used is not None:
        yield say(lang, "kv_used", share=f"{told.kv_used:.1%}")
    yield say(lang, "intervals")
    if told.changed:
        yield say(lang, "changed")
    elif told.outside:
        yield say(lang, "outside", why="; ".join(told.outside))
    yield say(lang, "simulated")


def _plan(ask: Ask, options: Sequence[Option], lang: str) -> Iterator[RenderableType]:
    yield Text()
    yield Text(title(ask, lang), style="bold", overflow="fold")
    found = rows(ask, options, lang)
    yield _table(columns(options, lang), found, [_STYLES[option.told] for option in options])
    for option in options:
        n = option.replicas[1] or ask.replicas_max
        yield Text(visible(say(lang, "at", machine=option.machine, n=n)), style="bold")
        heads = [say(lang, key) for key in ("condition", "value", "limit", "used")]
        yield _table(heads, conditions(option))
    for note in notes(options, lang):
        yield Text(visible(note), style="dim", overflow="fold")


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place == 0 else "right", overflow="fold", no_wrap=place == 0)
    for place, line in enumerate(lines):
        table.add_row(*(visible(cell) for cell in line), style=styles[place] if styles else None)
    return table


def _level(level: Level) -> str:
    if level.mid is None:
        return "–"
    text = f"{level.mid:.4g}"
    return text if level.lo is None or level.hi is None else f"{text} [{level.lo:.4g}, {level.hi:.4g}]"

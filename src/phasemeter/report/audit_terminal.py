"""An audit on a terminal: a table of verdicts, then each claim's working; plain text when piped."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from phasemeter.record.visible import visible
from phasemeter.report.audit_view import AuditLine, AuditView

_STYLES = {
    "impossible": "bold red",
    "implausible": "red",
    "false": "red",
    "misleading": "yellow",
    "undecidable": "yellow",
    "plausible": "green",
    "true": "green",
}


def render_audit(view: AuditView, console: Console, *, working: bool) -> None:
    """Print the view; nothing is lost without colours."""
    with console.capture() as capture:
        for block in _blocks(view, working=working):
            console.print(block)
    lines = (line.rstrip() for line in capture.get().splitlines())
    console.file.write("\n".join(lines) + "\n")


def _blocks(view: AuditView, *, working: bool) -> Iterator[RenderableType]:
    yield Text(f"\n{visible(view.title)}", style="bold", overflow="fold")
    yield _text(view.counts, "dim")
    yield _table(view)
    if working:
        for one in view.lines:
            yield from _working(one)
    yield Text()


def _table(view: AuditView) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for head, ratio in zip(view.heads, (None, 3, None, 4), strict=True):
        table.add_column(head, overflow="fold", ratio=ratio)
    for one in view.lines:
        verdict = Text(one.word, style=_STYLES[one.verdict.value])
        table.add_row(Text(visible(one.id)), Text(visible(one.statement)), verdict, Text(visible(one.reason)))
    return table


def _working(one: AuditLine) -> Iterator[RenderableType]:
    head = Text(f"\n{visible(one.id)}: ", style="bold cyan", overflow="fold")
    head.append(one.word, style=_STYLES[one.verdict.value])
    yield head
    for line in one.working:
        yield _text(f"· {line}")
    yield _text(f"→ {one.reason}")


def _text(text: str, style: str = "") -> RenderableType:
    return Padding(Text(visible(text), style=style, overflow="fold"), (0, 0, 0, 2))

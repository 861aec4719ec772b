"""A comparison on a terminal: readable at 100 columns, plain text when piped."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from phasemeter.record.visible import visible
from phasemeter.report.compare_view import Cell, CompareView
from phasemeter.report.compare_words import say_compared

_STYLES = {
    "better": "green",
    "worse": "bold red",
    "same": "",
    "undecided": "yellow",
    "pass": "green",
    "fail": "bold red",
}


def render_comparison(view: CompareView, console: Console) -> None:
    """Print the view; nothing is lost without colours."""
    with console.capture() as capture:
        for block in _blocks(view):
            console.print(block)
    lines = (line.rstrip() for line in capture.get().splitlines())
    console.file.write("\n".join(lines) + "\n")


def _blocks(view: CompareView) -> Iterator[RenderableType]:
    yield Text(f"\n{visible(view.title)}", style="bold", overflow="fold")
    yield _sides(view)
    for warning in view.warnings:
        yield _text(f"✗ {warning}", "bold red")
    yield _heading(_say(view, "differs"))
    for line in view.differs or (_say(view, "nothing_differs"),):
        yield _text(line)
    yield _heading(_say(view, "metrics"), view.note)
    yield _metrics(view)
    if view.shapes:
        yield _heading(_say(view, "shapes"))
        yield _shapes(view)
    for note in view.notes:
        yield _text(note, "dim")
    if view.gates:
        yield _heading(_say(view, "gates"))
        yield _gates(view)
        yield _text(view.gate_text, _STYLES[view.gate])
    yield Text()


def _say(view: CompareView, key: str) -> str:
    return say_compared(view.lang, key)


def _text(text: str, style: str = "") -> RenderableType:
    return Padding(Text(visible(text), style=style, overflow="fold"), (0, 0, 0, 2))


def _heading(title: str, note: str = "") -> RenderableType:
    head = Text(f"\n{title}", style="bold cyan")
    return Group(head, _text(note, "dim")) if note else head


def _sides(view: CompareView) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for role, name, facts in view.sides:
        grid.add_row(Text(role), Text(visible(f"{name}: {facts}")))
    return Padding(grid, (0, 0, 0, 2))


def _table(view: CompareView, *keys: str, left: int = 1) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=True, padding=(0, 1, 0, 0), show_edge=False, header_style="dim")
    for i, key in enumerate(keys):
        table.add_column(_say(view, key), justify="left" if i < left else "right", no_wrap=True)
    return table


def _metrics(view: CompareView) -> Table:
    table = _table(view, "metric", "base", "new", "effect", "difference")
    table.add_column(_say(view, "answer"), overflow="fold")
    for line in view.lines:
        answer = _cell(line.answer)
        if line.why:
            answer.append(f" ({line.why})", style="not bold dim")
        table.add_row(*map(Text, (line.name, line.base, line.new, line.effect, line.difference)), answer)
    return table


def _shapes(view: CompareView) -> Table:
    table = _table(view, "shape", "requests", left=0)
    for head in view.shape_heads:
        table.add_column(f"{head} %", justify="right", no_wrap=True)
    for line in view.shapes:
        table.add_row(Text(line.name), Text(line.n), *map(_cell, line.cells))
    return table


def _gates(view: CompareView) -> RenderableType:
    rows: list[RenderableType] = []
    for gate in view.gates:
        text = _cell(gate.answer).append(f"  {gate.text}: {gate.seen}", style="not bold default")
        if gate.why:
            text.append(f" ({visible(gate.why)})", style="not bold dim")
        rows.append(Padding(text, (0, 0, 0, 2)))
    return Group(*rows)


def _cell(cell: Cell) -> Text:
    return Text(cell.text, style=_STYLES.get(cell.answer, ""))

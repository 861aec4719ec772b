"""A view on a terminal: readable at 80 columns, wider where there is room, plain text when piped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment as Piece
from rich.table import Table
from rich.text import Text

from phasemeter.record.visible import visible
from phasemeter.report.digits import (
    INFERRED,
    interval,
    marked,
    percent,
    plain,
    power,
    times,
    with_interval,
    with_unit,
)
from phasemeter.report.inside import InsideView, TextTable
from phasemeter.report.levels import level_cell
from phasemeter.report.palette import CAUSE_FILLS, CAUSES, COLOURS, FILLS
from phasemeter.report.parts import SHAPE_COLUMNS, Fact, Growth, Number, RunView, Segment, ShapeView, View
from phasemeter.report.steps_view import inside_lines
from phasemeter.report.words import word

_VERDICT_STYLES = {"ok": "bold green", "warn": "bold yellow", "invalid": "bold red"}
_PIECE = r"\uff08?(?:[\u2e80-\uffee]|[^\s\u2e80-\uffee]+)[\u3001\u3002\uff09\uff0c\uff1a\uff1b]*|\s"
"""What stays on one line: a word or one Chinese character, with its brackets and stops."""
_SIGNS = {"ok": "✓", "warn": "!", "invalid": "✗"}


def render_terminal(view: View, console: Console) -> None:
    """Print every run of the view. No line is longer than the console is wide; without colours nothing is
    lost."""
    show(_view(view, console.width), console)


def show(blocks: Iterable[RenderableType], console: Console) -> None:
    """Print blocks one below the other, without what would act on the terminal."""
    if console.is_terminal:
        _print(blocks, console)
        return
    with console.capture() as capture:
        _print(blocks, console)
    text = "\n".join(
        line.rstrip() for line in capture.get().splitlines()
    )  # no trailing blanks in a file or pipe
    console.file.write(text + "\n")


def _print(blocks: Iterable[RenderableType], console: Console) -> None:
    for block in blocks:
        console.print(_Visible(block))


def _view(view: View, width: int) -> Iterator[RenderableType]:
    for warning in view.warnings:
        yield Text(f"! {warning}", style="bold yellow")
    for run in view.runs:
        yield from _blocks(run, view.lang, width)


class _Visible:
    """Something to print, without what would act on the terminal: names and errors come from servers and files."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for piece in console.render(self._inner, options):
            yield Piece(visible(piece.text), piece.style, piece.control)


def _blocks(run: RunView, lang: str, width: int) -> Iterator[RenderableType]:
    yield Text()
    yield Text(f"{run.title}", style="bold", overflow="fold")
    yield fact_grid((*run.facts, *run.counts, *_folded(run.settings, lang)))
    yield _checks(run, lang)
    if run.shapes:
        yield heading(word(lang, "shapes"), word(lang, "medians"))
        yield _shape_table(run.shapes, lang, width)
        yield heading(word(lang, "budget"), f"{word(lang, 'budget_note')}  {word(lang, 'legend')}")
        yield from _budget(run.shapes, lang, width)
        yield from _attribution(run.shapes, lang, width)
    if run.growth:
        yield heading(word(lang, "growth"))
        yield _growth(run.growth, width, lang)
    if run.load is not None:
        yield heading(word(lang, "under_load"))
        yield from (prose(sentence, width) for sentence in run.load.sentences)
        for table in run.load.tables:
            yield _indented(Text(table.title, style="dim"))
            yield told_table(table)
    if run.inside is not None:
        yield heading(word(lang, "inside"))
        yield from _inside(run.inside, width)
    if run.beside is not None:
        yield heading(word(lang, "beside"))
        yield told_table(run.beside.table)
    if run.cold is not None:
        yield heading(word(lang, "cold"))
        yield prose(run.cold.sentence, width)
    if run.article is not None:
        yield heading(run.article.title)
        yield from _article(run, lang, width)
    yield heading(word(lang, "closing"))
    yield prose((" " if lang == "en" else "").join(run.closing), width)
    yield Text()


def heading(title: str, note: str = "") -> RenderableType:
    """A section's title and what to know of it."""
    head = Text(f"\n{title}", style="bold cyan")
    return Group(head, Padding(Text(note, style="dim"), (0, 0, 0, 2))) if note else head


def _indented(text: Text) -> Padding:
    return Padding(text, (0, 0, 0, 2))


def prose(text: str, width: int) -> Padding:
    """A paragraph, wrapped here because Chinese may break between any two characters."""
    lines, line = [""], ""
    for piece in re.findall(_PIECE, text):
        if cell_len(line + piece.rstrip()) > max(20, width - 3) and line:
            lines[-1] = line.rstrip()
            lines.append("")
            line = ""
        line += piece if line or not piece.isspace() else ""
        lines[-1] = line
    return _indented(Text("\n".join(lines)))


def fact_grid(facts: Sequence[Fact]) -> Padding:
    """Label and text, line by line."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for fact in facts:
        text = Text(f"! {fact.text}", style="bold yellow") if fact.loud else Text(fact.text)
        grid.add_row(Text(fact.label), text)
    return Padding(grid, (0, 0, 0, 2))


def _folded(settings: Sequence[Fact], lang: str) -> tuple[Fact, ...]:
    text = " · ".join(f"{fact.label} {fact.text}" for fact in settings)
    return (Fact(word(lang, "settings").lower(), text),) if text else ()


def _checks(run: RunView, lang: str) -> RenderableType:
    verdict = Text("\n")
    verdict.append(word(lang, "checks"), style="bold cyan")
    verdict.append("  ")
    verdict.append(f"{_SIGNS[run.verdict]} {run.verdict}", style=_VERDICT_STYLES[run.verdict])
    verdict.append(f"  {run.verdict_text}")
    good = [check.name for check in run.checks if check.verdict == "ok"]
    lines: list[RenderableType] = [verdict]
    for check in run.checks:
        if check.verdict == "ok":
            continue
        text = Text(f"{_SIGNS[check.verdict]} {check.name}: ", style=_VERDICT_STYLES[check.verdict])
        text.append(check.evidence, style="not bold default")
        if check.mend:
            text.append(f"  → {check.mend}", style="not bold dim")
        lines.append(_indented(text))
    if good:
        names = ", ".join(good)
        lines.append(_indented(Text(f"✓ {word(lang, 'checks_ok')}: {names}", style="dim")))
    return Group(*lines)


def _shape_table(shapes: Sequence[ShapeView], lang: str, width: int) -> Table:
    """One row a shape where there is room, else three: TTFT, prefill, TPOT."""
    return _wide_shapes(shapes, lang) if width >= 124 else _narrow_shapes(shapes, lang)


def _wide_shapes(shapes: Sequence[ShapeView], lang: str) -> Table:
    table = _table()
    for key in SHAPE_COLUMNS:
        table.add_column(
            word(lang, key), justify="right", no_wrap=True, style="dim" if key == "floor" else ""
        )
    table.add_column(word(lang, "bound"), overflow="fold")
    for shape in shapes:
        cells = [*shape.lengths, level_cell(shape.asked, lang), str(shape.n)]
        cells += [with_interval(shape.ttft), with_interval(shape.prefill), marked(shape.prefill_floor)]
        cells += [times(shape.prefill_ratio), with_interval(shape.tpot), marked(shape.tpot_floor)]
        table.add_row(*map(Text, [*cells, times(shape.tpot_ratio), shape.bound]))
    return table


def _narrow_shapes(shapes: Sequence[ShapeView], lang: str) -> Table:
    table = _table()
    for key in ("shape", "n", "", "median", "floor", "ratio", "bound"):
        name = word(lang, key) if key else ""
        table.add_column(name, justify="left" if key in ("", "bound") else "right", no_wrap=True)
    for shape in shapes:
        bounds = {entry.phase: entry.bound for entry in shape.attributed}
        ttft = [with_interval(shape.ttft)]
        ttft += (
            ["", "", ""]
            if shape.split
            else _against_floor(shape.prefill_floor, shape.prefill_ratio, bounds.get("first"))
        )
        table.add_row(*map(Text, [shape.short, str(shape.n), word(lang, "ttft"), *ttft]))
        if shape.split:
            floor = _against_floor(shape.prefill_floor, shape.prefill_ratio, bounds.get("prefill"))
            table.add_row(
                *map(Text, ["", "", word(lang, "prefill_ms"), with_interval(shape.prefill), *floor])
            )
        floor = _against_floor(shape.tpot_floor, shape.tpot_ratio, bounds.get("decode"))
        table.add_row(*map(Text, ["", "", word(lang, "tpot_ms"), with_interval(shape.tpot), *floor]))
    return table


def _against_floor(floor: Number, ratio: Number, bound: str | None) -> list[str]:
    return [marked(floor), times(ratio), bound or plain(None)]


def _table() -> Table:
    return Table(box=SIMPLE_HEAD, pad_edge=True, padding=(0, 1, 0, 0), show_edge=False, header_style="dim")


def _cell(number: Number, *, wide: bool) -> str:
    if wide:
        return with_interval(number)
    span = interval(number).replace(", ", "–").strip("[]")
    return f"{marked(number)}\n{span}" if span else marked(number)


def _budget(shapes: Sequence[ShapeView], lang: str, width: int) -> Iterator[RenderableType]:
    longest = max((shape.total.value or 0.0) for shape in shapes)
    label = max(len(shape.short) for shape in shapes)
    room = max(10, min(width, 110) - label - 16)
    for shape in shapes:
        line = Text("  ")
        line.append(shape.short.rjust(label), style="bold")
        line.append("  ")
        bar = _bar(shape.segments, longest, room)
        line.append_text(bar)
        line.append(f" {with_unit(shape.total)}")
        yield line
    yield Text()
    names = max(cell_len(segment.label) for shape in shapes for segment in shape.segments) + 4
    per_table = max(1, (width - names) // (max(15, label + 1)))
    for start in range(0, len(shapes), per_table):
        yield _phase_table(shapes[start : start + per_table], lang)


def _bar(segments: Sequence[Segment], longest_ms: float, room: int) -> Text:
    """Cells in proportion; cumulative rounding keeps the whole bar at its length."""
    bar = Text()
    if longest_ms <= 0:
        return bar
    drawn = 0
    for segment in segments:
        value = segment.number.value
        if value is None:
            continue
        # stamps out of order can make a phase longer than its whole: the bar ends where the line does
        upto = min(room, max(drawn, round((segment.start_ms + value) / longest_ms * room)))
        bar.append(FILLS[segment.phase] * (upto - drawn), style=COLOURS[segment.phase])
        drawn = upto
    return bar


def _phase_table(shapes: Sequence[ShapeView], lang: str) -> Table:
    """Phases down, shapes across: mean and share; the fill in front of each phase is the legend of the
    bars."""
    names: dict[str, str] = {}
    for shape in shapes:
        names |= {segment.phase: segment.label for segment in shape.segments}
    order = [phase for phase in FILLS if phase in names]
    table = _table()
    table.add_column(word(lang, "mean"), no_wrap=True)
    for shape in shapes:
        table.add_column(shape.short, justify="right", no_wrap=True)
    for phase in sorted(order, key=list(FILLS).index):
        label = Text(f"{FILLS[phase] * 2} ", style=COLOURS[phase]).append(names[phase], style="default")
        table.add_row(label, *(Text(_phase_cell(shape, phase)) for shape in shapes))
    total = [Text(f"{plain(shape.total.value)} 100 %".rjust(14), style="bold") for shape in shapes]
    table.add_row(Text(f"   {word(lang, 'total')}", style="bold"), *total)
    return table


def _phase_cell(shape: ShapeView, phase: str) -> str:
    for segment in shape.segments:
        if segment.phase == phase and segment.number.value is not None:
            return f"{marked(segment.number)} {percent(segment.share):>6}"
    return plain(None)


def _attribution(shapes: Sequence[ShapeView], lang: str, width: int) -> Iterator[RenderableType]:
    rows = [(shape, entry) for shape in shapes for entry in shape.attributed]
    if not rows:
        return
    note = word(lang, "attribution_note")
    if any(entry.phase == "first" for _, entry in rows):
        note += (" " if lang == "en" else "") + word(lang, "attribution_first")
    yield heading(word(lang, "attribution"), note)
    room = 24 if width >= 116 else 12
    causes = ("arithmetic", "memory traffic", "host and kernel inefficiency")
    table = _table()
    table.add_column(word(lang, "shape"), justify="right", no_wrap=True)
    table.add_column(word(lang, "phase"), no_wrap=True)
    table.add_column("", no_wrap=True)
    for cause in causes:
        name = Text(f"{CAUSE_FILLS[cause]} ", style=CAUSES[cause]).append(word(lang, cause), style="dim")
        table.add_column(name, justify="right", no_wrap=width >= 116, overflow="fold")
    for shape, entry in rows:
        bar, drawn, upto = Text(), 0, 0.0
        for part in entry.parts:
            upto += max(0.0, part.share or 0.0)
            cells = min(room, round(upto * room)) - drawn
            bar.append(CAUSE_FILLS[part.name] * cells, style=CAUSES[part.name])
            drawn += cells
        shares = {part.name: percent(part.share) for part in entry.parts}
        host = causes[2]
        cells = [shares.get(cause, plain(None)) for cause in causes]
        if host in shares:
            cells[2] = INFERRED + cells[2]
        table.add_row(Text(shape.short), Text(entry.label), bar, *map(Text, cells))
    yield table


def _growth(growth: Sequence[Growth], width: int, lang: str) -> RenderableType:
    """Sentences where there are few; a table where a large grid would make a page of them."""
    if len(growth) <= 8:
        return Group(*(prose(entry.sentence, width) for entry in growth))
    table = _table()
    for key in ("phase", "input", "output", "conc", "exponent"):
        table.add_column(word(lang, key), justify="left" if key == "phase" else "right", no_wrap=True)
    for entry in growth:
        number = entry.exponent
        span = "" if number.lo is None or number.hi is None else f" [{power(number.lo)}, {power(number.hi)}]"
        exponent = f"{power(number.value or 0.0)}{span}"
        lengths = f"{entry.low:,}–{entry.high:,}"
        output = plain(None) if entry.output_tokens is None else str(entry.output_tokens)
        table.add_row(*map(Text, (entry.metric, lengths, output, level_cell(entry.asked, lang), exponent)))
    return table


def _inside(inside: InsideView, width: int) -> Iterator[RenderableType]:
    for sentence in inside.sentences:
        yield prose(sentence, width)
    tables, life = inside_lines(inside, width)
    for told in tables:
        yield _indented(Text(told.title, style="dim"))
        yield told_table(told)
    if life:
        yield _indented(Text(life, overflow="fold"))


def told_table(told: TextTable) -> Table:
    """A table of text, as wide as it needs to be."""
    table = _table()
    for i, head in enumerate(told.heads):
        table.add_column(head, justify="right" if i else "left", overflow="fold")
    for row in told.rows:
        table.add_row(*map(Text, row))
    return table


def _article(run: RunView, lang: str, width: int) -> Iterator[RenderableType]:
    article = run.article
    if article is None:
        return
    wide = width >= 124
    table = _table()
    table.add_column(word(lang, "article_what"), no_wrap=True)
    table.add_column(word(lang, "tokens"), justify="right", no_wrap=True)
    for key in ("claimed", "floor_claimed", "claimed_ratio", "measured", "floor_here", "measured_ratio"):
        name = word(lang, key) if wide else word(lang, f"{key}_short")
        table.add_column(name, justify="right", no_wrap=True)
    for row in article.rows:
        cells = [row.what, row.lengths, plain(row.claimed_ms), marked(row.floor_claimed)]
        cells += [times(row.claimed_ratio), _cell(row.measured, wide=wide), marked(row.floor_here)]
        table.add_row(*map(Text, [*cells, times(row.measured_ratio)]))
    yield table
    for note in article.notes:
        yield prose(note, width)

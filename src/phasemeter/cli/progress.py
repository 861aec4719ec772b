"""Progress on stderr: a bar with the time left on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from contextlib import contextmanager

from phasemeter.measure.session import Progress, Watcher
from phasemeter.record.clock import Clock
from phasemeter.record.visible import visible

_LINE_EVERY_NS = 5_000_000_000


@contextmanager
def progress(clock: Clock, *, quiet: bool = False) -> Generator[Watcher]:
    """A watcher for `measure`; nothing is shown when `quiet`."""
    if quiet:
        yield lambda _: None
    elif sys.stderr.isatty():
        with _bar() as watch:
            yield watch
    else:
        yield _lines(clock)


def note(text: str) -> None:
    """One line on stderr; where that cannot be written, nothing is measured worse for it."""
    with contextlib.suppress(OSError):
        print(visible(text), file=sys.stderr, flush=True)


def _told(at: Progress) -> str:
    if at.cell is None:
        return "done"
    shape = [f"{at.cell.input_tokens} in, {at.cell.output_tokens} out"] if at.cell.input_tokens else []
    if at.cell.rate_per_s is not None:
        shape.append(f"{at.cell.rate_per_s:g} a second")
    elif at.cell.concurrency is None:
        shape.append("a trace")
    elif at.cell.concurrency > 1:
        shape.append(f"{at.cell.concurrency} at once")
    told = ", ".join(shape) or "one at a time"
    return f"warm-up: {told}" if at.warming else told


def _lines(clock: Clock) -> Watcher:
    last_ns: int | None = None

    def watch(at: Progress) -> None:
        nonlocal last_ns
        now_ns = clock.now_ns()
        if at.cell is not None and last_ns is not None and now_ns - last_ns < _LINE_EVERY_NS:
            return
        last_ns = now_ns
        left = f", about {at.left_s:.0f} s left" if at.left_s else ""
        of = "" if at.planned is None else f" of {at.planned}"
        note(f"measured {at.done}{of}{left} ({_told(at)})")

    return watch


@contextmanager
def _bar() -> Generator[Watcher]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None, left="")

        def watch(at: Progress) -> None:
            left = "" if at.left_s is None else f"about {at.left_s:.0f} s left"
            bar.update(task, description=_told(at), completed=at.done, total=at.planned, left=left)

        yield watch

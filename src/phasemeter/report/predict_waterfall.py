"""Waterfalls on a terminal: a table of steps for each cell."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phasemeter.predict.waterfall import Waterfall
from phasemeter.report.digits import plain
from phasemeter.report.predict_words import say_predicted as say

_STEPS = ("floor", "kernels", "host", "other requests", "queue", "front end", "unexplained")


def render_waterfalls(found: Sequence[Waterfall], lang: str, console: Console) -> None:
    """Print one line a cell and phase; steps that nobody has are left out."""
    used = [name for name in _STEPS if any(step.name == name for one in found for step in one.steps)]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for key in ("phase", "cell", *(f"step_{name}" for name in used), "measured"):
        table.add_column(
            say(lang, key), justify="left" if key in ("phase", "cell") else "right", no_wrap=True
        )
    for one in found:
        steps = {step.name: step.ms for step in one.steps}
        table.add_row(
            say(lang, one.phase),
            f"{one.input_tokens} → {one.output_tokens} ×{one.batch}",
            *(plain(steps[name]) if name in steps else "" for name in used),
            plain(one.measured_ms),
        )
    with console.capture() as capture:
        console.print(Text(say(lang, "waterfall"), style="bold"))
        console.print(table)
    console.file.write("\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n")

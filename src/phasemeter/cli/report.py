"""`phasemeter report`: a page (or a picture) that works offline."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phasemeter.cli.flags import lang_flag
from phasemeter.cli.run_files import read_given
from phasemeter.cli.slo_flag import slo_flag, slo_of
from phasemeter.record.errors import InputError
from phasemeter.record.visible import visible

if TYPE_CHECKING:
    from phasemeter.explain.slo import Slo


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN...")
@click.option(
    "-o",
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE.html|FILE.svg",
    help="What to write: a page, or one picture of the budget.",
)
@click.option("--hardware", metavar="NAME", help="Compute floors for this hardware instead of the run's own.")
@click.option("--model-shape", metavar="NAME|config.json", help="Compute floors for this model shape.")
@slo_flag
@lang_flag
def command(
    runs: tuple[Path, ...],
    out: Path,
    hardware: str | None,
    model_shape: str | None,
    slo: str | None,
    lang: str,
) -> int:
    """Write a run's report as a page that works offline (.html), or as one picture (.svg).

    \b
    Example:
      phasemeter report runs/20261130T101500-local-ernie-4.5-0.3b/run.jsonl -o report.html --lang zh
    """
    write_report(runs, out, lang=lang, hardware=hardware, model_shape=model_shape, slo=slo_of(slo))
    click.echo(str(out))
    return 0


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    lang: str,
    hardware: str | None = None,
    model_shape: str | None = None,
    slo: Slo | None = None,
) -> None:
    """Render the runs, one after the other, to `out` by its suffix. Raises InputError for another suffix or a place
    that cannot be written."""
    from phasemeter.explain.summary import summarise
    from phasemeter.report.view import view_of

    if out.suffix not in (".html", ".svg"):
        raise InputError("--out", str(out), "end it in .html for a page or .svg for a picture")
    pairs = [
        (run, summarise(run, hardware=hardware, model_shape=model_shape, slo=slo))
        for run in map(read_given, runs)
    ]
    view = view_of(pairs, lang)
    part = out.with_name(f"{out.name}.part")  # half a page never stands where a page is expected
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix == ".svg":
            from phasemeter.report.picture import picture_svg

            part.write_text(visible(picture_svg(view)), encoding="utf-8")  # XML holds no control character
        else:
            from phasemeter.report.html import write_html

            write_html(view, part)
        part.replace(out)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise InputError("--out", str(out), f"cannot be written ({error.strerror})") from None

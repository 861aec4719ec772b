"""`phasemeter compare`: what changed between two measurements, and whether a gate holds."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import click
import msgspec

from phasemeter.cli.flags import json_flag, lang_flag
from phasemeter.cli.run_files import read_given
from phasemeter.record.errors import InputError
from phasemeter.record.run import Run

_CODES = {"pass": 0, "fail": 1, "undecided": 3}


@click.command("compare")
@click.argument("base", metavar="BASE[,BASE...]")
@click.argument("new", metavar="NEW[,NEW...]")
@click.option(
    "--gate",
    "gate_text",
    metavar="METRIC:LIMIT,...",
    help="Exit 1 when a limit is broken, 3 when the data cannot tell: ttft_p50:5%, tpot_p50:2ms, ttft_p99:<=200ms.",
)
@click.option(
    "--margin", default="3%", show_default=True, metavar="PERCENT", help="Changes within it are the same."
)
@click.option("--allow", default="", metavar="FIELD,...", help="Fields in which the sides may differ.")
@click.option(
    "--slo", metavar="METRIC=LIMIT,...", help="Compare goodput too: requests that meet ttft=200ms,tpot=20ms."
)
@click.option("--even-invalid", is_flag=True, help="Let runs that their checks call invalid decide a gate.")
@click.option("--all", "everything", is_flag=True, help="Show every metric and quantile.")
@click.option("--markdown", is_flag=True, help="Print Markdown for a pull request's comment.")
@click.option(
    "--junit", type=click.Path(path_type=Path), metavar="FILE.xml", help="Write the gates as JUnit XML too."
)
@json_flag
@lang_flag
def command(
    base: str,
    new: str,
    gate_text: str | None,
    margin: str,
    allow: str,
    slo: str | None,
    even_invalid: bool,
    everything: bool,
    markdown: bool,
    junit: Path | None,
    as_json: bool,
    lang: str,
) -> int:
    """Compare two measurements: the effect on each metric with its interval, and better, worse, same or undecided.

    Several run files a side, parted by commas, are repeats of one measurement. Sides that differ in more than the
    engine's version, flags and other details are refused unless --allow names the field.

    \b
    Example:
      phasemeter compare base.jsonl new.jsonl --gate ttft_p50:5%,tpot_p50:3%
    """
    from phasemeter.explain.compare import compare
    from phasemeter.explain.compare_gate import gate_of, judge, read_gates
    from phasemeter.explain.compare_slo import service_level

    if markdown and as_json:
        raise InputError("--markdown", "with --json", "choose one of them for stdout")
    if junit is not None and gate_text is None:
        raise InputError("--junit", str(junit), "holds one test case a gate; give --gate too")
    gates = () if gate_text is None else read_gates(gate_text)
    comparison = compare(
        _runs(base),
        _runs(new),
        margin_ratio=_margin(margin),
        allow=_names(allow),
        good=None if slo is None else service_level(slo),
    )
    results = judge(gates, comparison, even_invalid=even_invalid)
    if as_json:
        from phasemeter.explain.compare_json import comparison_json

        told = msgspec.json.encode(comparison_json(comparison, results))
        click.echo(msgspec.json.format(told, indent=2).decode())
    from phasemeter.report.compare_view import compare_view

    view = compare_view(comparison, results, lang, everything=everything)
    if junit is not None:
        from phasemeter.report.compare_junit import comparison_junit

        _write(junit, comparison_junit(view))
    if markdown:
        from phasemeter.report.compare_markdown import comparison_markdown

        click.echo(comparison_markdown(view), nl=False)
    elif not as_json:
        from rich.console import Console

        from phasemeter.report.compare_terminal import render_comparison

        # Piped output keeps a readable width; a terminal its own.
        render_comparison(view, Console(width=None if sys.stdout.isatty() else 110, highlight=False))
    gate = gate_of(results)
    return 0 if gate is None else _CODES[gate.value]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _runs(text: str) -> list[Run]:
    if Path(text).exists():  # a name may hold a comma
        return [read_given(Path(text))]
    names = _names(text)
    if not names:
        raise InputError("run file", text, "name at least one")
    return [read_given(Path(name)) for name in names]


def _margin(text: str) -> float:
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = math.nan
    if not 0.0 <= percent < 100.0:
        raise InputError("--margin", text, "give a share in per cent from 0 to below 100, such as 3%")
    return percent / 100.0


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("--junit", str(path), f"cannot be written ({error.strerror})") from None

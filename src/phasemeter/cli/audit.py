"""`phasemeter audit`: are these numbers and sentences about inference time possible?"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from phasemeter.cli.flags import json_flag, lang_flag


@click.command("audit")
@click.argument("path", metavar="CLAIMS.toml|CLAIMS.csv", type=click.Path(path_type=Path))
@click.option(
    "--working/--no-working",
    default=True,
    show_default=True,
    help="Show each verdict's arithmetic below the table.",
)
@click.option("--strict", is_flag=True, help="Exit 1 when a claim is impossible, implausible or false.")
@json_flag
@lang_flag
def command(path: Path, working: bool, strict: bool, as_json: bool, lang: str) -> int:
    """Judge claims about prefill and decode times by arithmetic: floors of the hardware, bounds of the host, the
    source's own other rows, releases of engines. Nothing is run.

    \b
    Examples:
      phasemeter audit examples/article-claims.toml
      phasemeter audit examples/public-4090-claims.csv --no-working --lang zh
    """
    from phasemeter.explain.audit.judge import audit
    from phasemeter.explain.audit.read import read_claims
    from phasemeter.explain.audit.verdict import REFUTED
    from phasemeter.report.audit_view import audit_json, audit_view

    claims = read_claims(path)
    judged = audit(claims)
    view = audit_view(claims, judged, lang)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(audit_json(view)), indent=2).decode())
    else:
        from rich.console import Console

        from phasemeter.report.audit_terminal import render_audit

        # Piped output keeps a readable width; a terminal its own.
        render_audit(
            view, Console(width=None if sys.stdout.isatty() else 110, highlight=False), working=working
        )
    return 1 if strict and any(one.verdict in REFUTED for one in judged) else 0

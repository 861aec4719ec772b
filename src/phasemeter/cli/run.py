"""`phasemeter run`: the main job. Measure, explain on the terminal, write the report."""

from __future__ import annotations

from pathlib import Path

import click

from phasemeter.cli.explain import show
from phasemeter.cli.flags import (
    engine_flags,
    engine_spec,
    grid_flags,
    grid_of,
    json_flag,
    lang_flag,
    scrape_every,
)
from phasemeter.cli.measure import perform_kept
from phasemeter.cli.measuring import Job, now, run_name
from phasemeter.cli.progress import note
from phasemeter.cli.report import write_report
from phasemeter.record.errors import InputError


@click.command("run")
@engine_flags
@grid_flags
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for run.jsonl and report.html. [default: runs/TIME-ENGINE-MODEL]",
)
@click.option("--strict", is_flag=True, help="Exit 1 when the run's verdict is invalid.")
@json_flag
@lang_flag
def command(out: Path | None, strict: bool, as_json: bool, lang: str, **options: object) -> int:
    """Measure a model or server, explain where the time goes, write the report.

    \b
    Examples:
      phasemeter run --engine local --model ernie-4.5-0.3b --input-tokens 64,128,256 --output-tokens 16
      phasemeter run --engine openai --url http://127.0.0.1:8000 --api chat --input-tokens 64,512 \\
          --hardware a100-80gb-sxm --model-shape qwen3-0.6b
    """
    spec, grid, started = engine_spec(options), grid_of(options), now()
    folder = out if out is not None else Path("runs") / run_name(spec, started)
    hardware, model_shape = options["hardware"], options["model_shape"]
    job = Job(
        spec=spec,
        grid=grid,
        out=folder / "run.jsonl",
        started=started,
        scrape_s=scrape_every(options),
        hardware=hardware if isinstance(hardware, str) else None,
        model_shape=model_shape if isinstance(model_shape, str) else None,
    )
    page = folder / "report.html"
    if page.exists():
        raise InputError("--out", str(folder), "holds a report already; name a new folder")
    interrupted = perform_kept(job)
    invalid = show(job.out, as_json=as_json, lang=lang)
    try:
        write_report([job.out], page, lang=lang)
    except InputError as error:
        note(f"no report page: {error}")
    else:
        note(f"run: {job.out}\nreport: {page}")
    if interrupted:
        return 130
    return 1 if strict and invalid else 0

"""`phasemeter measure`: one run file, nothing else."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from phasemeter.cli.crew import check_crew, crew_flags
from phasemeter.cli.find_flag import find_flags, first_level, found_text, quest_of
from phasemeter.cli.flags import engine_flags, engine_spec, grid_flags, grid_of, json_flag, scrape_every
from phasemeter.cli.load_flags import given, load_flags, load_of
from phasemeter.cli.measuring import Job, now, perform, run_name
from phasemeter.cli.progress import note
from phasemeter.cli.sections import SectionedCommand
from phasemeter.measure.find import found_in
from phasemeter.record.file import read_run


@click.command("measure", cls=SectionedCommand)
@engine_flags
@grid_flags
@load_flags
@find_flags
@crew_flags
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="RUN.jsonl",
    help="Run file to write. [default: runs/TIME-ENGINE-MODEL.jsonl]",
)
@click.option("--keep-text", is_flag=True, help="Keep the generated text in the record.")
@click.option(
    "--no-ceilings", is_flag=True, help="Do not measure this machine's ceilings first (local engine)."
)
@click.option("--strict", is_flag=True, help="Exit 1 when the run's verdict is invalid.")
@json_flag
def command(
    out: Path | None, keep_text: bool, no_ceilings: bool, strict: bool, as_json: bool, **options: object
) -> int:
    """Measure a grid of lengths and concurrency, or a load, into a run file.

    \b
    Examples:
      phasemeter measure --engine openai --url http://127.0.0.1:8000 --input-tokens 64,512 \\
          --output-tokens 64 --concurrency 1,8 --repeats 5 --out run.jsonl
      phasemeter measure --engine openai --url http://127.0.0.1:8000 --rate 2,4,8 --duration 60 \\
          --input-tokens 128 --output-tokens 64 --out load.jsonl
      phasemeter measure --engine openai --url http://127.0.0.1:8000 --find rate --between 1:64 --duration 60 \\
          --slo ttft_p99=200ms,tpot_p99=20ms --input-tokens 128 --output-tokens 64 --out found.jsonl
    """
    quest = quest_of(options, given())
    chosen = given() | first_level(quest, options)
    spec, grid, started = engine_spec(options), grid_of(options), now()
    load = load_of(options, grid, chosen)
    workers = whole if isinstance(whole := options["workers"], int) else 1
    check_crew(spec, workers, _optional(options["on"]), searching=quest is not None)
    job = Job(
        spec=spec,
        grid=grid,
        out=out if out is not None else Path("runs") / f"{run_name(spec, started)}.jsonl",
        started=started,
        scrape_s=scrape_every(options),
        hardware=_optional(options["hardware"]),
        model_shape=_optional(options["model_shape"]),
        keep_text=keep_text,
        ceilings=not no_ceilings,
        load=load,
        quest=quest,
        workers=workers,
        on=_optional(options["on"]),
    )
    return finish(job, as_json=as_json, strict=strict)


def finish(job: Job, *, as_json: bool, strict: bool) -> int:
    """Measure, then say in one line what was kept and whether it is to be believed."""
    from phasemeter.explain.summary import summarise

    interrupted = perform_kept(job)
    summary = summarise(read_run(job.out), slo=None if job.quest is None else job.quest.slo)
    found = None if job.quest is None else found_in(job.quest, summary.under_load.levels)
    told: dict[str, object] = {
        "run": str(job.out),
        "ok": summary.requests.ok,
        "failed": summary.requests.failed,
        "verdict": summary.verdict,
        "interrupted": interrupted,
    }
    if found is not None:
        told["found"] = msgspec.to_builtins(found)
    if as_json:
        click.echo(msgspec.json.encode(told).decode())
    else:
        click.echo(
            f"{job.out}: {summary.requests.ok} requests measured, {summary.requests.failed} failed, "
            f"verdict {summary.verdict}; read it with: phasemeter explain {job.out}"
        )
        if job.quest is not None and found is not None:
            click.echo(found_text(job.quest, found))
    if interrupted:
        return 130
    if found is not None and found.reason in ("undecided", "budget"):
        return 3
    return 1 if strict and summary.verdict == "invalid" else 0


def perform_kept(job: Job) -> bool:
    """Measure; True when Ctrl-C ended it and something was kept. Interrupted before the first line, it ends here."""
    try:
        perform(job)
    except KeyboardInterrupt:
        if not job.out.exists():
            raise
        note(f"interrupted; what was measured is kept in {job.out}")
        return True
    return False


def _optional(value: object) -> str | None:
    return value if isinstance(value, str) else None

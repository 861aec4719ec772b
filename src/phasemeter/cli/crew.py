"""`--workers` and `--on`: one run from several processes, here or on the machines of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click
from msgspec import Struct
from msgspec.structs import replace

from phasemeter.cli.progress import note
from phasemeter.engines.spec import EngineSpec
from phasemeter.measure.load import Load, Share
from phasemeter.measure.plan import Grid
from phasemeter.measure.recording import Beside
from phasemeter.record.clock import Clock
from phasemeter.record.engine import Engine
from phasemeter.record.errors import InputError
from phasemeter.record.run import Header
from phasemeter.record.scrape import Metered

F = TypeVar("F", bound=Callable[..., object])


class CrewJob(Struct, frozen=True):
    """One run for several processes; either `grid` or `load`."""

    spec: EngineSpec
    header: Header
    out: Path
    workers: int
    on: str | None
    beside: Beside
    grid: Grid | None = None
    load: Load | None = None


MOST_WORKERS = 256
_OVER_HTTP = frozenset({"openai", "vllm"})


def crew_flags(function: F) -> F:
    """Who sends it."""
    for option in (
        click.option(
            "--on",
            metavar="ADDRESS",
            help="Send from the machines of a Ray cluster: auto, HOST:PORT or ray://HOST:PORT.",
        ),
        click.option(
            "--workers",
            type=click.IntRange(1, MOST_WORKERS),
            default=1,
            show_default=True,
            metavar="N",
            help="Processes that send the run together; each has a core of its own where there are enough.",
        ),
    ):
        function = option(function)
    return function


def check_crew(spec: EngineSpec, workers: int, on: str | None, *, searching: bool) -> None:
    """Raises InputError for what several processes cannot do."""
    if workers == 1 and on is None:
        return
    field, value = ("--on", on) if on is not None else ("--workers", str(workers))
    if spec.kind not in _OVER_HTTP:
        mend = f"--engine {spec.kind} runs in one process; several can only send to a server (openai, vllm)"
        raise InputError(field, value, mend)
    if searching:
        raise InputError(field, value, "--find sends from one process; leave one of them out")
    if on is not None and spec.kind == "vllm" and spec.url is None:
        mend = "a vLLM started here listens on this machine alone; start it apart and give its --url"
        raise InputError(field, on, mend)


def sending_spec(spec: EngineSpec, engine: Engine) -> EngineSpec:
    """How a worker reaches the engine that we have started or found."""
    place = engine.metrics_place() if isinstance(engine, Metered) else None
    url = spec.url or (None if place is None else place.url.removesuffix("/metrics"))
    return replace(
        spec,
        url=url,
        model=engine.info.model or spec.model,  # a server of ours names a folder's model after the folder
        engine_python=None,
        engine_flags=(),
        engine_log=None,
        engine_plugin=False,
        engine_steps=False,
        engine_spans=False,
        environment={},
        cache=None,
    )


async def send_in_workers(job: CrewJob, engine: Engine, clock: Clock) -> None:
    """Measure in workers. Raises what `measure_in_workers` does, and InputError where the cluster cannot be reached."""
    from phasemeter.measure.hands import hire_here
    from phasemeter.measure.worker import Order
    from phasemeter.measure.workers import measure_in_workers

    order = Order(
        spec=sending_spec(job.spec, engine),
        header=job.header,
        out="",
        share=Share(of=job.workers),
        grid=job.grid,
        load=job.load,
        keep_text=job.beside.keep_text,
    )
    if job.on is None:
        hire, leave = hire_here, None
    else:
        from phasemeter.measure.ray_workers import disconnect, hire_on

        hire, leave = hire_on(job.on, clock, note), disconnect
    try:
        await measure_in_workers(
            order, clock, job.out, hire, planned=job.header.planned, beside=job.beside, engine=engine
        )
    finally:
        if leave is not None:
            leave()

"""What `run` and `measure` share: open the engine, describe the machine, run the session, keep what was measured."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from phasemeter.cli.crew import CrewJob, send_in_workers
from phasemeter.cli.progress import note, progress
from phasemeter.engines import open_engine
from phasemeter.engines.spec import EngineSpec
from phasemeter.launch.child import StartError
from phasemeter.measure.find import Quest, find_level, quest_settings
from phasemeter.measure.load import Load
from phasemeter.measure.load_session import measure_load, planned_requests_of
from phasemeter.measure.plan import Grid, check_grid, planned_requests
from phasemeter.measure.session import Beside, measure
from phasemeter.measure.telemetry import Probe
from phasemeter.record.clock import Anchor, MonotonicClock, anchor, wall_text
from phasemeter.record.engine import Engine, EngineInfo
from phasemeter.record.errors import InputError
from phasemeter.record.file import check_place
from phasemeter.record.run import Header
from phasemeter.roofline.hardware import find_hardware
from phasemeter.roofline.model import load_shape

_ELSEWHERE = frozenset({"openai", "vllm", "vllm-local"})
"""Engines that calculate in another process: ours has a loop to serve."""


class Job(Struct, frozen=True):
    """Everything that one measuring command was asked for."""

    spec: EngineSpec
    grid: Grid
    out: Path
    started: Anchor
    hardware: str | None = None
    model_shape: str | None = None
    quiet: bool = False
    keep_text: bool = False
    ceilings: bool = True
    scrape_s: float = 1.0
    load: Load | None = None
    """Measured instead of the grid."""
    workers: int = 1
    on: str | None = None
    """Address of the Ray cluster whose machines send it."""
    quest: Quest | None = None
    """Searches for the largest level of `load` instead of measuring its stages."""


def run_name(spec: EngineSpec, started: Anchor) -> str:
    """A folder or file stem for a run, such as 20261130T101500-local-ernie-4.5-0.3b."""
    stamp = re.sub(r"[-:Z]", "", wall_text(started.wall_ns))
    host = urlsplit(spec.url).netloc.rpartition("@")[2] if spec.url else ""
    named = Path(spec.model).name if spec.model else host
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", named).strip("-.")
    return "-".join(part for part in (stamp, spec.kind, slug) if part)


def now() -> Anchor:
    """The clock's anchor, taken when a command starts."""
    return anchor(MonotonicClock())


def perform(job: Job) -> None:
    """Measure. Raises what the session raises; KeyboardInterrupt after everything measured is on disk."""
    check_place(job.out)
    if job.hardware is not None:
        find_hardware(job.hardware)  # a wrong name is told before anything is loaded
    if job.model_shape is not None:
        load_shape(job.model_shape)
    if job.spec.kind in _ELSEWHERE:
        # numpy would start a thread a core for sums this small, and they spin beside the event loop
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with asyncio.Runner(loop_factory=_loop_factory(job.spec)) as runner:
        try:
            runner.run(_perform(job))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def _heed_sigterm() -> None:
    """What ends a job (systemd, a CI runner) deserves what Ctrl-C gets: the rest parsed, a footer, engines stopped. The
    background jobs of a shell script ignore SIGINT; SIGTERM must end those, too."""
    on_interrupt, task = signal.getsignal(signal.SIGINT), asyncio.current_task()
    if on_interrupt == signal.SIG_IGN and task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    else:
        signal.signal(signal.SIGTERM, on_interrupt)


async def _perform(job: Job) -> None:
    _heed_sigterm()
    clock = MonotonicClock()
    log = job.out.with_name(f"{job.out.stem}.engine.log")
    engine = open_engine(replace(job.spec, engine_log=str(log)), clock)
    try:
        if not job.quiet:
            what = "measuring" if job.spec.url else "starting"
            note(f"{what} {job.spec.kind}: {job.spec.model or job.spec.url or 'the simulated model'}")
            if isinstance(engine, Talkative):
                engine.tell_with(note)
        await _start(engine)
        if job.load is None:
            check_grid(job.grid, engine.info.max_context_tokens)
        header = await _header(job, engine, clock)
        with progress(clock, quiet=job.quiet) as watch:
            beside = Beside(
                watch=watch,
                probes=_probes(engine.info),
                keep_text=job.keep_text,
                scrape_s=job.scrape_s,
                ceilings=None if header.ceilings is None else partial(_measured_ceilings, engine.info, clock),
            )
            if job.workers > 1 or job.on is not None:
                asked = CrewJob(
                    job.spec,
                    header,
                    job.out,
                    job.workers,
                    job.on,
                    beside,
                    None if job.load else job.grid,
                    job.load,
                )
                await send_in_workers(asked, engine, clock)
            elif job.load is None:
                await measure(engine, job.grid, clock, job.out, header, beside)
            elif job.quest is not None:
                await find_level(engine, job.load, job.quest, clock, job.out, header, beside)
            else:
                await measure_load(engine, job.load, clock, job.out, header, beside)
    finally:
        await engine.close()


@runtime_checkable
class Talkative(Protocol):
    """An engine that takes long to start and says how far it is."""

    def tell_with(self, tell: Callable[[str], None]) -> None:
        """Call `tell` with a line now and then."""
        ...


async def _start(engine: Engine) -> None:
    try:
        await engine.start()
    except StartError as error:
        for line in error.tail:
            note(f"  | {line}")
        raise


async def _header(job: Job, engine: Engine, clock: MonotonicClock) -> Header:
    from phasemeter.measure.environment import fingerprint
    from phasemeter.measure.header import FINGERPRINTED, Asked, make_header

    info = engine.info
    machine = fingerprint(FINGERPRINTED)
    shape = _shape(job, engine)
    ceilings = None
    if job.ceilings and job.spec.kind == "local":
        if not job.quiet:
            note("measuring this machine's ceilings: read bandwidth, GEMM rate, launch cost")
        ceilings = await asyncio.to_thread(_measured_ceilings, info, clock)
    asked = Asked(
        started=job.started,
        settings=settings_of(job),
        planned=planned_requests(job.grid) if job.load is None else planned_requests_of(job.load),
        shape=shape,
        hardware=_hardware_name(job, info, machine.cpu),
        ceilings=ceilings,
        notes=getattr(engine, "notes", ()),
    )
    return make_header(info, asked, clock, machine)


def settings_of(job: Job) -> dict[str, object]:
    """The header's settings: all that was asked for and that a merge must agree on."""
    from phasemeter.measure.header import grid_settings, load_settings

    if job.load is not None:
        settings = load_settings(job.load) | {"scrape_s": job.scrape_s}
        settings |= _crew_settings(job)
        return settings if job.quest is None else settings | quest_settings(job.quest)
    settings = grid_settings(job.grid) | {"timeout_s": job.spec.timeout_s, "driver": "closed loop"}
    return settings | {"scrape_s": job.scrape_s} | _crew_settings(job)


def _crew_settings(job: Job) -> dict[str, object]:
    """Told only where several processes were asked for: a run of one merges with those of before."""
    return {} if job.workers == 1 and job.on is None else {"workers": job.workers, "on": job.on}


def _measured_ceilings(info: EngineInfo, clock: MonotonicClock) -> dict[str, object]:
    from phasemeter.measure.ceilings import measure_ceilings

    dtypes = tuple(dict.fromkeys((info.dtype or "float32", "float32")))
    ceilings = measure_ceilings(info.device or "cpu", dtypes, clock)
    return msgspec.to_builtins(ceilings)


def _shape(job: Job, engine: Engine) -> dict[str, object] | None:
    """The model's shape: as asked for, else as the engine knows it, else by the model's name if that is a preset."""
    if job.model_shape is not None:
        return msgspec.to_builtins(load_shape(job.model_shape))
    known = getattr(engine, "shape", None)
    if known is not None:
        return msgspec.to_builtins(known)
    if job.spec.kind == "simulated":
        return None
    try:
        return msgspec.to_builtins(load_shape(engine.info.model))
    except InputError:
        return None


def _hardware_name(job: Job, info: EngineInfo, cpu: str) -> str | None:
    """The datasheet row: as asked for, else matched from the local device's own name, else None. A server elsewhere
    is never guessed at."""
    from phasemeter.measure.nvml import gpus
    from phasemeter.roofline.hardware import match_hardware

    if job.hardware is not None:
        return find_hardware(job.hardware).name
    if not _here(job.spec.kind, job.spec.url):
        return None
    if (info.device or "cpu").startswith("cuda"):
        index = int(info.device.partition(":")[2] or 0) if info.device else 0
        cards = gpus()
        found = match_hardware(cards[index].name, cards[index].memory_bytes) if index < len(cards) else None
    else:
        found = match_hardware(cpu, None)
    return found.name if found is not None else None


def _probes(info: EngineInfo) -> tuple[Probe, ...]:
    """Power, clocks and load of the GPU of an engine that runs on this machine."""
    from phasemeter.measure.nvml import sample_gpu

    device = info.device or ""
    if not _here(info.kind, info.url) or not device.startswith("cuda"):
        return ()
    index = int(device.partition(":")[2] or 0)
    return (lambda: sample_gpu(index),)


def _here(kind: str, url: str | None) -> bool:
    """Whether the engine runs on this machine because we started it."""
    return kind in {"local", "vllm-local"} or (kind == "vllm" and url is None)


def _loop_factory(spec: EngineSpec) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if spec.kind not in _ELSEWHERE:
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop

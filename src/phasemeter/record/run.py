"""A run: its header, its requests, its telemetry samples and its footer; and why two runs may not be mixed."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from phasemeter.record.clock import Anchor
from phasemeter.record.engine import EngineInfo, EngineStep, SeenRequest
from phasemeter.record.errors import InputError
from phasemeter.record.scrape import Scrape
from phasemeter.record.timeline import Timeline

SCHEMA = 2
"""Version of the record on disk; its history stands in `record/file.py`."""


class Gpu(Struct, frozen=True, omit_defaults=True):
    """One GPU as its driver names it. Clocks in MHz, power limit in watts."""

    name: str
    memory_bytes: int | None = None
    driver: str | None = None
    uuid: str | None = None
    clock_max_mhz: int | None = None
    power_limit_w: float | None = None


class Machine(Struct, frozen=True, omit_defaults=True):
    """Fingerprint of the machine that the client (and an in-process engine) ran on."""

    host: str
    os: str
    cpu: str
    cores: int
    memory_bytes: int | None = None
    gpus: tuple[Gpu, ...] = ()
    governor: str | None = None
    clock_source: str | None = None
    virtualised: bool | None = None
    load_1min: float | None = None
    cpu_features: tuple[str, ...] = ()
    python: str = ""
    versions: dict[str, str] = {}


class Header(Struct, frozen=True, tag="header"):
    """First line of a run file.

    `settings` is everything that was asked for (grid, repeats, seed, warm-up, time-outs); `shape` the model's shape
    as `roofline.model` describes it; `hardware` the name of its datasheet row; `ceilings` what was measured on this
    machine (see `roofline.hardware.Ceilings`). None where unknown.
    """

    schema: int
    run_id: str
    phasemeter: str
    anchor: Anchor
    engine: EngineInfo
    machine: Machine
    settings: dict[str, object]
    shape: dict[str, object] | None = None
    hardware: str | None = None
    ceilings: dict[str, object] | None = None
    planned: int | None = None
    notes: tuple[str, ...] = ()


class Sample(Struct, frozen=True, tag="sample"):
    """Telemetry at one moment; names carry their units (`client_cpu_ratio`, `loop_lag_ns`, `gpu_power_w`)."""

    t_ns: int
    values: dict[str, float]


class Footer(Struct, frozen=True, tag="footer", omit_defaults=True):
    """Last line of a run that ended by itself or by Ctrl-C; a run without one was killed. `ceilings` were measured
    again at the end: neighbours on a shared machine can only lower them, so the better of the two counts."""

    end_ns: int
    interrupted: bool = False
    client_cpu_ns: int | None = None
    error: str | None = None
    ceilings: dict[str, object] | None = None


class Run(Struct, frozen=True):
    """A run as read back. `cut` says that the file ends inside a line (the process was killed); `damaged` lists line
    numbers that could not be read and were left out."""

    header: Header
    requests: Sequence[Timeline]
    samples: tuple[Sample, ...] = ()
    seen: tuple[SeenRequest, ...] = ()
    steps: tuple[EngineStep, ...] = ()
    scrapes: tuple[Scrape, ...] = ()
    footer: Footer | None = None
    cut: bool = False
    damaged: tuple[int, ...] = ()
    name: str = ""


def identity(header: Header) -> dict[str, object]:
    """The fields in which two runs must agree to be one measurement: machine, model, engine, settings."""
    engine, machine = header.engine, header.machine
    fields: dict[str, object] = {
        "machine.host": machine.host,
        "machine.cpu": machine.cpu,
        "machine.cores": machine.cores,
        "machine.gpus": tuple(gpu.name for gpu in machine.gpus),
        "engine.kind": engine.kind,
        "engine.version": engine.version,
        "engine.url": engine.url,
        "engine.api": engine.api,
        "engine.model": engine.model,
        "engine.weights": engine.weights,
        "engine.dtype": engine.dtype,
        "engine.device": engine.device,
        "model shape": header.shape,
    }
    fields |= {f"engine.{name}": value for name, value in engine.details.items()}
    fields |= {
        f"settings.{name}": value for name, value in header.settings.items() if name not in _MAY_DIFFER
    }
    return fields


_MAY_DIFFER = frozenset({"seed", "repeats", "out", "progress", "name", "scrape_s"})


def differences(a: Header, b: Header) -> list[str]:
    """Each field in which two runs differ, as "field: a is not b"; empty when they may be merged."""
    left, right = identity(a), identity(b)
    names = list(left) + [name for name in right if name not in left]
    return [
        f"{name}: {left.get(name)!r} is not {right.get(name)!r}"
        for name in names
        if left.get(name) != right.get(name)
    ]


def merge(runs: Sequence[Run]) -> Run:
    """Pool the requests of runs of one measurement. Raises InputError when they differ in hardware, model, engine or
    settings, or when there is none. Stamps of different runs are never compared: each keeps its own origin, and
    request ids get the run's id in front."""
    if not runs:
        raise InputError("runs", "none", "give at least one run file")
    first = runs[0]
    for other in runs[1:]:
        found = differences(first.header, other.header)
        if found:
            raise InputError(
                "runs",
                f"{first.name or first.header.run_id} and {other.name or other.header.run_id}",
                "they are not one measurement and cannot be merged: " + "; ".join(found[:4]),
            )
    ids = [run.header.run_id for run in runs]
    if len(set(ids)) != len(ids):
        raise InputError("runs", ", ".join(ids), "the same run was given twice")
    if len(runs) == 1:
        return first
    requests = tuple(
        replace(timeline, id=f"{run.header.run_id}/{timeline.id}")
        for run in runs
        for timeline in run.requests
    )
    planned = [run.header.planned for run in runs]
    known = [p for p in planned if p is not None]
    header = replace(first.header, planned=sum(known) if len(known) == len(planned) else None)
    return Run(
        header=header,
        requests=requests,
        samples=tuple(sample for run in runs for sample in run.samples),
        seen=tuple(
            replace(line, request=f"{run.header.run_id}/{line.request}") for run in runs for line in run.seen
        ),
        steps=(),  # steps of two runs lie on two clocks
        scrapes=(),  # of a server that may have been another one
        footer=first.footer,
        cut=any(run.cut for run in runs),
        damaged=tuple(line for run in runs for line in run.damaged),
        name=" + ".join(run.name or run.header.run_id for run in runs),
    )

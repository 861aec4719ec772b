"""`phasemeter doctor`: what on this machine would spoil a measurement, and the mend."""

from __future__ import annotations

import importlib.util
import sys

import click
import msgspec
from msgspec import Struct

from phasemeter.cli.flags import json_flag
from phasemeter.record.run import Machine


class Ailment(Struct, frozen=True):
    """One thing looked at; `mend` is None when it is well."""

    name: str
    found: str
    mend: str | None = None


@click.command("doctor")
@json_flag
def command(as_json: bool) -> int:
    """Say what on this machine would spoil a measurement, and how to mend it.

    \b
    Example:
      phasemeter doctor
    """
    from phasemeter.measure.environment import fingerprint

    machine = fingerprint(("torch", "transformers", "numpy", "plotly", "scipy"))
    ailments = examine(machine)
    if as_json:
        found = {"machine": msgspec.to_builtins(machine), "checks": msgspec.to_builtins(ailments)}
        click.echo(msgspec.json.encode(found).decode())
        return 0
    for ailment in ailments:
        click.echo(f"{'ok  ' if ailment.mend is None else 'look'}  {ailment.name:<14} {ailment.found}")
        if ailment.mend is not None:
            click.echo(f"      {'':<14} {ailment.mend}")
    return 0


def examine(machine: Machine) -> list[Ailment]:
    """Everything that is looked at, well or not."""
    found = [_cpu(machine), _gpu(machine), _load(machine), _governor(machine), _clock(machine)]
    found += [_files(), _torch(machine), _extra("plotly", "report", "report pages")]
    return [ailment for ailment in found if ailment is not None]


def _cpu(machine: Machine) -> Ailment:
    units = [f for f in ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "neon") if f in machine.cpu_features]
    found = f"{machine.cpu}, {machine.cores} cores, {', '.join(units) or 'no vector units that we know'}"
    native = {"amx_bf16", "avx512_bf16"} & set(machine.cpu_features)
    mend = None if native else "no bfloat16 units: bfloat16 is emulated and slow here, use --dtype float32"
    return Ailment("cpu", found, mend)


def _gpu(machine: Machine) -> Ailment:
    if machine.gpus:
        return Ailment("gpu", ", ".join(f"{gpu.name} (driver {gpu.driver})" for gpu in machine.gpus))
    return Ailment("gpu", "no NVIDIA driver answers: models run on the CPU")


def _load(machine: Machine) -> Ailment | None:
    if machine.load_1min is None:
        return None
    busy = machine.load_1min > 0.3 * machine.cores
    mend = "other programs use the CPU: stop them or expect wide intervals" if busy else None
    return Ailment("load", f"{machine.load_1min:.2f} over the last minute on {machine.cores} cores", mend)


def _governor(machine: Machine) -> Ailment | None:
    if machine.governor is None:
        return None
    slow = machine.governor in ("powersave", "conservative", "ondemand")
    mend = "clocks follow the load: set the governor to performance while measuring" if slow else None
    return Ailment("governor", machine.governor, mend)


def _clock(machine: Machine) -> Ailment | None:
    if machine.clock_source is None:
        return None
    slow = machine.clock_source in ("hpet", "acpi_pm", "jiffies")
    mend = "every stamp costs a slow read: boot with clocksource=tsc where it is stable" if slow else None
    where = " (virtual machine)" if machine.virtualised else ""
    return Ailment("clock", f"{machine.clock_source}{where}", mend)


def _files() -> Ailment | None:
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    mend = f"too few for 1,000 streams: ulimit -n {min(hard, 65536)}" if soft < 2048 else None
    return Ailment("open files", f"limit {soft}", mend)


def _torch(machine: Machine) -> Ailment:
    version = machine.versions.get("torch")
    if version is None:
        return Ailment(
            "torch", "not installed; only --engine local needs it", "pip install 'phasemeter[local]'"
        )
    if machine.gpus or "+cpu" in version or importlib.util.find_spec("nvidia") is None:
        return Ailment("torch", version)
    mend = "a CUDA build on a machine without a GPU: it works on the CPU, but takes gigabytes of disk"
    return Ailment("torch", version, mend)


def _extra(module: str, extra: str, what: str) -> Ailment:
    if importlib.util.find_spec(module) is not None:
        return Ailment(module, "installed")
    return Ailment(module, f"not installed; {what} need it", f"pip install 'phasemeter[{extra}]'")

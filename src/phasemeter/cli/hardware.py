"""`phasemeter hardware`: the table that floors are computed from, and this machine beside it."""

from __future__ import annotations

import click
import msgspec

from phasemeter.cli.flags import json_flag
from phasemeter.cli.progress import note
from phasemeter.record.clock import MonotonicClock
from phasemeter.record.errors import InputError
from phasemeter.roofline.hardware import Ceilings, Hardware, all_hardware, find_hardware, match_hardware

_DTYPES = ("float32", "bfloat16", "float16", "float8", "int8")


@click.command("hardware")
@click.argument("name", required=False)
@click.option(
    "--measure",
    "measured",
    is_flag=True,
    help="Measure this machine's ceilings: read and copy bandwidth, "
    "GEMM rate, launch cost (some seconds; with torch where it is installed, else with numpy).",
)
@click.option(
    "--device", default="auto", show_default=True, help="Device to measure: auto, cpu, cuda or cuda:N."
)
@json_flag
def command(name: str | None, measured: bool, device: str, as_json: bool) -> int:
    """List the hardware table, show one row with its source, or measure this machine.

    \b
    Examples:
      phasemeter hardware
      phasemeter hardware a100-40gb-sxm
      phasemeter hardware --measure
    """
    if measured and name is not None:
        raise InputError("NAME", name, "--measure looks at this machine, not at a row; leave one of them out")
    if measured:
        return _measure(device, as_json=as_json)
    rows = (find_hardware(name),) if name is not None else all_hardware()
    if as_json:
        click.echo(msgspec.json.encode({"hardware": msgspec.to_builtins(rows)}).decode())
    elif name is not None:
        _one(rows[0])
    else:
        _table(rows)
    return 0


def _table(rows: tuple[Hardware, ...]) -> None:
    click.echo(f"{'name':<24}{'bf16 TFLOP/s':>14}{'fp32 TFLOP/s':>14}{'GB/s':>9}{'memory GiB':>12}")
    for row in rows:
        bf16 = row.peak_flops_per_s.get("bfloat16") or row.peak_flops_per_s.get("float16")
        memory = None if row.memory_bytes is None else row.memory_bytes / 2**30
        click.echo(
            f"{row.name:<24}{_tera(bf16):>14}{_tera(row.peak_flops_per_s.get('float32')):>14}"
            f"{row.memory_bandwidth_bytes_per_s / 1e9:>9.0f}{'-' if memory is None else f'{memory:.0f}':>12}"
        )
    click.echo("Dense peaks, no sparsity; `phasemeter hardware NAME` shows a row's source.")


def _one(row: Hardware) -> None:
    click.echo(f"{row.title} ({row.name})")
    for dtype in _DTYPES:
        peak = row.peak_flops_per_s.get(dtype)
        click.echo(f"  {dtype:<10} {'no units for it' if peak is None else f'{peak / 1e12:.4g} TFLOP/s'}")
    click.echo(f"  memory     {row.memory_bandwidth_bytes_per_s / 1e9:.4g} GB/s")
    if row.memory_bytes is not None:
        click.echo(f"  capacity   {row.memory_bytes / 2**30:.4g} GiB")
    if row.link_bytes_per_s is not None:
        click.echo(f"  link       {row.link_bytes_per_s / 1e9:.4g} GB/s, both directions")
    click.echo(f"  source     {row.source}")
    if row.note:
        click.echo(f"  note       {row.note}")


def _measure(device: str, *, as_json: bool) -> int:
    from phasemeter.measure.ceilings import measure_ceilings
    from phasemeter.measure.environment import fingerprint

    if not as_json:
        note("measuring; keep the machine idle for some seconds")
    machine = fingerprint(("torch", "numpy"))
    ceilings = measure_ceilings(device, ("float32", "bfloat16"), MonotonicClock())
    on_gpu = not ceilings.device.startswith("CPU ")
    cards = [card for card in machine.gpus if card.name == ceilings.device]
    if on_gpu:
        row = match_hardware(ceilings.device, cards[0].memory_bytes if cards else None)
    else:
        row = match_hardware(machine.cpu)
    if as_json:
        found = {
            "machine": msgspec.to_builtins(machine),
            "ceilings": msgspec.to_builtins(ceilings),
            "datasheet": None if row is None else msgspec.to_builtins(row),
        }
        click.echo(msgspec.json.encode(found).decode())
        return 0
    _beside(ceilings, row)
    return 0


def _beside(ceilings: Ceilings, row: Hardware | None) -> None:
    title = row.title if row is not None else "not in the table"
    threads = "" if ceilings.threads is None else f", {ceilings.threads} threads"
    click.echo(f"{ceilings.device}{threads}   datasheet: {title}")
    click.echo(f"  {'':<16}{'measured':>14}{'datasheet':>14}")
    sheet = None if row is None else row.memory_bandwidth_bytes_per_s
    click.echo(f"  {'read GB/s':<16}{_giga(ceilings.read_bandwidth_bytes_per_s):>14}{_giga(sheet):>14}")
    click.echo(f"  {'copy GB/s':<16}{_giga(ceilings.copy_bandwidth_bytes_per_s):>14}{'':>14}")
    for dtype, rate in ceilings.gemm_flops_per_s.items():
        peak = None if row is None else row.peak_flops_per_s.get(dtype)
        click.echo(f"  {dtype + ' TFLOP/s':<16}{_tera(rate):>14}{_tera(peak):>14}")
    launch = "-" if ceilings.launch_ns is None else f"{ceilings.launch_ns / 1e3:.2f}"
    click.echo(f"  {'launch us':<16}{launch:>14}")
    click.echo(f"  how: {ceilings.method}")


def _tera(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e12:.4g}"


def _giga(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:.4g}"

"""What a machine can do at best: arithmetic rate per number format and memory bandwidth.

The table (`data/hardware.toml`) holds datasheet peaks, one source a row. They are ceilings: no program is
faster, and good ones reach 60 to 90 % of them. `effective` replaces them by what was measured on the machine
at hand.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

from phasemeter.record.errors import InputError
from phasemeter.roofline.dtypes import canonical_dtype

# NVML reports a little less than the nominal memory (ECC, firmware): 143771 of 144384 MiB on an H200, 15360
# of 16384 on a T4. A MIG slice or a card with its memory exchanged differs by far more.
_MEMORY_TOLERANCE = 0.10


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One chip. Peaks are dense FLOP/s per dtype, absent where it has no units; bandwidths are bytes/s.

    `link_bytes_per_s` counts both directions of one GPU's link; `l2_bytes` is the last-level cache.
    """

    name: str
    title: str
    kind: Literal["gpu", "cpu"]
    vendor: str
    aliases: tuple[str, ...]
    peak_flops_per_s: dict[str, float]
    memory_bandwidth_bytes_per_s: float
    source: str
    memory_bytes: int | None = None
    l2_bytes: int | None = None
    link_bytes_per_s: float | None = None
    note: str = ""


class Ceilings(msgspec.Struct, frozen=True):
    """What was measured on this machine; absent is None. `launch_ns` is the cost of an empty operator."""

    device: str
    method: str
    read_bandwidth_bytes_per_s: float | None = None
    copy_bandwidth_bytes_per_s: float | None = None
    gemm_flops_per_s: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    launch_ns: float | None = None
    threads: int | None = None


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hardware: tuple[Hardware, ...]


@cache
def all_hardware() -> tuple[Hardware, ...]:
    """Every row of the table, in its order."""
    text = resources.files("phasemeter.roofline").joinpath("data", "hardware.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _Table).hardware


def find_hardware(name: str) -> Hardware:
    """The row a user means by `name`: its name, title or an alias, whatever the case and punctuation.

    Raises InputError, with the nearest names, when there is none.
    """
    key = _key(name)
    for row in all_hardware():
        if key and key in _keys(row):
            return row
    names = [row.name for row in all_hardware()]
    parts = set(re.findall(r"[a-z]+|[0-9]+", name.lower()))
    near = [known for known in names if key and key in _key(known)]
    # The same parts in another order: a100-sxm-40gb for a100-40gb-sxm.
    near += [known for known in names if parts and parts == set(re.findall(r"[a-z]+|[0-9]+", known))]
    near += [
        known
        for known in difflib.get_close_matches(name.lower(), names, n=4, cutoff=0.4)
        if known not in near
    ]
    hint = f"did you mean {', '.join(near[:6])}?" if near else "`phasemeter hardware` lists the known ones"
    raise InputError("hardware", name, hint)


def match_hardware(device_name: str, memory_bytes: int | None = None) -> Hardware | None:
    """The row for a name that NVML, /proc/cpuinfo or sysctl reports; None when unknown, never a guess.

    `memory_bytes` (as NVML reports it) must agree within 10 % with the row's, else the card is not the one
    named.
    """
    key = _device_key(device_name)
    if not key:
        return None
    fits = [row for row in all_hardware() if key in _keys(row) and _memory_agrees(row, memory_bytes)]
    return fits[0] if len(fits) == 1 else None


def effective(hardware: Hardware | None, ceilings: Ceilings | None) -> Hardware:
    """The machine as measured: measured rates replace the datasheet's, the name gets " (measured)".

    Bandwidth is the better of the read and copy rates, so that a floor stays a floor. With no table row the
    measurement must hold a bandwidth and at least one GEMM rate. Raises InputError when it does not, when
    both arguments are None, or when a measured rate is not positive and finite.
    """
    if ceilings is None:
        if hardware is None:
            raise InputError("hardware", None, "name a known machine or measure its ceilings")
        return hardware
    bandwidth = _measured_bandwidth(ceilings)
    gemm = {
        canonical_dtype(k, "gemm_flops_per_s"): _rate("gemm_flops_per_s", v)
        for k, v in ceilings.gemm_flops_per_s.items()
    }
    if hardware is None:
        return _from_ceilings(ceilings, bandwidth, gemm)
    if bandwidth is None and not gemm:
        return hardware
    return msgspec.structs.replace(
        hardware,
        name=f"{hardware.name} (measured)",
        peak_flops_per_s={**hardware.peak_flops_per_s, **gemm},
        memory_bandwidth_bytes_per_s=bandwidth or hardware.memory_bandwidth_bytes_per_s,
        source=f"measured: {ceilings.method}; not measured: {hardware.source}",
    )


def peak_flops_per_s(hardware: Hardware, dtype: str) -> float:
    """Peak FLOP/s for one dtype. Raises InputError, listing what the chip has, when it has none."""
    known = canonical_dtype(dtype)
    if known not in hardware.peak_flops_per_s:
        has = ", ".join(hardware.peak_flops_per_s)
        raise InputError("dtype", dtype, f"{hardware.title} has no rate for it, only for {has}")
    return hardware.peak_flops_per_s[known]


def arithmetic_dtype(hardware: Hardware, dtype: str) -> str:
    """The format a chip computes `dtype` in: itself where it has units, else float16 or float32.

    A T4 runs bfloat16 models in float16, a CPU without bfloat16 instructions in float32. The floor for the
    answer is a valid floor for the request, since an emulated format is never faster than the native one it
    uses.
    """
    known = canonical_dtype(dtype)
    if known in hardware.peak_flops_per_s:
        return known
    for fallback in ("float16", "float32"):
        if hardware.kind == "gpu" and fallback in hardware.peak_flops_per_s:
            return fallback
    return "float32" if "float32" in hardware.peak_flops_per_s else known


def _from_ceilings(ceilings: Ceilings, bandwidth: float | None, gemm: dict[str, float]) -> Hardware:
    if bandwidth is None or not gemm:
        raise InputError(
            "hardware", None, "name a known machine: no bandwidth and GEMM rate were both measured"
        )
    return Hardware(
        name=f"{ceilings.device} (measured)",
        title=ceilings.device,
        kind="cpu" if ceilings.device.lower().startswith("cpu") else "gpu",
        vendor="unknown",
        aliases=(),
        peak_flops_per_s=gemm,
        memory_bandwidth_bytes_per_s=bandwidth,
        source=f"measured: {ceilings.method}",
    )


def better(a: Ceilings, b: Ceilings) -> Ceilings:
    """The higher rates and the lower launch cost of two measurements of one device; `a` names it.

    Neighbours on a shared machine can only lower what is measured: of two measurements, before and after a
    run, the better is the ceiling. Raises InputError when the devices differ.
    """
    if (a.device, a.threads) != (b.device, b.threads):
        raise InputError("ceilings", f"{a.device} and {b.device}", "only one device's ceilings can be joined")
    names = dict.fromkeys([*a.gemm_flops_per_s, *b.gemm_flops_per_s])
    return msgspec.structs.replace(
        a,
        read_bandwidth_bytes_per_s=_most(a.read_bandwidth_bytes_per_s, b.read_bandwidth_bytes_per_s),
        copy_bandwidth_bytes_per_s=_most(a.copy_bandwidth_bytes_per_s, b.copy_bandwidth_bytes_per_s),
        gemm_flops_per_s={
            name: max(rates[name] for rates in (a.gemm_flops_per_s, b.gemm_flops_per_s) if name in rates)
            for name in names
        },
        launch_ns=min((x for x in (a.launch_ns, b.launch_ns) if x is not None), default=None),
    )


def _most(a: float | None, b: float | None) -> float | None:
    return max((x for x in (a, b) if x is not None), default=None)


def _measured_bandwidth(ceilings: Ceilings) -> float | None:
    read, copy = ceilings.read_bandwidth_bytes_per_s, ceilings.copy_bandwidth_bytes_per_s
    rates = [_rate("bandwidth_bytes_per_s", value) for value in (read, copy) if value is not None]
    return max(rates, default=None)


def _rate(field: str, value: float) -> float:
    if not math.isfinite(value) or value <= 0:
        raise InputError(field, value, "a measured rate must be positive and finite; measure again")
    return value


def _memory_agrees(row: Hardware, memory_bytes: int | None) -> bool:
    if memory_bytes is None or row.memory_bytes is None or row.vendor == "Apple":
        return True
    return abs(memory_bytes - row.memory_bytes) <= _MEMORY_TOLERANCE * row.memory_bytes


@cache
def _all_keys() -> dict[str, frozenset[str]]:
    return {
        row.name: frozenset(_key(text) for text in (row.name, row.title, *row.aliases))
        for row in all_hardware()
    }


def _keys(row: Hardware) -> frozenset[str]:
    return _all_keys()[row.name]


def _key(text: str) -> str:
    """Letters, digits and "+" in lower case; trade marks and the vendor's name do not count."""
    bare = re.sub(r"\((r|tm|c)\)|[®™]", " ", text.lower())
    bare = re.sub(r"\b(nvidia|geforce|tesla|intel|amd)\b", " ", bare)
    return re.sub(r"[^a-z0-9+]", "", bare)


def _device_key(text: str) -> str:
    """As `_key`, without what kernels add to a CPU's name: clock, cores, generation, graphics."""
    bare = re.sub(r"@.*$|\bw/ .*$|\bwith radeon.*$", " ", text, flags=re.IGNORECASE)
    bare = re.sub(
        r"\b\d+-core processor\b|\bcpu\b|\bprocessor\b|\b\d+th gen\b", " ", bare, flags=re.IGNORECASE
    )
    return _key(bare)

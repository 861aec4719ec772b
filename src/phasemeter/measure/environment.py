"""Fingerprint of the machine a run is made on, from what the operating system tells. No environment variable
is read."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from phasemeter.engines.cpu import cpu_features, read_text, sysctl, usable_cores
from phasemeter.measure.nvml import gpus
from phasemeter.record.run import Machine

_ROOT = Path("/")
# cgroup v1 writes "no limit" as a number near 2**63.
_NO_LIMIT_BYTES = 1 << 60


def fingerprint(versions_of: Sequence[str] = ()) -> Machine:
    """This machine now. `versions_of` names the distributions whose versions matter; those not installed are
    left out. Cores and memory are what this process may use: affinity and cgroup limits count."""
    return Machine(
        host=socket.gethostname(),
        os=_os_name(),
        cpu=cpu_name(),
        cores=usable_cores(),
        memory_bytes=memory_bytes(),
        gpus=gpus(),
        governor=read_text(_ROOT / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        clock_source=read_text(_ROOT / "sys/devices/system/clocksource/clocksource0/current_clocksource"),
        virtualised=virtualised(),
        load_1min=_load_1min(),
        cpu_features=cpu_features(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        versions=_versions(versions_of),
    )


def cpu_name(root: Path = _ROOT) -> str:
    """The CPU's own name; its architecture where the OS does not tell."""
    fields = _cpuinfo(root)
    for key in ("model name", "Model", "Hardware", "cpu"):
        if fields.get(key):
            return fields[key]
    return sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine() or "unknown"


def memory_bytes(root: Path = _ROOT) -> int | None:
    """Memory that this process may use: the machine's, or the cgroup's limit where that is lower."""
    total = _installed_bytes(root)
    limits = [
        int(text)
        for path in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
        if (text := read_text(root / path)) is not None and text.isdecimal() and int(text) < _NO_LIMIT_BYTES
    ]
    return min([*limits, *([] if total is None else [total])], default=None)


def virtualised(root: Path = _ROOT) -> bool | None:
    """Whether a hypervisor runs this machine; None where the OS does not tell (a container alone is not a
    VM)."""
    flags = _cpuinfo(root).get("flags")
    if flags is not None:
        return "hypervisor" in flags.split()
    answer = sysctl("kern.hv_vmm_present")
    return None if answer is None else answer == "1"


def _cpuinfo(root: Path) -> dict[str, str]:
    """Fields of the first CPU in /proc/cpuinfo that the kernel lists."""
    fields: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def _installed_bytes(root: Path) -> int | None:
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    told = sysctl("hw.memsize")
    return int(told) if told is not None and told.isdecimal() else None


def _os_name() -> str:
    name = platform.system()
    if name == "Darwin":
        return f"macOS {platform.mac_ver()[0]} ({platform.machine()})"
    with suppress(OSError):  # without an os-release file the kernel's name has to do
        name = platform.freedesktop_os_release().get("PRETTY_NAME", name)
    return f"{name}, kernel {platform.release()} ({platform.machine()})"


def _load_1min() -> float | None:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _versions(names: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found

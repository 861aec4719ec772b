"""The machine: what it is, and whether it is quiet enough to measure on."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

from msgspec import Struct

QUIET_BUSY_RATIO = 0.05
"""More than this of all cores in use by others, and a run would measure them as well."""
_LOOK_S = 2.0
_AGAIN_S = 5.0


class Ticks(Struct, frozen=True):
    """The kernel's count of CPU time since boot, over all cores (proc(5), /proc/stat)."""

    busy_s: float
    at_s: float


def ticks() -> Ticks:
    """CPU time in use so far: everything but idle and waiting for disks."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle = fields[3] + fields[4]
    # guest time is in user time already
    busy = sum(fields[:8]) - idle - fields[7]
    return Ticks(busy / os.sysconf("SC_CLK_TCK"), time.monotonic())


def busy_ratio(before: Ticks, after: Ticks, ours_s: float = 0.0) -> float:
    """Part of all cores that others used between two looks."""
    cores = os.cpu_count() or 1
    return max(0.0, after.busy_s - before.busy_s - ours_s) / ((after.at_s - before.at_s) * cores)


def wait_until_quiet(patience_s: float) -> tuple[bool, float]:
    """Look until the machine is quiet or patience ends: whether it is, and how busy it was at the last look."""
    give_up_s = time.monotonic() + patience_s
    while True:
        before = ticks()
        time.sleep(_LOOK_S)
        busy = busy_ratio(before, ticks())
        if busy <= QUIET_BUSY_RATIO or time.monotonic() > give_up_s:
            return busy <= QUIET_BUSY_RATIO, busy
        time.sleep(_AGAIN_S)


def process_cpu_s(pid: int) -> float:
    """User and system time of a running process, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def describe() -> dict[str, object]:
    """What the results page says of the machine."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in ("httptools", "uvloop", "msgspec")},
        "load_1min": round(os.getloadavg()[0], 2),
    }

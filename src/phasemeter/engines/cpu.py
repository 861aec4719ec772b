"""What the CPU at hand offers a local engine: instruction sets that matter and cores that may really be used.

Read from /proc, /sys and sysctl; a container's CPU quota counts as fewer cores, since threads beyond it are
throttled.
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

_ROOT = Path("/")
# The names under which kernels list what decides matrix speed: x86 flags, Arm features ("asimd" is NEON on
# 64-bit Arm).
_FEATURES = {
    "avx2": "avx2",
    "avx512f": "avx512f",
    "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16",
    "avx512_vnni": "avx512_vnni",
    "amx_bf16": "amx_bf16",
    "amx_int8": "amx_int8",
    "neon": "neon",
    "asimd": "neon",
    "bf16": "arm_bf16",
    "sve": "sve",
}
BF16_UNITS = frozenset({"avx512_bf16", "amx_bf16", "arm_bf16"})
"""Features that multiply bfloat16 natively; without one, bfloat16 on a CPU is emulated and float32 is
quicker."""


def cpu_features(root: Path = _ROOT) -> tuple[str, ...]:
    """Instruction sets that decide a model's speed on this CPU, in a fixed order; empty when the OS does not
    tell."""
    found = _flags(root)
    if not found and platform.system() == "Darwin" and platform.machine() == "arm64":
        found = {"neon"}
        if sysctl("hw.optional.arm.FEAT_BF16") == "1":
            found.add("bf16")
    return tuple(dict.fromkeys(name for flag, name in _FEATURES.items() if flag in found))


def has_bf16_units(root: Path = _ROOT) -> bool:
    """Whether this CPU multiplies bfloat16 natively."""
    return bool(BF16_UNITS & set(cpu_features(root)))


def usable_cores(root: Path = _ROOT) -> int:
    """Physical cores that this process may use: CPU affinity, SMT siblings counted once, cgroup quota rounded
    up."""
    allowed = _allowed_cpus()
    siblings = {_core_of(root, cpu) for cpu in allowed}
    cores = len(siblings) if siblings else int(sysctl("hw.physicalcpu") or os.cpu_count() or 1)
    quota = cpu_quota(root)
    return max(1, cores if quota is None else min(cores, int(-(-quota // 1))))


def cpu_quota(root: Path = _ROOT) -> float | None:
    """CPUs that the cgroup of this process grants (v2 or v1), None without a limit."""
    text = read_text(root / "sys/fs/cgroup/cpu.max")
    if text is not None:
        limit, _, period = text.partition(" ")
        return None if limit == "max" else _ratio(limit, period)
    limit = read_text(root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    period = read_text(root / "sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if limit is None or period is None or limit.startswith("-"):
        return None
    return _ratio(limit, period)


def read_text(path: Path) -> str | None:
    """A small file of the OS, stripped; None when it is not there or may not be read."""
    try:
        return path.read_text("utf-8", errors="replace").strip()
    except OSError:
        return None


def sysctl(name: str) -> str | None:
    """One sysctl value on macOS; None elsewhere or when the name is not known."""
    if platform.system() != "Darwin":
        return None
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _flags(root: Path) -> set[str]:
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def _allowed_cpus() -> frozenset[int]:
    # macOS and Windows have no affinity call; there, sysctl and the OS's own count answer.
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset()


def _core_of(root: Path, cpu: int) -> str:
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    return read_text(topology / "thread_siblings_list") or str(cpu)


def _ratio(limit: str, period: str) -> float | None:
    try:
        return float(limit) / float(period)
    except (ValueError, ZeroDivisionError):
        return None

"""Run one command and count what its whole process tree spends, orphans included.

    python spend.py REPORT.json TIMEOUT_S LOG -- COMMAND ...

This process makes itself the reaper of every descendant that loses its parent (PR_SET_CHILD_SUBREAPER), so the kernel's
own count (`wait4`) misses none of them, whenever they end. What still runs `GRACE_S` after the command has ended, or at
the time-out, is killed, and the report says so.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE_S = 3.0
_PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""
_LOOK_S = 0.05


def spend(command: list[str], timeout_s: float, log: Path) -> dict[str, object]:
    """Exit status, wall time, CPU time of the tree (ns) and whether anything had to be killed."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    begun = time.monotonic()
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    cpu_s, status, ended, killed = 0.0, None, None, False
    deadline = begun + timeout_s
    while True:
        try:
            pid, how, used = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            break  # nobody is left
        if pid:
            cpu_s += used.ru_utime + used.ru_stime
            if pid == child.pid:
                status, ended = os.waitstatus_to_exitcode(how), time.monotonic()
                deadline = min(deadline, ended + GRACE_S)
            continue
        if time.monotonic() > deadline:
            killed = True
            _kill_descendants(os.getpid())
        time.sleep(_LOOK_S)
    child.returncode = status
    return {
        "status": status,
        "wall_s": (ended or time.monotonic()) - begun,
        "cpu_ns": round(cpu_s * 1e9),
        "timed_out": killed and (ended is None or ended - begun >= timeout_s),
        "left_running": killed,
    }


def _kill_descendants(pid: int) -> None:
    for child in _children(pid):
        _kill_descendants(child)
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in task.read_text().split()]
        except OSError:
            continue
    return found


if __name__ == "__main__":
    report, limit, log_path, _, *words = sys.argv[1:]
    Path(report).write_text(json.dumps(spend(words, float(limit), Path(log_path))) + "\n")

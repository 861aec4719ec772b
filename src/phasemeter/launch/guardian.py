"""Runs one command and sees to it that nothing of it outlives us; a script of its own, standard library alone.

    python -I -S guardian.py FD COMMAND ARGUMENT...

FD is one end of a socket pair; the other end is held by the process that started us and by nobody else. We tell on
it `pid N` and, when all is over, `exit CODE` (negative: the signal). We read `stop SECONDS` from it: SIGTERM to the
command's group, and after so many seconds SIGKILL to every process of its tree. When the socket ends instead, whoever
started us is gone, by whatever way, SIGKILL included: then the grace is short.

On Linux we are the subreaper of the tree, so that a process whose parent has died becomes our child and is found,
in whatever group or session it is; the command itself also dies with us. Elsewhere the tree is followed by `ps`, and
what leaves it between two looks is found by its group only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys

_TICK_S = 0.05
_ORPHAN_GRACE_S = 2.0
_KILL_ROUNDS = 200
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform.startswith("linux")


def main() -> int:
    """Run the command to its end or to ours."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # we end when the socket says so
    if _LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        process = subprocess.Popen(sys.argv[2:], start_new_session=True, preexec_fn=_with_us)
    except OSError as error:
        _tell(channel, f"failed {error.strerror}")
        return 127
    _tell(channel, f"pid {process.pid}")
    grace_s = _wait(process, channel)
    code = _end(process, grace_s)
    _tell(channel, f"exit {code}")
    return 0


def _with_us() -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)
    if _LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _tell(channel: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        channel.sendall(f"{line}\n".encode())


def _wait(process: subprocess.Popen[bytes], channel: socket.socket) -> float:
    """Until the command has ended (0), or shall end: the seconds it gets for that."""
    heard = b""
    while process.poll() is None:
        ready, _, _ = select.select([channel], [], [], _TICK_S)
        if not ready:
            continue
        try:
            more = channel.recv(4096)
        except OSError:
            more = b""
        if not more:
            return _ORPHAN_GRACE_S
        heard += more
        for line in heard.split(b"\n")[:-1]:
            word, _, number = line.partition(b" ")
            if word == b"stop":
                return float(number)
        heard = heard.rpartition(b"\n")[2]
    return 0.0


def _end(process: subprocess.Popen[bytes], grace_s: float) -> int:
    """Ask, wait, kill. What the command leaves behind is killed too."""
    known: set[int] = set()
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        left_s = grace_s
        while left_s > 0 and _alive(process, known):
            select.select([], [], [], _TICK_S)
            left_s -= _TICK_S
    for _ in range(_KILL_ROUNDS):
        tree = _alive(process, known)
        if not tree:
            break
        _signal_group(process.pid, signal.SIGKILL)
        for pid in tree:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        select.select([], [], [], _TICK_S)
    return process.wait()


def _alive(process: subprocess.Popen[bytes], known: set[int]) -> set[int]:
    """The processes of the tree that still run; zombies do not count."""
    process.poll()
    parents = _parents()
    tree: set[int] = set()
    ahead = [os.getpid(), *known]
    while ahead:
        parent = ahead.pop()
        found = {pid for pid, of in parents.items() if of == parent} - tree
        tree |= found
        ahead += found
    known &= set(parents)
    known |= tree
    return {pid for pid in known if pid in parents}


def _parents() -> dict[int, int]:
    """Parent of every process that runs (zombies left out)."""
    return _parents_from_proc() if _LINUX else _parents_from_ps()


def _parents_from_proc() -> dict[int, int]:
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - no pathlib: this starts in a few milliseconds
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # the name in parentheses may hold anything; state and parent follow the last one
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue  # it has just ended
        if state not in {b"Z", b"X"}:
            found[int(name)] = int(parent)
    return found


def _parents_from_ps() -> dict[int, int]:
    told = subprocess.run(["ps", "-axo", "pid=,ppid=,stat="], capture_output=True, text=True, check=False)
    rows = (line.split() for line in told.stdout.splitlines())
    return {int(pid): int(parent) for pid, parent, state in rows if not state.startswith("Z")}


def _signal_group(group: int, what: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, what)


if __name__ == "__main__":
    sys.exit(main())

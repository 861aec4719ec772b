"""A server for the tests of `launch`: writes its pids, prints lines, spawns grandchildren that ignore SIGTERM.

usage: fake_tree.py PIDS_FILE MODE; one pid a line in PIDS_FILE. Standard library only.
    serve     two stubborn grandchildren, one of them in a session of its own whose parent has ended; runs for ever
    polite    ends by itself on SIGTERM, with 0, saying so
    die       prints twenty lines, spawns a stubborn child, ends with exit code 3
    kill9     kills itself
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


def note_pid(pids: Path) -> None:
    with pids.open("a") as file:
        file.write(f"{os.getpid()}\n")


def stubborn(pids: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    note_pid(pids)
    time.sleep(600)
    os._exit(0)


def spawn(pids: Path, *, daemon: bool) -> None:
    if os.fork():
        return
    if daemon:
        os.setsid()
        if os.fork():
            os._exit(0)
    stubborn(pids)


def main() -> None:
    pids, mode = Path(sys.argv[1]), sys.argv[2]
    note_pid(pids)
    print(f"value of X: {os.environ.get('X')}", flush=True)
    if mode == "kill9":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "die":
        spawn(pids, daemon=False)
        for i in range(20):
            print(f"line {i}", file=sys.stderr, flush=True)
        sys.exit(3)
    if mode == "polite":
        signal.signal(signal.SIGTERM, lambda *_: (print("bye", flush=True), os._exit(0)))
        print("ready", flush=True)
        time.sleep(600)
    spawn(pids, daemon=False)
    spawn(pids, daemon=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()

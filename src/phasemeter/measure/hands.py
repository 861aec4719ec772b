"""How a parent holds a worker of its run: a process on this machine here, a Ray actor in `ray_workers`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

_LINE_BYTES = 1 << 20
STOP_S = 15.0
"""How long a worker gets to end by itself."""


class Hand(Protocol):
    """A started worker as its parent holds it."""

    @property
    def ahead_ns(self) -> int:
        """How far the worker's clock runs ahead of ours."""
        ...

    @property
    def note(self) -> str:
        """Where it is, for the record; "" for a process here."""
        ...

    async def tell(self, line: bytes) -> None:
        """Give it a line. Raises OSError when nobody is there."""
        ...

    async def hear(self) -> bytes:
        """Its next line; b"" when it has ended."""
        ...

    async def interrupt(self) -> None:
        """What Ctrl-C does."""
        ...

    async def ended(self) -> int | None:
        """Wait for its end; its exit code (negative: the signal), None where nobody can tell."""
        ...

    async def fetch(self, place: Path) -> None:
        """See that all it has written so far lies at `place`."""
        ...


Hire = Callable[[int, Path], Awaitable[Hand]]
"""Starts the worker of a number, for the part at a place."""


class ProcessHand:
    """A worker process on this machine. Make it with `start`."""

    ahead_ns = 0
    note = ""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(cls, log: Path) -> ProcessHand:
        """Start a worker that has its orders to come; what it prints by accident goes to `log`."""
        with log.open("ab") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "phasemeter.measure.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=out,
                start_new_session=True,  # a Ctrl-C on the terminal is ours alone; we pass it on
                limit=_LINE_BYTES,
            )
        return cls(process)

    async def tell(self, line: bytes) -> None:
        """Give it a line."""
        if self._process.stdin is not None:
            self._process.stdin.write(line + b"\n")
            await self._process.stdin.drain()

    async def hear(self) -> bytes:
        """Its next line; b"" at its end."""
        return b"" if self._process.stdout is None else await self._process.stdout.readline()

    async def interrupt(self) -> None:
        """What Ctrl-C does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    async def ended(self) -> int | None:
        """Its exit code; it is killed when it does not end in time after its output has ended."""
        try:
            return await asyncio.wait_for(self._process.wait(), STOP_S)
        except TimeoutError:
            self._process.kill()
            return await self._process.wait()

    async def fetch(self, place: Path) -> None:
        """Its part lies where it was told to write it."""


async def hire_here(_: int, place: Path) -> Hand:
    """A worker process on this machine, for the part at `place`."""
    return await ProcessHand.start(place.with_suffix(".log"))

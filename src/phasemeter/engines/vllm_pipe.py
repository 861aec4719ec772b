"""The pipes to a `vllm_child` process: start it, stamp what it says, notice its end, stop its whole group."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from phasemeter.record.clock import Clock
from phasemeter.record.errors import EngineError

_TAIL_BYTES = 16_384
_GRACE_S = 15.0


class Pipe(asyncio.SubprocessProtocol):
    """One child. `heard(stamp, line)` gets every line with the time at which its bytes were read;
    `ended(code)` is called once, when the process is gone."""

    def __init__(
        self, clock: Clock, heard: Callable[[int, bytes], None], ended: Callable[[int | None], None]
    ) -> None:
        self._clock = clock
        self._heard = heard
        self._ended = ended
        self._rest = b""
        self._transport: asyncio.SubprocessTransport | None = None
        self._gone = asyncio.Event()

    async def open(
        self, command: Sequence[str], log: IO[bytes], environment: Mapping[str, str] | None
    ) -> None:
        """Start the child in a process group of its own, so that Ctrl-C reaches us alone. Raises EngineError
        when there is no such interpreter."""
        loop = asyncio.get_running_loop()
        try:
            await loop.subprocess_exec(
                lambda: self, *command, stderr=log, start_new_session=True, env=environment
            )
        except OSError as error:
            raise EngineError(f"{command[0]} cannot be started: {error.strerror}") from None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The process runs."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Bytes of one read, all with one stamp, taken before anything is parsed."""
        stamp_ns = self._clock.now_ns()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._heard(stamp_ns, line)

    def process_exited(self) -> None:
        """The child is gone; what it left in its group must not outlive it."""
        code = None if self._transport is None else self._transport.get_returncode()
        self._kill_group()
        self._gone.set()
        self._ended(code)

    def send(self, order: Mapping[str, object]) -> tuple[int, int]:
        """Write one line; stamps before and after. A child that is gone is told by `ended`, not here."""
        data = json.dumps(order, separators=(",", ":")).encode() + b"\n"
        before_ns = self._clock.now_ns()
        pipe = None if self._transport is None else self._transport.get_pipe_transport(0)
        if pipe is not None and not pipe.is_closing():
            cast("asyncio.WriteTransport", pipe).write(data)
        return before_ns, self._clock.now_ns()

    async def close(self) -> None:
        """End the child's input and await its end; after a while end it by force. Safe to call twice."""
        if self._transport is None:
            return
        pipe = self._transport.get_pipe_transport(0)
        if pipe is not None:
            pipe.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), _GRACE_S)
        self._kill_group()
        await self._gone.wait()
        self._transport.close()

    def _kill_group(self) -> None:
        if self._transport is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)


def reason_in(log: Path) -> str:
    """Why a child ended, from what it printed last: the last line that names an error, else the last line."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
    except OSError:
        return "its log cannot be read"
    lines = [line for line in lines if line]
    named = [line for line in lines if _names_error(line)]
    # "Engine core initialization failed. See root cause above" says nothing; what stands above it does
    better = [line for line in named if "root cause" not in line.lower() and "See stack trace" not in line]
    chosen = (better or named or lines or ["it printed nothing"])[-1]
    return " ".join(chosen.split())[-400:]


def _names_error(line: str) -> bool:
    words = line.replace(":", " ").split()
    return " error: " in f" {line}" or any(word.endswith(("Error", "Exception")) for word in words[:8])

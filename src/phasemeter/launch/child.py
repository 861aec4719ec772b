"""One process with everything it starts, under a guardian that outlives us by a moment only.

The guardian (`guardian.py`) is a small process of its own. It starts the command, tells us when it has ended, stops
it when asked, and kills the whole tree when we are gone by whatever way. Output goes to a log file, which stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from msgspec import Struct

from phasemeter.launch.log import Log
from phasemeter.record.clock import Clock
from phasemeter.record.errors import EngineError

TAIL_LINES = 15
"""So many last lines are told of a process that died."""

_GUARDIAN = Path(__file__).with_name("guardian.py")
_LOOK_S = 0.1
_GUARDIAN_MARGIN_S = 20.0


class Command(Struct, frozen=True):
    """What to start: `environment` is the whole environment; `log` gets stdout and stderr, anew."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    folder: Path | None = None

    def __repr__(self) -> str:  # an environment may hold secrets
        return f"Command(argv={self.argv!r}, log={str(self.log)!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("argv", self.argv), ("log", self.log)]


class Death(Struct, frozen=True):
    """How a process ended: its exit code (negative: the signal; None: nobody saw it) and its last lines."""

    code: int | None
    tail: tuple[str, ...] = ()

    @property
    def how(self) -> str:
        """The end in plain words."""
        if self.code is None:
            return "ended, and nobody saw how"
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"was killed by signal {-self.code}"


class DiedError(EngineError):
    """The process ended while it was needed; `death` says how."""

    def __init__(self, death: Death) -> None:
        self.death = death
        super().__init__(death.how)


class NotReadyError(EngineError):
    """The process lives but was not ready in time; `tail` holds its last lines."""

    def __init__(self, message: str, tail: tuple[str, ...]) -> None:
        self.tail = tail
        super().__init__(message)


class StartError(EngineError):
    """A server did not come up: the message says why, `tail` holds its last lines."""

    def __init__(self, message: str, tail: tuple[str, ...]) -> None:
        self.tail = tail
        super().__init__(message)


class Child:
    """A started process. For one event loop's thread; make it with `start`."""

    def __init__(
        self, guardian: subprocess.Popen[bytes], channel: socket.socket, log: Log, heard: str
    ) -> None:
        self._guardian = guardian
        self._channel = channel
        self._log = log
        self._over = asyncio.Event()
        self._code: int | None = None
        self._heard = b""
        self._stopping = False
        self.pid = int(heard.partition(" ")[2])
        asyncio.get_running_loop().add_reader(channel.fileno(), self._hear)

    @classmethod
    async def start(cls, command: Command) -> Child:
        """Start it. Raises EngineError when it cannot be started at all."""
        ours, theirs = socket.socketpair()
        command.log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, command.log.open("wb") as out:
            guardian = subprocess.Popen(  # noqa: ASYNC220 - it returns once the new process runs
                [sys.executable, "-I", "-S", str(_GUARDIAN), str(theirs.fileno()), *command.argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(command.environment),
                cwd=command.folder,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C on the terminal is ours alone
            )
        ours.setblocking(False)  # noqa: FBT003
        heard = ""
        try:
            heard = await _first_line(ours)
        finally:
            if not heard.startswith("pid "):
                ours.close()
                await asyncio.to_thread(guardian.wait)
        if not heard.startswith("pid "):
            why = heard.partition(" ")[2] or "its guardian ended"
            raise EngineError(f"{command.argv[0]} cannot be started: {why}")
        return cls(guardian, ours, Log(command.log), heard)

    @property
    def death(self) -> Death | None:
        """How it ended, or None while it runs."""
        return Death(self._code, self._log.tail(TAIL_LINES)) if self._over.is_set() else None

    def new_lines(self) -> list[str]:
        """Whole lines of the log since the last call; after its end also an unfinished last one."""
        return self._log.new_lines(to_the_end=self._over.is_set())

    async def wait(self, limit_s: float | None = None) -> Death | None:
        """Until it has ended; None when it still runs after `limit_s` seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), limit_s)
        return self.death

    def tail(self, lines: int) -> tuple[str, ...]:
        """The last lines of its log."""
        return self._log.tail(lines)

    async def await_ready(
        self,
        check: Callable[[], Awaitable[bool]],
        *,
        clock: Clock,
        timeout_s: float,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        """Until `check` answers True; each log line goes to `on_line` as it comes. A `check` still under way when the
        process dies is cancelled.

        Raises DiedError at once when the process ends, NotReadyError after `timeout_s` seconds.
        """
        over = asyncio.ensure_future(self._over.wait())
        checking: asyncio.Future[bool] | None = None
        end_ns = clock.now_ns() + round(timeout_s * 1e9)
        try:
            while True:
                checking = checking or asyncio.ensure_future(check())
                await asyncio.wait({over, checking}, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for line in self.new_lines():
                    if on_line is not None:
                        on_line(line)
                if self._over.is_set():
                    raise DiedError(Death(self._code, self._log.tail(TAIL_LINES)))
                if checking.done():
                    if checking.result():
                        return
                    checking = None
                    await asyncio.wait({over}, timeout=_LOOK_S)
                if clock.now_ns() > end_ns:
                    raise NotReadyError(f"not ready after {timeout_s:g} s", self._log.tail(TAIL_LINES))
        finally:
            for task in (over, checking):
                if task is not None and not task.done():
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await task

    async def stop(self, grace_s: float = 10.0) -> Death:
        """SIGTERM to its group; after `grace_s` seconds SIGKILL to every process of its tree. Safe to call twice, also
        when it has ended by itself."""
        if not self._over.is_set() and not self._stopping:
            self._stopping = True
            with contextlib.suppress(OSError):
                self._channel.send(f"stop {grace_s:g}\n".encode())
        try:
            async with asyncio.timeout(grace_s + _GUARDIAN_MARGIN_S):
                await self._over.wait()
        except TimeoutError:
            self._guardian.kill()
            self._finish(None)
        await asyncio.to_thread(self._guardian.wait)
        return Death(self._code, self._log.tail(TAIL_LINES))

    def _hear(self) -> None:
        try:
            more = self._channel.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        self._heard += more
        for line in self._heard.split(b"\n")[:-1]:
            word, _, number = line.partition(b" ")
            if word == b"exit":
                self._finish(int(number))
                return
        if not more:  # the guardian itself was killed
            self._finish(None)

    def _finish(self, code: int | None) -> None:
        if (
            code is None
        ):  # without its guardian: what the kernel did not end with it is in the command's group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        if not self._over.is_set():
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
            self._channel.close()
            self._code = code
            self._over.set()


async def _first_line(channel: socket.socket) -> str:
    loop = asyncio.get_running_loop()
    heard = b""
    while not heard.endswith(b"\n"):
        more = await loop.sock_recv(channel, 1)
        if not more:
            break
        heard += more
    return heard.decode().strip()

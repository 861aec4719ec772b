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

import msgspec
from msgspec import Struct

from phasemeter.record.clock import Clock
from phasemeter.record.errors import EngineError

_TAIL_BYTES = 65_536
_GRACE_S = 15.0


class Ready(Struct, frozen=True):
    """What the child says of itself when it takes requests."""

    version: str | None = None
    dtype: str | None = None
    device: str | None = None
    load_format: str | None = None
    max_context_tokens: int | None = None
    vocab_tokens: int | None = None
    skip_tokenizer_init: bool = False
    python: str | None = None
    import_ns: int | None = None
    build_ns: int | None = None
    details: dict[str, str] = {}


class Stats(Struct, frozen=True):
    """What the engine core saw of a request; durations in its own clock."""

    queue_ns: int | None = None
    prefill_ns: int | None = None
    decode_ns: int | None = None
    n_tokens: int | None = None
    cached_tokens: int | None = None
    preemptions: int | None = None
    before_ns: int | None = None
    after_ns: int | None = None


class Words(Struct, frozen=True):
    """A line of the child that is no piece of a stream."""

    ready: Ready | None = None
    dead: str | None = None
    end: int | None = None
    error: str | None = None
    aborted: bool = False
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    e2e_ns: int | None = None
    stats: Stats | None = None


class Piece(Struct, frozen=True, array_like=True):
    """A piece of a stream: request number, token ids, text where there is a tokenizer."""

    number: int
    ids: list[int]
    text: str | None = None


read_piece = msgspec.json.Decoder(Piece).decode
read_words = msgspec.json.Decoder(Words).decode


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

    def send(self, order: Mapping[str, object]) -> int:
        """Write one line; the stamp is taken just before. Afterwards would be too late: on a busy machine the
        child wakes up, takes our core and has answered before we read the clock. A child that is gone is told
        by `ended`, not here."""
        data = json.dumps(order, separators=(",", ":")).encode() + b"\n"
        stamp_ns = self._clock.now_ns()
        pipe = None if self._transport is None else self._transport.get_pipe_transport(0)
        if pipe is not None and not pipe.is_closing():
            cast("asyncio.WriteTransport", pipe).write(data)
        return stamp_ns

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


def last_lines(log: Path) -> list[str]:
    """What a child printed last."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []

"""Connections to one server: resolved once, kept alive, without any limit on their number.

A limit would queue requests on our side and call it the server's time (aiohttp's default of 100 did so to
many). A connection that was idle for longer than 4 s is not used again: vLLM and uvicorn close theirs
after 5 s."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from phasemeter.engines.http_cancel import Quitter
from phasemeter.engines.http_watch import HttpTimeouts, Watch
from phasemeter.engines.http_wire import Answer, End, Wire
from phasemeter.record.clock import Clock

IDLE_LIMIT_NS = 4_000_000_000
"""Below the 5 s after which common servers close an idle connection."""


class Place(Struct, frozen=True):
    """Where a server is."""

    host: str
    port: int
    tls: bool = False


class _ConnectError(Exception):
    """A connection could not be made; `end` says in which way."""

    def __init__(self, end: End, message: str) -> None:
        self.end = end
        super().__init__(message)


class Pool:
    """Keep-alive connections to one place. Every method is for one event loop's thread."""

    def __init__(self, place: Place, limits: HttpTimeouts, clock: Clock, *, verify_tls: bool = True) -> None:
        self._place = place
        self._limits = limits
        self._now_ns = clock.now_ns
        self._watch = Watch(limits, clock)
        self._idle: deque[Wire] = deque()
        self._open: set[Wire] = set()
        self._addresses: list[tuple[str, int]] = []
        self._tls = _tls_context(verify=verify_tls) if place.tls else None

    async def exchange(self, request: bytes, quit_after: int | None = None) -> Answer:
        """Send one whole request and wait for the end of its response. Never raises for what the server or
        the network does. A kept connection that dies before any byte of the response is replaced once; the
        stamps are then those of the new connection. Cancellation closes the socket at once;
        so does the `quit_after`-th generated token."""
        begun_ns = self._now_ns()
        wire = self._kept()
        if wire is not None:
            answer = await self._on(wire, request, begun_ns, quit_after)
            # last_ns is None: not one byte of a response came, so it cannot have been the server's answer
            if answer.end is not End.LOST or wire.last_ns is not None:
                return answer
        try:
            wire = await self._connect()
        except _ConnectError as error:
            return Answer(end=error.end, end_ns=self._now_ns(), error=str(error))
        return await self._on(wire, request, begun_ns, quit_after)

    def awaits_first(self) -> bool:
        """Whether a request in flight has yet to get its first token."""
        return self._watch.awaits_first()

    async def close(self) -> None:
        """Close every connection. Safe to call twice."""
        self._watch.stop()
        for wire in list(self._open):
            wire.finish(End.LOST, self._now_ns(), "closed by us")
            wire.abort()
        self._idle.clear()
        self._open.clear()
        # transports close on the loop's next turns; two let sockets go before a loop is torn down
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _on(self, wire: Wire, request: bytes, begun_ns: int, quit_after: int | None) -> Answer:
        listener = None if quit_after is None else Quitter(wire, quit_after, self._now_ns)
        try:
            waiter = wire.send(request, self._now_ns(), listener)
            self._watch.add(wire, begun_ns)
            answer = await waiter
        except asyncio.CancelledError:
            wire.abort()
            raise
        finally:
            self._watch.discard(wire)
            if wire.usable:
                wire.reused = True
                wire.idle_since_ns = self._now_ns()
                self._idle.append(wire)
            else:
                self._open.discard(wire)
        return answer

    def _kept(self) -> Wire | None:
        """The connection used last, if it is fresh enough; all that are too old are closed."""
        oldest_ns = self._now_ns() - IDLE_LIMIT_NS
        while self._idle and (self._idle[0].idle_since_ns < oldest_ns or not self._idle[0].usable):
            stale = self._idle.popleft()
            self._open.discard(stale)
            stale.abort()
        while self._idle:
            wire = self._idle.pop()
            if wire.usable and not wire.closing():
                return wire
            self._open.discard(wire)
        return None

    def _lost(self, wire: Wire) -> None:
        self._open.discard(wire)  # `_kept` skips it: it is not usable any more

    async def _connect(self) -> Wire:
        limit_s = min(
            (s for s in (self._limits.connect_s, self._limits.total_s) if s is not None), default=None
        )
        try:
            async with asyncio.timeout(limit_s):
                if not self._addresses:
                    self._addresses = await self._resolve()
                wire = await self._first_that_connects(self._addresses)
        except TimeoutError:
            tls = "; does the server speak https at this port?" if self._tls is not None else ""
            raise _ConnectError(End.TIMEOUT_CONNECT, f"no connection within {limit_s:g} s{tls}") from None
        self._open.add(wire)
        return wire

    async def _resolve(self) -> list[tuple[str, int]]:
        place = self._place
        try:
            found = await asyncio.get_running_loop().getaddrinfo(
                place.host, place.port, type=socket.SOCK_STREAM
            )
        except (socket.gaierror, UnicodeError) as error:
            raise _ConnectError(
                End.CONNECT_FAILED, f"the host name {place.host} cannot be resolved ({_why(error)})"
            ) from None
        return [(str(address[0]), int(address[1])) for *_, address in found]

    async def _first_that_connects(self, addresses: Sequence[tuple[str, int]]) -> Wire:
        loop = asyncio.get_running_loop()
        failure: OSError | None = None
        for address in addresses:
            try:
                _, wire = await loop.create_connection(
                    lambda: Wire(self._now_ns, self._lost),
                    address[0],
                    address[1],
                    ssl=self._tls,
                    server_hostname=self._place.host if self._tls else None,
                )
            except OSError as error:
                failure = error
                continue
            self._addresses = [address]
            return wire
        raise _ConnectError(End.CONNECT_FAILED, _connect_failure(failure))


def _tls_context(*, verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _connect_failure(error: OSError | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: the server's certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or _why(error)}); does the server speak https at this port?"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(error, ConnectionResetError):
        return "the server closed the connection while it was being made"
    return f"cannot connect ({_why(error)})" if error is not None else "the host name has no address"


def _why(error: Exception) -> str:
    strerror = getattr(error, "strerror", None)
    return strerror if isinstance(strerror, str) and strerror else str(error)

"""HTTP/1.1 for a server that must control every byte: keep-alive, pipelining, Expect, resets.

Own code over asyncio.Protocol and httptools, because a web framework decides itself when bytes leave. One
request is answered at a time on a connection; what is pipelined behind it waits in order.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable

import httptools
from msgspec import Struct

from phasemeter.engines.simulated.wire import error_body, head
from phasemeter.record.clock import Clock

MAX_BODY_BYTES = 256 * 1024 * 1024
_MAX_PIPELINED = 64


class Incoming(Struct, frozen=True):
    """One request as received. `received_ns` was taken before the bytes that completed it were parsed."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    received_ns: int
    keep_alive: bool
    http11: bool


Handler = Callable[[Incoming, "Connection"], None]


class Connection(asyncio.Protocol):
    """One client. `handler` is called for a request when the one before it was finished."""

    def __init__(
        self, handler: Handler, clock: Clock, number: int, gone: Callable[[Connection], None]
    ) -> None:
        self.number = number
        self.on_lost: Callable[[], None] | None = None
        """Called when the client goes away while a request is being answered."""
        self._handler = handler
        self._clock = clock
        self._gone = gone
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[Incoming] = deque()
        self._busy = False
        self._closing = False
        self._transport: asyncio.Transport | None = None
        self._stamp_ns = 0
        self._clear()

    # from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected; asyncio has switched Nagle's algorithm off."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Stamp first, then parse."""
        self._stamp_ns = self._clock.now_ns()
        if self._closing:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "this server upgrades to no other protocol")
        except httptools.HttpParserError as error:
            self._refuse(400, f"not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone, or we closed."""
        self._transport = None
        self._closing = True
        self._queue.clear()
        lost, self.on_lost = self.on_lost, None
        if lost is not None:
            lost()
        self._gone(self)

    # from the parser

    def on_message_begin(self) -> None:
        """A new request."""
        self._clear()

    def on_url(self, url: bytes) -> None:
        """The target, maybe in pieces."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header field."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Tell a client that waits before sending its body to go on."""
        if self._headers.get("expect", "").lower() == "100-continue" and not self._busy:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._body_bytes += len(body)
        if self._body_bytes <= MAX_BODY_BYTES:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """A whole request is there."""
        if self._closing:
            return
        if self._body_bytes > MAX_BODY_BYTES:
            self._refuse(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
            return
        path, _, query = self._url.decode("latin-1").partition("?")
        self._queue.append(
            Incoming(
                method=self._parser.get_method().decode("latin-1"),
                path=path,
                query=query,
                headers=self._headers,
                body=b"".join(self._body),
                received_ns=self._stamp_ns,
                keep_alive=self._parser.should_keep_alive(),
                http11=self._parser.get_http_version() == "1.1",
            )
        )
        if len(self._queue) > _MAX_PIPELINED and self._transport is not None:
            self._transport.pause_reading()
        self._next()

    # for the handler

    def write(self, data: bytes) -> bool:
        """Hand bytes to the socket; False when some are still waiting there, so the client reads too
        slowly."""
        if self._transport is None or not data:
            return True
        self._transport.write(data)
        return self._transport.get_write_buffer_size() == 0

    def finish(self, *, keep_alive: bool) -> None:
        """The answer is complete: close, or go on with the next request."""
        self.on_lost = None
        self._busy = False
        if self._transport is None:
            return
        if not keep_alive:
            self._closing = True
            self._transport.close()
            return
        self._transport.resume_reading()
        asyncio.get_running_loop().call_soon(self._next)

    def reset(self) -> None:
        """Reset the connection: the client sees RST, not an end of stream."""
        self.on_lost = None
        if self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._closing = True
        self._transport.abort()

    def close(self) -> None:
        """Close at once, whatever is being answered."""
        if self._transport is not None:
            self._transport.abort()

    def _next(self) -> None:
        if self._busy or self._closing or not self._queue:
            return
        self._busy = True
        self._handler(self._queue.popleft(), self)

    def _refuse(self, status: int, message: str) -> None:
        body = error_body(status, message)
        fields = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        self.write(head(status, fields) + body)
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def _clear(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_bytes = 0

"""One connection of the HTTP client: stamp first, parse later.

`Wire.data_received` reads the clock before it does anything else. The bytes then go through httptools (C),
because only framing can tell where a response ends (chunks, Content-Length, 1xx, trailers), and the pieces
of the body are kept beside their stamps. No event is looked at here: that is `http_sse` and `http_chunks`,
after the stream has ended (decision 003). There is no timer a piece either: `http_watch` looks at all
streams from one periodic check."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, cast

from msgspec import Struct

if TYPE_CHECKING:
    from httptools import HttpResponseParser


class End(StrEnum):
    """How the bytes of a response ended. What that means for the request is decided in `http_settle`."""

    COMPLETE = "complete"
    """The response ended where HTTP said that it would."""
    CLOSED = "closed"
    """The peer closed a response that has no other end (HTTP/1.0, `Connection: close` without a length)."""
    DONE = "done"
    """`[DONE]` arrived and the server then left the response open."""
    LOST = "lost"
    """The connection went away before the response had ended."""
    MALFORMED = "malformed"
    """Not HTTP/1."""
    CONNECT_FAILED = "connect_failed"
    TIMEOUT_CONNECT = "timeout_connect"
    TIMEOUT_FIRST = "timeout_first"
    TIMEOUT_GAP = "timeout_gap"
    TIMEOUT_TOTAL = "timeout_total"
    CANCELLED = "cancelled"
    """Given up on purpose."""


class Answer(Struct, frozen=True):
    """What came back for one request, unparsed. Stamps are on the run's clock; a stage not reached is None.

    stamps_ns, pieces   the body as it arrived: piece i was received at stamps_ns[i]
    headers             names in lower case, in order
    """

    end: End
    end_ns: int
    error: str | None = None
    connected_ns: int | None = None
    sent_ns: int | None = None
    first_byte_ns: int | None = None
    reused: bool | None = None
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    stamps_ns: list[int] = []
    pieces: list[bytes] = []

    def header(self, name: str) -> str | None:
        """The last header of that (lower-case) name."""
        for key, value in reversed(self.headers):
            if key == name:
                return value
        return None

    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.pieces)


class Wire(asyncio.Protocol):
    """One HTTP/1.1 connection that carries one exchange at a time. Public attributes are for `http_watch`
    to read."""

    def __init__(self, now_ns: Callable[[], int], on_idle_lost: Callable[[Wire], None]) -> None:
        self._now_ns = now_ns
        self._on_idle_lost = on_idle_lost
        self._transport: asyncio.Transport | None = None
        self._parser: HttpResponseParser | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._paused = False
        self._keep = False
        self.usable = False
        """Open, idle or about to be, and nothing unexpected has arrived."""
        self.idle_since_ns = 0
        self.reused = False
        self._begin(0)

    def _begin(self, connected_ns: int) -> None:
        self.connected_ns = connected_ns
        self.sent_ns: int | None = None
        self.last_ns: int | None = None
        """Stamp of the newest bytes of the response."""
        self.stamps_ns: list[int] = []
        self.pieces: list[bytes] = []
        self._first_byte_ns: int | None = None
        self._status: int | None = None
        self._headers: list[tuple[str, str]] = []
        self._until_close = False

    def send(
        self, request: bytes, connected_ns: int, listener: object | None = None
    ) -> asyncio.Future[Answer]:
        """Write a whole request; the future ends with its answer and is never an exception. `listener` is called by
        the parser instead of us, and hands on (see `http_cancel`).

        `sent_ns` is when the last byte was handed to the operating system: the moment before the write where
        it took everything at once, else when the transport says that its buffer has run empty (long
        prompts). Over TLS the transport below may still hold up to 64 KiB then."""
        from httptools import HttpResponseParser

        transport = cast("asyncio.Transport", self._transport)
        self._begin(connected_ns)
        # a fresh parser for each response: nothing of the one before can leak into this one
        self._parser = HttpResponseParser(self if listener is None else listener)
        self._waiter = asyncio.get_running_loop().create_future()
        waiter = self._waiter
        # Before the call: on one machine the server can answer before a write returns (it takes the core).
        handed_ns = self._now_ns()
        transport.write(request)
        if not self._paused and transport.get_write_buffer_size() == 0:
            self.sent_ns = handed_ns
        return waiter

    def finish(self, end: End, end_ns: int, error: str | None = None) -> None:
        """End the exchange under way, if any; the connection stays only after a complete response."""
        waiter, self._waiter = self._waiter, None
        self._parser = None
        if waiter is None:
            return
        if end is not End.COMPLETE or not self._keep or self.sent_ns is None:
            self.abort()
        if not waiter.done():
            waiter.set_result(
                Answer(
                    end=end,
                    end_ns=end_ns,
                    error=error,
                    connected_ns=self.connected_ns,
                    sent_ns=self.sent_ns,
                    first_byte_ns=self._first_byte_ns,
                    reused=self.reused,
                    status=self._status,
                    headers=tuple(self._headers),
                    stamps_ns=self.stamps_ns,
                    pieces=self.pieces,
                )
            )
        self.stamps_ns, self.pieces = [], []  # they belong to the answer now

    def closing(self) -> bool:
        """Closed or being closed, even if `connection_lost` has yet to be called."""
        return self._transport is None or self._transport.is_closing()

    def abort(self) -> None:
        """Close the socket at once, whatever is still to be sent or received."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Tell the transport to say at once when it could not hand everything to the operating system."""
        self._transport = cast("asyncio.Transport", transport)
        # TLS transports pause at `size >= high`, plain ones at `size > high`
        tls = transport.get_extra_info("ssl_object") is not None
        self._transport.set_write_buffer_limits(high=1 if tls else 0, low=0)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        """Stamp, then frame."""
        now_ns = self._now_ns()
        parser = self._parser
        if parser is None:  # bytes that nobody asked for: this connection cannot be trusted again
            self.abort()
            return
        self.last_ns = now_ns
        try:
            parser.feed_data(data)
        except _parser_errors() as error:
            self.finish(End.MALFORMED, now_ns, f"not an HTTP/1 response: {error}")

    def eof_received(self) -> bool:
        """The peer will send no more."""
        end = End.CLOSED if self._until_close else End.LOST
        self.finish(end, self._now_ns(), None if end is End.CLOSED else "the server closed the connection")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; whatever was received is kept."""
        now_ns = self._now_ns()
        idle = self._waiter is None
        self.usable = False
        self.finish(End.LOST, now_ns, f"connection lost: {exc}" if exc else "connection lost")
        if idle:
            self._on_idle_lost(self)

    def pause_writing(self) -> None:
        """Some of the request is still in our buffer."""
        self._paused = True

    def resume_writing(self) -> None:
        """The buffer has run empty: now the request has been sent."""
        self._paused = False
        if self._waiter is not None and self.sent_ns is None:
            self.sent_ns = self._now_ns()

    # what httptools calls, always from inside data_received

    def on_message_begin(self) -> None:
        """First byte of a response (of the real one, when a 1xx came before it)."""
        if self._waiter is None:  # a second response to one request
            self.abort()
        self._first_byte_ns = self.last_ns

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, or a trailer."""
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1").strip()))

    def on_headers_complete(self) -> None:
        """Status and headers are known."""
        if self._parser is None:
            return
        self._status = self._parser.get_status_code()
        names = {name for name, _ in self._headers}
        self._until_close = not names & {"content-length", "transfer-encoding"}

    def on_body(self, body: bytes) -> None:
        """A piece of the body: it keeps the stamp of the bytes that it came in."""
        self.stamps_ns.append(self.last_ns or 0)
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        """End of a response; an interim one (1xx) only makes way for the next."""
        if self._status is not None and self._status < 200:
            self._status = None
            self._headers.clear()
            return
        if self._parser is not None:
            self._keep = self._parser.should_keep_alive()
            self.finish(End.COMPLETE, self.last_ns or 0)


def _parser_errors() -> tuple[type[Exception], ...]:
    from httptools import HttpParserError, HttpParserUpgrade

    return (HttpParserError, HttpParserUpgrade)

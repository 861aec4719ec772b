"""Giving a stream up on purpose, after so many generated tokens, as a user does who has read enough.

Only a request that is to be given up is looked at while it streams; all others are parsed when they have ended
(decision 003)."""

from __future__ import annotations

from collections.abc import Callable

from phasemeter.engines.http_chunks import UNREADABLE, read_chunk
from phasemeter.engines.http_sse import sse_events
from phasemeter.engines.http_wire import End, Wire
from phasemeter.record.engine import GENERATED

_BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")


class Quitter:
    """What the parser of one response calls instead of its `Wire`: hands everything on, and ends the exchange (the
    socket is closed) once `tokens` generated ones have come."""

    def __init__(self, wire: Wire, tokens: int, now_ns: Callable[[], int]) -> None:
        self._wire = wire
        self._tokens = tokens
        self._now_ns = now_ns
        self._tail = b""
        self._seen = 0
        self.on_message_begin = wire.on_message_begin
        self.on_header = wire.on_header
        self.on_headers_complete = wire.on_headers_complete
        self.on_message_complete = wire.on_message_complete

    def on_body(self, body: bytes) -> None:
        """Keep the piece as always, then count what has come."""
        self._wire.on_body(body)
        self._tail += body
        end = max(
            self._tail.rfind(blank) + len(blank) if blank in self._tail else 0 for blank in _BLANK_LINES
        )
        whole, self._tail = self._tail[:end], self._tail[end:]
        for event in sse_events((0,), (whole,)):
            if event.data is not None:
                self._count(event.data, event.name)
        if self._seen >= self._tokens:
            self._wire.finish(End.CANCELLED, self._now_ns(), f"given up on purpose after {self._seen} tokens")

    def _count(self, data: bytes, name: bytes) -> None:
        try:
            fact = read_chunk(data, name)
        except UNREADABLE:
            return  # told when the stream is read
        if fact.kind in GENERATED:
            self._seen = max(self._seen + 1, fact.completion_tokens or 0)

"""Time-outs of all streams from one periodic check.

A timer a piece would cost more than receiving it. Instead each stream has one moment at which it must be
looked at next, and one tick compares it with the clock. A time-out can therefore come up to one tick late;
nothing that is received is stamped here."""

from __future__ import annotations

import asyncio
from itertools import accumulate

from msgspec import Struct

from phasemeter.engines.http_chunks import first_token_ns
from phasemeter.engines.http_wire import End, Wire
from phasemeter.record.clock import Clock

DONE_GRACE_NS = 500_000_000
"""How long a response may stay open after `[DONE]` before we close it ourselves."""

_TICK_S = 0.05
_NS = 1_000_000_000


class HttpTimeouts(Struct, frozen=True):
    """Limits in seconds; None is no limit.

    connect_s       until a connection is ready (TLS included), and until the whole request is handed over
    first_token_s   request sent until first generated token (a role chunk or a comment is none)
    inter_token_s   between events of the stream after the first token (comments do not count)
    total_s         whole request, from its start
    """

    connect_s: float | None = 10.0
    first_token_s: float | None = None
    inter_token_s: float | None = None
    total_s: float | None = 600.0


class _Stream:
    __slots__ = ("begun_ns", "examined", "look_ns", "mark_ns", "seen_token", "wire")

    def __init__(self, wire: Wire, begun_ns: int) -> None:
        self.wire = wire
        self.begun_ns = begun_ns
        self.look_ns = 0
        self.mark_ns = 0
        self.seen_token = False
        self.examined = 0


class Watch:
    """Looks at every stream under way a few times a second; runs only while there is one."""

    def __init__(self, limits: HttpTimeouts, clock: Clock) -> None:
        self._limits = limits
        self._now_ns = clock.now_ns
        self._streams: dict[Wire, _Stream] = {}
        self._fresh: dict[Wire, None] = {}
        """Streams in the order of their beginning, each until it is found to have tokens."""
        self._timer: asyncio.TimerHandle | None = None
        shortest_s = min(
            (s for s in (limits.first_token_s, limits.inter_token_s, limits.total_s) if s), default=1.0
        )
        self._tick_s = min(_TICK_S, max(0.005, shortest_s / 5))

    def add(self, wire: Wire, begun_ns: int) -> None:
        """Watch the exchange that `wire` has begun; the total time-out counts from `begun_ns`."""
        self._streams[wire] = _Stream(wire, begun_ns)
        self._fresh[wire] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def discard(self, wire: Wire) -> None:
        """The exchange has ended."""
        self._streams.pop(wire, None)
        self._fresh.pop(wire, None)

    def awaits_first(self) -> bool:
        """Whether any stream has yet to get its first token. One piece may be the opening of the message alone."""
        fresh = self._fresh
        while fresh and len(next(reversed(fresh)).pieces) >= 2:
            fresh.popitem()
        return bool(fresh)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._streams.clear()
        self._fresh.clear()

    def _tick(self) -> None:
        self._timer = None
        now_ns = self._now_ns()
        for stream in list(self._streams.values()):
            if now_ns >= stream.look_ns:
                self._look(stream, now_ns)
        if self._streams:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _look(self, stream: _Stream, now_ns: int) -> None:
        wire, limits = stream.wire, self._limits
        if (
            wire.last_ns is not None
            and now_ns - wire.last_ns >= DONE_GRACE_NS
            and ends_with_done(wire.pieces)
        ):
            wire.finish(End.DONE, wire.last_ns)  # the stream's own end; the wait was ours
            return
        total_ns = _ns(limits.total_s)
        if total_ns is not None and now_ns - stream.begun_ns > total_ns:
            wire.finish(End.TIMEOUT_TOTAL, now_ns, f"not finished after {limits.total_s:g} s")
            return
        if wire.sent_ns is None:
            due_ns = self._look_at_send(wire, now_ns)
        else:
            due_ns = self._look_at_tokens(stream, wire.sent_ns, now_ns)
        looks = [now_ns + DONE_GRACE_NS, due_ns, stream.begun_ns + total_ns if total_ns is not None else None]
        stream.look_ns = min(look for look in looks if look is not None)

    def _look_at_send(self, wire: Wire, now_ns: int) -> int | None:
        limit_ns = _ns(self._limits.connect_s)
        if limit_ns is None:
            return None
        if now_ns - wire.connected_ns > limit_ns:
            wire.finish(
                End.TIMEOUT_CONNECT,
                now_ns,
                f"the server did not take the request within {self._limits.connect_s:g} s",
            )
        return now_ns  # look again at the next tick: the wait for the first token starts once it is sent

    def _look_at_tokens(self, stream: _Stream, sent_ns: int, now_ns: int) -> int | None:
        wire, limits = stream.wire, self._limits
        if not stream.seen_token:
            limit_ns = _ns(limits.first_token_s)
            if limits.inter_token_s is None and (limit_ns is None or now_ns - sent_ns <= limit_ns):
                return None if limit_ns is None else sent_ns + limit_ns
            first_ns = first_token_ns(wire.stamps_ns, wire.pieces)
            if first_ns is None:
                if limit_ns is not None and now_ns - sent_ns > limit_ns:
                    wire.finish(
                        End.TIMEOUT_FIRST, now_ns, f"no token within {limits.first_token_s:g} s of sending"
                    )
                return None if limit_ns is None else sent_ns + limit_ns
            stream.seen_token, stream.mark_ns = True, first_ns
        gap_ns = _ns(limits.inter_token_s)
        if gap_ns is None:
            return None
        if now_ns - stream.mark_ns > gap_ns:
            stream.mark_ns = _newest_data_ns(wire, stream.examined) or stream.mark_ns
            stream.examined = max(0, len(wire.pieces) - 1)
            if now_ns - stream.mark_ns > gap_ns:
                wire.finish(End.TIMEOUT_GAP, now_ns, f"no token for {limits.inter_token_s:g} s")
        return stream.mark_ns + gap_ns


def ends_with_done(pieces: list[bytes]) -> bool:
    """Whether the body so far ends with a `[DONE]` event, however it was cut."""
    tail: list[bytes] = []
    size = 0
    for piece in reversed(pieces):
        tail.append(piece)
        size += len(piece)
        if size >= 64:
            break
    return b"".join(reversed(tail)).rstrip().endswith((b"data: [DONE]", b"data:[DONE]"))


def _newest_data_ns(wire: Wire, since: int) -> int | None:
    """Stamp of the newest piece (from piece `since` on) that holds part of a data line; comments are none.
    JSON is not read: that would cost more than the stream itself, at the worst moment."""
    pieces = wire.pieces[since:]
    body = b"".join(pieces)
    start = body.rfind(b"data:")
    if start < 0:
        return None
    ends = [end for end in (body.find(b"\n", start), body.find(b"\r", start)) if end >= 0]
    last = min(ends, default=len(body) - 1)
    for index, end in enumerate(accumulate(len(piece) for piece in pieces)):
        if end > last:
            return wire.stamps_ns[since + index]
    return None


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * _NS)

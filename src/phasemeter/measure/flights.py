"""What is in flight, and the replies that wait to be parsed; both drivers send through it.

Parsing one reply takes about a millisecond, in which nothing else is stamped. So replies are settled one at a time from
a slow tick, never where one has just ended (there the next send is due), and not while a first token is awaited, unless
the backlog grows (decision 003): 256 streams that end together would else delay the next 256 first tokens by 100 ms.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType

from phasemeter.measure.observe import TimelineSink
from phasemeter.measure.timetable import Timetable
from phasemeter.record.clock import Clock
from phasemeter.record.engine import Attentive, Engine, Outcome, Reply, Result, Settled
from phasemeter.record.errors import PhasemeterError
from phasemeter.record.event import Event, Kind, Observer
from phasemeter.record.request import Request
from phasemeter.record.timeline import timeline_of

BACKLOG_REPLIES = 64
"""More unparsed replies than this, and than half as many again as are in flight, are parsed even while a first token is
awaited; it bounds what a kill can lose."""
_CROWDED_TOKENS = 400_000
"""More unparsed than this (some 150 MB), or 256 replies and twice those in flight, are parsed even just before a send:
memory stays bounded at any rate."""
_TICK_S = 0.004
_QUIET_NS = 2_000_000
"""No send may be due within this for a reply to be parsed: it takes about a millisecond."""


class _Ended:
    """A reply with what the driver knows of it, waiting to be settled."""

    __slots__ = ("arrived_ns", "in_flight", "reply", "request", "started_ns")

    def __init__(
        self, request: Request, reply: Reply, arrived_ns: int, started_ns: int, in_flight: int
    ) -> None:
        self.request = request
        self.reply = reply
        self.arrived_ns = arrived_ns
        self.started_ns = started_ns
        self.in_flight = in_flight


class Flights:
    """Sends requests and hands on what came of them: `sink` gets one Timeline each, in the order in which they ended.
    Enter it in the event loop; on leaving, everything that has ended is with the sink."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        sink: TimelineSink,
        observe: Observer | None = None,
        *,
        keep_text: bool = False,
    ) -> None:
        self.clock = clock
        self.timetable = Timetable(clock)
        self.in_flight = 0
        self._engine = engine
        self._sink = sink
        self._observe = observe
        self._keep_text = keep_text
        self._backlog: deque[_Ended] = deque()
        self._backlog_tokens = 0
        self._timer: asyncio.TimerHandle | None = None
        self._broken: PhasemeterError | None = None

    async def fly(self, request: Request, arrived_ns: int) -> int:
        """Start `request` now and return when it has ended: the moment from which its sender is free again. Cancelled
        from outside, it is recorded as cancelled and the cancellation goes on."""
        self._raise_broken()
        self.in_flight += 1
        seen = self.in_flight
        started_ns = self.clock.now_ns()
        self._tell(request, Kind.STARTED, started_ns)
        try:
            reply = await self._engine.generate(request)
        except asyncio.CancelledError:
            ended_ns = self.clock.now_ns()
            gone = Settled(Result(Outcome.CANCELLED, end_ns=ended_ns, error="given up by the user"))
            self._keep(_Ended(request, gone, arrived_ns, started_ns, seen))
            raise
        finally:
            self.in_flight -= 1
        free_ns = self.clock.now_ns()
        self._tell(request, Kind.FINISHED, free_ns)
        self._keep(_Ended(request, reply, arrived_ns, started_ns, seen))
        self._raise_broken()
        while self._backlog and (not self.in_flight or self._crowded()) and self._may_settle():
            self._settle_one()
        # parsing was ours; what comes next arrives after it
        return free_ns if self.in_flight else self.clock.now_ns()

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _keep(self, ended: _Ended) -> None:
        self._backlog.append(ended)
        self._backlog_tokens += ended.request.max_tokens
        self._wait()

    def _wait(self) -> None:
        if self._timer is None and self._backlog:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        try:
            # so many that hundreds of streams are parsed before they end again
            for _ in range(1 + len(self._backlog) // 256):
                if self._backlog and self._may_settle():
                    self._settle_one()
        except (
            PhasemeterError
        ) as error:  # a full disk, a dead engine: nobody hears a timer's error, a sender does
            self._broken = error
            return
        self._wait()

    def _crowded(self) -> bool:
        most = max(4 * BACKLOG_REPLIES, 2 * self.in_flight)
        return len(self._backlog) > most or self._backlog_tokens > _CROWDED_TOKENS

    def _may_settle(self) -> bool:
        if self._crowded():
            return True
        due_ns = self.timetable.next_ns
        if due_ns is not None and due_ns - self.clock.now_ns() < _QUIET_NS:
            return False
        if not self.in_flight or len(self._backlog) > max(BACKLOG_REPLIES, 1.5 * self.in_flight):
            return True
        return isinstance(self._engine, Attentive) and not self._engine.awaits_first()

    def _settle_one(self) -> None:
        ended = self._backlog.popleft()
        self._backlog_tokens -= ended.request.max_tokens
        self._sink(
            timeline_of(
                ended.request,
                ended.reply.settle(),
                arrived_ns=ended.arrived_ns,
                started_ns=ended.started_ns,
                in_flight=ended.in_flight,
                keep_text=self._keep_text,
            )
        )

    def _tell(self, request: Request, kind: Kind, t_ns: int) -> None:
        if self._observe is not None:
            self._observe(Event(t_ns, request.id, kind))

    async def __aenter__(self) -> Flights:
        await self.timetable.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.timetable.__aexit__(kind, error, trace)
        if self._timer is not None:
            self._timer.cancel()
        while self._backlog:
            self._settle_one()
        if kind is None:
            self._raise_broken()

"""What is in flight, and the replies that wait to be parsed; both drivers send through it.

While requests are in flight nothing is parsed unless the backlog grows: replies are settled when the loop is quiet
(decision 003), so that the client's own work does not land on somebody's time to first token, nor on the next send.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType

from phasemeter.measure.observe import TimelineSink
from phasemeter.measure.timetable import Timetable
from phasemeter.record.clock import Clock
from phasemeter.record.engine import Engine, Outcome, Reply, Result, Settled
from phasemeter.record.event import Event, Kind, Observer
from phasemeter.record.request import Request
from phasemeter.record.timeline import timeline_of

BACKLOG_REPLIES = 64
"""More unparsed replies than this are parsed even while requests are in flight; it bounds what a kill can lose."""
_CROWDED_REPLIES = 4 * BACKLOG_REPLIES
"""More than this are parsed even just before a send: memory stays bounded at any rate."""
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

    async def fly(self, request: Request, arrived_ns: int) -> int:
        """Start `request` now and return when it has ended: the moment from which its sender is free again. Cancelled
        from outside, it is recorded as cancelled and the cancellation goes on."""
        self.in_flight += 1
        seen = self.in_flight
        started_ns = self.clock.now_ns()
        self._tell(request, Kind.STARTED, started_ns)
        try:
            reply = await self._engine.generate(request)
        except asyncio.CancelledError:
            ended_ns = self.clock.now_ns()
            gone = Settled(Result(Outcome.CANCELLED, end_ns=ended_ns, error="given up by the user"))
            self._backlog.append(_Ended(request, gone, arrived_ns, started_ns, seen))
            raise
        finally:
            self.in_flight -= 1
        free_ns = self.clock.now_ns()
        self._tell(request, Kind.FINISHED, free_ns)
        self._backlog.append(_Ended(request, reply, arrived_ns, started_ns, seen))
        self._settle_some()
        # parsing was ours; what comes next arrives after it
        return free_ns if self.in_flight else self.clock.now_ns()

    def _settle_some(self) -> None:
        while self._backlog and self._may_settle():
            self._settle_one()
            if self.in_flight:
                break  # one bite at a time: the others' stamps come first

    def _may_settle(self) -> bool:
        waiting = len(self._backlog)
        if waiting > _CROWDED_REPLIES:
            return True
        due_ns = self.timetable.next_ns
        if due_ns is not None and due_ns - self.clock.now_ns() < _QUIET_NS:
            return False
        return self.in_flight == 0 or waiting > BACKLOG_REPLIES

    def _settle_one(self) -> None:
        ended = self._backlog.popleft()
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
        while self._backlog:
            self._settle_one()

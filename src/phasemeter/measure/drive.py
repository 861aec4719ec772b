"""Drivers: start requests and hand on what came of them. They know nothing of shapes or files.

`closed_loop` keeps a fixed number of requests in flight; each slot starts its next request when its last one has
ended. Arrival is when the slot became free (or the request's own `arrive_ns`, which an open loop will set).

While requests are in flight nothing is parsed unless the backlog grows: replies are settled when the loop is quiet
(decision 003), so that the client's own work does not land on somebody's time to first token.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator

from phasemeter.measure.observe import TimelineSink
from phasemeter.record.clock import Clock
from phasemeter.record.engine import Engine, Outcome, Reply, Result, Settled
from phasemeter.record.event import Event, Kind, Observer
from phasemeter.record.request import Request
from phasemeter.record.timeline import timeline_of

_BACKLOG_REPLIES = 64
"""More unparsed replies than this are parsed even while requests are in flight; it bounds what a kill can lose."""


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


async def closed_loop(
    engine: Engine,
    requests: Iterator[Request],
    concurrency: int,
    clock: Clock,
    sink: TimelineSink,
    observe: Observer | None = None,
    *,
    keep_text: bool = False,
) -> None:
    """Run `requests` with `concurrency` of them in flight; `sink` gets one Timeline each, in the order in which they
    ended. Cancelled from outside, what is in flight is recorded as cancelled and the cancellation goes on."""
    backlog: deque[_Ended] = deque()
    in_flight = 0
    opened_ns = (
        clock.now_ns()
    )  # all slots are free from here: starting the first wave one by one is our lateness

    def settle_one() -> None:
        ended = backlog.popleft()
        sink(
            timeline_of(
                ended.request,
                ended.reply.settle(),
                arrived_ns=ended.arrived_ns,
                started_ns=ended.started_ns,
                in_flight=ended.in_flight,
                keep_text=keep_text,
            )
        )

    async def slot() -> None:
        nonlocal in_flight
        free_ns = opened_ns
        for request in requests:
            arrived_ns = request.arrive_ns if request.arrive_ns is not None else free_ns
            in_flight += 1
            seen = in_flight
            started_ns = clock.now_ns()
            _tell(observe, request, Kind.STARTED, started_ns)
            try:
                reply = await engine.generate(request)
            except asyncio.CancelledError:
                gone = Settled(Result(Outcome.CANCELLED, end_ns=clock.now_ns(), error="given up by the user"))
                backlog.append(_Ended(request, gone, arrived_ns, started_ns, seen))
                raise
            finally:
                in_flight -= 1
            free_ns = clock.now_ns()
            _tell(observe, request, Kind.FINISHED, free_ns)
            backlog.append(_Ended(request, reply, arrived_ns, started_ns, seen))
            while backlog and (in_flight == 0 or len(backlog) > _BACKLOG_REPLIES):
                settle_one()
                if in_flight:
                    break  # one bite at a time: the others' stamps come first
            if in_flight == 0:
                free_ns = clock.now_ns()  # parsing was ours; the next arrival is after it

    try:
        await _together([slot() for _ in range(concurrency)])
    finally:
        while backlog:
            settle_one()


def _tell(observe: Observer | None, request: Request, kind: Kind, t_ns: int) -> None:
    if observe is not None:
        observe(Event(t_ns, request.id, kind))


async def _together(slots: list[Coroutine[None, None, None]]) -> None:
    """Run all slots; the first error cancels the rest and is raised as itself, not in a group."""
    tasks = [asyncio.ensure_future(slot) for slot in slots]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

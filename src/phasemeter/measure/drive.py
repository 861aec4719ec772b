"""Drivers: start requests at their time. They know nothing of shapes or files.

`closed_loop` keeps a number of slots; each starts its next request when its last one has ended (and its think time is
over). `open_loop` starts each request at its own moment, whatever is in flight. Both take strands: what is sent one
after another, which is a single request or the turns of a conversation.

Arrival is when a request was due, not when it was started: the moment of the plan in an open loop, the end of the one
before (and the think time) elsewhere. The difference is our own lateness, the phase `late`, and is never hidden.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType

from msgspec import Struct

from phasemeter.measure.flights import Flights
from phasemeter.record.request import Request

_REGISTERED = 32
"""So many strands are in the timetable ahead of their time: a burst is started without a pause between."""


class Send(Struct, frozen=True):
    """A request ready to go. `after_ns` counts from the end of the one before in its strand (think time); the first of
    a strand: from the loop's start (open), or from the end of the slot's last one (closed)."""

    request: Request
    after_ns: int = 0


Strand = Sequence[Send]


def singles(requests: Iterable[Request]) -> Iterator[Strand]:
    """Requests that follow on nothing, each due at once."""
    return ([Send(request)] for request in requests)


async def closed_loop(
    flights: Flights, strands: Iterator[Strand], slots: Sequence[int], until_ns: int | None = None
) -> None:
    """One slot for each entry of `slots`, which says from when on it is free. Ends when the strands do and everything
    in flight has ended; from `until_ns` on nothing more is started. The first error cancels the rest."""

    async def slot(free_ns: int) -> None:
        fresh = True
        await flights.timetable.until(free_ns)
        for strand in strands:
            for send in strand:
                due_ns = free_ns if fresh else free_ns + send.after_ns
                if until_ns is not None and due_ns >= until_ns:
                    return
                await flights.timetable.until(due_ns)
                free_ns = await flights.fly(send.request, due_ns)
                fresh = False

    async with _Crew() as crew:
        for free_ns in slots:
            crew.start(slot(free_ns))
        await crew.rest(lambda: crew.size == 0)


async def open_loop(
    flights: Flights, strands: Iterator[Strand], start_ns: int, until_ns: int | None = None
) -> None:
    """Start every strand at its time after `start_ns`, the order of `strands` being that of their times. Ends when they
    do, or with the first that is due at `until_ns` or later, and when everything in flight has ended. The first error
    cancels the rest."""

    async def follow(strand: Strand, due_ns: int) -> None:
        free_ns = await flights.fly(strand[0].request, due_ns)
        for send in strand[1:]:
            due_ns = free_ns + send.after_ns
            if until_ns is not None and due_ns >= until_ns:
                return
            await flights.timetable.until(due_ns)
            free_ns = await flights.fly(send.request, due_ns)

    async with flights.timetable.cleared(), _Crew() as crew:

        def launch(strand: Strand, due_ns: int) -> None:
            crew.awaited -= 1
            crew.start(follow(strand, due_ns))

        for strand in strands:
            due_ns = start_ns + strand[0].after_ns
            if until_ns is not None and due_ns >= until_ns:
                break
            flights.timetable.at(due_ns, partial(launch, strand, due_ns))
            crew.awaited += 1
            if crew.awaited >= _REGISTERED:
                await crew.rest(lambda: crew.awaited < _REGISTERED)
        await crew.rest(lambda: crew.awaited == 0 and crew.size == 0)


class _Crew:
    """Tasks that stand and fall together: the first error is raised as itself, not in a group; leaving cancels what
    still runs."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._news = asyncio.Event()
        self.awaited = 0
        """How many have yet to begin."""

    @property
    def size(self) -> int:
        """How many still run."""
        return len(self._tasks)

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` beside the others."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        self._news.set()

    async def rest(self, enough: Callable[[], bool]) -> None:
        """Wait until `enough()`, asked whenever a task has begun or ended. Raises the first error of a task."""
        while True:
            if self._error is not None:
                raise self._error
            if enough():
                return
            self._news.clear()
            await self._news.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and self._error is None:
            self._error = error
        self._news.set()

    async def __aenter__(self) -> _Crew:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = list(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

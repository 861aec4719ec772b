"""The server beside the run: its sums before and after the measured requests, its gauges while they are in flight.

A session enters `Scraping` after its warm-up and leaves it after its last request:

    async with Scraping(engine, clock, writer.write, every_s=1.0, probes=probes) as scraping:
        ...
        scraping.flush()  # now and then, when nothing is timed: writes what was sampled

Where the engine has no server, or the server no /metrics that we know, all of this does nothing.

The two full pages are read outside of every timed stretch. The gauges are read in a thread: it asks for the few names
that it wants (`?name[]=`; vLLM up to 0.32 sends its whole page all the same, its issue 53140), picks them out of the
bytes and touches nothing else, so that the interpreter's lock, which the event loop needs to stamp tokens, is held for
well under a millisecond. What it found waits in memory until `flush`. `docs/inside-the-engine.md` tells the cost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Thread
from types import TracebackType

from msgspec.structs import replace

from phasemeter.engines.metrics_page import MetricsPage
from phasemeter.engines.server_gauges import names_on, query_of, readings
from phasemeter.engines.vllm_metrics import scrape_of
from phasemeter.measure.nvml import nvml_held
from phasemeter.measure.telemetry import Probe, reading
from phasemeter.record.clock import Clock
from phasemeter.record.run import Sample
from phasemeter.record.scrape import Metered, Moment, Scrape

DEFAULT_EVERY_S = 1.0
_SETTLE_S = 0.3
_TRIES = 5
"""A server counts a request a little after its last token was sent: read until two pages in a row count the same."""


class Scraping:
    """See the module. `write` gets `Sample` and `Scrape` lines, in the event loop's thread alone; `every_s` of zero
    takes no samples; `probes` are read beside the server's gauges."""

    def __init__(
        self,
        engine: object,
        clock: Clock,
        write: Callable[[Sample | Scrape], None],
        *,
        every_s: float = DEFAULT_EVERY_S,
        probes: Sequence[Probe] = (),
    ) -> None:
        place = engine.metrics_place() if isinstance(engine, Metered) else None
        self._page = None if place is None else MetricsPage(place)
        self._clock = clock
        self._write = write
        self._every_s = every_s
        self._probes = tuple(probes)
        self._framed = False
        self._sampler: _Sampler | None = None

    async def __aenter__(self) -> Scraping:
        if self._page is None:
            return self
        first = await asyncio.to_thread(self._page.read)
        if first is None:
            return self
        if scrape_of(_text(first)).histograms:
            self._framed = await self._frame(Moment.BEFORE)
        names = names_on(first)
        if self._every_s > 0 and names:
            self._sampler = _Sampler(self._page, names, self._clock, self._every_s, self._probes)
            self._sampler.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._page is None:
            return
        try:
            if self._sampler is not None:
                await asyncio.to_thread(self._sampler.stop)
                self.flush()
            if (
                kind is None and self._framed
            ):  # after an error the server may be gone, and Ctrl-C waits for nobody
                await self._frame(Moment.AFTER)
        finally:
            self._page.close()

    def flush(self) -> None:
        """Write what was sampled since the last call. For the event loop's thread, when nothing is timed."""
        if self._sampler is not None:
            for sample in self._sampler.taken():
                self._write(sample)

    async def _frame(self, moment: Moment) -> bool:
        """Write a scrape once the server has stopped counting; False where the page is gone."""
        assert self._page is not None
        found: Scrape | None = None
        for _ in range(_TRIES):
            await asyncio.sleep(_SETTLE_S)
            page = await asyncio.to_thread(self._page.read)
            if page is None:
                return False
            last, found = found, scrape_of(_text(page))
            if last is not None and _counts(last) == _counts(found):
                break
        assert found is not None
        self._write(replace(found, t_ns=self._clock.now_ns(), moment=moment))
        return True


class _Sampler:
    """The thread. What it finds goes through a deque, whose ends are safe from two threads."""

    def __init__(
        self, page: MetricsPage, names: dict[str, str], clock: Clock, every_s: float, probes: Sequence[Probe]
    ) -> None:
        self._page = page
        self._names = names
        self._query = query_of(list(names.values()))
        self._clock = clock
        self._every_s = every_s
        self._probes = probes
        self._found: deque[Sample] = deque()
        self._ended = Event()
        self._thread = Thread(target=self._run, name="metrics sampler", daemon=True)

    def start(self) -> None:
        """Begin; the first sample comes at once."""
        self._thread.start()

    def stop(self) -> None:
        """End; blocks until a scrape that is under way has come back or timed out."""
        self._ended.set()
        self._thread.join()

    def taken(self) -> list[Sample]:
        """What was found since the last call."""
        return [self._found.popleft() for _ in range(len(self._found))]

    def _run(self) -> None:
        with nvml_held():
            due_ns = self._clock.now_ns()
            while not self._ended.wait(max(0.0, (due_ns - self._clock.now_ns()) / 1e9)):
                self._sample()
                # a slow answer leaves samples out instead of crowding the next ones
                due_ns = max(due_ns + round(self._every_s * 1e9), self._clock.now_ns())

    def _sample(self) -> None:
        asked_ns = self._clock.now_ns()
        page = self._page.read(self._query)
        got_ns = self._clock.now_ns()
        values = {} if page is None else readings(page, self._names)
        if page is not None and not values:
            self._query = ""  # a server that takes no names: its whole page from now on
        self._found.append(Sample((asked_ns + got_ns) // 2, values | reading(self._probes)))


def _counts(scrape: Scrape) -> dict[str, int]:
    return {name: histogram.count for name, histogram in scrape.histograms.items()}


def _text(page: bytes) -> str:
    return page.decode("utf-8", errors="replace")

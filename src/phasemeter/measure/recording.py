"""What every measuring session keeps while it runs, whatever sends the requests: lines to the run file, samples of
ourselves, where it stands, and whether the engine is still there."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from phasemeter.measure.descriptors import no_descriptor_left, told_of_descriptors
from phasemeter.measure.flights import Flights
from phasemeter.measure.load import WHOLE, Share
from phasemeter.measure.observe import TimelineSink
from phasemeter.measure.scrape import DEFAULT_EVERY_S, Scraping
from phasemeter.measure.telemetry import LoopLag, Probe, reading
from phasemeter.record.clock import Clock, cpu_ns
from phasemeter.record.engine import Engine, Insider, Outcome
from phasemeter.record.errors import EngineError, InputError, PhasemeterError
from phasemeter.record.event import Observer
from phasemeter.record.file import RunWriter
from phasemeter.record.request import Cell
from phasemeter.record.run import Footer, Header, Sample
from phasemeter.record.timeline import Timeline

LAST_WORDS_S = 0.3
"""How long an engine gets to tell of its last requests."""

DEAD_AFTER = 8
"""So many failed connections in a row, and the engine is taken for dead."""

_MANY_NEW_OBJECTS = 100_000
"""The collector looks at the youngest objects once there are so many: about 1 ms, a few times a minute at the most."""


class Progress(Struct, frozen=True):
    """Where a session stands; `planned` is None where only the end's time is known, `left_s` until that can be told."""

    done: int
    planned: int | None
    warming: bool
    left_s: float | None
    cell: Cell | None


Watcher = Callable[[Progress], None]

Gate = Callable[[int], Awaitable[int]]


class Beside(Struct, frozen=True):
    """What goes along with a session: who listens, what is sampled, what is kept.

    `ceilings` measures the machine once more at the end, in a thread, for the footer. `share` is this process's part
    of a plan that several processes send; then `gate(k)` is awaited before the k-th visit or stage (-1: before the
    warm-up), so that they go on together, and returns the common start on the monotonic clock.
    """

    observe: Observer | None = None
    watch: Watcher | None = None
    probes: tuple[Probe, ...] = ()
    keep_text: bool = False
    extra: dict[str, object] = {}
    ceilings: Callable[[], dict[str, object]] | None = None
    share: Share = WHOLE
    gate: Gate | None = None
    scrape_s: float = DEFAULT_EVERY_S
    """Seconds between two samples of a server's gauges, where it serves them; 0 takes none."""


class Recording:
    """One session's way to its file. `dead_ns`: for so long no connection may have worked before the engine is taken
    for dead (0: `DEAD_AFTER` in a row are enough). Raises EngineError out of a flight then."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        writer: RunWriter,
        beside: Beside,
        *,
        planned: int | None,
        dead_ns: int = 0,
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._writer = writer
        self._beside = beside
        self._planned = planned
        self._dead_ns = dead_ns
        self._unreached = 0
        self._reached_ns: int | None = None
        self.done = 0

    async def gate(self, number: int) -> int:
        """Wait for the other processes of this run, if any; the moment from which everybody's plan counts."""
        gate = self._beside.gate
        return self._clock.now_ns() if gate is None else await gate(number)

    def scraping(self) -> Scraping:
        """The server beside the run; where workers send it, their parent looks at it for all of them."""
        beside = self._beside
        engine = self._engine if beside.gate is None else None
        return Scraping(
            engine, self._clock, self._writer.write, every_s=beside.scrape_s, probes=beside.probes
        )

    @asynccontextmanager
    async def flights(
        self,
        seen: TimelineSink | None = None,
        *,
        every_s: float | None = None,
        tick: Callable[[], None] | None = None,
    ) -> AsyncGenerator[Flights]:
        """Flights whose requests go to the file and to `seen`; on leaving, all that ended is there, and one sample of
        ourselves. With `every_s` a sample is taken (and `tick` called) as often as that, too. No request is kept in
        memory."""

        def sink(timeline: Timeline) -> None:
            self._writer.write(timeline)
            if seen is not None:
                seen(timeline)
            self._count(timeline)

        beside = self._beside
        async with LoopLag(self._clock) as lag:
            sampler = _Sampler(self, lag)
            with _no_collection():
                async with (
                    _every(every_s, (sampler.take, *([tick] if tick else []))),
                    Flights(
                        self._engine, self._clock, sink, beside.observe, keep_text=beside.keep_text
                    ) as flights,
                ):
                    yield flights
        sampler.take()
        self.write_seen()

    def sample(self, values: dict[str, float]) -> None:
        """Write one sample, with what the probes say."""
        self._writer.write(Sample(self._clock.now_ns(), values | reading(self._beside.probes)))

    @property
    def clock(self) -> Clock:
        """The run's clock."""
        return self._clock

    def write_seen(self) -> None:
        """Write what the engine has told of itself since the last time."""
        if isinstance(self._engine, Insider):
            for line in self._engine.seen():
                self._writer.write(line)

    async def last_words(self) -> None:
        """Wait for what the engine has still to tell."""
        if isinstance(self._engine, Insider):
            await asyncio.sleep(LAST_WORDS_S)
            self.write_seen()

    def tell(self, cell: Cell | None, left_s: float | None) -> None:
        """Tell whoever watches where we stand; without a cell it is the end."""
        if self._beside.watch is not None:
            warming = cell is not None and cell.warmup
            self._beside.watch(Progress(self.done, self._planned, warming, left_s, cell))

    def _count(self, timeline: Timeline) -> None:
        if timeline.outcome is Outcome.CONNECT_FAILED:
            if told_of_descriptors(timeline.error):
                raise no_descriptor_left(timeline.in_flight)
            self._unreached += 1
        else:
            self._unreached = 0
            self._reached_ns = timeline.end_ns
        if self._reached_ns is None:
            self._reached_ns = timeline.started_ns
        if not timeline.cell.warmup:
            self.done += 1
        enough = self._unreached >= max(DEAD_AFTER, 2 * (timeline.cell.concurrency or 1))
        if enough and (not self._dead_ns or timeline.end_ns - self._reached_ns >= self._dead_ns):
            raise EngineError(
                f"the engine cannot be reached any more ({timeline.error}); "
                f"{self.done} measured requests are kept in {self._writer.path}"
            )


class _Sampler:
    """How late our loop was at most, and how much of a core we used, since the last sample."""

    def __init__(self, recording: Recording, lag: LoopLag) -> None:
        self._recording = recording
        self._lag = lag
        self._since = (recording.clock.now_ns(), cpu_ns())

    def take(self) -> None:
        """Write a sample."""
        now = (self._recording.clock.now_ns(), cpu_ns())
        took_ns, used_ns = now[0] - self._since[0], now[1] - self._since[1]
        self._since = now
        self._recording.sample(
            {"loop_lag_ns": float(self._lag.taken_ns()), "client_cpu_ratio": used_ns / max(1, took_ns)}
        )


@asynccontextmanager
async def _every(seconds: float | None, calls: tuple[Callable[[], None], ...]) -> AsyncGenerator[None]:
    """Make all `calls` every so many seconds while the block runs. An error of theirs (the disk is full) ends the block
    and is raised as itself."""
    if seconds is None:
        yield
        return
    block = asyncio.current_task()
    beats = asyncio.ensure_future(_beats(seconds, calls))
    beats.add_done_callback(lambda ended: block.cancel() if block and _failure(ended) else None)
    try:
        yield
    except asyncio.CancelledError:
        error = _failure(beats)
        if error is None:
            raise
        if block is not None:
            block.uncancel()
        raise error from None
    finally:
        beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)


async def _beats(every_s: float, calls: tuple[Callable[[], None], ...]) -> None:
    while True:
        await asyncio.sleep(every_s)
        for call in calls:
            call()
        if gc.get_count()[0] > _MANY_NEW_OBJECTS:
            gc.collect(0)


def _failure(task: asyncio.Task[None]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


@asynccontextmanager
async def open_run(out: Path, header: Header, clock: Clock, beside: Beside) -> AsyncGenerator[RunWriter]:
    """A run file at `out`: its header, what the block writes, a footer that says how it ended.

    Raises InputError if `out` exists or cannot be written, EngineError if the engine dies. Whatever ends it, the file
    holds everything that had ended, and a footer where there is room for it.
    """
    with RunWriter(out, header) as writer:
        started_cpu_ns = cpu_ns()

        def footer() -> Footer:
            return Footer(clock.now_ns(), client_cpu_ns=cpu_ns() - started_cpu_ns)

        try:
            yield writer
        except (asyncio.CancelledError, KeyboardInterrupt):
            writer.write(replace(footer(), interrupted=True))
            raise
        except PhasemeterError as error:
            with suppress(InputError):  # a full disk has no room for the footer either
                writer.write(replace(footer(), error=str(error)))
            raise
        plain = footer()  # before the ceilings are measured: their CPU time is not the client's
        again = None if beside.ceilings is None else await asyncio.to_thread(beside.ceilings)
        writer.write(replace(plain, ceilings=again))


@contextmanager
def _no_collection() -> Generator[None]:
    """Keep the garbage collector out of timed stretches; it runs once after each."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(0)

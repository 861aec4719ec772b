"""One measuring session: engine, plan and clock in, a run file out.

The file is written as things happen: header first, then every request when it is known, then a footer. A kill loses
what was in flight; Ctrl-C loses nothing that had ended.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from phasemeter.measure.drive import closed_loop
from phasemeter.measure.load import WHOLE, Share
from phasemeter.measure.plan import Grid, visits, warmups
from phasemeter.measure.requests import RequestMaker
from phasemeter.measure.scrape import DEFAULT_EVERY_S, Scraping
from phasemeter.measure.telemetry import LoopLag, Probe, reading
from phasemeter.measure.warmup import find_text_lengths, warm_up
from phasemeter.record.clock import Clock, cpu_ns
from phasemeter.record.engine import Engine, Insider, Outcome
from phasemeter.record.errors import EngineError
from phasemeter.record.event import Observer
from phasemeter.record.file import RunWriter
from phasemeter.record.request import Cell, Request
from phasemeter.record.run import Footer, Header, Sample
from phasemeter.record.timeline import Timeline

_LAST_WORDS_S = 0.3
"""How long an engine gets to tell of its last requests."""

DEAD_AFTER = 8
"""So many failed connections in a row, and the engine is taken for dead."""


class Progress(Struct, frozen=True):
    """Where a session stands; `left_s` is None until the shapes' times are known."""

    done: int
    planned: int
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


class Session:
    """Runs one grid against a started engine. Build it with `measure`; it exists to hold what a visit touches."""

    def __init__(
        self, engine: Engine, grid: Grid, clock: Clock, writer: RunWriter, run_id: str, beside: Beside
    ) -> None:
        self._engine = engine
        self._grid = grid
        self._clock = clock
        self._writer = writer
        self._beside = beside
        self._maker = RequestMaker(engine.info, run_id, grid.sampling, beside.extra, beside.share)
        self._done = 0
        self._planned = sum(beside.share.part(visit.requests) for visit in visits(grid))
        self._unreached = 0
        self._seconds: dict[tuple[int, int, int], list[float]] = {}

    async def run(self) -> None:
        """Warm up, then every visit of the plan."""
        await self._gate(-1)
        to_warm = [cell for cell in warmups(self._grid) if self._slots(cell)]
        if not self._maker.by_ids:
            await find_text_lengths(self._maker, to_warm, self._visit)
        await warm_up(self._maker, to_warm, self._grid.warmup, self._visit)
        gc.freeze()
        plan = visits(self._grid)
        async with self._scraping() as scraping:
            for i, visit in enumerate(plan):
                self._tell(visit.cell, self._left_s([v.cell for v in plan[i:]]))
                requests = list(self._maker.several(visit.cell, self._beside.share.part(visit.requests)))
                await self._gate(i)
                if requests and self._slots(visit.cell):
                    await self._visit(visit.cell, requests)
                scraping.flush()
        if isinstance(self._engine, Insider):
            await asyncio.sleep(_LAST_WORDS_S)
            self._write_seen()
        self._tell(None, 0.0)

    def _scraping(self) -> Scraping:
        """One process of several looks at the server for all of them."""
        beside = self._beside
        engine = self._engine if beside.share.mine == 0 else None
        return Scraping(
            engine, self._clock, self._writer.write, every_s=beside.scrape_s, probes=beside.probes
        )

    def _slots(self, cell: Cell) -> int:
        return self._beside.share.part(cell.slots)

    async def _gate(self, number: int) -> None:
        if self._beside.gate is not None:
            await self._beside.gate(number)

    async def _visit(self, cell: Cell, requests: list[Request]) -> list[Timeline]:
        """Run one cell's requests in a closed loop; what ended is on disk when it returns or raises."""
        if cell.warmup:
            self._tell(cell, None)
        seen: list[Timeline] = []

        def sink(timeline: Timeline) -> None:
            self._writer.write(timeline)
            seen.append(timeline)
            self._count(timeline)

        started_ns, started_cpu_ns = self._clock.now_ns(), cpu_ns()
        async with LoopLag(self._clock) as lag:
            with _no_collection():
                await closed_loop(
                    self._engine,
                    iter(requests),
                    self._slots(cell),
                    self._clock,
                    sink,
                    self._beside.observe,
                    keep_text=self._beside.keep_text,
                )
        ended_ns = self._clock.now_ns()
        took_ns = max(1, ended_ns - started_ns)
        values = {
            "loop_lag_ns": float(lag.most_ns),
            "client_cpu_ratio": (cpu_ns() - started_cpu_ns) / took_ns,
        }
        self._writer.write(Sample(t_ns=ended_ns, values=values | reading(self._beside.probes)))
        self._write_seen()
        if not cell.warmup:
            self._seconds.setdefault(_key(cell), []).append(took_ns / 1e9)
        return seen

    def _write_seen(self) -> None:
        if isinstance(self._engine, Insider):
            for line in self._engine.seen():
                self._writer.write(line)

    def _count(self, timeline: Timeline) -> None:
        self._unreached = self._unreached + 1 if timeline.outcome is Outcome.CONNECT_FAILED else 0
        if not timeline.cell.warmup:
            self._done += 1
        if self._unreached >= max(DEAD_AFTER, 2 * (timeline.cell.concurrency or 1)):
            raise EngineError(
                f"the engine cannot be reached any more ({timeline.error}); "
                f"{self._done} measured requests are kept in {self._writer.path}"
            )

    def _left_s(self, ahead: list[Cell]) -> float | None:
        known = {key: sum(took) / len(took) for key, took in self._seconds.items()}
        if not known:
            return None
        # Shapes not yet visited are taken to cost what the visited ones did on average.
        usual = sum(known.values()) / len(known)
        return sum(known.get(_key(cell), usual) for cell in ahead)

    def _tell(self, cell: Cell | None, left_s: float | None) -> None:
        if self._beside.watch is not None:
            warming = cell is not None and cell.warmup
            self._beside.watch(Progress(self._done, self._planned, warming, left_s, cell))


async def measure(
    engine: Engine, grid: Grid, clock: Clock, out: Path, header: Header, beside: Beside | None = None
) -> None:
    """Measure `grid` on a started `engine` and write the run to `out`.

    Raises InputError if `out` exists or cannot be written, EngineError if the engine dies. Whatever ends it, the file
    holds everything that had ended, and a footer.
    """
    with RunWriter(out, header) as writer:
        beside = beside or Beside()
        session = Session(engine, grid, clock, writer, header.run_id, beside)
        started_cpu_ns = cpu_ns()

        def footer() -> Footer:
            return Footer(clock.now_ns(), client_cpu_ns=cpu_ns() - started_cpu_ns)

        try:
            await session.run()
        except (asyncio.CancelledError, KeyboardInterrupt):
            writer.write(replace(footer(), interrupted=True))
            raise
        except EngineError as error:
            writer.write(replace(footer(), error=str(error)))
            raise
        plain = footer()  # before the ceilings are measured: their CPU time is not the client's
        again = None if beside.ceilings is None else await asyncio.to_thread(beside.ceilings)
        writer.write(replace(plain, ceilings=again))


def _key(cell: Cell) -> tuple[int, int, int]:
    return cell.input_tokens, cell.output_tokens, cell.slots


@contextmanager
def _no_collection() -> Generator[None]:
    """Keep the garbage collector out of timed stretches; it runs once after each."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(0)

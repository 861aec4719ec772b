"""One measuring session: engine, plan and clock in, a run file out.

The file is written as things happen: header first, then every request when it is known, then a footer. A kill loses
what was in flight; Ctrl-C loses nothing that had ended.
"""

from __future__ import annotations

import gc
from pathlib import Path

from phasemeter.measure.descriptors import allow_connections
from phasemeter.measure.drive import closed_loop, singles
from phasemeter.measure.plan import Grid, visits, warmups
from phasemeter.measure.recording import Beside, Gate, Progress, Recording, Watcher, open_run
from phasemeter.measure.requests import RequestMaker
from phasemeter.measure.warmup import find_text_lengths, warm_up
from phasemeter.record.clock import Clock
from phasemeter.record.engine import Engine
from phasemeter.record.file import RunWriter
from phasemeter.record.request import Cell, Request
from phasemeter.record.run import Header
from phasemeter.record.timeline import Timeline

__all__ = ["Beside", "Gate", "Progress", "Session", "Watcher", "measure"]


class Session:
    """Runs one grid against a started engine. Build it with `measure`; it exists to hold what a visit touches."""

    def __init__(
        self, engine: Engine, grid: Grid, clock: Clock, writer: RunWriter, run_id: str, beside: Beside
    ) -> None:
        self._grid = grid
        self._clock = clock
        self._share = beside.share
        self._remote = engine.info.url is not None
        self._maker = RequestMaker(engine.info, run_id, grid.sampling, beside.extra, beside.share)
        planned = sum(beside.share.dealt(visit.requests, visit.cell.slots) for visit in visits(grid))
        self._recording = Recording(engine, clock, writer, beside, planned=planned)
        self._seconds: dict[tuple[int, int, int], list[float]] = {}

    async def run(self) -> None:
        """Warm up, then every visit of the plan."""
        recording = self._recording
        if self._remote:
            allow_connections(max(self._slots(cell) for cell in warmups(self._grid)))
        await recording.gate(-1)
        to_warm = [cell for cell in warmups(self._grid) if self._slots(cell)]
        if not self._maker.by_ids:
            lengths = self._maker.lengths
            await find_text_lengths(
                [cell.input_tokens for cell in to_warm],
                self._counted,
                lambda n_tokens, counted: lengths.learn(lengths.size(n_tokens), counted),
            )
        await warm_up(self._maker, to_warm, self._grid.warmup, self._visit)
        gc.freeze()
        plan = visits(self._grid)
        async with recording.scraping() as scraping:
            for i, visit in enumerate(plan):
                recording.tell(visit.cell, self._left_s([v.cell for v in plan[i:]]))
                mine = self._share.dealt(visit.requests, visit.cell.slots)
                requests = list(self._maker.several(visit.cell, mine))
                await recording.gate(i)
                if requests:
                    await self._visit(visit.cell, requests)
                scraping.flush()
        await recording.last_words()
        recording.tell(None, 0.0)

    def _slots(self, cell: Cell) -> int:
        return self._share.part(cell.slots)

    async def _counted(self, n_tokens: int) -> int | None:
        """How many tokens the server counts in our text of so many."""
        # every process asks for itself: as many at once as there are processes
        cell = Cell(input_tokens=n_tokens, output_tokens=1, concurrency=self._share.of, warmup=True)
        [timeline] = await self._visit(cell, [self._maker.make(cell, max_tokens=1)])
        return timeline.usage.prompt_tokens if timeline.usage is not None else None

    async def _visit(self, cell: Cell, requests: list[Request]) -> list[Timeline]:
        """Run one cell's requests in a closed loop; what ended is on disk when it returns or raises."""
        if cell.warmup:
            self._recording.tell(cell, None)
        seen: list[Timeline] = []
        started_ns = self._clock.now_ns()
        async with self._recording.flights(seen.append) as flights:
            # all slots are free from now: starting the first wave one by one is our lateness
            slots = [self._clock.now_ns()] * self._slots(cell)
            await closed_loop(flights, singles(requests), slots)
        if not cell.warmup:
            took_ns = max(1, self._clock.now_ns() - started_ns)
            self._seconds.setdefault(_key(cell), []).append(took_ns / 1e9)
        return seen

    def _left_s(self, ahead: list[Cell]) -> float | None:
        known = {key: sum(took) / len(took) for key, took in self._seconds.items()}
        if not known:
            return None
        # Shapes not yet visited are taken to cost what the visited ones did on average.
        usual = sum(known.values()) / len(known)
        return sum(known.get(_key(cell), usual) for cell in ahead)


async def measure(
    engine: Engine, grid: Grid, clock: Clock, out: Path, header: Header, beside: Beside | None = None
) -> None:
    """Measure `grid` on a started `engine` and write the run to `out`; raises what `open_run` raises."""
    beside = beside or Beside()
    async with open_run(out, header, clock, beside) as writer:
        await Session(engine, grid, clock, writer, header.run_id, beside).run()


def _key(cell: Cell) -> tuple[int, int, int]:
    return cell.input_tokens, cell.output_tokens, cell.slots

"""One session of a load: a workload's items sent in stages, closed or open loop; a run file out.

Between two stages the engine drains: the next one begins when everything in flight has ended. A stage that is cut by
its duration starts nothing more from then on and waits for what is in flight; which part of it was steady is told from
the stamps, when the run is read.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count, islice
from pathlib import Path

from msgspec.structs import replace

from phasemeter.measure.descriptors import allow_connections
from phasemeter.measure.drive import Send, Strand, closed_loop, open_loop, singles
from phasemeter.measure.item import Item
from phasemeter.measure.load import WHOLE, Load, Share, Stage
from phasemeter.measure.recording import Beside, Recording, open_run
from phasemeter.measure.requests import OWN_END_TOKENS, ItemMaker
from phasemeter.measure.scrape import Scraping
from phasemeter.measure.supply import Outline, Supply, outlines, planned_cancel, think_ns
from phasemeter.measure.warmup import MOST_OUTPUT_TOKENS, find_text_lengths, until_settled
from phasemeter.measure.workload import open_workload
from phasemeter.record.clock import Clock
from phasemeter.record.engine import Engine
from phasemeter.record.file import RunWriter
from phasemeter.record.request import Cell
from phasemeter.record.run import Header
from phasemeter.record.timeline import Timeline

SAMPLE_EVERY_S = 1.0
"""Between two samples of ourselves while a stage runs."""
OPEN_DEAD_NS = 10_000_000_000
"""An open loop goes on through so long an outage: a server that restarts is part of what is measured."""
_MOST_WARMING = 32
_FEW_WARMING = 4
_FIRST_WARM_INDEX = 10**12
"""Warm-up prompts are numbered apart from all that a plan can hold."""


class LoadSession:
    """A live session: warm, its file open. Build it with `load_session`."""

    def __init__(
        self, engine: Engine, load: Load, clock: Clock, writer: RunWriter, run_id: str, beside: Beside
    ) -> None:
        self._load = load
        self._clock = clock
        self._share = beside.share
        self._remote = engine.info.url is not None
        self._workload = open_workload(load.workload, load.seed)
        self._maker = ItemMaker(engine.info, run_id, load.sampling, beside.extra, load.tokenizer)
        is_open = any(stage.concurrency is None for stage in load.stages)
        self._recording = Recording(
            engine,
            clock,
            writer,
            beside,
            planned=planned_requests_of(load, beside.share),
            dead_ns=OPEN_DEAD_NS if is_open else 0,
        )
        self._warm_numbers = count(_FIRST_WARM_INDEX + beside.share.mine, beside.share.of)
        self._scraping: Scraping | None = None
        self._number = 0

    async def stage(self, stage: Stage, *, keep: bool = True) -> list[Timeline]:
        """Run one more stage, to the end of its last request. What came of it is in the file; it is returned, too,
        unless it need not be kept in memory."""
        number, self._number = self._number, self._number + 1
        recording, load = self._recording, self._load
        seen: list[Timeline] = []
        ahead = load.stages[number + 1 :]
        recording.tell(level_cell(stage), _left_s(stage, ahead))
        plan = outlines(load, self._workload, stage, number, self._share)
        opened_ns = self._clock.now_ns()
        async with recording.flights(
            seen.append if keep else None,
            every_s=SAMPLE_EVERY_S,
            tick=lambda: self._tick(stage, ahead, opened_ns),
        ) as flights:

            def calm_ns() -> int | None:
                due_ns = flights.timetable.next_ns
                return None if due_ns is None else due_ns - self._clock.now_ns()

            supply = Supply(plan, lambda outline: self._strand(outline, stage), calm_ns)
            supply.fill()
            start_ns = await recording.gate(number)
            until_ns = None if stage.duration_ns is None else start_ns + stage.duration_ns
            if stage.concurrency is None:
                await open_loop(flights, supply, start_ns, until_ns)
            else:
                await closed_loop(flights, supply, self._slots(stage.concurrency, start_ns), until_ns)
        if self._scraping is not None:
            self._scraping.flush()
        return seen

    async def warm_up(self) -> None:
        """Wait for the others, then send prompts of the first stage's lengths that nobody else sends."""
        if self._remote:
            allow_connections(self._most_at_once())
        await self._recording.gate(-1)
        load, share = self._load, self._share
        first = load.stages[0]
        at_once = share.part(min(first.concurrency or _FEW_WARMING, _MOST_WARMING))
        items = list(islice(self._workload.items(first, 0), max(_MOST_WARMING, load.warmup or 0)))
        self._recording.tell(replace(level_cell(first), warmup=True), None)
        if not self._maker.by_ids and any(item.prompt is None for item in items):
            sizes = sorted(item.input_tokens for item in items)
            asked = (sizes[0], sizes[len(sizes) // 2], sizes[-1])
            await find_text_lengths(asked, self._counted, self._maker.learn)
        chosen = items[: at_once if load.warmup is None else share.part(load.warmup)]

        async def play() -> list[Timeline]:
            return await self._warm(chosen, max(1, at_once))

        if chosen:
            await until_settled(None if load.warmup is None else 1, play)
        gc.freeze()

    async def _counted(self, n_tokens: int) -> int | None:
        """How many tokens the server counts in our text of so many."""
        [timeline] = await self._warm([Item(index=0, input_tokens=n_tokens, output_tokens=1)], 1)
        return timeline.usage.prompt_tokens if timeline.usage is not None else None

    async def _warm(self, items: Sequence[Item], at_once: int) -> list[Timeline]:
        """Send prompts of the items' lengths that nobody else sends, with short answers."""
        cell = replace(level_cell(self._load.stages[0]), warmup=True)
        warm = [_warm(item, next(self._warm_numbers)) for item in items]
        requests = [self._maker.make(item, shaped(item, cell)) for item in warm]
        seen: list[Timeline] = []
        async with self._recording.flights(seen.append) as flights:
            await closed_loop(flights, singles(requests), [self._clock.now_ns()] * at_once)
        return seen

    @asynccontextmanager
    async def framed(self) -> AsyncGenerator[None]:
        """Around all stages: the server's own sums before and after, and what the engine tells last."""
        async with self._recording.scraping() as self._scraping:
            yield
        await self._recording.last_words()
        self._recording.tell(None, 0.0)

    def _most_at_once(self) -> int | None:
        """Connections that this process needs; None where an open loop's requests may pile up."""
        slots = [stage.concurrency for stage in self._load.stages if stage.concurrency is not None]
        return self._share.part(max(slots)) if len(slots) == len(self._load.stages) else None

    def _slots(self, concurrency: int, start_ns: int) -> list[int]:
        """When each of this process's slots opens; all processes' together lie evenly over the stagger."""
        share, stagger_ns = self._share, self._load.stagger_s * 1e9
        return [
            start_ns + round(stagger_ns * number / concurrency)
            for number in range(share.mine, concurrency, share.of)
        ]

    def _strand(self, outline: Outline, stage: Stage) -> Strand:
        return list(self._sends(outline, stage))

    def _sends(self, outline: Outline, stage: Stage) -> Iterator[Send]:
        load = self._load
        pause_ns = outline.due_ns if stage.concurrency is None else think_ns(load, outline.items[0])
        for place, item in enumerate(outline.items):
            request = self._maker.make(item, shaped(item, level_cell(stage)))
            request = planned_cancel(request, item, load.patience, load.seed)
            later_ns = item.turn.think_ns if item.turn is not None else 0
            yield Send(request, later_ns if place else pause_ns)

    def _tick(self, stage: Stage, ahead: Sequence[Stage], started_ns: int) -> None:
        """Once a second: tell where we stand, write what was sampled of the server."""
        past_s = (self._clock.now_ns() - started_ns) / 1e9
        self._recording.tell(level_cell(stage), _left_s(stage, ahead, past_s))
        if self._scraping is not None:
            self._scraping.flush()


@asynccontextmanager
async def load_session(
    engine: Engine, load: Load, clock: Clock, out: Path, header: Header, beside: Beside | None = None
) -> AsyncGenerator[LoadSession]:
    """A session on a started engine, warmed up, that takes stages until the block ends; the run is written to `out`.

    Raises InputError for a workload that cannot be used and what `open_run` raises.
    """
    beside = beside or Beside()
    async with open_run(out, header, clock, beside) as writer:
        session = LoadSession(engine, load, clock, writer, header.run_id, beside)
        await session.warm_up()
        async with session.framed():
            yield session


async def measure_load(
    engine: Engine, load: Load, clock: Clock, out: Path, header: Header, beside: Beside | None = None
) -> None:
    """Measure all stages of `load` on a started `engine` and write the run to `out`; raises what `load_session` does.
    With a share and a gate in `beside` this is one process's part of the load."""
    async with load_session(engine, load, clock, out, header, beside) as session:
        for stage in load.stages:
            await session.stage(stage, keep=False)


def planned_requests_of(load: Load, share: Share = WHOLE) -> int | None:
    """How many requests the stages ask for, this process's share; None where only their duration is known."""
    known = [share.dealt(s.requests, s.concurrency) for s in load.stages if s.requests is not None]
    bounded = any(stage.duration_ns is not None for stage in load.stages)
    return sum(known) if len(known) == len(load.stages) and not bounded else None


def level_cell(stage: Stage) -> Cell:
    """The level of a stage, without a shape."""
    return Cell(0, 0, concurrency=stage.concurrency, rate_per_s=stage.rate_per_s, block=stage.block)


def shaped(item: Item, level: Cell) -> Cell:
    """The cell of one item at a level."""
    return replace(level, input_tokens=item.input_tokens, output_tokens=item.output_tokens or OWN_END_TOKENS)


def _warm(item: Item, number: int) -> Item:
    """An item of the same length, whose prompt nobody else sends and whose answer is short."""
    output_tokens = min(item.output_tokens or MOST_OUTPUT_TOKENS, MOST_OUTPUT_TOKENS)
    return Item(index=number, input_tokens=item.input_tokens, output_tokens=output_tokens)


def _left_s(stage: Stage, ahead: Sequence[Stage], past_s: float = 0.0) -> float | None:
    """None where a stage's duration is not known."""
    lasting = [one.duration_ns for one in (stage, *ahead) if one.duration_ns is not None]
    if len(lasting) != 1 + len(ahead):
        return None
    return max(0.0, lasting[0] / 1e9 - past_s) + sum(lasting[1:]) / 1e9

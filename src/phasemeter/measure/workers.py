"""One run sent by several processes: they go through the plan's gates together, and their parts become one record.

What is asked of a worker is in `measure.worker`; how it is reached (a process here, a Ray actor elsewhere) is a `Hand`.
A worker that dies takes its requests of the open stage with it: they are marked lost, the others finish the stage,
and the run ends there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
from msgspec.structs import replace

from phasemeter import __version__
from phasemeter.launch.child import Death
from phasemeter.measure.hands import STOP_S, Hand, Hire
from phasemeter.measure.load import Share
from phasemeter.measure.lost import lost_requests
from phasemeter.measure.recording import LAST_WORDS_S, Beside, Progress, Watcher
from phasemeter.measure.scrape import Scraping
from phasemeter.measure.worker import Go, Order, Told
from phasemeter.record.clock import Clock, cpu_ns
from phasemeter.record.engine import Insider
from phasemeter.record.errors import EngineError, InputError
from phasemeter.record.file import Line, RunWriter, check_place
from phasemeter.record.parts import Part, requests_of, write_joined
from phasemeter.record.run import Footer
from phasemeter.record.timeline import Timeline

_LEAD_NS = 30_000_000
"""From opening a gate to the common start: every worker has read its line by then."""
_TOLD = msgspec.json.Decoder(Told)

NOTHING_BESIDE = Beside(scrape_s=0)


class _Member:
    """One worker: what it said last, and what became of it."""

    def __init__(self, number: int, hand: Hand, place: Path) -> None:
        self.number = number
        self.hand = hand
        self.place = place
        self.gate: int | None = None
        self.at = Told("count")
        self.last: Told | None = None
        self.over = False
        self.code: int | None = None

    @property
    def name(self) -> str:
        return f"worker {self.number + 1}"

    @property
    def died(self) -> str | None:
        """How it died, if it did."""
        if not self.over or (self.last is not None and self.last.what in {"done", "refused", "broken"}):
            return None
        return f"{self.name} {Death(self.code).how}"


class Crew:
    """The workers of one run, going through its gates together."""

    def __init__(
        self, order: Order, clock: Clock, out: Path, watch: Watcher | None, planned: int | None
    ) -> None:
        self._order = order
        self._clock = clock
        self._out = out
        self._watch = watch
        self._planned = planned
        self._members: list[_Member] = []
        self._news = asyncio.Event()
        self._opened: list[int] = []
        self.parts = out.with_name(f"{out.name}.parts")

    def make_place(self) -> None:
        """Make the folder of the parts. Raises InputError where the run or parts of a killed one lie there already."""
        check_place(self._out)
        if self.parts.exists():
            mend = f"{self.parts.name} beside it holds the parts of a run that was killed; read or remove them first"
            raise InputError("--out", str(self._out), mend)
        self.parts.mkdir()

    async def run(self, hire: Hire, at_gate: Callable[[int], Awaitable[None]]) -> None:
        """Hire the workers, give orders, open gate after gate until all are done or one has died. `at_gate` is awaited
        before each gate, when nothing is in flight."""
        share_of = self._order.share.of
        for number in range(share_of):
            place = self.parts / f"part-{number:03d}.jsonl"
            self._members.append(_Member(number, await hire(number, place), place))
        listeners = [asyncio.ensure_future(self._listen(member)) for member in self._members]
        try:
            for member in self._members:
                order = replace(
                    self._order,
                    out=str(member.place),
                    share=Share(member.number, share_of),
                    cores=_core(member.number, share_of),
                )
                with contextlib.suppress(OSError):  # it died: its listener tells
                    await member.hand.tell(msgspec.json.encode(order))
            await self._gates(at_gate)
        finally:
            for member in self._members:
                if not member.over:
                    await member.hand.interrupt()
            await asyncio.wait_for(asyncio.gather(*listeners), 4 * STOP_S)
            for member in self._members:
                await member.hand.fetch(member.place)

    async def _gates(self, at_gate: Callable[[int], Awaitable[None]]) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if any(member.over and not self._well(member) for member in self._members):
                await self._stage_to_end()
                return
            if all(member.over for member in self._members):
                return
            waiting = [member for member in self._members if not member.over]
            gates = {member.gate for member in waiting}
            if len(gates) == 1 and None not in gates and len(waiting) == len(self._members):
                await at_gate(waiting[0].gate or 0)
                await self._open(waiting)

    async def _open(self, members: Sequence[_Member]) -> None:
        number = members[0].gate
        for member in members:
            await member.hand.fetch(member.place)
        start_ns = self._clock.now_ns() + _LEAD_NS
        for member in members:
            member.gate = None
            go = Go(number if number is not None else 0, start_ns + member.hand.ahead_ns)
            with contextlib.suppress(OSError):
                await member.hand.tell(msgspec.json.encode(go))
        self._opened.append(start_ns)

    async def _stage_to_end(self) -> None:
        """Somebody died: the others finish what they are at; at the next gate they are sent home."""
        while any(not member.over and member.gate is None for member in self._members):
            self._news.clear()
            await self._news.wait()

    def _well(self, member: _Member) -> bool:
        return member.last is not None and member.last.what == "done" and not member.last.text

    async def _listen(self, member: _Member) -> None:
        while line := await member.hand.hear():
            with contextlib.suppress(msgspec.DecodeError):  # a library's print: not ours
                self._take(member, _TOLD.decode(line))
        member.code = await member.hand.ended()
        member.over = True
        self._news.set()

    def _take(self, member: _Member, told: Told) -> None:
        member.last = told
        if told.version != __version__:
            member.last = Told(
                "refused",
                field="--on",
                value=told.version,
                text=f"{member.name} has that Phasemeter, this one is {__version__}; install the same on both",
            )
        if told.what == "gate":
            member.gate = told.number
            self._news.set()
        elif told.what == "count":
            member.at = told
            self._show()

    def _show(self) -> None:
        """Where all stand: at the cell of the first that is not at its end, for as long as the slowest needs."""
        if self._watch is None:
            return
        told = [member.at for member in self._members]
        cell = next((at.cell for at in told if at.cell is not None), None)
        left_s = max((at.left_s for at in told if at.left_s is not None), default=None)
        warming = cell is not None and cell.warmup
        self._watch(Progress(sum(at.number for at in told), self._planned, warming, left_s, cell))

    def refusal(self) -> InputError | None:
        """The first worker's bad input, if any."""
        for member in self._members:
            if member.last is not None and member.last.what == "refused":
                return InputError(member.last.field, member.last.value, member.last.text)
        return None

    def failure(self) -> str | None:
        """Why the run ended early: an engine that broke, or workers that died; None when all went well."""
        told = [m.last.text for m in self._members if m.last is not None and m.last.what == "broken"]
        # each says in which part it kept what; the parts are one record by now
        broken = list(
            dict.fromkeys(re.sub(r"; \d+ measured requests are kept in .*", "", text) for text in told)
        )
        died = [found for found in (member.died for member in self._members) if found is not None]
        return "; ".join((died + broken)[:3]) or None

    def join(self) -> tuple[Part, ...]:
        """The parts that were written."""
        return tuple(Part(m.place, m.hand.ahead_ns) for m in self._members if m.place.exists())

    def has_requests(self) -> bool:
        """Whether anything was measured: a worker may be refused in the midst of it, by a full disk."""
        return any(next(requests_of(part), None) is not None for part in self.join())

    def notes(self) -> tuple[str, ...]:
        """Where the workers were, and how their clocks stood to ours."""
        return tuple(f"{m.name} {m.hand.note}" for m in self._members if m.hand.note)

    def lost(self) -> list[Timeline]:
        """The requests of workers that died: planned for the stage that was open, and not in the worker's part."""
        found: list[Timeline] = []
        for member in self._members:
            if member.died is not None:
                share = Share(member.number, self._order.share.of)
                found += lost_requests(
                    replace(self._order, share=share),
                    Part(member.place),
                    self._opened,
                    member.died,
                    self._clock,
                )
        return found


async def measure_in_workers(
    order: Order,
    clock: Clock,
    out: Path,
    hire: Hire,
    *,
    planned: int | None,
    beside: Beside = NOTHING_BESIDE,
    engine: object = None,
) -> None:
    """Run what `order` holds in `order.share.of` workers and write one record to `out`.

    Raises InputError for what the workers refuse and EngineError when the engine or a worker died; what was measured is
    in `out` then, too. A kill of this process leaves the parts in `OUT.parts`, which `cli.run_files` reads as the one
    run. `engine` is the started one that the workers send to: what it tells of itself, and its server's /metrics, are
    kept here, for all.
    """
    crew = Crew(order, clock, out, beside.watch, planned)
    crew.make_place()  # before anything that would clear it away
    told: list[Line] = []
    started_cpu_ns = cpu_ns()
    interrupted = False
    try:
        async with AsyncExitStack() as around:

            async def at_gate(number: int) -> None:
                if number == 0:  # everybody is warm
                    scraping = Scraping(
                        engine, clock, told.append, every_s=beside.scrape_s, probes=beside.probes
                    )
                    await around.enter_async_context(scraping)
                _hear(engine, told)

            await crew.run(hire, at_gate)
            if isinstance(engine, Insider):
                await asyncio.sleep(LAST_WORDS_S)
                _hear(engine, told)
    except (asyncio.CancelledError, KeyboardInterrupt):
        interrupted = True
        raise
    finally:
        refusal = crew.refusal()
        kept = refusal is None or crew.has_requests()
        if kept:
            own_cpu_ns = cpu_ns() - started_cpu_ns
            try:
                _join(crew, order, clock, out, told, interrupted=interrupted, own_cpu_ns=own_cpu_ns)
            except InputError as error:  # the parts stay
                raise _with_place(error, crew.parts) from None
        shutil.rmtree(crew.parts, ignore_errors=True)
    if refusal is not None:
        raise _with_place(refusal, out) if kept else refusal
    failure = crew.failure()
    if failure is not None:
        raise EngineError(f"{failure}; what was measured is kept in {out}")


def _with_place(error: InputError, place: Path) -> InputError:
    return InputError(error.field, error.value, f"{error.mend}; what was measured is kept in {place}")


def _hear(engine: object, told: list[Line]) -> None:
    if isinstance(engine, Insider):
        told += engine.seen()


def _join(
    crew: Crew,
    order: Order,
    clock: Clock,
    out: Path,
    told: Sequence[Line],
    *,
    interrupted: bool,
    own_cpu_ns: int,
) -> None:
    parts = crew.join()
    header = replace(order.header, notes=(*order.header.notes, *crew.notes()))
    with RunWriter(out, header) as writer:
        try:
            footers = write_joined(writer, parts, crew.lost())
            for line in told:
                writer.write(line)
            writer.write(
                Footer(
                    max((f.end_ns for f in footers), default=clock.now_ns()),
                    interrupted=interrupted,
                    client_cpu_ns=own_cpu_ns + sum(f.client_cpu_ns or 0 for f in footers),
                    error=crew.failure(),
                )
            )
        except InputError:  # a full disk: the parts hold all, half a copy of them helps nobody
            out.unlink(missing_ok=True)
            raise


def _core(number: int, of: int) -> tuple[int, ...]:
    """The core of a worker: each one of its own, where there are enough."""
    try:
        cores = sorted(os.sched_getaffinity(0))
    except AttributeError:
        return ()
    return (cores[number],) if 1 < of <= len(cores) else ()

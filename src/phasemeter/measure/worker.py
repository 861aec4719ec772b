"""One of several processes that send one run together: it waits at every gate and writes its own part file.

Run as `python -m phasemeter.measure.worker`. The first line on stdin is an `Order`, later ones `Go`; on stdout it says
`Told` lines. When stdin ends (the parent is gone) or SIGINT comes, it stops as Ctrl-C stops a run: what had ended is
in its part, with a footer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import msgspec
from msgspec import Struct

from phasemeter import __version__
from phasemeter.engines import open_engine
from phasemeter.engines.spec import EngineSpec
from phasemeter.measure.load import Load, Share
from phasemeter.measure.plan import Grid
from phasemeter.measure.session import Beside, Progress, measure
from phasemeter.record.clock import Clock, MonotonicClock
from phasemeter.record.engine import Engine
from phasemeter.record.errors import EngineError, InputError
from phasemeter.record.request import Cell
from phasemeter.record.run import Header

_LINE_BYTES = 64 << 20


class Order(Struct, frozen=True):
    """What a worker has to do. `header` is the whole run's; `out` is the worker's own part file; `cores` are the
    processor cores to stay on, none for any."""

    spec: EngineSpec
    header: Header
    out: str
    share: Share
    grid: Grid | None = None
    load: Load | None = None
    keep_text: bool = False
    cores: tuple[int, ...] = ()


class Go(Struct, frozen=True):
    """The gate `number` is open; everybody's clock starts at `start_ns` (this machine's monotonic clock)."""

    number: int
    start_ns: int


class Told(Struct, frozen=True, omit_defaults=True):
    """What a worker says: that it waits at a gate, how many requests it has done and at which cell it is (None: at the
    end), how it ended.

    what    "clock" | "gate" | "count" | "done" | "refused" (bad input) | "broken" (the engine)
    """

    what: str
    version: str = __version__
    number: int = 0
    now_ns: int | None = None
    cell: Cell | None = None
    left_s: float | None = None
    field: str = ""
    value: str = ""
    text: str = ""


async def work(lines: asyncio.Queue[bytes]) -> None:
    """Do what the first line orders, to its end."""
    clock = MonotonicClock()
    order = msgspec.json.decode(await lines.get(), type=Order)
    if order.cores:
        with contextlib.suppress(OSError, AttributeError):  # not every system pins
            os.sched_setaffinity(0, order.cores)
    engine = open_engine(order.spec, clock)

    async def gate(number: int) -> int:
        _say(Told("gate", number=number, now_ns=clock.now_ns()))
        start_ns = msgspec.json.decode(await lines.get(), type=Go).start_ns
        await asyncio.sleep(max(0, start_ns - clock.now_ns()) / 1e9)
        return start_ns

    def watch(at: Progress) -> None:
        _say(Told("count", number=at.done, cell=at.cell, left_s=at.left_s))

    beside = Beside(watch=watch, keep_text=order.keep_text, share=order.share, gate=gate)
    try:
        await engine.start()
        await _measure(order, engine, clock, beside)
    finally:
        await engine.close()


async def _measure(order: Order, engine: Engine, clock: Clock, beside: Beside) -> None:
    out = Path(order.out)
    if order.grid is not None:
        await measure(engine, order.grid, clock, out, order.header, beside)
    elif order.load is not None:
        from phasemeter.measure.load_session import measure_load

        await measure_load(engine, order.load, clock, out, order.header, beside)


def _say(told: Told) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
        sys.stdout.buffer.flush()


async def _main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    lines = asyncio.Queue[bytes]()
    working = asyncio.ensure_future(work(lines))

    async def listen() -> None:
        while line := await reader.readline():
            lines.put_nowait(line)
        working.cancel()  # nobody is left to send for

    listening = asyncio.ensure_future(listen())
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, working.cancel)
    try:
        await working
        _say(Told("done"))
    except asyncio.CancelledError:
        _say(Told("done", text="interrupted"))
    except InputError as error:
        _say(Told("refused", field=error.field, value=str(error.value), text=error.mend))
    except EngineError as error:
        _say(Told("broken", text=str(error)))
    finally:
        listening.cancel()


def main() -> None:
    """Entry of the process."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_main())


if __name__ == "__main__":
    main()

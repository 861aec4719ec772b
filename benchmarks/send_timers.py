"""How late sends of an open loop are started, by the kind of timer: the event loop's own sleep, a sleep that spins at
its end, and the timetable that the driver uses (`measure.timetable`).

    python benchmarks/send_timers.py [--rate 500] [--seconds 5] [--rounds 5] [--out benchmarks/results/send_timers.json]

Poisson arrivals; the kinds take turns; nothing else happens in the loop. Run it on a quiet machine: the load before
each round is kept with the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from phasemeter.measure.arrivals import offsets
from phasemeter.measure.load import Arrivals, Stage
from phasemeter.measure.timetable import Timetable
from phasemeter.record.clock import MonotonicClock

CLOCK = MonotonicClock()
SPIN_NS = 1_500_000


async def by_sleep(due_ns: list[int]) -> list[int]:
    late = []
    for t_ns in due_ns:
        while (left_ns := t_ns - CLOCK.now_ns()) > 0:  # noqa: ASYNC110 - the sleep is what is measured
            await asyncio.sleep(left_ns / 1e9)
        late.append(CLOCK.now_ns() - t_ns)
    return late


async def by_spinning(due_ns: list[int]) -> list[int]:
    late = []
    for t_ns in due_ns:
        while (left_ns := t_ns - CLOCK.now_ns()) > 0:  # noqa: ASYNC110 - the sleep is what is measured
            await asyncio.sleep((left_ns - SPIN_NS) / 1e9 if left_ns > 2 * SPIN_NS else 0)
        late.append(CLOCK.now_ns() - t_ns)
    return late


async def by_timetable(due_ns: list[int]) -> list[int]:
    late: list[int] = []
    async with Timetable(CLOCK) as timetable:
        for t_ns in due_ns:
            timetable.at(t_ns, lambda t_ns=t_ns: late.append(CLOCK.now_ns() - t_ns))
        await timetable.until(due_ns[-1] + 1_000_000)
    return late


KINDS: dict[str, Callable[[list[int]], Awaitable[list[int]]]] = {
    "loop's sleep": by_sleep,
    "sleep, then spin": by_spinning,
    "timetable": by_timetable,
}


def once(kind: str, rate: float, seconds: float, seed: int) -> dict[str, float]:
    async def main() -> list[int]:
        plan = list(offsets(Arrivals(), Stage(rate_per_s=rate, duration_ns=round(seconds * 1e9)), seed))
        start_ns = CLOCK.now_ns() + 20_000_000
        return await KINDS[kind]([start_ns + offset for offset in plan])

    load, cpu_s = os.getloadavg()[0], time.process_time()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        late = sorted(runner.run(main()))
    return {
        "n": len(late),
        "p50_us": late[len(late) // 2] / 1e3,
        "p99_us": late[len(late) * 99 // 100] / 1e3,
        "max_us": late[-1] / 1e3,
        "cpu_ratio": (time.process_time() - cpu_s) / seconds,
        "load_before": load,
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rate", type=float, default=500)
    options.add_argument("--seconds", type=float, default=5)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    rounds = [
        {kind: once(kind, asked.rate, asked.seconds, seed) for kind in KINDS} for seed in range(asked.rounds)
    ]
    for kind in KINDS:
        told = {
            key: statistics.median(found[kind][key] for found in rounds)
            for key in ("p50_us", "p99_us", "max_us", "cpu_ratio", "load_before")
        }
        print(kind, {key: round(value, 3) for key, value in told.items()})
    if asked.out is not None:
        machine = {"cores": os.cpu_count(), "system": platform.platform(), "uvloop": uvloop.__version__}
        asked.out.write_text(
            json.dumps({"rate_per_s": asked.rate, "machine": machine, "rounds": rounds}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()

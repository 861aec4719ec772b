"""Calls at moments of the clock: order, re-arming, and the kernel's timer on a real loop."""

from __future__ import annotations

import asyncio
import sys

import pytest

from phasemeter.engines.simulated.virtual import run_virtual
from phasemeter.measure.timetable import Timetable
from phasemeter.record.clock import ManualClock, MonotonicClock

MS = 1_000_000


def test_calls_come_in_the_order_of_their_time_at_exactly_that_time():
    rung: list[tuple[str, int]] = []

    async def main(clock: ManualClock) -> None:
        async with Timetable(clock) as timetable:
            for name, ms in (("c", 30), ("a", 10), ("b", 10), ("past", -5)):
                timetable.at(ms * MS, lambda name=name: rung.append((name, clock.now_ns() // MS)))
            assert timetable.next_ns == -5 * MS
            assert rung == []
            await timetable.until(20 * MS)
            assert clock.now_ns() == 20 * MS
            await timetable.until(40 * MS)
            assert timetable.next_ns is None

    run_virtual(main)
    assert rung == [("past", 0), ("a", 10), ("b", 10), ("c", 30)]


def test_what_is_left_is_forgotten_on_leaving():
    rung: list[int] = []

    async def main(clock: ManualClock) -> None:
        async with Timetable(clock) as timetable:
            timetable.at(10 * MS, lambda: rung.append(1))
        await asyncio.sleep(0.1)
        async with Timetable(clock) as timetable:
            async with timetable.cleared():
                timetable.at(clock.now_ns() + 10 * MS, lambda: rung.append(2))
            await timetable.until(clock.now_ns() + 50 * MS)

    run_virtual(main)
    assert rung == []


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_on_a_real_loop_nothing_comes_before_its_time(loop):
    clock = MonotonicClock()
    late_ns: list[int] = []

    async def main() -> None:
        async with Timetable(clock) as timetable:
            start_ns = clock.now_ns()
            for k in range(50):
                due_ns = start_ns + k * 700_000
                timetable.at(due_ns, lambda due_ns=due_ns: late_ns.append(clock.now_ns() - due_ns))
            await timetable.until(start_ns + 50 * 700_000)
            await timetable.until(start_ns)  # past: returns at once

    factory = pytest.importorskip("uvloop").new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    assert len(late_ns) == 50
    assert min(late_ns) >= 0
    assert sorted(late_ns)[25] < 50 * MS


@pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")
def test_the_kernels_timer_leaves_no_descriptor_behind():
    from pathlib import Path

    async def once() -> None:
        async with Timetable(MonotonicClock()) as timetable:
            await timetable.until(MonotonicClock().now_ns() + MS)

    asyncio.run(once())
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        asyncio.run(once())
    assert len(list(Path("/proc/self/fd").iterdir())) == before

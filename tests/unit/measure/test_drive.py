"""The closed loop, in virtual time against an engine of known truth: what it starts, when, and what it records."""

from __future__ import annotations

import asyncio

import pytest

from phasemeter.engines.simulated.engine import SimulatedEngine
from phasemeter.engines.simulated.truth import Truth
from phasemeter.engines.simulated.virtual import run_virtual
from phasemeter.measure.drive import closed_loop
from phasemeter.record.clock import ManualClock
from phasemeter.record.engine import EngineInfo, Outcome
from phasemeter.record.event import Event, Kind
from phasemeter.record.request import Cell, Request
from phasemeter.record.timeline import Timeline

MS = 1_000_000


def requests(n: int, out: int = 3, **extra: object):
    return iter([Request(f"{i}", Cell(8, out), out, token_ids=(1,) * 8, extra=dict(extra)) for i in range(n)])


def drive(truth: Truth, n: int, concurrency: int, **extra: object) -> tuple[list[Timeline], list[Event]]:
    seen: list[Timeline] = []
    events: list[Event] = []

    async def main(clock: ManualClock) -> None:
        engine = SimulatedEngine(truth, clock)
        await closed_loop(engine, requests(n, **extra), concurrency, clock, seen.append, events.append)

    run_virtual(main)
    return seen, events


def test_one_at_a_time_every_stamp_is_exact():
    seen, _ = drive(Truth(ttft_ms=50, itl_ms=10), 3, 1)
    for i, line in enumerate(seen):
        start = i * 70 * MS
        assert (line.arrived_ns, line.started_ns, line.sent_ns) == (start, start, start)
        assert [t for t, _ in line.generated()] == [start + 50 * MS, start + 60 * MS, start + 70 * MS]
        assert line.end_ns == start + 70 * MS
        assert line.in_flight == 1


def test_the_asked_concurrency_is_the_seen_one():
    seen, events = drive(Truth(ttft_ms=50, itl_ms=10), 12, 4)
    assert len(seen) == 12
    assert max(line.in_flight or 0 for line in seen) == 4
    level = most = 0
    for event in sorted(events, key=lambda e: (e.t_ns, e.kind is Kind.STARTED)):
        level += 1 if event.kind is Kind.STARTED else -1
        most = max(most, level)
    assert most == 4
    assert sorted({line.started_ns for line in seen}) == [0, 70 * MS, 140 * MS]


def test_a_slow_server_shows_in_its_own_phases_not_in_ours():
    seen, _ = drive(Truth(ttft_ms=50, itl_ms=10, slots=1), 4, 4)
    assert all(line.started_ns == line.arrived_ns for line in seen)
    assert sorted(line.report.queue_ns for line in seen if line.report) == [0, 70 * MS, 140 * MS, 210 * MS]


def test_a_failed_request_is_data_and_the_loop_goes_on():
    seen, _ = drive(Truth(ttft_ms=50, itl_ms=10), 3, 1, x_simulate={"error_event_after": 1})
    assert [line.outcome for line in seen] == [Outcome.ERROR_IN_STREAM] * 3
    assert [line.counted_tokens() for line in seen] == [1, 1, 1]


def test_cancelled_from_outside_what_is_in_flight_is_recorded():
    seen: list[Timeline] = []

    async def main(clock: ManualClock) -> None:
        engine = SimulatedEngine(Truth(ttft_ms=50, itl_ms=10), clock)
        task = asyncio.ensure_future(closed_loop(engine, requests(10), 2, clock, seen.append))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main)
    assert [line.outcome for line in seen] == [Outcome.OK, Outcome.OK, Outcome.CANCELLED, Outcome.CANCELLED]


class Broken:
    """An engine with a bug."""

    info = EngineInfo("broken", "none")

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def generate(self, request: Request):
        if request.id == "2":
            raise RuntimeError("a bug")
        await asyncio.sleep(1)


def test_a_broken_engine_is_an_exception_raised_as_itself():
    async def main(clock: ManualClock) -> None:
        await closed_loop(Broken(), requests(5), 3, clock, lambda _: None)

    with pytest.raises(RuntimeError, match="a bug"):
        run_virtual(main)


class OneBurst:
    """Ends every request at once and counts how many replies are parsed while others are in flight."""

    info = EngineInfo("burst", "none")

    def __init__(self) -> None:
        self.in_flight = 0
        self.parsed_in_flight = 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def generate(self, request: Request):
        from phasemeter.record.engine import Result

        self.in_flight += 1
        await asyncio.sleep(0.01 * (1 + int(request.id) % 7))
        self.in_flight -= 1
        engine = self

        class Reply:
            def settle(self):
                engine.parsed_in_flight += engine.in_flight > 0
                return Result(Outcome.OK, end_ns=0)

        return Reply()


def test_nothing_is_parsed_while_requests_are_in_flight_until_the_backlog_is_full():
    engine = OneBurst()
    seen: list[Timeline] = []

    async def main(clock: ManualClock) -> None:
        await closed_loop(engine, requests(40), 8, clock, seen.append)

    run_virtual(main)
    assert len(seen) == 40
    assert engine.parsed_in_flight == 0

    engine, many = OneBurst(), 300
    seen.clear()

    async def longer(clock: ManualClock) -> None:
        await closed_loop(engine, requests(many), 8, clock, seen.append)

    run_virtual(longer)
    assert len(seen) == many
    assert 0 < engine.parsed_in_flight < many

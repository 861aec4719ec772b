"""The closed loop, in virtual time against an engine of known truth: what it starts, when, and what it records."""

from __future__ import annotations

import asyncio

import pytest

from phasemeter.engines.simulated.engine import SimulatedEngine
from phasemeter.engines.simulated.truth import Truth
from phasemeter.engines.simulated.virtual import run_virtual
from phasemeter.measure.drive import Send, closed_loop, open_loop, singles
from phasemeter.measure.flights import Flights
from phasemeter.record.clock import ManualClock
from phasemeter.record.engine import EngineInfo, Outcome, Result
from phasemeter.record.event import Event, Kind
from phasemeter.record.request import Cell, Request
from phasemeter.record.timeline import Timeline

MS = 1_000_000


def requests(n: int, out: int = 3, **extra: object):
    return iter([Request(f"{i}", Cell(8, out), out, token_ids=(1,) * 8, extra=dict(extra)) for i in range(n)])


async def keep_busy(engine, n_slots, requests, clock, sink, observe=None) -> None:
    """The plain closed loop, as a grid is measured with."""
    async with Flights(engine, clock, sink, observe) as flights:
        await closed_loop(flights, singles(requests), [clock.now_ns()] * n_slots)


def drive(truth: Truth, n: int, concurrency: int, **extra: object) -> tuple[list[Timeline], list[Event]]:
    seen: list[Timeline] = []
    events: list[Event] = []

    async def main(clock: ManualClock) -> None:
        engine = SimulatedEngine(truth, clock)
        await keep_busy(engine, concurrency, requests(n, **extra), clock, seen.append, events.append)

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
        task = asyncio.ensure_future(keep_busy(engine, 2, requests(10), clock, seen.append))
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
        await keep_busy(Broken(), 3, requests(5), clock, lambda _: None)

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
        await keep_busy(engine, 8, requests(40), clock, seen.append)

    run_virtual(main)
    assert len(seen) == 40
    assert engine.parsed_in_flight == 0

    engine, many = OneBurst(), 300
    seen.clear()

    async def longer(clock: ManualClock) -> None:
        await keep_busy(engine, 8, requests(many), clock, seen.append)

    run_virtual(longer)
    assert len(seen) == many
    assert 0 < engine.parsed_in_flight < many


def strand(*after_ms: int, name: str = "s", out: int = 3):
    return [
        Send(Request(f"{name}.{k}", Cell(8, out, concurrency=None), out, token_ids=(1,) * 8), ms * MS)
        for k, ms in enumerate(after_ms)
    ]


def opened(truth: Truth, strands, until_ms: int | None = None, start_ms: int = 0) -> list[Timeline]:
    seen: list[Timeline] = []

    async def main(clock: ManualClock) -> None:
        async with Flights(SimulatedEngine(truth, clock), clock, seen.append) as flights:
            until_ns = None if until_ms is None else until_ms * MS
            await open_loop(flights, iter(strands), start_ms * MS, until_ns)

    run_virtual(main)
    return seen


def test_an_open_loop_starts_each_request_at_its_own_time_whatever_is_in_flight():
    due = [0, 10, 10, 11, 300, 301]
    seen = opened(
        Truth(ttft_ms=50, itl_ms=10), [strand(ms, name=str(i)) for i, ms in enumerate(due)], start_ms=5
    )
    by_name = sorted(seen, key=lambda t: t.id)
    assert [t.arrived_ns for t in by_name] == [(5 + ms) * MS for ms in due]
    assert [t.started_ns for t in by_name] == [t.arrived_ns for t in by_name]
    assert [t.in_flight for t in by_name] == [1, 2, 3, 4, 1, 2]
    assert all(t.end_ns - t.started_ns == 70 * MS for t in seen)


def test_a_turn_is_due_its_think_time_after_the_one_before_has_ended():
    seen = opened(Truth(ttft_ms=50, itl_ms=10), [strand(20, 100, 0, name="a"), strand(30, name="b")])
    arrived = {t.id: t.arrived_ns // MS for t in seen}
    assert arrived == {"a.0": 20, "b.0": 30, "a.1": 20 + 70 + 100, "a.2": 20 + 70 + 100 + 70}
    assert all(t.started_ns == t.arrived_ns for t in seen)


def test_an_open_loop_cut_by_time_starts_nothing_more_and_waits_for_what_is_in_flight():
    endless = (strand(10 * k, 1, name=str(k)) for k in range(10**9))
    seen = opened(Truth(ttft_ms=50, itl_ms=10), endless, until_ms=100)
    firsts = [t for t in seen if t.id.endswith(".0")]
    assert sorted(t.arrived_ns for t in firsts) == [10 * k * MS for k in range(10)]
    # second turns come 1 ms after 70 ms: only those of the first three are due before the end
    assert sorted(t.id for t in seen if t.id.endswith(".1")) == ["0.1", "1.1", "2.1"]
    assert all(t.outcome is Outcome.OK for t in seen)
    assert max(t.end_ns for t in seen) == (91 + 70) * MS


def test_lateness_of_a_blocked_loop_is_kept_as_ours():
    """The plan's first two requests are due before the loop is even opened."""
    seen: list[Timeline] = []

    async def main(clock: ManualClock) -> None:
        await asyncio.sleep(0.05)
        async with Flights(SimulatedEngine(Truth(ttft_ms=5), clock), clock, seen.append) as flights:
            await open_loop(flights, iter([strand(10), strand(30), strand(60)]), 0)

    run_virtual(main)
    assert [(t.started_ns - t.arrived_ns) // MS for t in seen] == [40, 20, 0]


def test_an_error_in_the_plan_ends_an_open_loop_with_all_that_ended_recorded():
    seen: list[Timeline] = []

    def faulty():
        for k in range(40):
            yield strand(10 * k, name=str(k))
        raise OSError("the trace went away")

    async def main(clock: ManualClock) -> None:
        async with Flights(SimulatedEngine(Truth(ttft_ms=30), clock), clock, seen.append) as flights:
            await open_loop(flights, faulty(), 0)

    with pytest.raises(OSError, match="went away"):
        run_virtual(main)
    assert {t.outcome for t in seen} == {Outcome.OK, Outcome.CANCELLED}


def test_slots_start_staggered_and_think_between_requests():
    seen: list[Timeline] = []

    async def main(clock: ManualClock) -> None:
        async with Flights(
            SimulatedEngine(Truth(ttft_ms=50, itl_ms=10), clock), clock, seen.append
        ) as flights:
            plan = iter([strand(30, name=str(k)) for k in range(4)])
            await closed_loop(flights, plan, [0, 40 * MS])

    run_virtual(main)
    # a slot's first request is due when the slot opens, later ones 30 ms after the one before
    assert sorted(t.arrived_ns // MS for t in seen) == [0, 40, 100, 140]
    assert all(t.started_ns == t.arrived_ns for t in seen)


def test_a_closed_loop_cut_by_time_starts_nothing_more():
    seen: list[Timeline] = []

    async def main(clock: ManualClock) -> None:
        async with Flights(
            SimulatedEngine(Truth(ttft_ms=50, itl_ms=10), clock), clock, seen.append
        ) as flights:
            await closed_loop(flights, singles(requests(10**6)), [0, 0], 200 * MS)

    run_virtual(main)
    assert sorted(t.started_ns // MS for t in seen) == [0, 0, 70, 70, 140, 140]
    assert all(t.outcome is Outcome.OK for t in seen)


def test_no_reply_is_parsed_while_a_first_token_is_awaited():
    """Waves of 100 streams: 50 ms to the first token, in which parsing would be in its way, then a second of tokens."""
    parsed_waiting = 0

    class Waves(OneBurst):
        sent_ns = 0

        def awaits_first(self) -> bool:
            return self.in_flight > 0 and self.clock.now_ns() < self.sent_ns + 50 * MS

        async def generate(self, request: Request):
            self.in_flight += 1
            self.sent_ns = self.clock.now_ns()
            await asyncio.sleep(1.05)
            self.in_flight -= 1
            engine = self

            class Reply:
                def settle(self):
                    nonlocal parsed_waiting
                    parsed_waiting += engine.awaits_first()
                    return Result(Outcome.OK, end_ns=engine.clock.now_ns())

            return Reply()

    seen: list[Timeline] = []

    async def main(clock: ManualClock) -> None:
        engine = Waves()
        engine.clock = clock
        async with Flights(engine, clock, seen.append) as flights:
            await closed_loop(flights, singles(requests(400)), [0] * 100)
            assert len(seen) >= 300, "the waves before the last are parsed while it runs"

    run_virtual(main)
    assert parsed_waiting == 0
    assert len(seen) == 400


def test_replies_wait_for_a_moment_without_a_send_and_never_pile_up():
    """2000 requests a second leave no pause of 2 ms: parsing waits, but only so long."""
    most, waiting = 0, 0

    class Counting(OneBurst):
        async def generate(self, request: Request):
            nonlocal most, waiting
            reply = await super().generate(request)
            waiting += 1
            most = max(most, waiting)
            return reply

    def sink(_: Timeline) -> None:
        nonlocal waiting
        waiting -= 1

    async def main(clock: ManualClock) -> None:
        async with Flights(Counting(), clock, sink) as flights:
            plan = ([Send(Request(f"{i}", Cell(8, 3), 3, token_ids=(1,)), i * MS // 2)] for i in range(3000))
            await open_loop(flights, plan, 0)

    run_virtual(main)
    assert waiting == 0
    assert 64 < most <= 257

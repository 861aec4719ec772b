"""The engine in process, in virtual time: every number below was worked out by hand, and must come out
exactly."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from phasemeter.engines.simulated.engine import SimulatedEngine
from phasemeter.engines.simulated.faults import parse_fault
from phasemeter.engines.simulated.script import script_of
from phasemeter.engines.simulated.truth import Jitter, Truth, rng_of, schedule
from phasemeter.engines.simulated.virtual import VirtualTimeError, run_virtual
from phasemeter.record.clock import MonotonicClock
from phasemeter.record.engine import GENERATED, EmissionKind, Engine, Outcome
from phasemeter.record.errors import InputError
from phasemeter.record.request import Cell, Request
from phasemeter.record.timeline import broken_invariants, timeline_of

MS = 1_000_000


def request(name="r", tokens=4, max_tokens=3, **simulate):
    return Request(
        id=name,
        cell=Cell(tokens, max_tokens),
        max_tokens=max_tokens,
        token_ids=tuple(range(tokens)),
        extra={"x_simulate": simulate} if simulate else {},
    )


def generated(result):
    return [e.recv_ns for e in result.emissions if e.kind in GENERATED]


def run_one(truth, wanted, **options):
    async def main(clock):
        return (await SimulatedEngine(truth, clock, **options).generate(wanted)).settle()

    return run_virtual(main)


def test_stamps_and_phases_are_exact():
    truth = Truth(queue_ms=1.5, prefill_ms=2, prefill_us_per_token=0.333, itl_ms=7.000001)
    result = run_one(truth, request())
    # prefill 2 ms + 4 * 333 ns = 2,001,332 ns
    assert generated(result) == [3_501_332, 3_501_332 + 7_000_001, 3_501_332 + 14_000_002]
    report = result.report
    assert (report.queue_ns, report.prefill_ns, report.decode_ns) == (1_500_000, 2_001_332, 14_000_002)
    assert (report.source, report.n_tokens) == ("simulated", 3)
    assert (result.outcome, result.finish_reason, result.usage.completion_tokens) == (Outcome.OK, "length", 3)
    assert result.end_ns == 3_501_332 + 14_000_002


def test_two_slots_and_five_staggered_requests_by_hand():
    truth = Truth(ttft_ms=10, itl_ms=5, slots=2)  # a request of 3 tokens holds its slot for 20 ms

    async def main(clock):
        engine = SimulatedEngine(truth, clock)

        async def one(i):
            await asyncio.sleep(i * 0.001)
            return (await engine.generate(request(str(i)))).settle()

        return await asyncio.gather(*(one(i) for i in range(5)))

    results = run_virtual(main)
    # arrivals 0..4 ms; slots free at 20 and 21 ms, then 40: starts 0, 1, 20, 21, 40
    starts = [0, 1, 20, 21, 40]
    assert [generated(r) for r in results] == [[(s + 10) * MS, (s + 15) * MS, (s + 20) * MS] for s in starts]
    assert [r.report.queue_ns for r in results] == [0, 0, 18 * MS, 18 * MS, 36 * MS]
    assert {r.report.prefill_ns for r in results} == {10 * MS}
    assert {r.report.decode_ns for r in results} == {10 * MS}


def test_a_cancelled_request_hands_its_slot_on_at_once():
    truth = Truth(ttft_ms=10, itl_ms=5, slots=1)

    async def main(clock):
        engine = SimulatedEngine(truth, clock)
        hanging = asyncio.create_task(engine.generate(request("a", hang_after=1)))
        waiting = asyncio.create_task(engine.generate(request("b")))
        given_up = asyncio.create_task(engine.generate(request("c")))
        await asyncio.sleep(0.030)
        given_up.cancel()  # still in the queue
        await asyncio.sleep(0.007)
        hanging.cancel()
        result = (await waiting).settle()
        return result, hanging.cancelled(), given_up.cancelled()

    result, hanging, given_up = run_virtual(main)
    assert (hanging, given_up) == (True, True)
    assert result.report.queue_ns == 37 * MS
    assert generated(result) == [47 * MS, 52 * MS, 57 * MS]


def test_cold_start_only_on_the_first_of_a_shape():
    truth = Truth(ttft_ms=10, cold_first_ms=100)

    async def main(clock):
        engine = SimulatedEngine(truth, clock)
        shapes = [(4, 3), (4, 3), (8, 3), (4, 3)]
        return [(await engine.generate(request(tokens=p, max_tokens=n))).settle() for p, n in shapes]

    assert [r.report.prefill_ns // MS for r in run_virtual(main)] == [110, 10, 110, 10]


def test_jitter_is_the_schedule_of_the_serial():
    truth = Truth(ttft_ms=10, itl_ms=5, jitter=Jitter("lognormal", relative=0.4), seed=5)

    async def main(clock):
        engine = SimulatedEngine(truth, clock)
        return await asyncio.gather(*(engine.generate(request(max_tokens=9)) for _ in range(3)))

    for serial, reply in enumerate(run_virtual(main)):
        expected = schedule(truth, 1, 4, 9, rng_of(truth, serial))
        assert generated(reply.settle()) == [offset for offset, _ in expected]


@pytest.mark.parametrize(
    ("simulate", "outcome", "stamps"),
    [
        ({"error_event_after": 2}, Outcome.ERROR_IN_STREAM, [10, 15]),
        ({"truncate_after": 1}, Outcome.TRUNCATED, [10]),
        ({"reset_after": 2}, Outcome.RESET, [10, 15]),
        ({"reset_after": 0}, Outcome.RESET, []),
        ({"empty_stream": True}, Outcome.EMPTY_STREAM, []),
        ({"garbage_json": 1}, Outcome.BAD_RESPONSE, [10, 15, 20]),
        ({"not_streaming": True}, Outcome.BAD_RESPONSE, [10, 15, 20]),
        ({"status": {"code": 429, "retry_after_s": 2}}, Outcome.REFUSED, []),
        ({"status": {"code": 500}}, Outcome.HTTP_ERROR, []),
        ({"stall": {"after": 1, "ms": 100}}, Outcome.OK, [10, 115, 120]),
        ({"short_output": 2}, Outcome.OK, [10, 15]),
        ({"no_done": True}, Outcome.OK, [10, 15, 20]),
        ({"ttft_ms": 3, "itl_ms": 1}, Outcome.OK, [3, 4, 5]),
        ({"hang_after": 9}, Outcome.OK, [10, 15, 20]),
        ({"split_utf8": True}, Outcome.ENGINE_ERROR, []),
        ({"stahl": 1}, Outcome.ENGINE_ERROR, []),
    ],
)
def test_faults_in_process(simulate, outcome, stamps):
    result = run_one(Truth(ttft_ms=10, itl_ms=5), request(**simulate))
    assert result.outcome == outcome
    assert generated(result) == [ms * MS for ms in stamps]
    assert (result.error is None) == (outcome is Outcome.OK)
    timeline = timeline_of(request(), result, arrived_ns=0, started_ns=0)
    assert broken_invariants(timeline) == []


def test_retry_after_and_status_are_told():
    result = run_one(Truth(), request(status={"code": 503, "retry_after_s": 1.5}))
    assert (result.status, result.retry_after_s) == (503, 1.5)


def test_role_reasoning_and_empty_pieces():
    result = run_one(Truth(ttft_ms=10), request(role_first=True, reasoning=1, empty_deltas=[2], max_tokens=4))
    kinds = [e.kind for e in result.emissions]
    assert kinds[:5] == [
        EmissionKind.ROLE,
        EmissionKind.REASONING,
        EmissionKind.TEXT,
        EmissionKind.EMPTY,
        EmissionKind.TEXT,
    ]
    assert result.emissions[0].recv_ns == 0


def test_faults_and_script_hold_for_all_and_bytes_are_refused():
    truth = Truth(ttft_ms=10, itl_ms=5)
    script = script_of("[[step]]\nttft_ms = 20\n")

    async def main(clock):
        engine = SimulatedEngine(truth, clock, faults=parse_fault("short_output:1"), script=script)
        return [(await engine.generate(request())).settle() for _ in range(2)]

    first, second = run_virtual(main)
    assert generated(first) == [20 * MS]
    assert generated(second) == [20 * MS + 10 * MS]
    with pytest.raises(InputError, match="crlf"):
        SimulatedEngine(truth, MonotonicClock(), faults=parse_fault("crlf"))


async def test_in_real_time_nothing_comes_early_and_nothing_drifts():
    clock = MonotonicClock()
    engine: Engine = SimulatedEngine(Truth(ttft_ms=10, itl_ms=1), clock)
    await engine.start()
    result = (await engine.generate(request(max_tokens=400))).settle()
    await engine.close()
    late = [t - result.sent_ns - (10 + k) * MS for k, t in enumerate(generated(result))]
    assert min(late) >= 0
    # relative sleeps would add up the lateness of 400 timers, half a millisecond and more each
    assert min(late[-50:]) < 100 * MS


def test_virtual_time_is_fast_and_starts_where_told():
    async def main(clock):
        await asyncio.sleep(86_400)
        return clock.now_ns()

    before = time.monotonic()
    assert run_virtual(main, start_ns=5) == 86_400 * 1_000 * MS + 5
    assert time.monotonic() - before < 5


def test_timeouts_work_in_virtual_time():
    async def main(clock):
        engine = SimulatedEngine(Truth(ttft_ms=10), clock)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.generate(request(hang_before_first=True)), 60)
        return clock.now_ns()

    assert run_virtual(main) == 60_000 * MS


def test_a_hang_and_a_socket_are_refused_in_virtual_time():
    async def hang(clock):
        await SimulatedEngine(Truth(), clock).generate(request(hang_after=1))

    with pytest.raises(VirtualTimeError, match="no timer"):
        run_virtual(hang)

    async def connect(_clock):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            asyncio.get_running_loop().add_reader(ours, lambda: None)

    with pytest.raises(VirtualTimeError, match="socket"):
        run_virtual(connect)


def test_info_names_the_truth():
    clock = MonotonicClock()
    one, other = (SimulatedEngine(Truth(ttft_ms=ms), clock).info for ms in (10, 20))
    assert one.kind == "simulated"
    assert one.details != other.details

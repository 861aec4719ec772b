"""Loads in virtual time: what is sent when, what lands in the file, how stages end, what a share sends."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import json

from phasemeter.engines.simulated.engine import SimulatedEngine
from phasemeter.engines.simulated.truth import Truth
from phasemeter.engines.simulated.virtual import run_virtual
from phasemeter.measure.arrivals import offsets
from phasemeter.measure.item import Item
from phasemeter.measure.load import Arrivals, Load, Patience, Share, Stage
from phasemeter.measure.load_session import load_session, measure_load, planned_requests_of
from phasemeter.measure.recording import Beside, Progress
from phasemeter.measure.supply import think_ns
from phasemeter.record.clock import Anchor, ManualClock
from phasemeter.record.engine import EngineInfo, Outcome, Result, Settled
from phasemeter.record.errors import EngineError, InputError
from phasemeter.record.file import read_run
from phasemeter.record.request import Request
from phasemeter.record.run import SCHEMA, Header, Machine, Run
from phasemeter.record.timeline import Timeline

MS, S = 1_000_000, 1_000_000_000
FIXED = {"kind": "lengths", "input": "16", "output": "4"}
TRUTH = Truth(ttft_ms=50, itl_ms=10)
"""A request of 4 tokens takes 80 ms."""


def header(engine) -> Header:
    return Header(SCHEMA, "r", "0", Anchor(0, 0), engine.info, Machine("h", "o", "c", 2), settings={})


def run(load: Load, out: Path, make=lambda clock: SimulatedEngine(TRUTH, clock), **beside) -> Run:
    travelled = json.decode(json.encode(load), type=Load)  # as it does to a worker

    async def main(clock: ManualClock) -> None:
        engine = make(clock)
        await measure_load(engine, travelled, clock, out, header(engine), Beside(**beside))

    run_virtual(main)
    return read_run(out)


def measured(found: Run) -> list[Timeline]:
    return sorted((t for t in found.requests if not t.cell.warmup), key=lambda t: t.arrived_ns)


def load(*stages: Stage, **fields) -> Load:
    return Load(workload=fields.pop("workload", FIXED), stages=stages, **fields)


def test_an_open_loop_follows_its_plan_to_the_nanosecond(tmp_path):
    stage = Stage(rate_per_s=20.0, duration_ns=5 * S)
    made = measured(run(load(stage, warmup=0, seed=7), tmp_path / "r.jsonl"))
    start_ns = made[0].arrived_ns - next(offsets(Arrivals(), stage, 7))
    assert [t.arrived_ns - start_ns for t in made] == list(offsets(Arrivals(), stage, 7))
    assert all(t.started_ns == t.arrived_ns for t in made)
    assert all(t.outcome is Outcome.OK and t.counted_tokens() == 4 for t in made)
    assert {(t.cell.concurrency, t.cell.rate_per_s) for t in made} == {(None, 20.0)}
    assert len({t.id for t in made}) == len(made)


def test_what_is_in_flight_when_a_stage_ends_is_waited_for_and_the_next_begins_after_it(tmp_path):
    stages = [Stage(rate_per_s=r, duration_ns=S) for r in (50.0, 100.0)]
    made = measured(run(load(*stages, arrivals=Arrivals("constant"), warmup=0), tmp_path / "r.jsonl"))
    first = [t for t in made if t.cell.rate_per_s == 50.0]
    second = [t for t in made if t.cell.rate_per_s == 100.0]
    assert (len(first), len(second)) == (50, 100)
    assert first[-1].end_ns > first[0].arrived_ns + S
    assert second[0].arrived_ns >= max(t.end_ns for t in first)
    assert all(t.outcome is Outcome.OK for t in made)


def test_a_closed_loop_keeps_to_its_slots_its_number_and_its_block(tmp_path):
    stages = [Stage(concurrency=4, requests=10, block=b) for b in (0, 1)]
    found = run(load(*stages, warmup=0), tmp_path / "r.jsonl")
    made = measured(found)
    assert [t.cell.block for t in made] == [0] * 10 + [1] * 10
    assert max(t.in_flight or 0 for t in made) == 4
    assert made[-1].end_ns - made[10].arrived_ns == 3 * 80 * MS
    assert planned_requests_of(load(*stages)) == 20
    assert found.footer is not None
    assert not found.footer.interrupted


def test_a_closed_loop_thinks_and_opens_its_slots_one_by_one(tmp_path):
    asked = load(Stage(concurrency=4, requests=40), warmup=0, think_s=0.2, stagger_s=1.0)
    made = measured(run(asked, tmp_path / "r.jsonl"))
    start_ns = made[0].arrived_ns
    assert all(t.started_ns == t.arrived_ns for t in made)
    ends = {t.end_ns for t in made}
    follows = [t for t in made if t.arrived_ns - think_ns(asked, item_of(t)) in ends]
    opens = [t.arrived_ns - start_ns for t in made if t not in follows]
    assert opens == [0, 250 * MS, 500 * MS, 750 * MS]
    pauses_ns = [think_ns(asked, item_of(t)) for t in made]
    assert 0.1 * S < sum(pauses_ns) / len(pauses_ns) < 0.35 * S


def item_of(timeline: Timeline) -> Item:
    return Item(int(timeline.id.rpartition("-")[2]), 16, 4)


def test_turns_of_a_conversation_follow_each_other(tmp_path):
    workload = {"kind": "conversations", "turns": "3", "input": "8", "output": "4", "think": "0.5"}
    found = run(load(Stage(rate_per_s=2.0, requests=9), workload=workload, warmup=0), tmp_path / "r.jsonl")
    by_talk: dict[int, list[Timeline]] = {}
    for t in measured(found):
        by_talk.setdefault(int(t.id.rpartition("-")[2]) // 3, []).append(t)
    assert len(by_talk) == 3
    for talk in by_talk.values():
        assert [t.cell.input_tokens for t in talk] == [8, 20, 32]
        assert [b.arrived_ns - a.end_ns for a, b in pairwise(talk)] == [S // 2] * 2


def test_shares_together_send_the_whole_plan_each_its_own(tmp_path):
    for stage in (Stage(rate_per_s=20.0, duration_ns=3 * S), Stage(concurrency=5, requests=23)):
        asked = load(
            stage, warmup=0, patience=Patience(cancel_ratio=0.3), think_s=0.1 * bool(stage.concurrency)
        )
        name = "open" if stage.concurrency is None else "closed"
        whole = measured(run(asked, tmp_path / f"{name}.jsonl"))
        parts = [measured(run(asked, tmp_path / f"{name}-{k}.jsonl", share=Share(k, 3))) for k in range(3)]
        assert {t.id for t in whole} == {t.id for part in parts for t in part}
        assert sum(map(len, parts)) == len(whole)
        assert {t.id: t.tags for t in whole} == {t.id: t.tags for part in parts for t in part}
        if stage.concurrency is None:
            base = {t.id: t.arrived_ns - whole[0].arrived_ns for t in whole}
            for part in parts:
                shift = part[0].arrived_ns - base[part[0].id]
                assert all(t.arrived_ns - shift == base[t.id] for t in part)


def test_all_wait_at_the_gates_and_count_from_the_common_start(tmp_path):
    passed: list[int] = []
    clocks: list[ManualClock] = []

    def make(clock: ManualClock) -> SimulatedEngine:
        clocks.append(clock)
        return SimulatedEngine(TRUTH, clock)

    async def gate(number: int) -> int:
        passed.append(number)
        start_ns = clocks[0].now_ns() + S
        await asyncio.sleep(1.0)
        return start_ns

    stages = [Stage(rate_per_s=10.0, requests=2)] * 2
    found = run(load(*stages, arrivals=Arrivals("constant"), warmup=0), tmp_path / "r.jsonl", make, gate=gate)
    assert passed == [-1, 0, 1]
    assert [t.arrived_ns for t in measured(found)][:2] == [2 * S, 2 * S + S // 10]


def test_planned_cancels_end_after_their_tokens_and_say_so(tmp_path):
    asked = load(
        Stage(concurrency=2, requests=200),
        patience=Patience(cancel_ratio=0.25, cancel_after_tokens=2),
        warmup=0,
    )
    made = measured(run(asked, tmp_path / "r.jsonl"))
    given_up = [t for t in made if t.outcome is Outcome.CANCELLED]
    assert 25 < len(given_up) < 75
    assert all(t.given_up and t.counted_tokens() == 2 and t.end_ns - t.sent_ns == 60 * MS for t in given_up)
    assert all(t.counted_tokens() == 4 and not t.tags for t in made if not t.given_up)


def test_warm_up_is_marked_and_shares_no_prompt_with_the_plan(tmp_path):
    found = run(load(Stage(concurrency=3, requests=6)), tmp_path / "auto.jsonl")
    warm = [t for t in found.requests if t.cell.warmup]
    assert len(warm) == 6  # two rounds of three agree
    assert not {t.id for t in warm} & {t.id for t in measured(found)}
    found = run(load(Stage(concurrency=3, requests=6), warmup=10), tmp_path / "ten.jsonl")
    assert sum(t.cell.warmup for t in found.requests) == 10


def test_samples_of_ourselves_come_every_second(tmp_path):
    found = run(load(Stage(rate_per_s=10.0, duration_ns=10 * S), warmup=0), tmp_path / "r.jsonl")
    times = [s.t_ns / S for s in found.samples if "loop_lag_ns" in s.values]
    assert 9 <= len(times) <= 12
    assert all("client_cpu_ratio" in s.values for s in found.samples)


def test_the_watcher_is_told_of_stages_whose_number_nobody_knows(tmp_path):
    told: list[Progress] = []
    run(load(Stage(rate_per_s=10.0, duration_ns=5 * S), warmup=0), tmp_path / "r.jsonl", watch=told.append)
    assert {at.planned for at in told} == {None}
    left = [at.left_s for at in told if at.cell is not None and at.left_s is not None]
    assert left[0] == 5
    assert left == sorted(left, reverse=True)
    assert told[-1].cell is None


def test_a_live_session_takes_one_more_stage(tmp_path):
    out = tmp_path / "r.jsonl"

    async def main(clock: ManualClock) -> None:
        engine = SimulatedEngine(TRUTH, clock)
        asked = load(Stage(rate_per_s=5.0, duration_ns=S), warmup=0)
        async with load_session(engine, asked, clock, out, header(engine)) as session:
            for rate in (5.0, 10.0, 7.5):
                seen = await session.stage(Stage(rate_per_s=rate, requests=10))
                assert [t.cell.rate_per_s for t in seen] == [rate] * 10

    run_virtual(main)
    made = measured(read_run(out))
    assert len({t.id for t in made}) == 30


class Interrupting(SimulatedEngine):
    """Ctrl-C when the fifth request starts."""

    count = 0

    async def generate(self, request: Request):
        self.count += 1
        if self.count == 5:
            raise asyncio.CancelledError
        return await super().generate(request)


def test_ctrl_c_keeps_all_that_had_ended_and_marks_what_was_in_flight(tmp_path):
    out = tmp_path / "r.jsonl"
    asked = load(Stage(rate_per_s=100.0, duration_ns=S), arrivals=Arrivals("constant"), warmup=0)
    with pytest.raises(asyncio.CancelledError):
        run(asked, out, lambda clock: Interrupting(TRUTH, clock))
    found = read_run(out)
    assert [t.outcome for t in measured(found)] == [
        Outcome.CANCELLED
    ] * 5  # the fifth comes at 40 ms, the first ends at 80
    assert not any(t.given_up for t in found.requests)
    assert found.footer is not None
    assert found.footer.interrupted


class Away(SimulatedEngine):
    """A server that is away between two moments."""

    away_ns = (2 * S, 6 * S)

    async def generate(self, request: Request):
        now_ns = self._clock.now_ns()
        if self.away_ns[0] <= now_ns < self.away_ns[1]:
            return Settled(Result(Outcome.CONNECT_FAILED, end_ns=now_ns, error="connection refused"))
        return await super().generate(request)


def test_a_server_that_restarts_is_part_of_an_open_loops_record(tmp_path):
    asked = load(Stage(rate_per_s=20.0, duration_ns=10 * S), warmup=0)
    made = measured(run(asked, tmp_path / "r.jsonl", lambda clock: Away(TRUTH, clock)))
    failed = [t for t in made if t.outcome is Outcome.CONNECT_FAILED]
    assert len(failed) > 40
    assert made[-1].outcome is Outcome.OK


def test_a_server_that_stays_away_ends_the_run_with_its_reason(tmp_path):
    class Gone(Away):
        away_ns = (2 * S, 10**6 * S)

    for name, stage, after_s in (
        ("open", Stage(rate_per_s=20.0, duration_ns=600 * S), 12.0),
        ("closed", Stage(concurrency=2, duration_ns=600 * S), 2.0),
    ):
        out = tmp_path / f"{name}.jsonl"
        with pytest.raises(EngineError, match="cannot be reached any more"):
            run(load(stage, warmup=0), out, lambda clock: Gone(TRUTH, clock))
        found = read_run(out)
        assert found.footer is not None
        assert found.footer.error is not None
        assert found.footer.end_ns / S == pytest.approx(after_s, abs=2.0)


def test_no_descriptor_left_is_our_limit_and_said_as_such(tmp_path):
    class Crowded(SimulatedEngine):
        async def generate(self, request: Request):
            error = "cannot connect (Too many open files)"
            return Settled(Result(Outcome.CONNECT_FAILED, end_ns=self._clock.now_ns(), error=error))

    out = tmp_path / "r.jsonl"
    with pytest.raises(InputError, match="ulimit"):
        run(load(Stage(rate_per_s=20.0, duration_ns=S), warmup=0), out, lambda clock: Crowded(TRUTH, clock))
    assert read_run(out).footer is not None


class TextOnly(SimulatedEngine):
    """Counts a template of 7 tokens and one a word."""

    @property
    def info(self) -> EngineInfo:
        return EngineInfo("text", "m")

    async def generate(self, request: Request):
        from msgspec.structs import replace

        from phasemeter.record.request import Usage

        assert request.prompt is not None
        result = (await super().generate(request)).settle()
        usage = Usage(prompt_tokens=7 + len(request.prompt.split()), completion_tokens=request.max_tokens)
        return Settled(replace(result, usage=usage))


def test_lengths_of_text_are_asked_for_before_the_first_stage(tmp_path):
    workload = {"kind": "lengths", "input": "uniform:30:300", "output": "4"}
    found = run(
        load(Stage(concurrency=4, requests=40), workload=workload),
        tmp_path / "r.jsonl",
        lambda c: TextOnly(TRUTH, c),
    )
    assert all(t.usage and t.usage.prompt_tokens == t.cell.input_tokens for t in measured(found))


def test_a_wall_clock_that_is_set_during_the_run_moves_no_number(tmp_path, monkeypatch):
    """Stepped by 50 ms at every look, as a bad time server does."""
    from phasemeter.record import clock as clocks

    asked = load(Stage(rate_per_s=20.0, duration_ns=5 * S), Stage(concurrency=3, requests=30), think_s=0.1)
    steady = run(asked, tmp_path / "steady.jsonl")
    stepped = iter(range(10**18, 2 * 10**18, 50 * MS))
    monkeypatch.setattr(clocks.time, "time_ns", lambda: next(stepped))
    monkeypatch.setattr(clocks.time, "time", lambda: next(stepped) / 1e9)
    assert run(asked, tmp_path / "stepped.jsonl").requests == steady.requests

"""Steady windows of queues whose answer is known."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from phasemeter.explain.phases import read
from phasemeter.explain.stage_table import stage_tables
from phasemeter.explain.steady import State, steady_of
from phasemeter.explain.summary import summarise, summary_json
from unit.explain.builders import run, sequence
from unit.explain.queues import closed, md1, sweep


def steady(*stages):
    timelines = [t for stage in stages for t in stage]
    return steady_of(stage_tables([read(t) for t in timelines], {t.id: "" for t in timelines}))


def states(make, seeds=10):
    return Counter(steady(make(seed)).state for seed in range(seeds))


@pytest.mark.parametrize("rho", [0.3, 0.5, 0.7])
def test_a_stable_queue_is_steady(rho):
    found = states(lambda seed: md1(10 * rho, 1500, seed=seed))
    assert found[State.STEADY] >= 8
    assert found[State.GROWING] == 0


@pytest.mark.parametrize("rho", [1.2, 1.5, 3.0])
def test_an_overloaded_queue_grows_and_is_refused(rho):
    found = states(lambda seed: md1(10 * rho, 1500, seed=seed))
    assert found[State.STEADY] == 0
    assert found[State.GROWING] >= 9
    one = steady(md1(15.0, 1500))
    assert one.ttft_ms is None
    assert one.requests_per_s is None
    assert one.evidence.startswith("no steady window: drifting")


def test_the_mean_of_the_window_is_that_of_theory():
    """M/D/1 at 60 %: mean time in the system is service x (1 + rho / (2 (1 - rho))) = 175 ms."""
    found = [steady(md1(6.0, 3000, seed=seed)) for seed in range(6)]
    means = [one.ttft_ms.mean for one in found if one.ttft_ms is not None]
    assert sum(means) / len(means) == pytest.approx(175.0, rel=0.05)


def test_intervals_cover_rate_and_median():
    """Requests of a queue are not independent: an interval that took them so would miss far more often."""
    rates = medians = steadies = 0
    middle = steady(md1(7.0, 30_000, seed=99)).ttft_ms.p50
    for seed in range(20):
        one = steady(md1(7.0, 1500, seed=seed))
        if one.state is State.STEADY:
            steadies += 1
            rates += one.requests_per_s.lo <= 7.0 <= one.requests_per_s.hi
            low, high = one.ttft_ms.ci95_p50
            medians += low <= middle <= high
    assert steadies >= 14
    assert rates >= steadies - 3
    assert medians >= steadies - 4


def test_the_drain_is_no_part_of_the_window():
    stage = md1(5.0, 600, decode_s=4.0, servers=1)
    [window] = steady(stage).windows
    last_s = (stage[-1].arrived_ns - stage[0].arrived_ns) / 1e9
    assert window.to_s == pytest.approx(last_s)
    assert window.drain_s == pytest.approx((max(t.end_ns for t in stage) - stage[-1].arrived_ns) / 1e9)
    assert window.from_s > 1.0  # nothing can be completed in the first four seconds


def test_a_closed_loop_is_steady_until_its_slots_are_no_longer_filled():
    found = steady(closed(8, 1200, seed=5))
    assert found.state is State.STEADY
    assert found.in_flight.value == pytest.approx(8, rel=0.05)
    assert (
        found.requests_per_s.lo <= 40.0 <= found.requests_per_s.hi
    )  # four servers, a tenth of a second each


def test_a_server_that_slows_down_drifts():
    found = states(lambda seed: closed(8, 1500, seed=seed, slower=2.0))
    assert found[State.STEADY] <= 2


def test_one_drifting_stage_spoils_its_level():
    overloaded = [replace(t, cell=replace(t.cell, rate_per_s=5.0, block=1)) for t in shifted(md1(20.0, 800))]
    found = steady(md1(5.0, 800), overloaded)
    assert [w.state for w in found.windows] == [State.STEADY, State.GROWING]
    assert found.state is State.GROWING


def shifted(stage, by_s=10_000):
    by = by_s * 10**9
    return [
        replace(
            t, id=f"late-{t.id}", arrived_ns=t.arrived_ns + by, started_ns=t.started_ns + by,
            connected_ns=t.connected_ns + by, sent_ns=t.sent_ns + by, end_ns=t.end_ns + by,
        )
        for t in stage
    ]  # fmt: skip


def test_a_grid_of_few_requests_is_left_alone():
    whole = summarise(run(*sequence(10)))
    assert [level.steady for level in whole.under_load.levels] == [None]
    check = next(c for c in whole.checks if c.name == "steady")
    assert check.verdict == "ok"
    assert summary_json(whole)["load"]["levels"][0]["steady"] is None


def test_whole_run_and_steady_numbers_stand_side_by_side():
    told = summary_json(summarise(sweep(md1(5.0, 800), md1(15.0, 800))))["load"]["levels"]
    assert [(level["concurrency"], level["rate_per_s"]) for level in told] == [(None, 5.0), (None, 15.0)]
    assert told[0]["steady"]["state"] == "steady"
    assert 0 < told[0]["steady"]["requests"] <= told[0]["ok"] == 800
    assert told[0]["ttft_ms"]["n"] == 800
    assert told[1]["steady"]["state"] == "growing"
    assert told[1]["steady"]["ttft_ms"] is None
    assert told[1]["ttft_ms"]["n"] == 800
    assert told[1]["completed_per_s"]["value"] == pytest.approx(10.0, rel=0.02)
    for level in told:
        assert level["arrived_per_s"] == pytest.approx(level["rate_per_s"], rel=0.1)
        assert level["sent_per_s"] == pytest.approx(level["arrived_per_s"], rel=1e-6)

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from phasemeter.explain.slo import Condition, Met, Sampled, parse_slo, percentile_of, share_within, wilson
from phasemeter.explain.summary import summarise, summary_json
from phasemeter.explain.under_load import judge_timelines
from phasemeter.record.engine import Outcome
from phasemeter.record.errors import InputError
from unit.explain.builders import run, sequence, timeline
from unit.explain.queues import md1, sweep


def test_the_grammar():
    slo = parse_slo("ttft_p99=200ms, tpot=20ms,itl_p99.9=0.05s,e2e=2s,goodput=95%")
    assert slo.conditions == (
        Condition("ttft", 200.0, 99.0),
        Condition("tpot", 20.0),
        Condition("itl", 50.0, 99.9),
        Condition("e2e", 2000.0),
    )
    assert slo.good_share == 0.95
    assert parse_slo("ttft=200ms").good_share == 0.99
    assert parse_slo("ttft_p90=200ms").good_share is None
    assert parse_slo("ttft_from_arrival_p50=1ms").conditions[0].name == "ttft_from_arrival_p50"


@pytest.mark.parametrize(
    "text",
    ["", "ttft", "ttft=", "ttft=200", "ttft=0ms", "ttft=-1ms", "speed=2ms", "ttft_p0=2ms", "ttft_p100=2ms",
     "goodput=95%", "ttft=1ms,goodput=2", "ttft=1ms,goodput=x", "ttft=1ms,ttft=2ms", "ttft=nan ms",
     "goodput=95%%,ttft=1ms", "goodput=90%,goodput=95%,ttft=1ms"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_line(text):
    with pytest.raises(InputError, match="--slo"):
        parse_slo(text)


@given(st.text(alphabet="tfipolegdu_p0123456789=%.,ms ", max_size=40))
def test_no_text_breaks_the_reader(text):
    with contextlib.suppress(InputError):
        assert parse_slo(text).conditions


def judged(timelines, text):
    return judge_timelines(timelines, parse_slo(text))


def test_a_request_is_good_when_it_meets_every_condition():
    requests = [
        timeline("good"),
        timeline("slow to start", first=300.0),
        timeline("slow tokens", gaps=(30.0,) * 4),
        timeline("one stall", gaps=(10.0, 10.0, 90.0, 10.0)),
        timeline("one token", gaps=()),
    ]
    assert judged(requests, "ttft=200ms").goodput.good == 4
    assert judged(requests, "tpot=20ms").goodput.good == 3  # no TPOT of one token, so it breaks nothing
    assert judged(requests, "itl=50ms").goodput.good == 4
    assert judged(requests, "itl_p50=20ms").goodput.good == 4
    assert judged(requests, "ttft=200ms,tpot=20ms,itl=50ms").goodput.good == 2
    assert judged(requests, "e2e=1s").goodput.good == 5


def test_goodput_is_a_rate_over_the_gaps_between_arrivals():
    """As `arrived_per_s`: two requests a second apart are one a second; one request has no rate."""
    apart = [timeline(f"r{i}", at=1000.0 * i) for i in range(2)]
    assert judged(apart, "ttft=200ms").goodput.per_s.value == pytest.approx(1.0)
    often = [timeline(f"r{i}", at=200.0 * i) for i in range(51)]
    assert judged(often, "ttft=200ms").goodput.per_s.value == pytest.approx(5.0)
    assert judged([timeline("alone")], "ttft=200ms").goodput.per_s is None
    assert judged([timeline("a"), timeline("b")], "ttft=200ms").goodput.per_s is None  # at one moment


def test_a_share_of_nothing_is_absent():
    given_up = timeline("g", outcome=Outcome.CANCELLED, tags={"cancel": "planned"})
    found = judged([given_up], "ttft_p99=200ms,goodput=90%")
    assert found.goodput.share is None
    assert found.conditions[0].share is None
    assert found.met is Met.UNDECIDED


def test_failed_requests_are_never_good_and_those_given_up_on_purpose_do_not_count():
    failed = timeline("f", outcome=Outcome.RESET, deltas_ns=(), kinds="", counts=None, usage=None)
    given_up = timeline("g", outcome=Outcome.CANCELLED, tags={"cancel": "planned"})
    found = judged([timeline("a"), failed, given_up], "ttft=200ms")
    assert (found.goodput.good, found.goodput.requests) == (1, 2)


def test_a_percentile_among_failed_requests_is_not_met_and_has_no_value():
    stage = md1(2.0, 800, bad=range(0, 800, 20))
    found = judged(stage, "ttft_p99=10s")
    [condition] = found.conditions
    assert (condition.value_ms, condition.met, found.met) == (None, Met.NOT_MET, Met.NOT_MET)
    assert judged(stage, "ttft_p90=10s").met is Met.MET


def test_three_answers():
    stage = md1(5.0, 1500, seed=3)
    assert judged(stage, "ttft_p90=1s").met is Met.MET
    assert judged(stage, "ttft_p90=110ms").met is Met.NOT_MET
    [seen] = judged(stage, "ttft_p90=1s").conditions
    near = judged(stage, f"ttft_p90={seen.value_ms}ms")
    assert near.met is Met.UNDECIDED
    assert seen.ci95_ms[0] <= seen.value_ms <= seen.ci95_ms[1]


def test_few_requests_leave_a_far_percentile_undecided():
    """381 independent requests without one beyond the limit are the least for 99 % (Wilson)."""
    assert judged(md1(1.0, 150), "ttft_p99=10s").met is Met.UNDECIDED
    assert judged(md1(1.0, 1000), "ttft_p99=10s").met is Met.MET


def test_a_growing_queue_meets_nothing():
    found = judged(md1(15.0, 800), "ttft_p99=1000s")
    assert found.met is Met.NOT_MET
    assert not found.steady
    assert "drifting" in found.note


def test_gaps_are_pooled_for_the_level():
    requests = [
        timeline(f"r{i}", at=i * 100.0, gaps=(10.0,) * 20 + ((50.0,) if i % 10 == 0 else (10.0,)))
        for i in range(400)
    ]
    [condition] = judged(requests, "itl_p99=20ms").conditions
    assert condition.share.value == pytest.approx(1 - 1 / 210, abs=5e-4)
    assert condition.value_ms == 10.0
    # within a request one gap of 21 counts
    assert judged(requests, "itl_p99=20ms").goodput.share.value == pytest.approx(0.9, abs=0.02)


def test_the_interval_of_a_share_is_honest_about_queues():
    """Wilson with the number of requests would be far too narrow: neighbours miss the limit together."""
    truth = share_of(md1(8.0, 40_000, seed=77), 300.0)
    inside = sum(
        found.lo <= truth <= found.hi
        for found in (
            judged(md1(8.0, 1500, seed=seed), "ttft_p50=300ms").conditions[0].share for seed in range(30)
        )
    )
    assert inside >= 24


def share_of(stage, limit_ms):
    return sum((t.deltas_ns[0]) / 1e6 <= limit_ms for t in stage) / len(stage)


@given(st.floats(0, 1), st.floats(1, 1e6), st.floats(1, 10))
def test_wilson_lies_within_zero_and_one_around_the_share(share, n, z):
    low, high = wilson(share, n, z)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1


@given(st.lists(st.floats(0.1, 1e4), min_size=5, max_size=200), st.floats(1, 99), st.floats(0.1, 1e4))
def test_percentile_and_share_tell_the_same(values, percentile, limit):
    data = np.asarray(values)
    sample = Sampled(data, np.arange(data.size) % 5, data.size)
    value, (low, high) = percentile_of(sample, percentile)
    share = share_within(sample, limit)
    assert (value <= limit) == (share.value >= percentile / 100 - 1e-9)
    assert low is None or low <= value
    assert high is None or value <= high


def test_json_tells_every_level_and_nothing_without_an_slo():
    whole = sweep(md1(3.0, 500), md1(15.0, 500))
    told = summary_json(summarise(whole, slo=parse_slo("ttft_p90=400ms,e2e=2s")))["slo"]
    assert told["asked"] == "ttft_p90=400ms,e2e=2s"
    assert [(level["rate_per_s"], level["met"]) for level in told["levels"]] == [
        (3.0, "met"),
        (15.0, "not met"),
    ]
    assert set(told["levels"][0]["goodput"]) == {"good", "requests", "share", "per_s", "asked_share", "met"}
    assert told["levels"][0]["goodput"]["per_s"]["value"] == pytest.approx(3.0, rel=0.1)
    assert summary_json(summarise(whole))["slo"] is None


def test_blocks_of_a_closed_loop_are_judged_together():
    stages = [replace(t, cell=replace(t.cell, block=i)) for i, t in enumerate(sequence(10))]
    found = summarise(run(*stages), slo=parse_slo("ttft=200ms")).under_load.levels[0].slo
    assert found.goodput.requests == 10
    assert found.met is Met.UNDECIDED  # ten good requests do not show 99 %

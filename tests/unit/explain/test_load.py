from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.explain.load import concurrency, origins, throughput
from phasemeter.explain.phases import read
from phasemeter.explain.summary import summarise
from phasemeter.record.engine import Outcome
from phasemeter.record.request import Cell, Usage
from phasemeter.record.run import merge
from unit.explain.builders import MS, header, run, sequence, timeline


def levels(timelines):
    return concurrency([read(t) for t in timelines], {t.id: "" for t in timelines})


def rates(timelines):
    readings = [read(t) for t in timelines]
    ok = [r for r in readings if r.timeline.outcome is Outcome.OK]
    return throughput(ok, readings, {t.id: "" for t in timelines})


def test_one_after_another_is_one():
    seen = levels(sequence(4))
    assert (seen.asked, seen.seen_max, seen.seen_mean) == (1, 1, pytest.approx(1.0))


def test_overlap():
    cell = Cell(64, 5, concurrency=2)
    # each is in flight for 93 ms: 3..96 and 50..143
    seen = levels([timeline("a", cell=cell), timeline("b", at=47, cell=cell)])
    assert seen.seen_max == 2
    assert seen.seen_mean == pytest.approx((93 + 93) / 140)


def test_a_slot_handed_on_does_not_count_twice():
    a = timeline("a")
    b = timeline("b", at=a.end_ns / MS, late=0, connect=0)
    assert levels([a, b]).seen_max == 1


def test_levels_are_kept_apart():
    ones = sequence(3)
    many = [timeline(f"m{i}", at=5000, cell=Cell(64, 5, concurrency=4)) for i in range(4)]
    seen = levels([*ones, *many])
    assert [(level.asked, level.seen_max) for level in seen.levels] == [(1, 1), (4, 4)]
    assert (seen.asked, seen.seen_max) == (4, 4)
    assert levels([]).asked is None


def test_throughput_leaves_out_the_time_between_visits():
    made = rates(sequence(4, every=10_000))  # each visit lasts 95 ms from its start
    assert made.window_s == pytest.approx(4 * 0.095)
    assert made.requests_per_s == pytest.approx(4 / 0.38)
    assert made.output_tokens_per_s == pytest.approx(20 / 0.38)


def test_failed_requests_take_time_and_give_nothing():
    bad = timeline("bad", at=100, outcome=Outcome.RESET)
    assert rates([timeline("a"), bad]).output_tokens_per_s == pytest.approx(5 / 0.195)
    assert rates([bad]).output_tokens_per_s is None


@given(
    st.lists(st.integers(0, 8000), min_size=1, max_size=30),
    st.lists(st.integers(1, 900), min_size=1, max_size=20),
)
def test_peak_is_never_below_the_mean(starts, gaps):
    made = rates([timeline(f"r{i}", at=t, gaps=tuple(map(float, gaps))) for i, t in enumerate(starts)])
    assert made.peak_output_tokens_per_s >= made.output_tokens_per_s * (1 - 1e-9)


def test_peak_counts_tokens_of_a_piece():
    made = rates([timeline(counts=(4, 4, 4, 4, 4), usage=Usage(completion_tokens=20))])
    assert made.peak_output_tokens_per_s == pytest.approx(made.output_tokens_per_s)


def test_merged_runs_never_share_a_clock():
    a = run(*sequence(6), header=header(run_id="run-a"))
    b = run(*sequence(6), header=header(run_id="run-b"))
    both = merge([a, b])
    assert set(origins(both).values()) == {"run-a", "run-b"}
    summary = summarise(both)
    assert summary.concurrency.seen_max == 1
    assert summary.throughput.requests_per_s == pytest.approx(summarise(a).throughput.requests_per_s)
    assert summary.shapes[0].blocks == 12

"""Levels of load in the summary: rates beside concurrencies, buckets of many shapes, stages as windows."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from phasemeter.explain.phases import read
from phasemeter.explain.shape_key import MOST_SHAPES, Asked, ShapeKey, grouping, shape_key
from phasemeter.explain.stages import stretches
from phasemeter.explain.summary import summarise, summary_json
from phasemeter.record.request import Cell
from unit.explain.builders import MS, header, run, sequence, timeline
from unit.explain.queues import arrivals, md1, request, sweep
from unit.report.made_runs import header as known_header


def many_lengths(n=300, rate=20.0, seed=1, level=None):
    """An open loop of distinct lengths; prefill takes a tenth of a millisecond for each token."""
    rng = random.Random(seed)
    found = []
    for i, at in enumerate(arrivals(rate, n, seed)):
        tokens = int(rng.lognormvariate(5.5, 0.8)) + 2
        cell = level or Cell(0, 0, concurrency=None, rate_per_s=rate)
        cell = replace(cell, input_tokens=tokens, output_tokens=rng.randint(2, 60))
        first = at + tokens * 1e-4
        found.append(request(f"m{i}", cell, at, first, first + 0.05))
    return found


def test_levels_are_ordered_and_named():
    levels = [Asked(None, 4.0), Asked(8), Asked(None, None), Asked(1), Asked(None, 0.5)]
    named = [asked.text for asked in sorted(levels, key=lambda asked: asked.order)]
    assert named == ["concurrency 1", "concurrency 8", "rate 0.5/s", "rate 4/s", "trace"]


def test_few_shapes_stay_shapes():
    assert {grouping(sequence(5))(t) for t in sequence(5)} == {ShapeKey(64, 5, 1)}
    assert shape_key(timeline()) == ShapeKey(64, 5, 1)
    assert grouping([])(timeline()) == ShapeKey(64, 5, 1)


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**4)), min_size=25, max_size=200, unique=True)
)
def test_buckets_hold_every_request_once_within_their_ranges(lengths):
    timelines = [
        timeline(f"r{i}", cell=Cell(a, b, concurrency=None, rate_per_s=2.0))
        for i, (a, b) in enumerate(lengths)
    ]
    key_of = grouping(timelines)
    groups = Counter(key_of(t) for t in timelines)
    assert len(groups) <= max(MOST_SHAPES, 20)
    for t in timelines:
        key = key_of(t)
        low, high = key.input_range or (key.input_tokens, key.input_tokens)
        assert low <= t.cell.input_tokens <= high
        assert low.bit_length() == high.bit_length()
        assert low <= key.input_tokens <= high


def test_many_shapes_become_buckets_with_medians_and_ranges():
    whole = summarise(run(*many_lengths(), header=known_header()))
    told = summary_json(whole)["by_shape"]
    assert 1 < len(told) <= MOST_SHAPES
    assert sum(shape["ok"] for shape in told) == 300
    for shape in told:
        assert (shape["batch"], shape["rate_per_s"]) == (None, 20.0)
        if shape["input_range"] is not None:
            low, high = shape["input_range"]
            assert low <= shape["input_tokens"] <= high
    assert whole.growth == ()  # between buckets there is no law
    assert [s["input_range"] for s in summary_json(summarise(run(*sequence(10))))["by_shape"]] == [None]


def test_a_buckets_floor_is_that_of_the_mean_work():
    """Prefill floors are convex in length: the mean work of a bucket lies between the work of its ends, and is no
    less than that of its mean length."""
    level = Cell(0, 0, concurrency=4)
    lengths = [n for n in range(64, 128) for _ in range(2)]
    bucket = [
        timeline(f"b{i}", at=i * 100.0, cell=replace(level, input_tokens=n, output_tokens=5))
        for i, n in enumerate(lengths)
    ]

    def floor_of(timelines):
        [shape] = summarise(run(*timelines, header=known_header())).shapes
        return shape.floor.prefill_floor_ms

    alone = {n: floor_of([t for t in bucket if t.cell.input_tokens == n]) for n in (64, 95, 127)}
    assert alone[64] < floor_of(bucket) < alone[127]
    assert floor_of(bucket) >= alone[95] * 0.999


def test_rates_seen_stand_beside_the_rate_asked():
    [level] = summarise(sweep(md1(5.0, 400))).concurrency.levels
    assert (level.asked, level.rate_per_s) == (None, 5.0)
    assert level.arrived_per_s == pytest.approx(5.0, rel=0.15)
    late = [slipped(t, i * 20 * MS) for i, t in enumerate(md1(5.0, 400))]
    whole = summarise(sweep_late(late))
    [behind] = whole.concurrency.levels
    assert behind.sent_per_s < behind.arrived_per_s
    assert next(c for c in whole.checks if c.name == "concurrency").verdict != "ok"


def slipped(t, by_ns):
    """Due as before, but started so much later."""
    at = t.arrived_ns + by_ns
    return replace(t, started_ns=at, sent_ns=at, connected_ns=None, end_ns=t.end_ns + by_ns)


def sweep_late(timelines):
    return run(*timelines, header=header(settings={"driver": "open loop"}))


def test_an_open_loops_window_holds_its_idle_time():
    """One request of 100 ms every second: a request a second, not ten."""
    cell = Cell(64, 5, concurrency=None, rate_per_s=1.0)
    stage = [request(f"r{i}", replace(cell, input_tokens=60 + i), i, i + 0.05, i + 0.1) for i in range(11)]
    assert summarise(sweep_late(stage)).throughput.requests_per_s == pytest.approx(11 / 10.1)


def test_stages_are_told_by_level_and_block_and_a_grids_visits_by_shape():
    stages = sweep(md1(5.0, 50), md1(9.0, 50), md1(5.0, 50, block=1)).requests
    found = stretches(stages, {t.id: "" for t in stages})
    assert [(s.asked.rate_per_s, s.block, len(s.members)) for s in found] == [
        (5.0, 0, 50),
        (9.0, 0, 50),
        (5.0, 1, 50),
    ]
    grid = [timeline(f"g{i}", at=i * 200.0, cell=Cell(64 * (1 + i // 3), 5)) for i in range(9)]
    found = stretches(grid, {t.id: "" for t in grid})
    assert [len(s.members) for s in found] == [3, 3, 3]


def test_a_trace_has_no_rate_of_its_own():
    level = Cell(0, 0, concurrency=None)
    whole = summarise(sweep_late(many_lengths(level=level)))
    told = summary_json(whole)["load"]["levels"]
    assert [(one["concurrency"], one["rate_per_s"]) for one in told] == [(None, None)]
    assert told[0]["arrived_per_s"] == pytest.approx(20.0, rel=0.2)
    assert summary_json(whole)["capacity"] == []


def test_readings_of_one_request_at_a_time_agree_with_a_whole_level():
    stage = md1(5.0, 30)
    assert [read(t).ttft_ns for t in stage] == [t.deltas_ns[0] for t in stage]

"""Steps of a batching engine against a timetable whose interference is known."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from phasemeter.explain.steps import MOST_ROWS, UNPLACED, UNTOLD, life_of, summarise_steps
from phasemeter.explain.summary import summarise, summary_json
from phasemeter.record.engine import EngineReport, EngineStep, SeenRequest
from unit.explain.builders import CELL, MS, run, timeline

START = 1_000_000 * MS


def step(end_ms, cost_ms, *, prefill=0, decode=0, **changes):
    fields = {
        "engine_ns": START + round(end_ms * MS),
        "duration_ns": round(cost_ms * 0.8 * MS),  # what the engine tells leaves its own scheduling out
        "prefill_requests": int(prefill > 0),
        "prefill_tokens": prefill,
        "decode_requests": decode,
        "decode_tokens": decode,
        "running": decode + (prefill > 0),
        "waiting": 0,
        "kv_usage_ratio": 0.1,
    }
    return EngineStep(**(fields | changes))


def seen(name, *, end_ms, decode_ms, prefill_ms=10.0, queue_ms=0.0, index=0, **changes):
    report = EngineReport(
        "vllm plugin",
        queue_ns=round(queue_ms * MS),
        prefill_ns=round(prefill_ms * MS),
        decode_ns=round(decode_ms * MS),
        **changes,
    )
    return SeenRequest(name, report, index=index, engine_ns=START + round(end_ms * MS))


def two_requests(jitter_ms=0.0):
    """a is prefilled (0 to 10), decodes alone with 5 ms a step, is joined by b, whose prefill makes two steps of
    20 ms, then both decode with 6 ms a step; a ends first, and b ends alone."""
    steps, at = [step(10, 10, prefill=64)], 10.0

    def add(cost_ms, n=1, **what):
        nonlocal at
        for _ in range(n):
            at += cost_ms
            steps.append(step(at + jitter_ms * (-1) ** len(steps), cost_ms, **what))

    add(5, n=4, decode=1)
    began_b = at
    add(20, n=2, decode=1, prefill=128)
    first_b = at
    add(6, n=5, decode=2)
    end_a = (steps[-1].engine_ns - START) / MS
    add(5, n=3, decode=1)
    at = (steps[-1].engine_ns - START) / MS
    lines = [
        seen("a", end_ms=end_a, decode_ms=end_a - 10),
        seen("b", end_ms=at, decode_ms=at - first_b, prefill_ms=first_b - began_b),
    ]
    return run(timeline("a"), timeline("b"), steps=tuple(steps), seen=tuple(lines))


@pytest.mark.parametrize("jitter_ms", [0.0, 0.2])
def test_what_a_prefill_cost_the_request_that_was_decoding(jitter_ms):
    found = summarise_steps(two_requests(jitter_ms))
    assert found is not None
    assert [(b.decode_requests, b.steps) for b in found.baseline] == [(1, 7), (2, 5)]
    assert found.baseline[0].median_ms == pytest.approx(5, abs=2 * jitter_ms + 1e-9)
    assert (found.placed, found.disturbed) == (2, 1)
    [a] = found.most
    assert (a.request, a.decode_steps, a.shared_steps, a.prefill_steps) == ("a", 11, 5, 2)
    assert (a.prefill_tokens, a.borrowed_steps) == (256, 0)
    slack = 4 * jitter_ms + 1e-9
    assert a.prefill_steps_ms == pytest.approx(40, abs=slack)
    assert a.interference_ms == pytest.approx(30, abs=2 * slack)
    assert a.share == pytest.approx(30 / 90, abs=0.03)
    assert found.interference_ms is not None
    assert found.interference_ms.n == 2
    assert found.note == ""


def test_kinds_of_steps():
    found = summarise_steps(two_requests())
    assert found is not None
    rows = {kind.kind: kind for kind in found.kinds}
    assert {name: kind.steps for name, kind in rows.items()} == {"prefill": 1, "decode": 12, "mixed": 2}
    assert rows["mixed"].prefill_tokens == 256
    assert rows["mixed"].cost_ms is not None
    assert rows["mixed"].cost_ms.p50 == 20
    assert rows["prefill"].cost_ms is not None
    assert rows["prefill"].cost_ms.p50 == 8  # nobody waited for it, so it is what the engine told


def test_a_request_step_by_step():
    life = life_of(two_requests(), "b")
    assert life is not None
    assert [row.part for row in life.rows] == ["prefill"] * 2 + ["decode"] * 8
    assert (life.prefill_ms, life.rows[1].at_ms, life.rows[-1].at_ms) == (40, 40, 85)
    assert [row.decode_requests for row in life.rows] == [1, 1, 2, 2, 2, 2, 2, 1, 1, 1]
    assert life_of(two_requests(), "nobody") is None


def test_a_request_that_waited_has_steps_of_its_queue():
    base = two_requests()
    waited = seen("b", end_ms=115, decode_ms=45, prefill_ms=20, queue_ms=20)
    life = life_of(replace(base, seen=(waited,)), "b")
    assert life is not None
    assert [row.part for row in life.rows[:3]] == ["queue", "prefill", "decode"]


def test_a_batch_size_without_a_baseline_is_interpolated_and_counted():
    steps = [step(10, 10, prefill=8)]
    at = 10.0
    for decode, cost in [(1, 4)] * 3 + [(3, 8)] * 3:
        at += cost
        steps.append(step(at, cost, decode=decode))
    at += 26
    steps.append(step(at, 26, decode=2, prefill=100))
    made = run(timeline("a"), steps=tuple(steps), seen=(seen("a", end_ms=at, decode_ms=at - 10),))
    found = summarise_steps(made)
    assert found is not None
    assert found.most[0].interference_ms == pytest.approx(20)
    assert found.most[0].borrowed_steps == 1


def test_without_a_baseline_interference_is_not_known():
    steps = [step(10, 10, prefill=8), step(30, 20, decode=1, prefill=9), step(50, 20, decode=1, prefill=9)]
    found = summarise_steps(
        run(timeline("a"), steps=tuple(steps), seen=(seen("a", end_ms=50, decode_ms=40),))
    )
    assert found is not None
    assert found.most[0].prefill_steps == 2
    assert found.most[0].interference_ms is None
    assert found.interference_ms is None


def test_what_is_missing_is_said():
    base = two_requests()
    assert summarise_steps(replace(base, steps=())) is None
    bare = tuple(EngineStep(s.engine_ns, running=1) for s in base.steps)
    untold = summarise_steps(replace(base, steps=bare))
    assert untold is not None
    assert (untold.told, untold.note, untold.kinds) == (0, UNTOLD, ())
    unplaced = summarise_steps(replace(base, seen=()))
    assert unplaced is not None
    assert (unplaced.placed, unplaced.note) == (0, UNPLACED)
    assert len(unplaced.kinds) == 3


def test_warm_up_failures_single_tokens_and_early_requests_are_not_placed():
    base = two_requests()
    cold = timeline("a", cell=replace(CELL, warmup=True))
    assert summarise_steps(replace(base, requests=(cold, timeline("b")))).placed == 1  # type: ignore[union-attr]
    single = seen("a", end_ms=10, decode_ms=0)
    before = seen("b", end_ms=30, decode_ms=5_000)
    found = summarise_steps(replace(base, seen=(single, before)))
    assert found is not None
    assert found.placed == 0


def test_steps_of_the_warm_up_do_not_spoil_the_baseline():
    base = two_requests()
    slow = [step(at, 90, decode=1) for at in (-300, -210, -120)]
    found = summarise_steps(replace(base, steps=(*slow, *base.steps)))
    assert found is not None
    assert found.baseline[0].median_ms == 5


def test_a_long_life_is_cut_and_says_so():
    steps = [step(10, 10, prefill=8), *[step(10 + 2 * i, 2, decode=1) for i in range(1, MOST_ROWS + 50)]]
    end = (steps[-1].engine_ns - START) / MS
    made = run(timeline("a"), steps=tuple(steps), seen=(seen("a", end_ms=end, decode_ms=end - 10),))
    life = life_of(made, "a")
    assert life is not None
    assert (len(life.rows), life.cut) == (MOST_ROWS, True)


def of_engine(made, engine, names):
    """The same requests and steps, as another engine core's."""
    steps = tuple(replace(one, engine=engine) for one in made.steps)
    lines = tuple(replace(line, request=names[line.request], engine=engine) for line in made.seen)
    requests = tuple(replace(request, id=names[request.id]) for request in made.requests)
    return replace(made, steps=steps, seen=lines, requests=requests)


def test_each_engine_core_has_steps_of_its_own():
    """Two cores at the same time, with steps that end between each other's: mixed up, every cost would be halved."""
    one = of_engine(two_requests(), 0, {"a": "a", "b": "b"})
    two = of_engine(two_requests(), 1, {"a": "c", "b": "d"})
    steps = tuple(replace(step, engine_ns=step.engine_ns + 2 * MS) for step in two.steps)
    lines = tuple(replace(line, engine_ns=line.engine_ns + 2 * MS) for line in two.seen)
    both = replace(
        one,
        requests=(*one.requests, *two.requests),
        seen=(*lines, *one.seen),
        steps=tuple(sorted((*one.steps, *steps), key=lambda step: step.engine_ns)),
    )
    found = summarise_steps(both)
    assert found is not None
    assert [(b.engine, b.decode_requests, b.median_ms) for b in found.baseline] == [
        (0, 1, 5),
        (0, 2, 6),
        (1, 1, 5),
        (1, 2, 6),
    ]
    assert {kind.kind: kind.steps for kind in found.kinds} == {"prefill": 2, "decode": 24, "mixed": 4}
    assert sorted(one.request for one in found.most) == ["a", "c"]
    for one in found.most:
        assert one.interference_ms == pytest.approx(30)
    lives = [life_of(both, name) for name in "bd"]
    for engine, life in enumerate(lives):
        assert life is not None
        assert life.engine == engine
        assert [row.cost_ms for row in life.rows] == [20, 20, 6, 6, 6, 6, 6, 5, 5, 5]


def test_a_request_is_not_laid_over_steps_of_an_unknown_engine():
    base = two_requests()
    numbered = of_engine(base, 0, {"a": "a", "b": "b"})
    steps = (*numbered.steps, replace(numbered.steps[-1], engine=1))
    unknown = replace(numbered, steps=steps, seen=base.seen)
    assert life_of(unknown, "a") is None
    assert life_of(replace(numbered, seen=base.seen), "a") is not None  # one engine only: whose else?
    assert life_of(replace(numbered, steps=base.steps), "a") is not None


def test_a_source_without_the_steps_clock_does_not_hide_the_one_with_it():
    base = two_requests()
    span = replace(base.seen[0], engine_ns=None)
    assert life_of(replace(base, seen=(span, *base.seen)), "a") == life_of(base, "a")
    assert life_of(replace(base, seen=(span,)), "a") is None


def test_the_summary_and_its_json_hold_it():
    told = json.loads(json.dumps(summary_json(summarise(two_requests())), allow_nan=False))["steps"]
    assert (told["placed"], told["basis"], told["most"][0]["request"]) == (2, "inferred", "a")
    assert told["life"]["rows"][0]["prefill_tokens"] == 64
    assert summary_json(summarise(run(timeline())))["steps"] is None


@given(
    costs=st.lists(st.tuples(st.floats(0.5, 50), st.booleans()), min_size=2, max_size=60),
    data=st.data(),
)
def test_costs_of_a_requests_steps_add_up_to_its_decode_time(costs, data):
    at, steps = 10.0, [step(10, 10, prefill=8)]
    for cost, prefills in costs:
        at += cost
        steps.append(step(at, cost, decode=data.draw(st.integers(1, 4)), prefill=16 if prefills else 0))
    line = seen("a", end_ms=at, decode_ms=at - 10)
    life = life_of(run(timeline("a"), steps=tuple(steps), seen=(line,)), "a")
    assert life is not None
    decoding = [row.cost_ms for row in life.rows if row.part == "decode"]
    assert len(decoding) == len(costs)
    assert sum(decoding) == pytest.approx(at - 10, abs=1e-3)

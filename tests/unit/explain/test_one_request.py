"""One request on its own: found, explained, its gaps matched with the engine's steps."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from phasemeter.explain.one_request import (
    MERGED,
    NO_STEPS,
    UNREACHED,
    UNSEEN,
    explain_request,
    request_json,
)
from phasemeter.explain.phases import Basis
from phasemeter.explain.pick_request import pick_request
from phasemeter.explain.steps import UNTOLD
from phasemeter.explain.steps_gaps import BY_CHUNK, MANY, UNEVEN
from phasemeter.explain.steps_life import groups_of
from phasemeter.record.engine import EngineStep, Outcome
from phasemeter.record.errors import InputError
from phasemeter.record.join import joined
from unit.explain.builders import CELL, MS, run, timeline
from unit.explain.test_steps import START, seen, step, two_requests


def two_answers(rounds=0):
    """The timetable of `two_requests` as a client saw it, on a clock of its own: a has 12 tokens, b has 9. With
    `rounds`, a goes on for so many rounds of four decode steps and one beside a prefill."""
    base = two_requests()
    a, b = [5.0] * 4 + [20.0] * 2 + [6.0] * 5, [6.0] * 5 + [5.0] * 3
    steps, lines = list(base.steps), list(base.seen)
    if rounds:
        at = (steps[-1].engine_ns - START) / MS
        for _ in range(rounds):
            for cost, prefill in ((5.0, 0),) * 4 + ((9.0, 32),):
                at += cost
                a.append(cost)
                steps.append(step(at, cost, decode=1, prefill=prefill))
        a[11:11] = [5.0] * 3  # in this variant a decodes on beside nobody once b has ended
        lines[0] = seen("a", end_ms=at, decode_ms=at - 10)
    lines = [
        replace(line, report=replace(line.report, n_tokens=len(g) + 1))
        for line, g in zip(lines, (a, b), strict=True)
    ]
    requests = tuple(
        timeline(name, first=60.0, gaps=tuple(gaps), usage=None) for name, gaps in (("a", a), ("b", b))
    )
    return replace(base, requests=joined(requests, lines), seen=tuple(lines), steps=tuple(steps))


def explained(made, name="a", **changes):
    return explain_request(made, pick_request(made, name), **changes)


def test_the_gaps_that_held_a_prefill_of_others():
    shared = explained(two_answers()).shared
    assert shared is not None
    assert shared.basis is Basis.INFERRED
    assert shared.steps is not None
    assert (shared.steps.prefill_steps, shared.steps.prefill_tokens) == (2, 256)
    gaps = shared.gaps
    assert gaps is not None
    assert [gap.prefill_tokens for gap in gaps.gaps] == [0] * 4 + [128] * 2 + [0] * 5
    assert [gap.token for gap in gaps.gaps] == list(range(2, 13))
    assert [gap.engine_ms for gap in gaps.gaps] == [gap.gap_ms for gap in gaps.gaps]
    assert (gaps.beside, gaps.beside_ms, gaps.median_beside_ms, gaps.median_alone_ms) == (2, 40, 20, 6)
    assert gaps.beside_share == pytest.approx(40 / 90)
    assert gaps.excess_ms == pytest.approx(30)


def test_who_was_in_each_step():
    shared = explained(two_answers(), "b").shared
    assert shared is not None
    rows = shared.life.rows
    # its prompt of 64 tokens cannot be two steps of 128 that were its own alone, so nobody can say
    assert [row.own_prefill_tokens for row in rows[:2]] == [None, None]
    assert [row.other_decodes for row in rows] == [1, 1, 1, 1, 1, 1, 1, 0, 0, 0]
    assert [row.own_decode_tokens for row in rows] == [0, 0, *[1] * 8]
    assert [row.baseline_ms for row in rows[2:]] == [6] * 5 + [5] * 3
    assert rows[0].start_ms == 0


@pytest.mark.parametrize(
    ("whole", "own"),
    [
        (256, [128, 128]),  # both steps
        (128, [0, 128]),  # the step under way when it was scheduled was somebody else's
        (200, [None, None]),  # fits neither way
        (None, [None, None]),
    ],
)
def test_own_prefill_tokens_follow_from_the_prompt(whole, own):
    made = two_answers()
    requests = tuple(replace(one, prompt_tokens_sent=whole) for one in made.requests)
    shared = explained(replace(made, requests=requests), "b").shared
    assert shared is not None
    assert [row.own_prefill_tokens for row in shared.life.rows[:2]] == own


@given(
    chunks=st.lists(st.integers(1, 200), min_size=1, max_size=5),
    others=st.lists(st.integers(0, 150), min_size=5, max_size=5),
    before=st.integers(0, 2),
)
def test_what_is_told_of_own_tokens_is_always_true(chunks, others, before):
    """A prompt in chunks, each beside the prefill of at most one other, after steps that were others' alone: a number
    is given only where it is the truth."""
    steps, truth, at = [], [], 0.0
    for i in range(before):
        at += 5
        steps.append(step(at, 5, prefill=others[i] + 1))
        truth.append(0)
    for own, other in zip(chunks, others, strict=False):
        at += 5
        steps.append(step(at, 5, prefill=own + other, prefill_requests=1 + (other > 0)))
        truth.append(own)
    steps += [step(at + 5 * i, 5, decode=1) for i in range(1, 4)]
    line = seen("a", end_ms=at + 15, decode_ms=15, prefill_ms=at)
    made = run(timeline("a", prompt_tokens_sent=sum(chunks), usage=None), steps=tuple(steps), seen=(line,))
    shared = explained(made).shared
    assert shared is not None
    told = [row.own_prefill_tokens for row in shared.life.rows if row.part == "prefill"]
    assert len(told) == len(truth)
    assert all(one is None or one == real for one, real in zip(told, truth, strict=True))
    if len(chunks) == 1 and not others[0] and not before:
        assert told == truth


def test_the_whole_of_a_prompt_is_known_where_its_parts_are_not():
    """Two steps that two requests shared: 100 tokens of the 160 were its own, nobody knows how many in which."""
    steps = [step(10, 10, prefill=80, prefill_requests=2), step(20, 10, prefill=80, prefill_requests=2)]
    steps += [step(20 + 5 * i, 5, decode=2) for i in range(1, 4)]
    line = seen("a", end_ms=35, decode_ms=15, prefill_ms=20)
    made = run(timeline("a", prompt_tokens_sent=100, usage=None), steps=tuple(steps), seen=(line,))
    shared = explained(made).shared
    assert shared is not None
    assert [row.own_prefill_tokens for row in shared.life.rows[:2]] == [None, None]
    first, _ = groups_of(shared.life, 9)
    assert (first.own_tokens, first.other_prefill_tokens) == (100, 60)


def test_without_a_plain_step_to_compare_with_nothing_is_said_of_the_excess():
    steps = [step(10, 10, prefill=64), step(30, 20, decode=1, prefill=9), step(50, 20, decode=1, prefill=9)]
    line = seen("a", end_ms=50, decode_ms=40)
    made = run(timeline("a", gaps=(20.0, 20.0), usage=None), steps=tuple(steps), seen=(line,))
    shared = explained(made).shared
    assert shared is not None
    assert shared.steps is not None
    assert shared.steps.interference_ms is None
    assert shared.gaps is not None
    assert shared.gaps.beside == 2
    assert shared.gaps.excess_ms is None
    assert [row.baseline_ms for row in shared.life.rows] == [None] * 3


def test_a_piece_of_several_tokens_spans_as_many_steps():
    made = two_answers()
    a = timeline("a", first=60.0, gaps=(10.0, 50.0, 18.0, 12.0), counts=(1, 2, 4, 3, 2), usage=None)
    shared = explained(replace(made, requests=(a, made.requests[1]))).shared
    assert shared is not None
    assert shared.gaps is not None
    assert [(gap.token, gap.steps, gap.prefill_steps) for gap in shared.gaps.gaps] == [
        (3, 2, 0),
        (7, 4, 2),
        (10, 3, 0),
        (12, 2, 0),
    ]


def test_gaps_that_cannot_be_matched_are_not():
    made = two_answers()
    short = timeline("a", first=60.0, gaps=(5.0,) * 9, usage=None)
    chunks = timeline("a", first=60.0, gaps=(5.0,) * 6, counts=None)
    chunks = replace(chunks, usage=replace(chunks.usage, completion_tokens=12))
    for one, why in ((short, UNEVEN), (chunks, BY_CHUNK)):
        shared = explained(replace(made, requests=(one, made.requests[1]))).shared
        assert shared is not None
        assert (shared.gaps, shared.gaps_note) == (None, why)
    twin = replace(made.seen[0], index=1)
    several = explained(replace(made, seen=(*made.seen, twin)))
    assert several.sequences == 2
    assert several.shared is not None
    assert several.shared.gaps_note == MANY


def test_what_is_missing_is_named_and_the_rest_is_there():
    made = two_answers()
    bare = tuple(EngineStep(s.engine_ns, running=1) for s in made.steps)
    late = tuple(s for s in made.steps if s.engine_ns > START + 60 * MS)
    for changed, note in (
        (replace(made, steps=()), NO_STEPS),
        (replace(made, steps=bare), UNTOLD),
        (replace(made, seen=()), UNSEEN),
        (replace(made, steps=late), UNREACHED),
    ):
        found = explained(changed)
        assert (found.shared, found.note) == (None, note)
        assert request_json(found)["phases"]["decode"] == {"ms": 90.0, "basis": "observed"}  # type: ignore[index]
    assert explained(made, merged=True).note == MERGED


def test_the_json_is_whole():
    told = json.loads(json.dumps(request_json(explained(two_answers())), allow_nan=False))
    assert (told["id"], told["outcome"], told["tokens"], told["ttft_ms"], told["itl_max_ms"]) == (
        "a",
        "ok",
        12,
        60.0,
        20.0,
    )
    assert told["phases"]["prefill"] == {"ms": 10.0, "basis": "observed"}
    assert told["phases"]["front_end"]["basis"] == "inferred"
    assert len(told["shared"]["life"]["rows"]) == 12
    assert told["shared"]["gaps"]["gaps"][4]["prefill_tokens"] == 128


def test_the_json_holds_every_step_of_a_long_life():
    made = two_answers(rounds=100)
    shared = explained(made).shared
    assert shared is not None
    assert len(shared.life.rows) == 515
    assert not shared.life.cut
    assert shared.gaps is not None
    assert len(shared.gaps.gaps) == 514


@given(st.integers(1, 80), st.integers(3, 30))
def test_groups_lose_no_step_and_no_millisecond(rounds, most):
    shared = explained(two_answers(rounds=rounds)).shared
    assert shared is not None
    rows = shared.life.rows
    groups = groups_of(shared.life, most)
    assert len(groups) <= max(most, 3)
    assert sum(group.steps for group in groups) == len(rows)
    assert sum(group.cost_ms for group in groups) == pytest.approx(sum(row.cost_ms for row in rows))
    assert sum(group.beside_steps for group in groups) == 2 + rounds
    assert groups[0].kind == "prefill"


def many():
    return run(
        timeline("run1-000000", cell=replace(CELL, warmup=True), first=900.0),
        timeline("run1-000001", first=50.0, gaps=(10.0, 90.0)),
        timeline("run1-000002", first=80.0, gaps=(10.0, 10.0)),
        timeline("run1-000010", first=20.0, gaps=(70.0, 70.0, 70.0)),
        timeline("run2-000000", first=999.0, outcome=Outcome.RESET),
    )


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("run1-000002", "run1-000002"),
        ("run2", "run2-000000"),
        ("run1-00001", "run1-000010"),
        ("slowest-ttft", "run1-000002"),
        ("slowest-itl", "run1-000001"),
        ("slowest-e2e", "run1-000010"),
    ],
)
def test_a_request_is_found(asked, found):
    assert pick_request(many(), asked).id == found


def test_the_gap_of_a_piece_counts_for_each_of_its_tokens():
    made = run(
        timeline("a", gaps=(40.0, 10.0), counts=(1, 8, 1)),
        timeline("b", gaps=(20.0, 10.0)),
    )
    assert pick_request(made, "slowest-itl").id == "b"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("run1", ["4 ids begin so", "run1-000000", "run1-000010"]),
        ("run1-000003", ["no such request", "run1-000002", "slowest-itl"]),
        ("", ["no such request"]),
        ("zzz", ["no such request", "run1-000000"]),
    ],
)
def test_an_id_that_names_no_one_request_names_near_ones(asked, words):
    with pytest.raises(InputError) as raised:
        pick_request(many(), asked)
    assert raised.value.exit_code == 2
    assert raised.value.field == "--request"
    assert all(word in str(raised.value) for word in words)
    assert "\n" not in str(raised.value)


def test_a_run_of_failures_has_no_slowest():
    with pytest.raises(InputError, match="no measured request"):
        pick_request(run(timeline(outcome=Outcome.RESET)), "slowest-ttft")
    with pytest.raises(InputError, match="holds no request"):
        pick_request(run(), "a")

"""The front end's two parts, and that they count nothing twice."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from phasemeter.explain.front_end import front_end_parts, front_end_split
from phasemeter.explain.phases import read
from phasemeter.explain.summary import summarise, summary_json
from phasemeter.record.engine import EngineReport
from unit.explain.builders import MS, report, run, sequence, timeline, timelines


def test_the_two_parts_of_a_request():
    """first 50 and decode 40 for the client; queue 5, prefill 40 and decode 38 for the engine, 88 for its API."""
    reading = read(timeline(report=report(decode=38.0, e2e_ns=88 * MS)))
    parts = front_end_parts(reading)
    assert parts is not None
    assert (parts.api_process_ns, parts.outside_ns) == (5 * MS, 2 * MS)


def test_without_the_api_process_there_are_none():
    assert front_end_parts(read(timeline())) is None
    assert front_end_parts(read(timeline(report=report()))) is None
    assert front_end_parts(read(timeline(report=report(queue=None, e2e_ns=88 * MS)))) is None
    assert front_end_split([read(timeline())], [0]) is None


@given(timelines(), st.integers(0, 10**11), st.tuples(*[st.integers(0, 10**10)] * 3))
def test_together_they_are_the_front_end_and_what_decode_differs_by(made, e2e, inside):
    reading = read(replace(made, report=EngineReport("x", *inside, e2e)))
    parts, phases = front_end_parts(reading), reading.phases
    assert (parts is None) == (phases.first is None)
    if parts is None:
        return
    assert phases.front_end is not None
    assert phases.decode is not None
    assert phases.engine_decode is not None
    rest = phases.front_end.ns + phases.decode.ns - phases.engine_decode.ns
    assert parts.api_process_ns + parts.outside_ns == rest


def test_they_stand_beside_the_phases_of_a_shape():
    told = summary_json(summarise(run(*sequence(report=report(e2e_ns=88 * MS)))))
    [shape] = told["by_shape"]  # type: ignore[misc]
    split = shape["front_end_split"]
    assert (split["api_process"]["p50"], split["api_process"]["basis"]) == (3.0, "inferred")
    assert split["outside"]["p50"] == 2.0
    assert (split["before_engine"], split["after_engine"]) == (None, None)
    [bare] = summary_json(summarise(run(*sequence())))["by_shape"]  # type: ignore[misc]
    assert bare["front_end_split"] is None


def test_before_and_after_the_engine_are_parts_of_the_front_end():
    """Front end 5: 1.5 before the engine, 2.5 after it, and 1 between client and engine."""
    around = report(e2e_ns=88 * MS, before_ns=3 * MS // 2, after_ns=5 * MS // 2)
    found = summarise(run(*sequence(report=around)))
    split, front_end = found.shapes[0].front_end_split, found.shapes[0].phases.front_end
    assert (split.before_engine.dist.p50, split.after_engine.dist.p50) == (1.5, 2.5)
    assert front_end.dist.mean - split.before_engine.dist.mean - split.after_engine.dist.mean == 1.0
    [shape] = summary_json(found)["by_shape"]  # type: ignore[misc]
    told = shape["front_end_split"]
    assert (told["before_engine"]["p50"], told["after_engine"]["p50"]) == (1.5, 2.5)
    assert {told[name]["basis"] for name in ("before_engine", "after_engine")} == {"inferred"}


def test_they_are_taken_over_the_requests_that_have_them():
    plain = read(timeline(report=report(e2e_ns=88 * MS)))
    told = read(timeline(report=report(e2e_ns=88 * MS, before_ns=2 * MS, after_ns=MS)))
    split = front_end_split([plain, told, plain], [0, 1, 2])
    assert split is not None
    assert (split.api_process.dist.n, split.before_engine.dist.n, split.after_engine.dist.n) == (3, 1, 1)


def test_a_record_without_them_reads_as_before():
    old = b'{"source":"vllm in process","queue_ns":1,"prefill_ns":2}'
    found = msgspec.json.decode(old, type=EngineReport)
    assert (found.before_ns, found.after_ns) == (None, None)
    assert msgspec.json.encode(found) == old

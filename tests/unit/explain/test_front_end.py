"""The front end's two parts, and that they count nothing twice."""

from __future__ import annotations

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
    [bare] = summary_json(summarise(run(*sequence())))["by_shape"]  # type: ignore[misc]
    assert bare["front_end_split"] is None

from __future__ import annotations

import itertools

import pytest

from phasemeter.record.engine import EngineReport, Outcome, SeenRequest
from phasemeter.record.join import ORDER, joined
from phasemeter.record.request import Cell
from phasemeter.record.timeline import Timeline

PLUGIN, STREAM, SPANS = ORDER


def timeline(report: EngineReport | None = None) -> Timeline:
    return Timeline(
        id="r",
        cell=Cell(1, 1),
        max_tokens=1,
        arrived_ns=0,
        outcome=Outcome.OK,
        started_ns=0,
        end_ns=9,
        report=report,
    )


SEEN = (
    SeenRequest("r", EngineReport(PLUGIN, queue_ns=1, n_tokens=2)),
    SeenRequest("r", EngineReport(PLUGIN, queue_ns=3, n_tokens=2), index=1),
    SeenRequest("r", EngineReport(SPANS, queue_ns=30, prefill_ns=30, e2e_ns=30, n_tokens=20)),
    SeenRequest("r", EngineReport(SPANS, queue_ns=30, prefill_ns=31, e2e_ns=31, n_tokens=20), index=1),
)


@pytest.mark.parametrize("seen", list(itertools.permutations(SEEN)))
def test_sources_are_ranked_and_add_up_only_within_one(seen):
    [found] = joined([timeline(EngineReport(STREAM, queue_ns=20, prefill_ns=20))], seen)
    assert found.report == EngineReport(PLUGIN, queue_ns=1, prefill_ns=20, e2e_ns=31, n_tokens=4)


def test_the_stream_goes_before_the_spans():
    [found] = joined([timeline(EngineReport(STREAM, queue_ns=20))], SEEN[2:3])
    assert found.report == EngineReport(STREAM, queue_ns=20, prefill_ns=30, e2e_ns=30, n_tokens=20)


def test_a_source_of_no_rank_goes_before_the_stream_as_it_was_told_apart():
    [found] = joined(
        [timeline(EngineReport(STREAM, queue_ns=2))], [SeenRequest("r", EngineReport("x", queue_ns=1))]
    )
    assert found.report == EngineReport("x", queue_ns=1)

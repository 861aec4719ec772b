"""Checks of an open loop: sends later than the limit, and a client that falls behind its own plan."""

from __future__ import annotations

import msgspec
import pytest

from phasemeter.explain.checks import Verdict
from phasemeter.explain.summary import summarise
from phasemeter.record.engine import Outcome
from phasemeter.record.request import Cell
from unit.explain.builders import header, run, sequence, timeline

OK, WARN, INVALID = Verdict.OK, Verdict.WARN, Verdict.INVALID
OPEN = Cell(64, 5, concurrency=None, rate_per_s=10.0)


def check(name, timelines, **settings):
    told = header(settings={"repeats": 1, **settings})
    [found] = [c for c in summarise(run(*timelines, header=told)).checks if c.name == name]
    return found


def open_loop(n, late_of=lambda i: 0.1):
    return [timeline(f"r{i}", at=i * 100.0, late=late_of(i), cell=OPEN) for i in range(n)]


@pytest.mark.parametrize(("late", "expected"), [(0, OK), (1, WARN), (3, WARN), (5, INVALID), (40, INVALID)])
def test_more_than_one_send_in_a_hundred_over_the_limit_is_invalid(late, expected):
    found = check("late_sends", open_loop(400, lambda i: 12.0 if i < late else 0.1))
    assert found.verdict is expected
    assert "later than 10 ms" in found.evidence


def test_the_limit_is_the_runs_own():
    slow = open_loop(400, lambda i: 12.0 if i < 40 else 0.1)
    assert check("late_sends", slow, late_limit_ms=20.0).verdict is not INVALID
    assert check("late_sends", slow, late_limit_ms=5.0).verdict is INVALID


def test_a_closed_loop_has_no_such_limit():
    found = check("late_sends", sequence(100, late=12.0))
    assert found.verdict is WARN
    assert "open loop" not in found.evidence


@pytest.mark.parametrize(("stretch", "expected"), [(1.0, OK), (1.03, WARN), (1.2, INVALID)])
def test_a_client_that_falls_behind_its_plan(stretch, expected):
    """Started at a lower rate than the requests were due."""
    made = open_loop(200, lambda i: 0.1 + i * 100.0 * (stretch - 1))
    assert check("concurrency", made).verdict is expected


def test_one_late_send_of_a_few_requests_is_not_behind_the_plan():
    """Two requests 3 ms apart, the second sent 0.6 ms late: 278 a second of 333, and nobody fell behind."""
    made = [
        timeline("a", late=0.0, cell=OPEN, first=1.0, gaps=(1.0,)),
        timeline("b", at=3.0, late=0.6, cell=OPEN, first=1.0, gaps=(1.0,)),
    ]
    assert check("concurrency", made).verdict is OK


def test_slots_that_think_are_not_missed():
    """Two slots asked for, one after the other in flight."""
    cell = Cell(64, 5, concurrency=2)
    made = sequence(10, cell=cell)
    assert check("concurrency", made).verdict is not OK
    found = check("concurrency", made, think_s=1.0)
    assert found.verdict is OK
    assert "think time" in found.evidence


def test_requests_given_up_on_purpose_are_no_failures():
    good = open_loop(20)
    planned = [
        msgspec.structs.replace(
            timeline(f"c{i}", at=2000 + i * 100.0, cell=OPEN),
            outcome=Outcome.CANCELLED,
            tags={"cancel": "planned"},
        )
        for i in range(10)
    ]
    summary = summarise(run(*good, *planned))
    assert (summary.requests.ok, summary.requests.failed) == (20, 0)
    assert summary.requests.by_outcome == {"ok": 20, "cancelled_planned": 10}
    assert summary.latency.ttft_ms is not None
    assert summary.latency.ttft_ms.n == 20
    [failures] = [c for c in summary.checks if c.name == "failures"]
    assert failures.verdict is OK
    # Ctrl-C is no plan
    cut = msgspec.structs.replace(planned[0], tags={})
    assert summarise(run(*good, cut)).requests.failed == 1

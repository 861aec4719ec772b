"""Every check fires on what it is for, and is silent without it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from phasemeter.explain.checks import CHECKS, Verdict
from phasemeter.explain.summary import summarise
from phasemeter.explain.verdict import Check, worst
from phasemeter.record.engine import EngineInfo, Outcome
from phasemeter.record.request import Cell, Usage
from phasemeter.record.run import Footer, Machine, Sample
from phasemeter.roofline.presets import load_shape
from unit.explain.builders import CELL, MS, header, report, run, sequence, timeline

OK, WARN, INVALID = Verdict.OK, Verdict.WARN, Verdict.INVALID


def check(name, *timelines, **changes):
    [found] = [c for c in summarise(run(*timelines, **changes)).checks if c.name == name]
    assert bool(found.mend) == (found.verdict is not OK)
    assert found.evidence
    return found


def verdict(name, *timelines, **changes):
    return check(name, *timelines, **changes).verdict


def tokens(n, completion=None, **changes):
    usage = Usage(prompt_tokens=64, completion_tokens=n if completion is None else completion)
    return {"gaps": (10.0,) * (n - 1), "usage": usage} | changes


def failing(bad, total):
    return [
        msgspec.structs.replace(t, outcome=Outcome.RESET, error="peer reset") if i < bad else t
        for i, t in enumerate(sequence(total))
    ]


def test_a_good_run_is_ok_in_every_check():
    summary = summarise(run(*sequence(10, report=report())))
    assert [(c.name, c.evidence) for c in summary.checks if c.verdict is not OK] == []
    assert summary.verdict is OK
    assert len({c.name for c in summary.checks}) == len(CHECKS)


def test_the_worst_check_is_the_verdict():
    assert worst([]) is OK
    assert worst([Check("a", WARN, ""), Check("b", INVALID, ""), Check("c", OK, "")]) is INVALID


@pytest.mark.parametrize(
    ("bad", "total", "expected"),
    [(0, 100, OK), (1, 100, OK), (2, 100, WARN), (10, 100, WARN), (11, 100, INVALID)],
)
def test_failures(bad, total, expected):
    assert verdict("failures", *failing(bad, total)) is expected


def test_failures_name_the_outcome_and_the_error():
    found = check("failures", *failing(3, 10))
    assert "reset 3" in found.evidence
    assert "peer reset" in found.mend


def test_no_measured_request_is_invalid():
    assert verdict("failures") is INVALID
    assert verdict("failures", timeline(cell=Cell(64, 5, warmup=True))) is INVALID


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, OK),
        ({"footer": None}, WARN),
        ({"footer": Footer(1, interrupted=True)}, WARN),
        ({"cut": True}, WARN),
        ({"damaged": (4,)}, WARN),
        ({"footer": Footer(1, error="the engine died")}, INVALID),
        ({"header": header(planned=10)}, OK),
        ({"header": header(planned=12)}, WARN),
    ],
)
def test_record(changes, expected):
    assert verdict("record", *sequence(10), **changes) is expected


def test_clock():
    assert verdict("clock", *sequence(5)) is OK
    assert verdict("clock", *sequence(5), timeline("bad", sent_ns=900 * MS)) is INVALID


@pytest.mark.parametrize(("bad", "expected"), [(0, OK), (1, WARN), (3, INVALID)])
def test_contradictions(bad, expected):
    good = sequence(10, report=report())
    made = [
        msgspec.structs.replace(t, report=report(prefill=90)) if i < bad else t for i, t in enumerate(good)
    ]
    assert verdict("contradictions", *made) is expected


@pytest.mark.parametrize(
    ("late_ms", "expected"), [(0.5, OK), (2.0, OK), (4.0, WARN), (20.0, WARN), (30.0, INVALID)]
)
def test_late_sends(late_ms, expected):
    assert verdict("late_sends", *sequence(10, late=late_ms)) is expected


@pytest.mark.parametrize(("lag_ms", "expected"), [(0.5, OK), (4.0, WARN), (40.0, INVALID)])
def test_client_lag(lag_ms, expected):
    samples = (Sample(t_ns=10**9, values={"loop_lag_ns": lag_ms * MS}),)
    assert verdict("client_lag", *sequence(10), samples=samples) is expected


def test_lag_of_the_loop_says_nothing_of_an_engine_in_our_process():
    samples = (Sample(t_ns=10**9, values={"loop_lag_ns": 40.0 * MS}),)
    assert (
        verdict("client_lag", *sequence(10), samples=samples, header=header(engine=EngineInfo("local", "m")))
        is OK
    )


def test_lag_during_warm_up_does_not_count():
    samples = (Sample(t_ns=-1, values={"loop_lag_ns": 1e9}),)
    assert verdict("client_lag", *sequence(10), samples=samples) is OK


def together(n, asked):
    return [timeline(f"r{i}", at=i * 0.1, cell=Cell(64, 5, concurrency=asked)) for i in range(n)]


@pytest.mark.parametrize(
    ("n", "asked", "expected"), [(8, 8, OK), (6, 8, WARN), (3, 8, INVALID), (9, 8, WARN), (1, 1, OK)]
)
def test_concurrency(n, asked, expected):
    assert verdict("concurrency", *together(n, asked)) is expected


def test_concurrency_that_is_only_reached_for_a_moment():
    alone = sequence(20, cell=Cell(64, 5, concurrency=2))
    pair = timeline("p", at=50, cell=Cell(64, 5, concurrency=2))
    assert verdict("concurrency", *alone, pair) is WARN


@pytest.mark.parametrize(("load", "expected"), [(0.5, OK), (3.0, WARN), (None, OK)])
def test_cpu_contention_by_load(load, expected):
    machine = Machine("h", "linux", "cpu", 4, load_1min=load)
    assert verdict("cpu_contention", *sequence(5), header=header(machine=machine)) is expected


@pytest.mark.parametrize(
    ("ratio", "kind", "expected"), [(0.4, "openai", OK), (0.98, "openai", WARN), (1.9, "local", OK)]
)
def test_cpu_contention_by_our_own_cpu(ratio, kind, expected):
    samples = (Sample(t_ns=10**9, values={"client_cpu_ratio": ratio}),)
    head = header(engine=EngineInfo(kind, "m"))
    assert verdict("cpu_contention", *sequence(5), samples=samples, header=head) is expected


def test_throughput_of_pieces_counted_as_tokens():
    assert verdict("throughput", *sequence(5)) is OK
    assert verdict("throughput", *sequence(5, counts=None, usage=Usage(64, 40))) is WARN


@pytest.mark.parametrize(("cached", "expected"), [(None, OK), (0, OK), (3, WARN), (48, INVALID)])
def test_cache_hits(cached, expected):
    assert verdict("cache_hits", *sequence(5, usage=Usage(64, 5, cached))) is expected
    assert verdict("cache_hits", *sequence(5, report=report(cached_tokens=cached))) is expected


@pytest.mark.parametrize(
    ("kind", "expected"), [("conversations", OK), ("prefixes", OK), ("lengths", INVALID)]
)
def test_cache_hits_that_the_workload_is_there_for(kind, expected):
    head = header(settings={"workload": {"kind": kind, "system": "64"}})
    found = check("cache_hits", *sequence(5, usage=Usage(64, 5, 48)), header=head)
    assert found.verdict is expected
    assert "240 of 320" in found.evidence


@pytest.mark.parametrize(("max_tokens", "expected"), [(5, OK), (50, WARN)])
def test_output_shortfall(max_tokens, expected):
    assert verdict("output_shortfall", *sequence(5, max_tokens=max_tokens)) is expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, OK),
        ({"usage": Usage(64, 9)}, WARN),
        ({"usage": Usage(64)}, OK),
        ({"usage": None, "counts": None}, WARN),
        ({"counts": None}, OK),
    ],
)
def test_output_tokens(changes, expected):
    assert verdict("output_tokens", *sequence(5, **changes)) is expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, OK),
        ({"usage": Usage(65, 5)}, OK),
        ({"usage": Usage(75, 5)}, WARN),
        ({"usage": Usage(200, 5)}, INVALID),
        ({"usage": Usage(None, 5)}, WARN),
        ({"usage": Usage(None, 5), "prompt_tokens_sent": 64}, OK),
        ({"usage": Usage(None, 5), "prompt_tokens_sent": 32}, WARN),
        ({"usage": Usage(200, 5), "tags": {"lengths": "estimated"}}, OK),
        ({"usage": Usage(200, 5), "tags": {"lengths": "counted"}}, INVALID),
    ],
)
def test_prompt_tokens(changes, expected):
    assert verdict("prompt_tokens", *sequence(5, **changes)) is expected


def test_one_wrong_prompt_is_seen_among_many():
    odd = timeline("odd", at=9000, usage=Usage(90, 5))
    assert verdict("prompt_tokens", *sequence(20), odd) is WARN


@pytest.mark.parametrize(("n", "expected"), [(4, WARN), (5, OK)])
def test_samples(n, expected):
    assert verdict("samples", *sequence(n)) is expected


def test_three_repeats_of_many_are_few_but_one_stretch_is_not_repeats():
    made = [timeline(f"r{i}", at=200 * i, cell=Cell(64, 5, block=i % 3)) for i in range(30)]
    assert verdict("samples", *made) is WARN
    made = [timeline(f"r{i}", at=200 * i) for i in range(30)]
    assert verdict("samples", *made) is OK


@pytest.mark.parametrize(("first", "expected"), [(50.0, OK), (60.0, OK), (400.0, WARN)])
def test_warm_up(first, expected):
    made = sequence(8)
    made[0] = timeline("r0", at=-1000, first=first)
    assert verdict("warm_up", *made) is expected


def trend(per_request, *, noise=0.0, anchor=True, n=20):
    rng = np.random.default_rng(4)
    cell = msgspec.structs.replace(CELL, anchor=anchor)
    return [
        timeline(f"r{i}", at=1000 * i, first=50 * (1 + per_request * i + noise * rng.normal()), cell=cell)
        for i in range(n)
    ]


@pytest.mark.parametrize(
    ("per_request", "noise", "expected"),
    [
        (0.0, 0.0, OK),
        (0.001, 0.0, OK),
        (0.006, 0.0, WARN),
        (0.01, 0.0, WARN),
        (0.06, 0.0, INVALID),
        (0.0, 0.2, OK),
        (-0.006, 0.0, WARN),
    ],
)
def test_drift(per_request, noise, expected):
    assert verdict("drift", *trend(per_request, noise=noise)) is expected
    assert verdict("drift", *trend(per_request, noise=noise, anchor=False)) is expected


def test_drift_is_read_off_the_anchor():
    steady = trend(0.0)
    other = [
        msgspec.structs.replace(t, id=f"x{t.id}", cell=Cell(512, 5)) for t in trend(0.03, anchor=False, n=60)
    ]
    found = check("drift", *steady, *other)
    assert found.verdict is OK
    assert "anchor" in found.evidence


@pytest.mark.parametrize(("late", "expected"), [(0, OK), (1, WARN), (10, WARN)])
def test_delivery(late, expected):
    """Ten requests, of which some got their tokens 60 ms later than the engine made them."""
    slow = report(decode=20, e2e_ns=round((5 + 40 + 20 + 60) * 1e6))
    made = [
        timeline(id=f"r{i}", gaps=(20.0,) * 4, report=slow if i < late else report(decode=80))
        for i in range(10)
    ]
    found = check("delivery", *made)
    assert found.verdict is expected
    assert verdict("contradictions", *made) is OK
    assert verdict("delivery", timeline()) is OK


def test_drift_needs_five():
    assert verdict("drift", *trend(0.03, n=4)) is OK


@pytest.mark.parametrize(
    ("changes", "sign"),
    [
        (tokens(12), None),
        (tokens(12, counts=(1, *[3] * 11), completion=34), "several tokens a piece"),
        (tokens(12, counts=None, completion=40), "several tokens a piece"),
        (tokens(12, gaps=(0.01,) * 11), "pieces at once"),
        (tokens(12, gaps=(1.0, 1.0, 1.0, 40.0) * 3) | {"usage": Usage(64, 13)}, "bursts"),
        (tokens(12, report=report(decode=400)), "faster than the engine made them"),
        (tokens(5, gaps=(0.01,) * 4), None),
    ],
)
def test_buffering(changes, sign):
    found = check("buffering", *sequence(5, **changes))
    assert found.verdict is (OK if sign is None else WARN)
    assert sign is None or sign in found.evidence


def test_streams_faster_than_the_engine_made_them_are_not_sent_to_tpot_for_the_truth():
    late = check("buffering", *sequence(5, **tokens(12, report=report(decode=400))))
    assert "engine_decode" in late.mend
    assert "use TPOT" not in late.mend
    bursts = check(
        "buffering", *sequence(5, **tokens(12, gaps=(1.0, 1.0, 1.0, 40.0) * 3) | {"usage": Usage(64, 13)})
    )
    assert bursts.mend.startswith("use TPOT, not gaps")


def test_one_long_stall_is_no_buffering():
    assert verdict("buffering", *sequence(5, **tokens(40, gaps=(10.0,) * 38 + (200.0,)))) is OK


KNOWN = {"shape": msgspec.to_builtins(load_shape("ERNIE-4.5-0.3B")), "hardware": "a100-40gb-sxm"}
SLOW = {
    "device": "x",
    "method": "t",
    "read_bandwidth_bytes_per_s": 1e10,
    "gemm_flops_per_s": {"bfloat16": 1e14},
}


@pytest.mark.parametrize(
    ("changes", "head", "expected"),
    [
        ({}, {}, OK),
        ({}, KNOWN, OK),
        ({"first": 0.2}, KNOWN, INVALID),
        ({"gaps": (0.1,) * 4}, KNOWN, INVALID),
        ({}, KNOWN | {"ceilings": SLOW}, WARN),
    ],
)
def test_below_floor(changes, head, expected):
    assert verdict("below_floor", *sequence(5, **changes), header=header(**head)) is expected

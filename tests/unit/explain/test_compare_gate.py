"""Gates: read, refused, and judged by the whole interval."""

from __future__ import annotations

import msgspec
import pytest

from phasemeter.explain.compare import compare
from phasemeter.explain.compare_gate import GateAnswer, LimitKind, gate_of, judge, read_gates
from phasemeter.explain.compare_json import comparison_json
from phasemeter.record.engine import Outcome
from phasemeter.record.errors import InputError
from unit.explain.paired_runs import made_run

QUIET = {"per_block": 12, "noise": 0.03}


@pytest.fixture(scope="module")
def slower():
    """Everything takes 10 % longer."""
    return compare([made_run("a", 1, **QUIET)], [made_run("b", 2, scale=1.1, **QUIET)])


def answers(comparison, text, **options):
    return [result.answer.value for result in judge(read_gates(text), comparison, **options)]


def test_limits_are_read_in_their_units():
    gates = read_gates(
        "ttft_p50:5%, tpot_p50:2ms,e2e_mean:1.5s,itl_p99:<=200us,ttft_p99<=1s,requests_per_s:>=10"
    )
    assert [(g.metric, g.kind, g.limit) for g in gates] == [
        ("ttft_p50", LimitKind.RATIO, 0.05),
        ("tpot_p50", LimitKind.ABSOLUTE, 2.0),
        ("e2e_mean", LimitKind.ABSOLUTE, 1500.0),
        ("itl_p99", LimitKind.LEVEL, 0.2),
        ("ttft_p99", LimitKind.LEVEL, 1000.0),
        ("requests_per_s", LimitKind.LEVEL, 10.0),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "at least one"),
        ("ttft_p50", "METRIC:LIMIT"),
        ("ttft_p50:-5%", "METRIC:LIMIT"),
        ("ttft:5%", "ttft_p50, ttft_p90"),
        ("ttft_p55:5%", "there is no metric ttft_p55"),
        ("ttft_p50:5", "unit"),
        ("ttft_p50:5 bananas", "unit"),
        ("ttft_p50:1.2.3%", "no number"),
        ("ttft_p50:>=5ms", "<="),
        ("requests_per_s:<=5", ">="),
        ("ttft_p50:<=5%", "unit"),
    ],
)
def test_a_bad_gate_says_what_would_do(text, says):
    with pytest.raises(InputError, match="--gate") as told:
        read_gates(text)
    assert says in str(told.value)


def test_a_metric_that_the_runs_do_not_tell_is_refused(slower):
    with pytest.raises(InputError, match="they tell ttft_p50"):
        judge(read_gates("prefill_p50:5%"), slower)


def test_the_whole_interval_decides(slower):
    assert answers(slower, "ttft_p50:5%,ttft_p50:10%,ttft_p50:15%") == ["fail", "undecided", "pass"]
    assert answers(slower, "ttft_p50:2ms,ttft_p50:5ms,ttft_p50:8ms") == ["fail", "undecided", "pass"]
    assert answers(slower, "ttft_p50:<=50ms,ttft_p50:<=55ms,ttft_p50:<=60ms") == ["fail", "undecided", "pass"]


def test_throughput_gets_worse_by_what_it_loses(slower):
    assert answers(slower, "output_tokens_per_s:4%,output_tokens_per_s:15%") == ["fail", "pass"]
    level = slower.row("requests_per_s").new
    assert answers(slower, f"requests_per_s:>={level * 0.9:.3f},requests_per_s:>={level * 1.1:.3f}") == [
        "pass",
        "fail",
    ]


def test_better_passes_every_limit_on_getting_worse():
    faster = compare([made_run("a", 1, **QUIET)], [made_run("b", 2, scale=0.8, **QUIET)])
    assert answers(faster, "ttft_p50:0%,tpot_p50:0ms,requests_per_s:0%") == ["pass", "pass", "pass"]


def test_without_an_interval_nothing_is_passed():
    few = compare(
        [made_run("a", 1, blocks=2, per_block=1)], [made_run("b", 2, scale=9.0, blocks=2, per_block=1)]
    )
    results = judge(read_gates("ttft_p50:5%,ttft_p50:<=9s"), few)
    assert [r.answer for r in results] == [GateAnswer.UNDECIDED] * 2
    assert {r.reason for r in results} == {"few_values"}


def test_a_level_must_be_kept_in_every_shape():
    shapes = ((64, 5), (640, 5))  # 50 and 500 ms
    found = compare([made_run("a", 1, shapes=shapes, **QUIET)], [made_run("b", 2, shapes=shapes, **QUIET)])
    (result,) = judge(read_gates("ttft_p50:<=300ms"), found)
    assert result.answer is GateAnswer.FAIL
    assert found.shapes[result.shape].stratum.input_low == 640
    assert result.worsening.mid == pytest.approx(500, rel=0.05)
    (result,) = judge(read_gates("ttft_p50:<=600ms"), found)
    assert result.answer is GateAnswer.PASS


def test_an_invalid_run_wins_no_gate():
    new = made_run("b", 2, scale=0.5, **QUIET)
    broken = tuple(
        msgspec.structs.replace(t, outcome=Outcome.RESET) if i % 5 == 0 else t
        for i, t in enumerate(new.requests)
    )
    found = compare([made_run("a", 1, **QUIET)], [msgspec.structs.replace(new, requests=broken)])
    assert found.new.verdict == "invalid"
    (result,) = judge(read_gates("ttft_p50:5%"), found)
    assert (result.answer, result.reason) == (GateAnswer.UNDECIDED, "invalid")
    assert "failures" in result.evidence
    assert answers(found, "ttft_p50:5%", even_invalid=True) == ["pass"]


def test_one_failure_fails_all_and_no_gate_says_nothing(slower):
    gates = read_gates("ttft_p50:5%,tpot_p50:10%,e2e_p50:15%")
    assert gate_of(judge(gates, slower)) is GateAnswer.FAIL
    assert gate_of(judge(gates[1:], slower)) is GateAnswer.UNDECIDED
    assert gate_of(judge(gates[2:], slower)) is GateAnswer.PASS
    assert gate_of(()) is None


def test_the_json_has_the_keys_of_the_contract(slower):
    results = judge(read_gates("ttft_p50:5%,tpot_p50:2ms"), slower)
    told = msgspec.json.decode(msgspec.json.encode(comparison_json(slower, results)))
    assert told["gate"] == "fail"
    metrics = {metric["name"]: metric for metric in told["metrics"]}
    row = metrics["ttft_p50"]
    assert row["effect"]["lo"] < 10.0 < row["effect"]["hi"]
    assert row["effect"]["unit"] == "%"
    assert row["answer"] == "worse"
    assert row["new"] > row["base"] > 40
    assert metrics["ttft_p99"]["effect"]["lo"] is None
    assert {metric["answer"] for metric in told["metrics"]} <= {"better", "worse", "same", "undecided"}
    assert [(g["unit"], g["limit"]) for g in told["gates"]] == [("%", 5.0), ("ms", 2.0)]
    assert comparison_json(slower, ())["gate"] is None

"""What the fidelity benchmark makes of a client's account and the server's log, on small ones of known answer."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "benchmarks" / "fidelity"
MS = 1_000_000


@pytest.fixture(scope="module")
def bench():
    """The benchmark's modules, without leaving its folder on the path."""
    names = ("truth", "seen", "compare", "cases", "page", "machine")
    sys.path.insert(0, str(BENCH))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(BENCH))
        for name in names:
            sys.modules.pop(name, None)


def _log(path: Path, late_ms: list[list[float]]) -> Path:
    """Requests r0, r1, ... that arrive 1 ms apart, TTFT 50 ms, a token every 10 ms."""
    lines: list[dict] = [{"type": "server", "itl_ns": 10 * MS}]
    for i, late in enumerate(late_ms):
        stamps = {
            "arrived_ns": i * MS,
            "read_ns": i * MS,
            "first_due_ns": (50 + i) * MS,
            "ended_ns": (100 + i) * MS,
        }
        told = {"asked_tokens": 3, "prompt_tokens": 5, "fault": "none", "end": "done"}
        late_ns = [round(ms * MS) for ms in late]
        lines.append({"type": "request", "id": f"r-{i}", "late_ns": late_ns} | stamps | told)
    lines.append({"type": "request", "id": "probe", "late_ns": [0]} | stamps | told | {"asked_tokens": 1})
    zeros = ("late_mean_ns", "late_max_ns", "read_late_mean_ns", "read_late_max_ns", "most_in_flight")
    lines.append({"type": "summary", "requests": 3, "tokens": 9} | dict.fromkeys(zeros, 0))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _seen(bench, ttfts_ms, ids, gaps=(10.0,)):
    good = tuple(bench["seen"].SeenRequest(ms, name) for ms, name in zip(ttfts_ms, ids, strict=True))
    return bench["seen"].Seen(good, tuple(gaps), "gaps", len(good), 1, {"broken": 1})


def test_errors_are_against_what_the_server_did_request_by_request(bench, tmp_path):
    truth = bench["truth"].read_truth(_log(tmp_path / "log", [[0, 1, 0], [4, 4, 4], [2, 2, 2]]))
    # true TTFT 50, 54, 52; in another order, and late by 1, 3 and 2 ms
    row = bench["compare"].compare(
        _seen(bench, [57.0, 54.0, 51.0], ["r-1", "r-2", "r-0"], [10.5]), truth, 9000
    )
    assert row["paired"]
    assert row["ttft_error_p50_ms"] == pytest.approx(2.0)
    assert row["ttft_error_p99_ms"] == pytest.approx(2.98)
    assert row["itl_true_p50_ms"] == pytest.approx(10.0)
    assert row["itl_error_p50"] == pytest.approx(0.05)
    assert row["cpu_us_per_token"] == pytest.approx(1.0)  # 9 us over 9 tokens; the probe's is none of them
    assert (row["seen_concurrency_max"], row["requests_at_server"], row["failed"]) == (3, 3, 1)


def test_places_pair_and_unknown_ids_fall_back_to_quantiles(bench, tmp_path):
    truth = bench["truth"].read_truth(_log(tmp_path / "log", [[0, 0, 0], [4, 4, 4], [2, 2, 2]]))
    by_place = bench["compare"].compare(_seen(bench, [50.5, 54.5, 52.5], ["-0", "-1", "-2"]), truth, 0)
    assert by_place["paired"]
    assert by_place["ttft_error_p50_ms"] == pytest.approx(0.5)
    unknown = bench["compare"].compare(_seen(bench, [50.5, 54.5, 52.5], [None] * 3), truth, 0)
    assert not unknown["paired"]
    assert unknown["ttft_error_p50_ms"] == pytest.approx(0.5)
    nothing = bench["compare"].compare(_seen(bench, [], [], []), truth, 0)
    assert nothing["ttft_error_p50_ms"] is None
    assert nothing["itl_error_p50"] is None


def test_what_vllm_counts_as_good_is_told_even_when_it_has_no_time(bench, tmp_path):
    result = {
        "ttfts": [0.05, 0.0, 0.06],
        "itls": [[0.01], [], [0.01]],
        "errors": ["", "", "boom"],
        "completed": 2,
    }
    (tmp_path / "result.json").write_text(json.dumps(result))
    seen = bench["seen"].seen_by_vllm(tmp_path)
    assert [request.ttft_ms for request in seen.good] == [50.0]
    assert (seen.counted, seen.failed, seen.failed_as) == (2, 1, {"boom": 1})
    with pytest.raises(bench["seen"].UnreadableError, match="no result.json"):
        bench["seen"].seen_by_guidellm(tmp_path / "nowhere")


def test_each_round_has_every_case_and_tool_once_in_an_order_of_its_own(bench):
    cases = bench["cases"].cases_of(["levels", "truths"], [8, 32], None)
    turns = list(bench["cases"].ordered(cases, ["phasemeter", "vllm", "aiperf"], 4, 1))
    levels = [(number, case.concurrency, tool) for number, case, tool in turns if case.part == "levels"]
    assert len(levels) == len(set(levels)) == 4 * 2 * 3
    orders = {tuple(tool for number, c, tool in levels if (number, c) == (k, 8)) for k in range(1, 5)}
    assert len(orders) > 1
    assert {tool for _, case, tool in turns if case.part == "truths"} == {"phasemeter"}
    assert all(case.requests >= 3 * case.concurrency for _, case, _ in turns)


def test_the_page_is_made_of_the_rows(bench, tmp_path):
    truth = bench["truth"].read_truth(_log(tmp_path / "log", [[0, 0, 0], [4, 4, 4], [2, 2, 2]]))
    told = bench["compare"].compare(_seen(bench, [50.5, 54.5, 52.5], ["-0", "-1", "-2"]), truth, 9000)
    place = {"session": 0, "others_busy": 0.2, "wall_s": 3.0, "status": 0, "timed_out": False}
    level = place | {"part": "levels", "concurrency": 8, "tool": "vllm"} | told
    lost = place | {
        "part": "levels",
        "concurrency": 8,
        "tool": "aiperf",
        "unreadable": "no file",
        "timed_out": True,
    }
    fault = level | {"part": "faults", "fault": "empty", "faults": {"empty": 1}}
    session = {
        "machine": bench["machine"].describe(),
        "versions": {"vllm": "1.0"},
        "absent": {"guidellm": "no"},
    }
    session |= {"quiet": False, "commit": "abc", "api": "chat", "workers": None}
    text = bench["page"].markdown([session], [level, lost, fault])
    assert "vllm 1.0; guidellm left out: no" in text
    assert "**not known to be quiet**; in 3 of 3 turns" in text
    assert "| 8 | vllm | +0.50 | 0.50 | 0.0% | 1.0 | 3 | 3 | 1 | 4.00 | 3 | 1 |" in text
    assert "0 (1 without a result: timed out)" in text
    assert "| empty | vllm | 3 | 1 | 1 | 3 | 1x broken |" in text

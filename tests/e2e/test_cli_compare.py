"""`phasemeter compare` from the front door: committed GPU runs, fresh runs of known truth, files and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phasemeter.cli import main

H200 = Path(__file__).parents[2] / "benchmarks" / "h200"
DEFAULT, EAGER = H200 / "h200-http-default.jsonl.gz", H200 / "h200-http-eager.jsonl.gz"


def call(capfd, *args: str) -> tuple[int, str, str]:
    """The command in this process: exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as ended:
        main(["compare", *map(str, args)])
    out, err = capfd.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Two runs of one truth, and two of a slower one."""
    folder = tmp_path_factory.mktemp("compared")
    for name, ttft_ms, itl_ms in (("a1", 4, 2), ("a2", 4, 2), ("b1", 12, 4), ("b2", 12, 4)):
        truth = ["--truth", f"ttft_ms={ttft_ms}", "--truth", f"itl_ms={itl_ms}"]
        grid = ["--input-tokens", "16,32", "--output-tokens", "4", "--repeats", "5"]
        args = ["measure", "--engine", "simulated", *truth, *grid, "--out", str(folder / f"{name}.jsonl")]
        with pytest.raises(SystemExit) as ended:
            main(args)
        assert ended.value.code == 0
    return folder


def test_eager_mode_on_a_gpu_is_what_it_is_known_to_be(capfd, tmp_path):
    """The committed runs: CUDA graphs off made a decode step of this small model take four to five times as long."""
    gates = "tpot_p50:5%,tpot_p50:1000%,queue_p50:5ms"
    allow = "settings.start,settings.plan,shapes"
    args = (
        DEFAULT,
        EAGER,
        "--allow",
        allow,
        "--gate",
        gates,
        "--junit",
        tmp_path / "deep" / "gates.xml",
        "--json",
    )
    code, out, err = call(capfd, *args)
    assert code == 1, err
    told = json.loads(out)
    metrics = {metric["name"]: metric for metric in told["metrics"]}
    assert 250 < metrics["tpot_p50"]["effect"]["lo"] < metrics["tpot_p50"]["effect"]["hi"] < 500
    assert metrics["prefill_p50"]["answer"] == "worse"
    assert metrics["output_tokens_per_s"]["answer"] == "worse"
    assert metrics["queue_p50"]["answer"] == "same"
    assert (told["base"]["unit"], told["base"]["blocks"], told["new"]["blocks"]) == ("block", 12, 10)
    assert [g["answer"] for g in told["gates"]] == ["fail", "pass", "pass"]
    assert told["gate"] == "fail"
    under_test = {d["field"] for d in told["differs"] if d["field"].startswith("engine.")}
    assert under_test == {"engine.flags", "engine.enforce_eager"}
    assert "left_out" in {note["key"] for note in told["notes"]}
    large = next(s for s in told["by_shape"] if s["batch"] == 256)
    tpot = next(m for m in large["metrics"] if m["name"] == "tpot_p50")
    assert tpot["answer"] in {"undecided", "same"}  # a large batch hides the launches
    assert (tmp_path / "deep" / "gates.xml").read_text().count("<testcase") == 3


def test_unlike_runs_are_one_line_and_exit_2(capfd):
    code, out, err = call(capfd, DEFAULT, EAGER)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "settings.plan.blocks (12 is not 10)" in err
    assert "--allow settings.start,settings.plan" in err


def test_a_slower_server_fails_its_gate(capfd, runs):
    code, out, _ = call(
        capfd, runs / "a1.jsonl", runs / "b1.jsonl", "--gate", "ttft_p50:20%,tpot_p50:10%", *SIDES
    )
    assert code == 1, out
    assert "✗ fail" in out
    code, out, _ = call(
        capfd, runs / "b1.jsonl", runs / "a1.jsonl", "--gate", "ttft_p50:20%,tpot_p50:10%", *SIDES
    )
    assert code == 0, out
    assert "Every gate is passed." in out


SIDES = ("--allow", "engine,settings", "--even-invalid")
"""The truth is part of the engine's description; a busy machine may make a check call a fresh run invalid."""


def test_an_undecided_gate_has_a_code_of_its_own(capfd, runs):
    code, out, _ = call(capfd, runs / "a1.jsonl", runs / "a2.jsonl", "--gate", "ttft_p99:1%", *SIDES)
    assert code == 3
    assert "too few values for this quantile" in out


def test_files_parted_by_commas_are_repeats_of_a_side(capfd, runs):
    base, new = (f"{runs / x}1.jsonl,{runs / x}2.jsonl" for x in "ab")
    code, out, err = call(capfd, base, new, "--json", "--slo", "ttft=9ms", *SIDES)
    assert code == 0, err
    told = json.loads(out)
    assert (told["base"]["runs"], told["base"]["blocks"], told["gate"]) == (2, 10, None)
    metrics = {metric["name"]: metric for metric in told["metrics"]}
    assert metrics["ttft_p50"]["answer"] == "worse"
    assert metrics["goodput_per_s"]["new"] < metrics["goodput_per_s"]["base"]
    assert "one_run" not in {note["key"] for note in told["notes"]}


def test_markdown_and_chinese(capfd, runs):
    args = (runs / "a1.jsonl", runs / "b1.jsonl", "--gate", "ttft_p50:20%", *SIDES)
    code, out, _ = call(capfd, *args, "--markdown")
    assert code == 1
    assert out.startswith("### a1.jsonl → b1.jsonl\n")
    assert "| `ttft_p50:20%` |" in out
    code, out, _ = call(capfd, *args, "--lang", "zh")
    assert code == 1
    assert "更差" in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("a1.jsonl", "nowhere.jsonl"), ["no such file"]),
        (("a1.jsonl", ","), ["name at least one"]),
        (("a1.jsonl", "a1.jsonl"), ["both sides"]),
        (("a1.jsonl,a1.jsonl", "b1.jsonl"), ["given twice"]),
        (("a1.jsonl", "b1.jsonl", "--gate", "ttft:5%"), ["--gate", "ttft_p50"]),
        (("a1.jsonl", "b1.jsonl", "--margin", "much"), ["--margin", "much"]),
        (("a1.jsonl", "b1.jsonl", "--margin", "100"), ["--margin"]),
        (("a1.jsonl", "b1.jsonl", "--allow", "weather"), ["--allow", "weather"]),
        (("a1.jsonl", "b1.jsonl", "--slo", "ttft"), ["--slo"]),
        (("a1.jsonl", "b1.jsonl", "--junit", "x.xml"), ["--junit", "--gate"]),
        (("a1.jsonl", "b1.jsonl", "--json", "--markdown"), ["--markdown", "--json"]),
    ],
)
def test_bad_input_is_one_clear_line(capfd, runs, monkeypatch, args, says):
    monkeypatch.chdir(runs)
    code, out, err = call(capfd, *args)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert all(word in err for word in says), err


def test_a_report_that_cannot_be_written_is_said(capfd, runs):
    blocked = runs / "a1.jsonl" / "gates.xml"
    args = (runs / "a1.jsonl", runs / "b1.jsonl", "--gate", "ttft_p50:20%", "--junit", blocked, *SIDES)
    code, _, err = call(capfd, *args)
    assert code == 2
    assert "--junit" in err

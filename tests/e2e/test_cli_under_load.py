"""--slo and --find on the command line: bad input in one line, and a real search over loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from phasemeter.cli import main
from phasemeter.record.file import RunWriter
from unit.explain.queues import md1, sweep

SRC = Path(__file__).resolve().parents[2] / "src"
FIND = ("measure", "--engine", "simulated", "--find", "rate")
BETWEEN, SLO, DURATION = ("--between", "1:8"), ("--slo", "ttft_p90=1s"), ("--duration", "1")


def told(args, capsys):
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    out, err = capsys.readouterr()
    return ended.value.code, out, err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((*FIND,), ["--find", "--slo", "--between", "--duration"]),
        ((*FIND, *BETWEEN, *SLO), ["--find", "--duration"]),
        ((*FIND, *BETWEEN, *DURATION), ["--find", "--slo"]),
        ((*FIND, *BETWEEN, *SLO, *DURATION, "--rate", "4"), ["--rate", "--find chooses"]),
        ((*FIND, *BETWEEN, *SLO, *DURATION, "--concurrency", "4"), ["--concurrency", "--find chooses"]),
        ((*FIND, *BETWEEN, *SLO, *DURATION, "--repeats", "4"), ["--repeats", "--find chooses"]),
        ((*FIND, "--between", "8:1", *SLO, *DURATION), ["--between", "8:1"]),
        ((*FIND, *BETWEEN, "--slo", "ttft=fast", *DURATION), ["--slo", "ttft=fast"]),
        (("measure", "--engine", "simulated", *SLO), ["--slo", "--find"]),
        (("measure", "--engine", "simulated", *BETWEEN), ["--between", "--find"]),
        (("explain", "no.jsonl", "--slo", "speed=2ms"), ["--slo", "speed=2ms"]),
        (("report", "no.jsonl", "-o", "r.html", "--slo", "ttft_p99=200"), ["--slo", "ttft_p99=200", "unit"]),
    ],
)
def test_what_cannot_be_meant_is_told_in_one_line(args, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = told(args, capsys)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert [words for words in says if words not in err] == []


def test_explain_judges_a_sweep(tmp_path, capsys):
    whole = sweep(md1(3.0, 400), md1(15.0, 400))
    path = tmp_path / "sweep.jsonl"
    with RunWriter(path, whole.header) as writer:
        for line in (*whole.requests, whole.footer):
            writer.write(line)
    code, out, _ = told(["explain", str(path), "--slo", "ttft_p90=400ms", "--json"], capsys)
    found = json.loads(out)
    assert code == 0
    assert [level["met"] for level in found["slo"]["levels"]] == ["met", "not met"]
    assert 3.0 < found["capacity"][0]["largest"]["level"] < 15.0
    code, out, _ = told(["explain", str(path), "--slo", "ttft_p90=400ms"], capsys)
    assert "Under load" in out
    assert "queue grows" in out


def test_a_real_search_over_loopback(tmp_path, capsys):
    """One slot that a request holds for 130 ms: alone its first token comes after 100 ms, beside another after 230."""
    command = "from phasemeter.cli.simulate import command; command()"
    flags = ["--json", "--ttft-ms", "100", "--itl-ms", "10", "--slots", "1", "--port", "0"]
    server = subprocess.Popen(
        [sys.executable, "-c", command, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PYTHONPATH": str(SRC), "PATH": "/usr/bin:/bin"},
    )
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{json.loads(server.stdout.readline())['port']}"
        out_file = tmp_path / "f.jsonl"
        code, out, _ = told(
            ["measure", "--engine", "openai", "--url", url, "--api", "completions", "--model", "simulated",
             "--find", "concurrency", "--between", "1:8", "--duration", "3", "--slo", "ttft_p50=160ms",
             "--input-tokens", "16", "--output-tokens", "4", "--warmup", "1", "--out", str(out_file), "--json"],
            capsys,
        )  # fmt: skip
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
    found = json.loads(out)["found"]
    assert code in (0, 3)
    assert found["met_at"] in (None, 1.0)
    assert found["not_met_at"] in (2.0, 4.0, None)
    assert found["stages"] >= 2
    code, out, _ = told(["explain", str(out_file), "--slo", "ttft_p50=160ms", "--json"], capsys)
    levels = json.loads(out)["load"]["levels"]
    assert code == 0
    assert [level["concurrency"] for level in levels][:1] == [1]
    assert json.loads(out)["settings"]["find"] == "concurrency"

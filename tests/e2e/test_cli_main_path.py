"""The main path as a user walks it: a server in its own process, the commands, the files, the JSON contract."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from phasemeter.record.engine import Outcome
from phasemeter.record.file import read_run

PHASEMETER = [sys.executable, "-m", "phasemeter"]


def phasemeter(*args: str, code: int = 0, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*PHASEMETER, *args], capture_output=True, text=True, check=False, timeout=timeout)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


class Server:
    """`phasemeter simulate` in a process of its own."""

    def __init__(self, tmp_path: Path, *args: str) -> None:
        self.log = tmp_path / "sent.jsonl"
        self.process = subprocess.Popen(
            [*PHASEMETER, "simulate", "--port", "0", "--json", "--log", str(self.log), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.url: str = json.loads(self.process.stdout.readline())["url"]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    serving = Server(tmp_path, "--ttft-ms", "30", "--itl-ms", "4")
    yield serving
    serving.stop()


GRID = ("--input-tokens", "16,64", "--output-tokens", "8", "--repeats", "3")
DIST = {"n", "mean", "p50", "p90", "p99", "ci95_p50"}


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_run_measures_explains_and_reports(server, tmp_path, api):
    folder = tmp_path / "out"
    done = phasemeter(
        "run", "--engine", "openai", "--url", server.url, "--api", api, *GRID, "--out", str(folder),
        "--hardware", "a100-40gb-sxm", "--model-shape", "ernie-4.5-0.3b",
    )  # fmt: skip
    assert "prefill" in done.stdout
    assert "absent" in done.stdout
    page = (folder / "report.html").read_text()
    assert page.lower().startswith("<!doctype html>")
    run = read_run(folder / "run.jsonl")
    measured = [t for t in run.requests if not t.cell.warmup]
    assert len(measured) == 9
    assert all(t.outcome is Outcome.OK for t in measured)
    assert {t.usage.prompt_tokens for t in measured if t.usage and t.cell.input_tokens == 64} == {64}
    assert {t.counted_tokens() for t in measured} == {8}


def test_explain_json_keeps_its_contract(server, tmp_path):
    out = tmp_path / "run.jsonl"
    phasemeter(
        "measure", "--engine", "openai", "--url", server.url, *GRID, "--concurrency", "1,4", "--out", str(out)
    )
    found = json.loads(phasemeter("explain", str(out), "--json").stdout)
    assert {"requests", "ttft_ms", "ttft_from_arrival_ms", "tpot_ms", "itl_ms", "e2e_ms", "phases", "throughput",
            "concurrency", "cold", "checks", "verdict", "by_shape"} <= set(found)  # fmt: skip
    assert found["requests"]["planned"] == found["requests"]["ok"] == 3 * (2 + 16 + 1)
    assert found["requests"]["failed"] == 0
    for name in ("ttft_ms", "ttft_from_arrival_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        assert set(found[name]) >= DIST
    phases = found["phases"]
    assert {
        "late",
        "connect",
        "first",
        "front_end",
        "queue",
        "prefill",
        "decode",
        "engine_decode",
        "tail",
    } == set(phases)
    assert phases["queue"] is None
    assert phases["prefill"] is None
    assert phases["first"]["basis"] == "observed"
    assert {"first_ttft_ms", "steady_ttft_ms", "requests_to_settle"} <= set(found["cold"])
    assert {"asked", "seen_max", "seen_mean"} <= set(found["concurrency"])
    assert found["concurrency"]["seen_max"] == 4
    shapes = found["by_shape"]
    assert {(s["input_tokens"], s["output_tokens"], s["batch"]) for s in shapes} == {
        (i, 8, c) for i in (16, 64) for c in (1, 4)
    }
    assert all(s["prefill_ms"] is None and s["floor_prefill_ms"] is None for s in shapes)
    assert {c["verdict"] for c in found["checks"]} <= {"ok", "warn", "invalid"}
    assert all({"name", "verdict", "evidence", "mend"} <= set(c) for c in found["checks"])
    # 7 gaps a request, of which none is the time to first token.
    assert found["itl_ms"]["n"] == 57 * 7


def test_what_we_measured_is_what_the_server_sent(server, tmp_path):
    """The client's TTFT beside the server's own log of the same requests, joined by id."""
    out = tmp_path / "run.jsonl"
    phasemeter("measure", "--engine", "openai", "--url", server.url, *GRID, "--out", str(out))
    server.stop()
    entries = [json.loads(line) for line in server.log.read_text().splitlines()]
    sent = {entry["id"]: entry for entry in entries}
    measured = [t for t in read_run(out).requests if not t.cell.warmup]
    assert len(measured) == 9
    errors_ns: list[int] = []
    for t in measured:
        entry = sent[t.id]
        assert entry["outcome"] == "completed"
        assert sum(entry["tokens"]) == t.counted_tokens() == 8
        texts = [ns for ns, kind in zip(entry["sent_ns"], entry["kinds"], strict=True) if kind == "text"]
        seen = [ns for ns, _ in t.generated()]
        errors_ns.append(abs((seen[0] - (t.sent_ns or 0)) - (texts[0] - entry["received_ns"])))
        errors_ns += [
            abs((b - a) - (y - x)) for a, b, x, y in zip(seen, seen[1:], texts, texts[1:], strict=False)
        ]
    # Two busy cores: a single gap may be late, half of them may not.
    assert sorted(errors_ns)[len(errors_ns) // 2] < 2_000_000


def test_failures_are_counted_and_make_the_run_invalid(tmp_path):
    serving = Server(tmp_path, "--ttft-ms", "5", "--itl-ms", "1", "--fault", "error_event_after:2")
    try:
        out = tmp_path / "run.jsonl"
        args = ("measure", "--engine", "openai", "--url", serving.url, *GRID, "--out")
        done = phasemeter(*args, str(out), "--json")
        assert json.loads(done.stdout)["verdict"] == "invalid"
        found = json.loads(phasemeter("explain", str(out), "--json").stdout)
        assert found["requests"]["by_outcome"] == {"error_in_stream": 9}
        assert found["ttft_ms"] is None
        assert found["verdict"] == "invalid"
        phasemeter(*args, str(tmp_path / "strict.jsonl"), "--strict", code=1)
    finally:
        serving.stop()


def wait_for_lines(path: Path, lines: int, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} never had {lines} lines")


def start_measuring(url: str, out: Path) -> subprocess.Popen[str]:
    args = ["measure", "--engine", "openai", "--url", url, "--input-tokens", "16", "--output-tokens", "8",
            "--repeats", "500", "--out", str(out)]  # fmt: skip
    return subprocess.Popen([*PHASEMETER, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_was_measured(server, tmp_path, sent):
    out = tmp_path / "run.jsonl"
    process = start_measuring(server.url, out)
    wait_for_lines(out, 12)
    process.send_signal(sent)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "kept" in err
    run = read_run(out)
    assert run.footer is not None
    assert run.footer.interrupted
    assert sum(t.outcome is Outcome.OK for t in run.requests) >= 4
    found = json.loads(phasemeter("explain", str(out), "--json").stdout)
    assert any(c["verdict"] != "ok" and "interrupted" in c["evidence"] for c in found["checks"])


def test_a_background_job_of_a_script_ends_at_sigterm(server, tmp_path):
    """A shell without job control has its background jobs ignore SIGINT; that must not reach SIGTERM."""
    out = tmp_path / "run.jsonl"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = start_measuring(server.url, out)
    finally:
        signal.signal(signal.SIGINT, before)
    wait_for_lines(out, 12)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err
    footer = read_run(out).footer
    assert footer is not None
    assert footer.interrupted


def test_kill_9_keeps_what_was_measured(server, tmp_path):
    out = tmp_path / "run.jsonl"
    process = start_measuring(server.url, out)
    wait_for_lines(out, 12)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    run = read_run(out)
    assert run.footer is None
    assert len(run.requests) >= 5
    phasemeter("explain", str(out))


def test_a_server_that_dies_ends_the_run_with_exit_code_4(server, tmp_path):
    out = tmp_path / "run.jsonl"
    process = start_measuring(server.url, out)
    wait_for_lines(out, 12)
    server.process.kill()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 4, err
    assert "Traceback" not in err
    assert "kept" in err
    assert len([t for t in read_run(out).requests if t.outcome is Outcome.OK]) >= 4


def test_tables_and_doctor_answer_in_json():
    rows = json.loads(phasemeter("hardware", "--json").stdout)["hardware"]
    assert all(row["source"] for row in rows)
    [ernie] = [
        m
        for m in json.loads(phasemeter("models", "--json").stdout)["models"]
        if m["name"] == "ernie-4.5-0.3b"
    ]
    assert (ernie["parameters"], ernie["kv_bytes_per_token"], ernie["crossover_tokens"]) == (
        360_748_032,
        18_432,
        6_912,
    )
    assert json.loads(phasemeter("doctor", "--json").stdout)["checks"]


def test_a_shape_from_any_config_json(tmp_path):
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 128, "vocab_size": 1000}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = json.loads(phasemeter("models", str(tmp_path), "--json").stdout)
    assert found["shape"]["head_dim"] == 32
    assert found["kv_bytes_per_token"] == 2 * 2 * 2 * 32 * 2


def test_the_report_speaks_chinese(tmp_path):
    out = tmp_path / "run.jsonl"
    phasemeter("measure", "--engine", "simulated", "--truth", "ttft_ms=2", *GRID, "--out", str(out))
    phasemeter("report", str(out), "-o", str(tmp_path / "r.html"), "--lang", "zh")
    assert 'lang="zh' in (tmp_path / "r.html").read_text()
    assert "模型" in phasemeter("explain", str(out), "--lang", "zh").stdout

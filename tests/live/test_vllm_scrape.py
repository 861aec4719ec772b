"""/metrics of a real vLLM (CPU build, tiny ERNIE): the split that no request tells, the check of those that do, and the
gauges while requests are in flight."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from live.tiny_vllm import Server, serving, vllm_python, write_model
from phasemeter.record.file import read_run
from phasemeter.record.scrape import Moment

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
GRID = ("--input-tokens", "16,64", "--output-tokens", "24", "--concurrency", "1,4", "--repeats", "4")
REQUESTS = 4 * (2 * 1 + 2 * 8 + 1)
"""Four blocks of two shapes alone, two at four slots with two requests a slot, and the anchor."""


def phasemeter(*args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "phasemeter", *args],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "VLLM_CPU_KVCACHE_SPACE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def explained(run: Path) -> dict:
    return json.loads(phasemeter("explain", str(run), "--json"))


def check_of(explained: dict) -> dict:
    [found] = [check for check in explained["checks"] if check["name"] == "server_metrics"]
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with serving(tmp_path_factory.mktemp("vllm"), "--no-enable-prefix-caching") as running:
        yield running


def complete(server: Server, tokens: int = 4) -> None:
    body = json.dumps({"model": server.model, "prompt": [9, 8, 7, 6], "max_tokens": tokens}).encode()
    ask = urllib.request.Request(
        f"{server.url}/v1/completions", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(ask, timeout=60) as answer:
        answer.read()


@pytest.mark.parametrize("engine", ["openai", "vllm"])
def test_a_server_that_tells_no_request_is_split_by_its_sums(server: Server, tmp_path: Path, engine: str):
    out = tmp_path / "run.jsonl"
    phasemeter(
        *("measure", "--engine", engine, "--url", server.url, *GRID, "--scrape-s", "0.2", "--out", str(out))
    )
    told = explained(out)
    sums = told["server_metrics"]
    assert (sums["finished"], sums["ours"], sums["reported"], sums["refused"]) == (REQUESTS, REQUESTS, 0, "")
    assert sums["shown"]
    phases = sums["phases"]
    assert {phase["n"] for phase in phases.values()} == {REQUESTS}
    mean = {name: phase["mean_ms"] for name, phase in phases.items()}
    assert mean["inference"] == pytest.approx(mean["prefill"] + mean["decode"], rel=1e-3)
    assert mean["queue"] + mean["inference"] < mean["e2e"]
    # the server's own e2e lies within what the client saw of it
    assert mean["e2e"] < told["e2e_ms"]["mean"]
    assert mean["decode"] == pytest.approx(told["phases"]["decode"]["mean"], rel=0.5)
    assert phases["prefill"]["p50_ms"] is None
    assert phases["prefill"]["coarse_s"] == [0.0, 0.3]
    assert "--custom-histogram-buckets" in phases["prefill"]["note"]
    assert told["phases"]["prefill"] is None
    assert check_of(told)["verdict"] == "ok"
    text = phasemeter("explain", str(out))
    assert "The server's own sums" in text
    assert "Beside the run" in text
    run = read_run(out)
    assert [scrape.moment for scrape in run.scrapes] == [Moment.BEFORE, Moment.AFTER]
    running = [
        s.values["server_running_requests"] for s in run.samples if "server_running_requests" in s.values
    ]
    assert max(running) >= 1
    page = tmp_path / "report.html"
    phasemeter("report", str(out), "-o", str(page))
    assert 'data-chart="beside-0"' in page.read_text()


def test_traffic_of_others_is_noticed_and_the_sums_refused(server: Server, tmp_path: Path):
    ended = threading.Event()

    def others() -> None:
        while not ended.is_set():
            complete(server)

    thread = threading.Thread(target=others)
    thread.start()
    out = tmp_path / "run.jsonl"
    try:
        phasemeter("measure", "--engine", "openai", "--url", server.url, *GRID, "--out", str(out))
    finally:
        ended.set()
        thread.join()
    told = explained(out)
    assert told["server_metrics"]["phases"] == {}
    assert told["server_metrics"]["finished"] > REQUESTS
    assert "others use it" in told["server_metrics"]["refused"]
    assert check_of(told)["verdict"] == "warn"


def test_the_plugin_and_the_sums_agree(tmp_path: Path):
    python = str(vllm_python())
    model = write_model(tmp_path / "tiny")
    out = tmp_path / "run.jsonl"
    phasemeter(
        *("measure", "--engine", "vllm", "--engine-python", python, "--model", str(model), *GRID),
        *("--out", str(out), "--", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "8"),
    )
    told = explained(out)
    sums = told["server_metrics"]
    assert (sums["finished"], sums["reported"], sums["refused"]) == (REQUESTS, REQUESTS, "")
    assert not sums["shown"]
    check = check_of(told)
    assert check["verdict"] == "ok", check
    assert "sums agree: queue" in check["evidence"]
    assert "The server's own sums" not in phasemeter("explain", str(out))

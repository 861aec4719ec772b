"""`--engine-spans` on a real vLLM: its OpenTelemetry spans and our plugin tell the same of every request."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from live.tiny_vllm import vllm_python, write_model
from phasemeter.record.file import read_run

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "8")
CLOSE_NS = 1_000_000


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    told = subprocess.run(
        [str(vllm_python()), "-c", "import opentelemetry.exporter.otlp.proto.http.trace_exporter, "
         "opentelemetry.exporter.otlp.proto.grpc.trace_exporter, opentelemetry.sdk.trace.export"],
        capture_output=True,
        text=True,
    )  # fmt: skip
    if told.returncode != 0:
        pytest.skip(f"vLLM's environment cannot send spans: {told.stderr.strip().splitlines()[-1]}")
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


def measured(out: Path, model: Path, *more: str):
    args = ["measure", "--engine", "vllm", "--engine-python", str(vllm_python()), "--model", str(model)]
    args += ["--input-tokens", "16,64", "--output-tokens", "8", "--repeats", "3", "--concurrency", "1,4"]
    args += ["--engine-spans", *more, "--out", str(out), "--", *FLAGS]
    # a collector of the user's that nobody listens at, and a proxy: neither may get the spans
    hostile = {
        "OTEL_TRACES_SAMPLER": "always_off",
        "http_proxy": "http://127.0.0.1:9",
        "OTEL_SDK_DISABLED": "true",
    }
    done = subprocess.run(
        [sys.executable, "-m", "phasemeter", *args],
        env={**os.environ, **hostile, "PYTHONPATH": str(ROOT / "src"), "VLLM_CPU_KVCACHE_SPACE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return read_run(out)


def test_the_spans_agree_with_the_plugin_which_is_preferred(tiny, tmp_path):
    run = measured(tmp_path / "run.jsonl", tiny)
    by_source = {
        source: {(line.request, line.index): line.report for line in run.seen if line.report.source == source}
        for source in ("vllm plugin", "vllm otel spans")
    }
    plugin, spans = by_source["vllm plugin"], by_source["vllm otel spans"]
    ours = {t.id for t in run.requests}
    assert len(ours) > 3 * 2 * (1 + 4)  # and the warm-up's
    assert ours <= {request for request, _ in spans}
    assert {(r, 0) for r in ours} <= plugin.keys()
    for key in ((request, 0) for request in ours):
        for name in ("queue_ns", "prefill_ns", "decode_ns"):
            told, span = getattr(plugin[key], name), getattr(spans[key], name)
            assert told is not None
            assert span is not None
            assert abs(told - span) <= CLOSE_NS, (key, name)
        assert spans[key].n_tokens == plugin[key].n_tokens
    assert {t.report.source for t in run.requests if t.report is not None} == {"vllm plugin"}
    # told by two sources, and counted once
    assert {t.report.n_tokens for t in run.requests if t.report and not t.cell.warmup} == {8}
    assert run.header.engine.details["spans"] == "on"
    assert "otlp" not in run.header.engine.details["flags"]


def test_without_the_plugin_the_spans_fill_what_the_stream_does_not_tell(tiny, tmp_path):
    run = measured(tmp_path / "run.jsonl", tiny, "--no-engine-plugin")
    for t in run.requests:
        assert t.report is not None
        assert t.report.source == "vllm response metrics"
        assert t.report.e2e_ns is not None  # only the spans hold it
        assert t.report.n_tokens == t.counted_tokens()
        assert t.report.e2e_ns <= t.end_ns - t.started_ns

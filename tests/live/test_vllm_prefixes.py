"""Shared prefixes and conversations against a real vLLM's prefix cache: it finds what the plan says, to the token."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from live.tiny_vllm import ROOT, vllm_python, write_model
from phasemeter.measure.load import Stage
from phasemeter.measure.workload import open_workload, parse_workload
from phasemeter.record.engine import Outcome
from phasemeter.record.file import read_run

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

BLOCK_TOKENS = 32
"""vLLM's CPU attention takes multiples of 32."""
FLAGS = (
    "--enforce-eager",
    "--max-model-len",
    "1024",
    "--block-size",
    str(BLOCK_TOKENS),
    "--enable-prefix-caching",
)


@pytest.mark.parametrize(
    ("workload", "requests"),
    [
        ("prefixes:prefix=200,input=uniform:16:128,output=3,groups=8,zipf=1,hit=0.4", 80),
        ("conversations:turns=4,first=100,input=40,output=8,system=64", 24),
    ],
)
def test_the_cache_finds_what_the_plan_shares(workload, requests, tmp_path: Path):
    model, out = write_model(tmp_path / "model" / "tiny"), tmp_path / "run.jsonl"
    command = [sys.executable, "-m", "phasemeter", "measure", "--engine", "vllm", "--model", str(model)]
    command += ["--engine-python", str(vllm_python()), "--workload", workload, "--requests", str(requests)]
    command += ["--concurrency", "1", "--warmup", "1", "--out", str(out), "--", *FLAGS]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "VLLM_CPU_KVCACHE_SPACE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    measured = [t for t in read_run(out).requests if not t.cell.warmup]
    assert {t.outcome for t in measured} == {Outcome.OK}
    found = [t.report.cached_tokens for t in sorted(measured, key=lambda t: t.arrived_ns) if t.report]
    assert found == _due(workload, requests)
    assert [t.usage.prompt_tokens for t in measured if t.usage] == [t.cell.input_tokens for t in measured]
    assert sum(n or 0 for n in found) > 0


def _due(workload: str, requests: int) -> list[int]:
    """Whole blocks of what was there before, openings in their order; one of another kind ends the common part."""
    known: dict[str, int] = {}
    due: list[int] = []
    for item in islice(open_workload(parse_workload(workload)).items(Stage(concurrency=1), 0), requests):
        shared, still = 0, True
        for part in item.openings:
            common = min(known.get(part.name, 0), part.tokens)
            shared += common if still else 0
            still = still and common == part.tokens
            known[part.name] = max(known.get(part.name, 0), part.tokens)
        due.append(shared // BLOCK_TOKENS * BLOCK_TOKENS)
    return due

"""`phasemeter measure --workers` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from golden.simulate_process import Server

PHASEMETER = (sys.executable, "-m", "phasemeter")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    running = Server("--ttft-ms", "20", "--itl-ms", "2")
    yield f"http://127.0.0.1:{running.port}"
    running.stop()


def phasemeter(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PHASEMETER, *words], capture_output=True, text=True, timeout=90, check=False)


def test_a_grid_from_two_processes_reads_like_one(url: str, tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    asked = ("--input-tokens", "16,32", "--output-tokens", "8", "--concurrency", "1,8", "--repeats", "2")
    found = phasemeter(
        "measure", "--engine", "openai", "--url", url, *asked, "--workers", "2", "--out", str(out), "--json"
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["ok"] == 2 * (2 * (1 + 16) + 1)  # each block repeats its anchor
    told = json.loads(phasemeter("explain", str(out), "--json").stdout)
    assert told["concurrency"]["asked"] == told["concurrency"]["seen_max"] == 8
    assert [check["verdict"] for check in told["checks"] if check["name"] == "concurrency"] == ["ok"]
    header = json.loads(out.read_text().splitlines()[0])
    assert header["settings"]["workers"] == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--engine", "simulated", "--workers", "2"), "--workers: 2: --engine simulated runs in one process"),
        (("--engine", "simulated", "--on", "auto"), "--on: auto: --engine simulated runs in one process"),
        (("--workers", "0"), "--workers"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    found = phasemeter("measure", *words, "--out", str(tmp_path / "run.jsonl"))
    assert found.returncode == 2
    assert told in found.stderr
    assert len(found.stderr.strip().splitlines()) <= 4
    assert "Traceback" not in found.stderr

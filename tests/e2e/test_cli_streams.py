"""Where the output goes must not change what is measured, nor the exit code: pipes that end, full disks, closed
streams; and numbers that are none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from phasemeter.record.file import read_run

PHASEMETER = f"{sys.executable} -m phasemeter"
MEASURE = (
    "measure --engine simulated --truth ttft_ms=1 --truth itl_ms=0.1 --input-tokens 8 --output-tokens 4 "
    "--repeats 1 --warmup 0 --out run.jsonl"
)


def shell(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("command", ["--version", "hardware", "models --json"])
def test_a_reader_that_has_gone_is_no_failure(tmp_path: Path, command: str) -> None:
    done = shell(tmp_path, f"(sleep 0.3; {PHASEMETER} {command}; echo code $? >&2) | true")
    assert done.stderr.splitlines() == ["code 0"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["--help", "hardware", "models --json"])
def test_output_onto_a_full_disk_is_one_line(tmp_path: Path, command: str) -> None:
    done = shell(tmp_path, f"{PHASEMETER} {command} > /dev/full")
    assert done.returncode == 2
    assert done.stderr == "phasemeter: the output cannot be written (No space left on device)\n"


@pytest.mark.parametrize(
    "streams", [">&-", "2>&-", ">&- 2>&-", "<&-", "2>/dev/full", "2>&1 >/dev/null | true"]
)
def test_a_run_is_measured_whatever_becomes_of_its_messages(tmp_path: Path, streams: str) -> None:
    done = shell(tmp_path, f"set -o pipefail; {PHASEMETER} {MEASURE} {streams}")
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run.jsonl")
    assert len(run.requests) == 1
    assert run.footer is not None
    assert run.damaged == ()


@pytest.mark.parametrize(
    "option",
    [
        "--warmup ²", "--warmup 99999999", "--temperature nan", "--temperature inf", "--top-p nan",
        "--top-k 99999999999999999999", "--timeout-s nan", "--timeout-s inf", "--repeats 1000000000000",
        "--requests 99999999999999999999", "--truth ttft_ms=1e308", "--truth itl_ms=nan", "--seed 99999999999999999999",
        "--threads 99999999",
    ],
)  # fmt: skip
def test_numbers_that_are_none_or_without_measure_are_refused(tmp_path: Path, option: str) -> None:
    done = shell(tmp_path, f"{PHASEMETER} {MEASURE} {option}")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("phasemeter: ")
    assert not (tmp_path / "run.jsonl").exists()


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin1"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_an_encoding_without_our_characters_is_no_failure(tmp_path: Path, encoding: str, lang: str) -> None:
    assert shell(tmp_path, f"{PHASEMETER} {MEASURE}").returncode == 0
    done = shell(
        tmp_path,
        f"PYTHONIOENCODING={encoding} {PHASEMETER} explain run.jsonl --lang {lang} | iconv -f {encoding} -t utf-8",
    )
    assert done.stderr == ""
    assert "simulated" in done.stdout


def test_half_a_page_never_stands_where_a_page_was(tmp_path: Path) -> None:
    assert shell(tmp_path, f"{PHASEMETER} {MEASURE}").returncode == 0
    (tmp_path / "x.svg").write_text("the page before")
    # a limit on the size of files is a full disk that needs no privileges
    done = shell(tmp_path, f"trap '' XFSZ; ulimit -f 1; {PHASEMETER} report run.jsonl -o x.svg")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert (tmp_path / "x.svg").read_text() == "the page before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.jsonl", "x.svg"]

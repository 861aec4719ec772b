"""`--engine vllm` end to end on a real vLLM (CPU build, a tiny ERNIE with random weights), as a user types it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from live.tiny_vllm import vllm_python, write_model
from phasemeter.record.engine import Outcome
from phasemeter.record.file import read_run

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = 512
START_S = 400.0
FLAGS = ("--enforce-eager", "--max-model-len", str(CONTEXT), "--max-num-seqs", "8")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    vllm_python()
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


class Phasemeter:
    """A command in a process of its own, and every process that it ever had under it."""

    def __init__(
        self, out: Path, model: Path, *more: str, flags: tuple[str, ...] = FLAGS, verb: str = "measure"
    ) -> None:
        self.out, self.tree, self.err = out, set[int](), out.with_suffix(".err")
        args = [verb, "--engine", "vllm", "--engine-python", str(vllm_python()), "--model", str(model)]
        args += ["--input-tokens", "16,64", "--output-tokens", "8", "--out", str(out), *more, "--", *flags]
        with self.err.open("wb") as err, out.with_suffix(".out").open("wb") as printed:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "phasemeter", *args],
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "VLLM_CPU_KVCACHE_SPACE": "1"},
                stdout=printed,
                stderr=err,
            )  # fmt: skip

    def told(self) -> str:
        return self.err.read_text(errors="replace")

    def until(self, true: Callable[[], object], seconds: float = START_S) -> None:
        """Look at the processes until `true` holds or the command has ended."""
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, self.told()
            self.tree |= below(self.process.pid)
            time.sleep(0.2)

    def measured(self, lines: int) -> None:
        self.until(
            lambda: (
                self.process.poll() is not None
                or (self.out.exists() and self.out.read_bytes().count(b"\n") >= lines)
            )
        )
        assert self.process.poll() is None, self.told()
        self.tree |= below(self.process.pid)

    def ended(self, seconds: float = START_S) -> int:
        self.until(lambda: self.process.poll() is not None, seconds)
        assert "Traceback (most recent" not in self.told().replace("| Traceback", "")
        return self.process.returncode

    def all_gone(self, seconds: float = 30.0) -> None:
        assert self.tree
        end = time.monotonic() + seconds
        while left := self.tree & set(parents()):
            assert time.monotonic() < end, {pid: name_of(pid) for pid in left}
            time.sleep(0.2)


def parents() -> dict[int, int]:
    found: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = place.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state not in {"Z", "X"}:
            found[int(place.parent.name)] = int(parent)
    return found


def below(pid: int) -> set[int]:
    of, tree, ahead = parents(), set[int](), [pid]
    while ahead:
        parent = ahead.pop()
        new = {child for child, its in of.items() if its == parent} - tree
        tree |= new
        ahead += new
    return tree


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return "ended"


def vllm_processes(tree: set[int]) -> list[int]:
    """The server's own processes, the API server (the command's first) in front."""
    return [
        pid for pid in sorted(tree) if "vllm" in name_of(pid).lower() and "guardian.py" not in name_of(pid)
    ]


def test_a_run_measures_from_outside_and_inside_and_leaves_nothing(tiny, tmp_path):
    folder = tmp_path / "out"
    ours = Phasemeter(
        folder, tiny, "--repeats", "3", "--concurrency", "1,2", "--engine-steps", "--json", verb="run"
    )
    assert ours.ended() == 0, ours.told()
    ours.all_gone()
    run = read_run(folder / "run.jsonl")
    engine = run.header.engine
    assert (engine.kind, engine.model, engine.dtype, engine.device) == ("vllm", "tiny", "float32", "cpu") or (
        engine.dtype == "bfloat16"  # on a CPU with units for it
    )
    assert engine.version is not None
    assert engine.weights is not None
    assert engine.weights.startswith("random")
    assert engine.max_context_tokens == CONTEXT
    assert engine.vocab_tokens == 2048
    assert engine.details["plugin"] == "requests and steps"
    assert "--enable-per-request-metrics" in engine.details["flags"]
    [start] = [note for note in run.header.notes if note.startswith("vLLM start-up: ")]
    assert {"import_s", "load_s", "engine_s", "first_token_s"} <= {
        part.partition("=")[0] for part in start.split()[2:]
    }
    assert "Initializing a V1 LLM engine" in (folder / "run.engine.log").read_text(errors="replace")

    measured = [t for t in run.requests if not t.cell.warmup]
    assert len(measured) == 3 * (2 + 2 * 4 + 1)
    assert {t.outcome for t in measured} == {Outcome.OK}
    for t in measured:
        assert t.usage is not None
        assert t.usage.prompt_tokens == t.cell.input_tokens
        assert t.counted_tokens() == 8
        report = t.report
        assert report is not None
        assert report.queue_ns is not None
        assert report.prefill_ns is not None
        assert report.decode_ns is not None
        assert report.source == "vllm plugin"
        assert report.n_tokens == 8
        # two clocks, but durations compare: the engine's part lies within what the client saw
        assert report.prefill_ns + report.decode_ns <= t.end_ns - t.started_ns
    assert sum(step.prefill_tokens or 0 for step in run.steps) >= sum(
        t.cell.input_tokens for t in run.requests
    )
    found = json.loads(folder.with_suffix(".out").read_text())
    assert {name for name in ("front_end", "queue", "prefill") if found["phases"][name]} == {
        "front_end",
        "queue",
        "prefill",
    }


def test_ctrl_c_keeps_what_was_measured_and_stops_every_process(tiny, tmp_path):
    ours = Phasemeter(tmp_path / "run.jsonl", tiny, "--repeats", "100000")
    ours.measured(20)
    assert len(vllm_processes(ours.tree)) >= 2
    ours.process.send_signal(signal.SIGINT)
    assert ours.ended(60) == 130
    ours.all_gone()
    run = read_run(tmp_path / "run.jsonl")
    assert run.footer is not None
    assert run.footer.interrupted


def test_kill_9_of_phasemeter_leaves_no_server_behind(tiny, tmp_path):
    ours = Phasemeter(tmp_path / "run.jsonl", tiny, "--repeats", "100000", flags=FLAGS)
    ours.until(lambda: ours.process.poll() is not None or len(vllm_processes(ours.tree)) >= 2)
    assert ours.process.poll() is None, ours.told()
    ours.process.kill()
    ours.process.wait(20)
    ours.all_gone()


def test_a_server_that_is_killed_ends_the_run_with_its_reason(tiny, tmp_path):
    ours = Phasemeter(tmp_path / "run.jsonl", tiny, "--repeats", "100000")
    ours.measured(20)
    os.kill(vllm_processes(ours.tree)[0], signal.SIGKILL)
    assert ours.ended(120) == 4, ours.told()
    assert "SIGKILL" in ours.told()
    ours.all_gone()
    run = read_run(tmp_path / "run.jsonl")
    assert run.footer is not None
    assert run.footer.error is not None
    assert sum(t.outcome is Outcome.OK for t in run.requests) >= 5


def test_a_prompt_that_is_too_long_is_told_before_anything_is_measured(tiny, tmp_path):
    ours = Phasemeter(tmp_path / "run.jsonl", tiny, "--input-tokens", str(CONTEXT))
    assert ours.ended() == 2, ours.told()
    assert str(CONTEXT) in ours.told().splitlines()[-1]
    assert not (tmp_path / "run.jsonl").exists()
    ours.all_gone()


def test_a_flag_that_this_version_lacks_is_told_with_near_names(tiny, tmp_path):
    ours = Phasemeter(tmp_path / "run.jsonl", tiny, flags=("--max-num-sequences", "8"))
    assert ours.ended() == 2, ours.told()
    assert "--max-num-seqs" in ours.told()
    assert not (tmp_path / "run.engine.log").exists()


def test_a_port_that_is_taken_is_told(tiny, tmp_path):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        ours = Phasemeter(tmp_path / "run.jsonl", tiny, flags=("--port", str(held.getsockname()[1])))
        assert ours.ended() == 2, ours.told()
    assert "in use" in ours.told()


def test_an_architecture_that_vllm_does_not_know_is_told(tiny, tmp_path):
    folder = tmp_path / "strange"
    folder.mkdir()
    config = json.loads((tiny / "config.json").read_text()) | {"architectures": ["StrangeForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    ours = Phasemeter(tmp_path / "run.jsonl", folder)
    assert ours.ended() == 4, ours.told()
    assert "does not know the model's architecture ['StrangeForCausalLM']" in ours.told()
    ours.all_gone()

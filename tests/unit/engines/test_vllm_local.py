from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phasemeter.engines import open_engine
from phasemeter.engines.spec import EngineSpec
from phasemeter.engines.vllm_local import VllmLocal, VllmLocalOptions
from phasemeter.engines.vllm_pipe import last_lines
from phasemeter.record.clock import ManualClock
from phasemeter.record.engine import EmissionKind, Outcome
from phasemeter.record.errors import EngineError, InputError
from phasemeter.record.file import read_run
from phasemeter.record.request import Cell, Request, Sampling
from phasemeter.record.timeline import broken_invariants, timeline_of
from unit.engines.fake_vllm import write_fake_vllm

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 500,
}


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    return write_fake_vllm(tmp_path_factory.mktemp("fake"))


@contextlib.asynccontextmanager
async def running(environment, *flags, config=CONFIG, model="tiny", log=None):
    options = VllmLocalOptions(
        model=model, flags=flags, config=config, environment=environment, log=log, dtype="float32"
    )
    engine = VllmLocal(options)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def ask(first=5, n=4, new=6, **sampling) -> Request:
    ids = (first, *range(100, 99 + new))
    return Request("r", Cell(new, n), max_tokens=n, token_ids=ids, sampling=Sampling(**sampling))


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


def members(group: int) -> set[int]:
    """Processes of a group that still run; a zombie does not."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of = stat.read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state != "Z":
                found.add(int(stat.parent.name))
    return found


async def until(what, seconds=10.0):
    for _ in range(round(seconds / 0.05)):
        if what():
            return True
        await asyncio.sleep(0.05)
    return False


async def test_it_says_what_it_runs(environment):
    async with running(environment, "--max-model-len", "64") as engine:
        info = engine.info
        assert (info.kind, info.model, info.version) == ("vllm-local", "tiny", "9.9")
        assert (info.dtype, info.max_context_tokens, info.vocab_tokens) == ("float32", 64, 500)
        assert info.weights == "random (vLLM's dummy loader)"
        assert info.details["tokenizer"] == "yes"
        assert "--max-model-len 64" in info.details["flags"]
        assert info.details["prefix_caching"] == "off, by Phasemeter's default"
        assert engine.import_ns > 0
        assert engine.build_ns > 0
        assert engine.first_ns > 0


async def test_the_engines_own_durations_come_back(environment):
    async with running(environment) as engine:
        result = (await engine.generate(ask(n=5))).settle()
    report = result.report
    assert result.outcome is Outcome.OK
    assert (report.queue_ns, report.prefill_ns, report.decode_ns) == (2_000_000, 10_000_000, 12_000_000)
    assert (report.n_tokens, report.cached_tokens, report.preemptions) == (5, 4, 1)
    assert report.e2e_ns >= 5_000_000
    assert result.finish_reason == "length"
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (6, 5)
    assert "".join(e.text for e in result.emissions) == "abcde"
    assert [e.n_tokens for e in result.emissions] == [1] * 5
    timeline = timeline_of(ask(n=5), result, arrived_ns=result.connected_ns, started_ns=result.connected_ns)
    assert broken_invariants(timeline) == []


async def test_before_and_after_the_engine_are_told_by_one_clock(environment):
    async with running(environment, "--behave", "here") as engine:
        result = (await engine.generate(ask(n=3))).settle()
    report = result.report
    assert report.before_ns >= 5_000_000
    assert report.after_ns >= 10_000_000
    assert report.queue_ns + report.prefill_ns == pytest.approx(12_000_000, abs=2_000)
    # they lie between the request's way in and its first token's way out
    first_ns = result.emissions[0].recv_ns - result.sent_ns
    assert report.before_ns + report.queue_ns + report.prefill_ns + report.after_ns <= first_ns


@pytest.mark.parametrize("flags", [("--behave", "ahead"), ("--behave", "older"), ()])
async def test_stamps_of_another_clock_tell_nothing_of_before_and_after(environment, flags):
    async with running(environment, *flags) as engine:
        report = (await engine.generate(ask())).settle().report
    assert (report.before_ns, report.after_ns) == (None, None)
    assert "older" in flags or report.prefill_ns == pytest.approx(10_000_000, abs=2_000)


@pytest.mark.parametrize(
    ("behave", "preemptions", "cached", "prefill_ns"),
    [("old", None, 4, 10_000_000), ("older", None, None, None)],
)
async def test_what_a_version_does_not_tell_is_none(environment, behave, preemptions, cached, prefill_ns):
    async with running(environment, "--behave", behave) as engine:
        report = (await engine.generate(ask())).settle().report
    assert (report.preemptions, report.cached_tokens, report.prefill_ns) == (preemptions, cached, prefill_ns)


async def test_a_model_with_a_tokenizer_answers_in_text_and_takes_text(environment, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("")
    async with running(environment, config=None, model=str(tmp_path)) as engine:
        request = Request("t", Cell(5, 3), max_tokens=3, prompt="hello")
        result = (await engine.generate(request)).settle()
    assert engine.info.weights == "checkpoint"
    assert [(e.kind, e.text) for e in result.emissions] == [(EmissionKind.TEXT, c) for c in "abc"]
    assert result.usage.prompt_tokens == 5


async def test_without_a_tokenizer_ids_are_shown_and_text_is_refused(environment):
    async with running(environment, "--skip-tokenizer-init") as engine:
        shown = (await engine.generate(ask(n=3))).settle()
        assert "".join(e.text for e in shown.emissions) == "abc"  # ids 97, 98, 99 as bytes
        assert engine.info.details["tokenizer"] == "none"
        result = (await engine.generate(Request("t", Cell(5, 3), max_tokens=3, prompt="hello"))).settle()
    assert result.outcome is Outcome.ENGINE_ERROR
    assert "token ids alone" in result.error


async def test_many_in_flight_keep_their_own_pieces(environment):
    async with running(environment) as engine:
        replies = await asyncio.gather(*(engine.generate(ask(n=1 + i % 7)) for i in range(60)))
    for i, reply in enumerate(replies):
        result = reply.settle()
        assert sum(e.n_tokens for e in result.emissions) == 1 + i % 7 == result.report.n_tokens


async def test_a_context_too_long_is_data_and_the_engine_goes_on(environment):
    async with running(environment, "--max-model-len", "10") as engine:
        long = (await engine.generate(ask(n=5, new=6))).settle()
        short = (await engine.generate(ask(n=4, new=6))).settle()
    assert long.outcome is Outcome.ENGINE_ERROR
    assert "6 prompt + 5 output tokens = 11" in long.error
    assert short.outcome is Outcome.OK


async def test_what_vllm_refuses_is_told_in_its_words(environment):
    async with running(environment) as engine:
        refused = (await engine.generate(ask(first=13))).settle()
        after = (await engine.generate(ask())).settle()
    assert refused.outcome is Outcome.ENGINE_ERROR
    assert refused.error == "ValueError: that prompt brings bad luck"
    assert after.outcome is Outcome.OK


async def test_cancellation_aborts_in_the_engine(environment, tmp_path):
    async with running(environment, "--max-model-len", "100000") as engine:
        task = asyncio.create_task(engine.generate(ask(n=50_000)))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine._flights == {}
        result = (await engine.generate(ask())).settle()
    assert result.outcome is Outcome.OK


async def test_a_child_that_dies_is_noticed_by_all_in_flight(environment):
    async with running(environment, "--max-model-len", "100000") as engine:
        waiting = asyncio.create_task(engine.generate(ask(n=50_000)))
        await asyncio.sleep(0.1)
        broken = (await engine.generate(ask(first=66))).settle()
        other = (await waiting).settle()
        assert broken.outcome is other.outcome is Outcome.RESET
        assert "exit code 7" in other.error
        assert other.emissions  # what had come is kept
        with pytest.raises(EngineError, match="exit code 7"):
            await engine.generate(ask())


async def test_a_dead_engine_core_is_told_with_its_cause(environment):
    async with running(environment) as engine:
        broken = (await engine.generate(ask(first=67))).settle()
        assert broken.error == "RuntimeError: engine core gone; caused by MemoryError: no room"
        with pytest.raises(EngineError, match="no room"):
            await engine.generate(ask())


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--behave", "out-of-memory"), "the GPU ran out of memory"),
        (("--no-such-flag",), "does not know the flag --no-such-flag"),
    ],
)
async def test_a_start_that_fails_says_why(environment, flags, reason):
    with pytest.raises(EngineError, match=reason):
        async with running(environment, *flags):
            pass


async def test_what_cannot_be_used_is_told_before_anything_is_loaded():
    engine = VllmLocal(VllmLocalOptions(model="tiny", config=CONFIG, environment={}))
    with pytest.raises(InputError, match="cannot import vllm"):
        await engine.start()
    engine = VllmLocal(VllmLocalOptions(model="tiny", python="nowhere/python", config=CONFIG))
    with pytest.raises(InputError, match="nowhere/python"):
        await engine.start()
    with pytest.raises(InputError, match="--model"):
        VllmLocal(VllmLocalOptions(model=" "))


async def test_nothing_is_left_after_close(environment):
    async with running(environment) as engine:
        pid = engine._pipe._transport.get_pid()
        group = os.getpgid(pid)
    assert await until(lambda: gone(pid) and not members(group))
    await engine.close()


async def test_nothing_is_left_when_we_are_killed(environment, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import asyncio, os, sys\n"
        "from phasemeter.engines.vllm_local import VllmLocal, VllmLocalOptions\n"
        f"CONFIG = {CONFIG!r}\n"
        "async def main():\n"
        "    environment = dict(os.environ, PYTHONPATH=sys.argv[1])\n"
        "    engine = VllmLocal(VllmLocalOptions(model='m', config=CONFIG, environment=environment))\n"
        "    await engine.start()\n"
        "    print(engine._pipe._transport.get_pid(), flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    source = str(Path(__file__).parents[3] / "src")
    parent = subprocess.Popen(  # noqa: ASYNC220 - it only lives to be killed
        [sys.executable, str(script), environment["PYTHONPATH"]],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": source},
    )  # fmt: skip
    child = int(await asyncio.to_thread(parent.stdout.readline))
    parent.send_signal(signal.SIGKILL)
    await asyncio.to_thread(parent.wait)
    parent.stdout.close()
    assert await until(lambda: gone(child) and not members(child), 15)


def test_it_is_opened_by_name():
    spec = EngineSpec(kind="vllm-local", model="ernie-4.5-0.3b", engine_flags=("--enforce-eager",))
    engine = open_engine(spec, ManualClock())
    assert (engine.info.kind, engine.info.model) == ("vllm-local", "ernie-4.5-0.3b")
    assert engine.shape.name == "ernie-4.5-0.3b"
    with pytest.raises(InputError, match="--model"):
        open_engine(EngineSpec(kind="vllm-local"), ManualClock())


def test_the_command_measures_with_it(environment, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    source = str(Path(__file__).parents[3] / "src")
    path = os.pathsep.join((source, environment["PYTHONPATH"]))
    out = tmp_path / "run.jsonl"
    command = [sys.executable, "-m", "phasemeter", "measure", "--engine", "vllm-local", "--dtype", "float32"]
    command += ["--model", str(tmp_path / "model"), "--input-tokens", "8,16", "--output-tokens", "5"]
    command += ["--repeats", "2", "--warmup", "1", "--out", str(out), "--", "--max-model-len", "64"]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path}, capture_output=True)
    run = read_run(out)
    measured = [t for t in run.requests if not t.cell.warmup]
    assert [t.outcome for t in measured] == [Outcome.OK] * len(measured)
    assert {(t.report.queue_ns, t.report.prefill_ns, t.report.decode_ns) for t in measured} == {
        (2_000_000, 10_000_000, 12_000_000)
    }
    assert {len(t.deltas_ns) for t in measured} == {5}
    assert run.header.engine.kind == "vllm-local"
    assert "first_request_s=" in run.header.notes[0]
    assert str(tmp_path) not in out.read_text()


def test_a_long_log_is_read_from_its_end(tmp_path):
    log = tmp_path / "log"
    log.write_text("x" * 100_000 + "\nRuntimeError: no room\n")
    assert last_lines(log)[-1] == "RuntimeError: no room"
    assert last_lines(tmp_path / "none") == []

"""Real vLLM in process, on a CPU: a tiny ERNIE with random weights, by token ids."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from phasemeter.engines.vllm_local import VllmLocal, VllmLocalOptions
from phasemeter.record.engine import Outcome
from phasemeter.record.errors import EngineError
from phasemeter.record.request import Cell, Request, Sampling
from phasemeter.record.timeline import broken_invariants, timeline_of

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

_ROOT = Path(__file__).parents[2]
_PYTHON = next(
    (
        str(path)
        for path in (
            _ROOT / ".venv-vllm/bin/python",
            Path(os.environ.get("PHASEMETER_TEST_VLLM_PYTHON", "none")),
        )
        if path.exists()
    ),
    None,
)
TINY = {
    "model_type": "ernie4_5",
    "architectures": ["Ernie4_5ForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
FLAGS = ("--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "16", "--no-enable-prefix-caching")


def _environment() -> dict[str, str]:
    settings = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_DO_NOT_TRACK": "1"}
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | settings


def _ask(n: int, new: int, serial: int = 0) -> Request:
    ids = tuple(100 + (serial * 37 + i) % 1500 for i in range(new))
    sampling = Sampling(temperature=0.0)
    return Request(f"r{serial}", Cell(new, n), max_tokens=n, token_ids=ids, sampling=sampling)


@pytest.mark.skipif(_PYTHON is None, reason="no vLLM: neither .venv-vllm nor PHASEMETER_TEST_VLLM_PYTHON")
async def test_real_vllm_in_process(tmp_path: Path) -> None:
    """One start, since it takes half a minute: budget, concurrency, abort, refusal, death."""
    options = VllmLocalOptions(
        model="tiny-ernie",
        python=_PYTHON,
        flags=FLAGS,
        dtype="float32",
        config=TINY,
        log=tmp_path / "vllm.log",
        environment=_environment(),
        start_s=300,
    )
    engine = VllmLocal(options)
    await engine.start()
    try:
        _says_what_it_runs(engine)
        await _budget_adds_up(engine)
        await _many_at_once(engine)
        await _refuses_too_long(engine)
        await _abort_frees_the_engine(engine)
        await _death_is_told(engine)
    finally:
        await engine.close()


def _says_what_it_runs(engine: VllmLocal) -> None:
    info = engine.info
    assert info.version is not None
    assert (info.dtype, info.device, info.vocab_tokens) == ("float32", "cpu", 2048)
    assert (info.weights, info.details["tokenizer"]) == ("random (vLLM's dummy loader)", "yes")
    assert info.max_context_tokens == 512
    assert info.details["max_num_seqs"] == "16"


async def _budget_adds_up(engine: VllmLocal) -> None:
    for n, new in ((1, 64), (16, 64), (16, 300)):
        request = _ask(n, new)
        result = (await engine.generate(request)).settle()
        report = result.report
        assert result.outcome is Outcome.OK
        assert report is not None
        assert report.n_tokens == n == sum(e.n_tokens or 0 for e in result.emissions)
        assert report.queue_ns is not None
        assert report.prefill_ns is not None
        assert report.e2e_ns is not None
        assert result.sent_ns is not None
        first_ns = result.emissions[0].recv_ns - result.sent_ns
        # what the engine core saw lies inside what its front end saw, and that inside what we saw
        assert report.queue_ns + report.prefill_ns <= first_ns
        assert report.before_ns is not None
        assert report.after_ns is not None
        assert report.before_ns + report.queue_ns + report.prefill_ns + report.after_ns <= first_ns
        assert report.queue_ns + report.prefill_ns + (report.decode_ns or 0) <= report.e2e_ns
        assert report.e2e_ns <= result.end_ns - result.connected_ns + 1_000_000
        assert report.cached_tokens == 0
        line = timeline_of(request, result, arrived_ns=result.connected_ns, started_ns=result.connected_ns)
        assert broken_invariants(line) == []


async def _many_at_once(engine: VllmLocal) -> None:
    requests = [_ask(1 + i % 12, 20 + 17 * i, i) for i in range(24)]  # more than --max-num-seqs
    replies = await asyncio.gather(*(engine.generate(r) for r in requests))
    results = [reply.settle() for reply in replies]
    assert all(r.outcome is Outcome.OK for r in results)
    assert [r.usage.completion_tokens for r in results if r.usage] == [r.max_tokens for r in requests]
    waits = [r.report.queue_ns or 0 for r in results if r.report is not None]
    assert max(waits) > 5 * sorted(waits)[0]  # eight of them had to wait for a place


async def _refuses_too_long(engine: VllmLocal) -> None:
    result = (await engine.generate(_ask(13, 500))).settle()
    assert result.outcome is Outcome.ENGINE_ERROR
    assert "= 513, the engine's context holds 512" in (result.error or "")


async def _abort_frees_the_engine(engine: VllmLocal) -> None:
    long = [asyncio.create_task(engine.generate(_ask(480, 20, i))) for i in range(16)]
    await asyncio.sleep(0.3)
    for task in long:
        task.cancel()
    await asyncio.gather(*long, return_exceptions=True)
    result = (await engine.generate(_ask(4, 20, 99))).settle()
    assert result.outcome is Outcome.OK
    assert result.report is not None
    # all places were taken; had the aborts not arrived, this one had waited for 480 steps
    assert (result.report.queue_ns or 0) < 500_000_000


async def _death_is_told(engine: VllmLocal) -> None:
    waiting = asyncio.create_task(engine.generate(_ask(480, 20)))
    await asyncio.sleep(0.05)  # well before 480 tokens, also where this machine is slow to wake us
    assert engine._pipe is not None
    assert engine._pipe._transport is not None
    engine._pipe._transport.kill()
    result = (await waiting).settle()
    assert result.outcome is Outcome.RESET
    assert "killed by SIGKILL" in (result.error or "")
    with pytest.raises(EngineError, match="killed by SIGKILL"):
        await engine.generate(_ask(4, 20))

from __future__ import annotations

import asyncio
import sys
import threading

import pytest
from msgspec import structs

from phasemeter.engines.transformers_local import LocalOptions, TransformersLocal
from phasemeter.record.engine import EmissionKind, Outcome
from phasemeter.record.errors import EngineError, InputError
from phasemeter.record.request import Cell, Request, Sampling

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

TINY = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,  # logits far enough apart for greedy choices to be stable
}
PROMPT = (5, 301, 77, 300, 12, 9)


class CountingClock:
    """Every reading is one nanosecond later: stamps then tell the order of readings exactly."""

    def __init__(self):
        self.t_ns = 0
        self._lock = threading.Lock()

    def now_ns(self):
        with self._lock:
            self.t_ns += 1
            return self.t_ns


def ask(ids=PROMPT, n=6, **sampling) -> Request:
    cell = Cell(input_tokens=max(1, len(ids)), output_tokens=n)
    return Request(id="r", cell=cell, max_tokens=n, token_ids=tuple(ids), sampling=Sampling(**sampling))


@pytest.fixture
async def engine():
    options = LocalOptions(
        model="tiny", config=TINY, dtype="float32", device="cpu", threads=1, clock=CountingClock()
    )
    local = TransformersLocal(options)
    await local.start()
    yield local
    await local.close()


async def tokens(engine, request) -> list[int]:
    return (await engine.generate(request))._steps.token_ids


def recomputed(model, ids, n) -> list[int]:
    """Greedy continuation without any cache: the whole text anew for every token."""
    ids = list(ids)
    with torch.inference_mode():
        for _ in range(n):
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[-n:]


async def test_it_says_what_it_runs(engine):
    info = engine.info
    assert info.kind == "local"
    assert info.weights == "random, seed 0"
    assert (info.dtype, info.device) == ("float32", "cpu")
    assert (info.vocab_tokens, info.max_context_tokens) == (500, 64)
    assert info.takes_token_ids
    assert info.honours_ignore_eos
    assert info.details["tokenizer"] == "bytes"
    assert info.details["threads"] == "1"
    assert info.versions["torch"] == torch.__version__
    assert engine.weights_ns > 0


async def test_one_prefill_then_one_forward_a_token(engine):
    model = engine._loaded.model
    seen, scored = [], []
    model.register_forward_pre_hook(
        lambda _m, _a, kw: seen.append(tuple(kw["input_ids"].shape)), with_kwargs=True
    )
    model.lm_head.register_forward_pre_hook(lambda _m, args: scored.append(args[0].shape[1]))
    result = (await engine.generate(ask(n=4))).settle()
    assert seen == [(1, len(PROMPT)), (1, 1), (1, 1), (1, 1)]
    assert scored == [1, 1, 1, 1]  # logits for the last position only, in the prefill too
    assert [e.n_tokens for e in result.emissions] == [1, 1, 1, 1]


@pytest.mark.parametrize("kind", ["static", "dynamic"])
async def test_cached_steps_give_what_full_recomputation_gives(engine, kind):
    engine._stepper.cache_kind = kind
    expected = recomputed(engine._loaded.model, PROMPT, 8)
    assert await tokens(engine, ask(n=8)) == expected
    assert len(set(expected)) > 1


async def test_client_and_engine_reconcile_to_the_nanosecond(engine):
    result = (await engine.generate(ask(n=5))).settle()
    report = result.report
    stamps = [e.recv_ns for e in result.emissions]
    assert result.outcome is Outcome.OK
    assert result.connected_ns == result.sent_ns
    assert result.first_byte_ns == stamps[0]
    front_end_ns = stamps[0] - result.sent_ns - report.queue_ns - report.prefill_ns
    # Readings of the clock in order: handed over, taken, ids ready, five tokens, end.
    assert (report.queue_ns, front_end_ns, report.prefill_ns) == (1, 1, 1)
    assert report.decode_ns == stamps[-1] - stamps[0] == 4
    assert result.end_ns == stamps[-1] + 1
    assert (report.n_tokens, report.cached_tokens, report.source) == (5, 0, "transformers")
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (len(PROMPT), 5)
    assert result.finish_reason == "length"


async def test_the_device_is_waited_for_before_every_stamp(engine, monkeypatch):
    order = []
    read = engine._clock.now_ns

    def stamp():
        order.append("stamp")
        return read()

    engine._loaded.model.register_forward_pre_hook(lambda *_: order.append("forward"))
    monkeypatch.setattr(engine._stepper, "_synchronise", lambda: order.append("wait"))
    monkeypatch.setattr(engine._clock, "now_ns", stamp)
    await engine.generate(ask(n=3))
    step = ["forward", "wait", "stamp"]
    assert order == ["stamp", "stamp", "wait", "stamp", *step, *step, *step, "stamp"]


async def test_one_token_has_no_decode_time(engine):
    report = (await engine.generate(ask(n=1))).settle().report
    assert (report.n_tokens, report.decode_ns) == (1, 0)


async def test_text_is_made_after_the_stream_with_visible_placeholders(engine):
    reply = await engine.generate(ask(n=6))
    ids = reply._steps.token_ids
    result = reply.settle()
    assert reply.settle() is result
    text = "".join(e.text for e in result.emissions)
    assert text == engine._loaded.tokenizer.decode(ids)
    assert any(f"⟨{i}⟩" in text for i in ids if i > 255)


async def test_end_of_text_stops_unless_ignored(engine):
    free = await tokens(engine, ask(n=8))
    stop = free[2]
    first = free.index(stop)
    engine._loaded = engine._stepper._loaded = structs.replace(engine._loaded, eos_ids=frozenset({stop}))
    stopped = (await engine.generate(ask(n=8, ignore_eos=False))).settle()
    assert stopped.finish_reason == "stop"
    assert len(stopped.emissions) == first + 1
    full = (await engine.generate(ask(n=8, ignore_eos=True))).settle()
    assert full.finish_reason == "length"
    assert len(full.emissions) == 8


async def test_sampling_is_seeded_and_narrow_nuclei_are_greedy(engine):
    greedy = await tokens(engine, ask(n=8))
    warm = {"temperature": 3.0}
    assert await tokens(engine, ask(n=8, temperature=0.0)) == greedy
    assert await tokens(engine, ask(n=8, seed=1, **warm)) == await tokens(engine, ask(n=8, seed=1, **warm))
    assert await tokens(engine, ask(n=8, seed=1, **warm)) != await tokens(engine, ask(n=8, seed=2, **warm))
    assert await tokens(engine, ask(n=8, top_k=1, **warm)) == greedy
    assert await tokens(engine, ask(n=8, top_p=1e-9, **warm)) == greedy


def test_the_nucleus_keeps_the_fewest_tokens_that_reach_top_p():
    from phasemeter.engines.local_steps import _nucleus

    kept = _nucleus(torch.tensor([[0.1, 0.5, 0.15, 0.25]]), 0.7)
    assert (kept[0] > 0).tolist() == [False, True, False, True]
    kept = _nucleus(torch.tensor([[0.1, 0.5, 0.15, 0.25]]), 0.5)
    assert (kept[0] > 0).tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        (ask(range(60), 6), ["60 prompt", "6 output", "66", "64"]),
        (ask((3, 500)), ["500", "vocabulary"]),
        (ask((3, -1)), ["-1", "vocabulary"]),
        (ask(()), ["empty"]),
        (ask(n=0), ["max_tokens is 0"]),
        (ask(temperature=-1.0), ["-1.0", "negative"]),
    ],
)
async def test_a_request_that_cannot_run_is_data_with_the_numbers(engine, request_, parts):
    result = (await engine.generate(request_)).settle()
    assert result.outcome is Outcome.ENGINE_ERROR
    assert result.emissions == ()
    assert result.report.prefill_ns is None
    assert result.first_byte_ns is None
    assert all(part in result.error for part in parts)
    assert (await engine.generate(ask(n=2))).settle().outcome is Outcome.OK


async def test_a_context_filled_to_the_last_token_runs(engine):
    result = (await engine.generate(ask(range(60), 4))).settle()
    assert result.outcome is Outcome.OK
    assert len(result.emissions) == 4


async def test_out_of_memory_in_mid_stream_keeps_the_tokens_before_it(engine):
    calls = []

    def fail(_module, _args):
        calls.append(None)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory.\n Tried to allocate 20 GiB")

    hook = engine._loaded.model.register_forward_pre_hook(fail)
    result = (await engine.generate(ask(n=6))).settle()
    hook.remove()
    assert result.outcome is Outcome.ENGINE_ERROR
    assert result.error == "CUDA out of memory. Tried to allocate 20 GiB"
    assert len(result.emissions) == 2
    assert result.finish_reason is None
    assert (await engine.generate(ask(n=2))).settle().outcome is Outcome.OK


async def test_requests_beyond_one_wait_and_the_wait_is_the_queue(engine):
    gate, inside = threading.Event(), threading.Event()

    def hold(_module, _args):
        inside.set()
        gate.wait(30)

    hook = engine._loaded.model.register_forward_pre_hook(hold)
    first = asyncio.ensure_future(engine.generate(ask(n=3)))
    second = asyncio.ensure_future(engine.generate(ask(n=3)))
    assert await asyncio.to_thread(inside.wait, 30)  # the event loop stays free while a step runs
    gate.set()
    a, b = (await first).settle(), (await second).settle()
    hook.remove()
    assert a.report.queue_ns < b.report.queue_ns
    assert b.sent_ns + b.report.queue_ns > a.end_ns  # taken only after the first had ended
    assert b.sent_ns < a.emissions[0].recv_ns  # though handed over before its first token


async def test_cancelling_stops_after_the_step_and_frees_the_worker(engine):
    steps, inside = [], threading.Event()

    def count(_module, _args):
        steps.append(None)
        inside.set()
        engine_held.wait(30)

    engine_held = threading.Event()
    engine._loaded.model.register_forward_pre_hook(count)
    running = asyncio.ensure_future(engine.generate(ask(n=50)))
    assert await asyncio.to_thread(inside.wait, 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    engine_held.set()
    after = (await engine.generate(ask(n=2))).settle()
    assert after.outcome is Outcome.OK
    assert len(steps) == 1 + 2  # the one that was running, and those of the request after it


async def test_given_up_on_purpose_it_ends_after_those_tokens(engine):
    result = (await engine.generate(structs.replace(ask(n=20), cancel_after_tokens=4))).settle()
    assert (result.outcome, len(result.emissions)) == (Outcome.CANCELLED, 4)
    assert result.finish_reason is None
    longer = (await engine.generate(structs.replace(ask(n=3), cancel_after_tokens=4))).settle()
    assert longer.outcome is Outcome.OK


async def test_over_its_time_it_ends_after_the_step(engine):
    engine._options = structs.replace(engine._options, timeout_s=0.2)

    def slow(_module, _args):
        threading.Event().wait(0.15)

    hook = engine._loaded.model.register_forward_pre_hook(slow)
    result = (await engine.generate(ask(n=50))).settle()
    hook.remove()
    assert result.outcome is Outcome.TIMEOUT_TOTAL
    assert len(result.emissions) < 50
    engine._options = structs.replace(engine._options, timeout_s=60.0)
    assert (await engine.generate(ask(n=2))).settle().outcome is Outcome.OK


async def test_a_closed_or_unstarted_engine_says_so():
    local = TransformersLocal(LocalOptions(model="tiny", config=TINY))
    with pytest.raises(EngineError):
        await local.generate(ask())
    await local.close()
    await local.close()


async def test_text_prompts_are_bytes_for_a_preset(engine):
    request = Request(id="t", cell=Cell(5, 2), max_tokens=2, prompt="héy")
    result = (await engine.generate(request)).settle()
    assert result.usage.prompt_tokens == 4
    assert {e.kind for e in result.emissions} <= {EmissionKind.TEXT, EmissionKind.EMPTY}


async def test_without_torch_the_mend_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    local = TransformersLocal(LocalOptions(model="tiny", config=TINY))
    with pytest.raises(InputError, match=r"phasemeter\[local\]"):
        await local.start()
    await local.close()


@pytest.mark.parametrize(
    "bad", [{"model": " "}, {"api": "talk"}, {"threads": 0}, {"api": "chat", "config": TINY}]
)
def test_options_are_checked_whole(bad):
    with pytest.raises(InputError):
        TransformersLocal(LocalOptions(**({"model": "tiny"} | bad)))

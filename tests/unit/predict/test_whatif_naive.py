"""The simulation takes many steps at once; told step by step, request by request, the same must come out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.predict.whatif import simulate
from phasemeter.predict.whatif_load import EngineSettings, Traffic
from phasemeter.predict.whatif_times import LinearSteps
from unit.predict.naive_stepper import Naive, One, play

MODEL = LinearSteps(
    step=math.pi * 1e-3, prompt_token=math.e * 1e-5, pair=1.234e-8, sequence=math.sqrt(2) * 1e-4, context_token=3.7e-7
)  # fmt: skip
"""Nothing that ends at the same moment by a round number."""


@st.composite
def cases(draw):
    n = draw(st.integers(1, 14))
    size = draw(st.sampled_from([1, 2, 4, 16]))
    prompts = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 30), min_size=n, max_size=n))
    need = max(math.ceil((p + o) / size) for p, o in zip(prompts, outputs, strict=True))
    seqs = draw(st.integers(1, 6))
    chunked = draw(st.booleans())
    threshold = draw(st.sampled_from([0, 0, 3, 7])) if chunked else 0
    budget = draw(st.integers(seqs, 24))
    if threshold:
        budget = seqs * (threshold + 1)  # else the order of admission would matter, in which we deviate
    if not chunked:
        budget = max(budget, 75)
    engine = EngineSettings(
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        chunked_prefill=chunked,
        long_prefill_token_threshold=threshold,
        block_size=size,
        kv_blocks=need + draw(st.integers(0, 2 * need)),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        reserve_full_prompt=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
    )
    users = draw(st.sampled_from([None, None, 1, 3]))
    gaps = draw(st.lists(st.floats(0, 0.12, allow_subnormal=False), min_size=n, max_size=n))
    priority = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    return engine, prompts, outputs, None if users else np.cumsum(gaps).tolist(), users, priority


def naive(engine: EngineSettings, ones, users, model=MODEL):
    told = Naive(
        model,
        seqs=engine.max_num_seqs,
        budget=engine.max_num_batched_tokens,
        blocks=engine.kv_blocks,
        size=engine.block_size,
        chunked=engine.chunked_prefill,
        threshold=engine.long_prefill_token_threshold,
        watermark=engine.watermark,
        full=engine.reserve_full_prompt,
        policy=engine.policy,
        caching=engine.prefix_caching,
    )
    steps = play(told, ones, users=users, front=model.front_end_s)
    return told, steps


@settings(max_examples=250, deadline=None)
@given(cases())
def test_taking_many_steps_at_once_changes_nothing(case):
    engine, prompts, outputs, arrive, users, priority = case
    ones = [
        One(i, arrive[i] if arrive else 0.0, p, o, priority[i])
        for i, (p, o) in enumerate(zip(prompts, outputs, strict=True))
    ]
    told, _ = naive(engine, ones, users)
    traffic = Traffic(prompts, outputs, arrive_s=arrive, users=users, priority=priority)
    seen = simulate(traffic, engine, MODEL)
    assert seen.preemptions.tolist() == [one.preemptions for one in ones]
    assert seen.scheduled_s == pytest.approx([one.scheduled for one in ones], abs=1e-9)
    assert seen.first_s == pytest.approx([one.first for one in ones], abs=1e-9)
    assert seen.ended_s == pytest.approx([one.end for one in ones], abs=1e-9)
    gaps = sorted(b - a for one in ones for a, b in zip(one.stamps, one.stamps[1:], strict=False))
    assert int(seen.gap_counts.sum()) == len(gaps) == sum(outputs) - len(ones)
    assert float((seen.gaps_s * seen.gap_counts).sum()) == pytest.approx(sum(gaps), abs=1e-9)
    assert seen.kv_left == 0
    assert len(told.pool.free) == engine.kv_blocks


@st.composite
def shared(draw):
    n = draw(st.integers(2, 12))
    size = draw(st.sampled_from([2, 4]))
    keys = draw(st.lists(st.sampled_from(["a", "b", None]), min_size=n, max_size=n))
    lengths = draw(st.lists(st.integers(1, 30), min_size=n, max_size=n))
    more = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    outputs = draw(st.lists(st.integers(1, 12), min_size=n, max_size=n))
    gaps = draw(st.lists(st.floats(0, 0.1, allow_subnormal=False), min_size=n, max_size=n))
    engine = EngineSettings(
        max_num_seqs=draw(st.integers(1, 5)),
        max_num_batched_tokens=draw(st.integers(8, 40)),
        block_size=size,
        kv_blocks=2000,
        prefix_caching=True,
    )
    return engine, keys, lengths, more, outputs, np.cumsum(gaps).tolist()


@settings(max_examples=150, deadline=None)
@given(shared())
def test_shared_openings_are_hit_block_by_block(case):
    """With room for everything, what a pool of single blocks would hit is hit."""
    engine, keys, lengths, more, outputs, arrive = case
    size = engine.block_size
    ones, openings, prompts = [], [], []
    for i, (key, length, rest) in enumerate(zip(keys, lengths, more, strict=True)):
        prompts.append(length + rest)
        openings.append(((key, length),) if key else ())
        whole = [(key or f"own{i}", place) for place in range(length // size)]
        own = [(f"own{i}", place) for place in range(length // size, (length + rest + outputs[i]) // size)]
        ones.append(One(i, arrive[i], length + rest, outputs[i], hashes=whole + own))
    naive(engine, ones, None)
    traffic = Traffic(prompts, outputs, arrive_s=arrive, openings=openings)
    seen = simulate(traffic, engine, MODEL)
    assert seen.cached_tokens.tolist() == [one.cached for one in ones]
    assert seen.first_s == pytest.approx([one.first for one in ones], abs=1e-9)
    assert seen.ended_s == pytest.approx([one.end for one in ones], abs=1e-9)
    assert seen.kv_left == 0

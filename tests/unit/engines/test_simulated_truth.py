from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.engines.simulated.truth import Jitter, Truth, rng_of, schedule, truth_of
from phasemeter.record.errors import InputError

MS = 1_000_000

jitters = st.one_of(
    st.just(Jitter()),
    st.builds(
        Jitter,
        kind=st.sampled_from(["uniform", "normal", "lognormal"]),
        ms=st.none(),
        relative=st.floats(0, 3),
    ),
    st.builds(Jitter, kind=st.sampled_from(["uniform", "normal", "lognormal"]), ms=st.floats(0, 50)),
)
truths = st.builds(
    Truth,
    ttft_ms=st.none(),
    queue_ms=st.floats(0, 100),
    prefill_ms=st.floats(0, 100),
    prefill_us_per_token=st.floats(0, 100),
    prefill_ns_per_token_squared=st.floats(0, 10),
    itl_ms=st.floats(0, 100),
    itl_per_context_token_us=st.floats(0, 10),
    jitter=jitters,
    seed=st.integers(0, 9),
    tokens_per_chunk=st.integers(1, 9),
    first_chunk_tokens=st.one_of(st.none(), st.integers(1, 9)),
    cold_first_ms=st.floats(0, 100),
)


@given(truths, st.integers(0, 3), st.integers(1, 5000), st.integers(1, 200))
def test_offsets_never_go_back_and_tokens_add_up(truth, number, prompt_tokens, max_tokens):
    chunks = schedule(truth, number, prompt_tokens, max_tokens, rng_of(truth, number))
    offsets = [offset for offset, _ in chunks]
    assert offsets == sorted(offsets)
    assert offsets[0] >= 0
    assert sum(n for _, n in chunks) == max_tokens
    assert all(1 <= n <= max(truth.tokens_per_chunk, truth.first_chunk_tokens or 0) for _, n in chunks)


@given(truths, st.integers(0, 50))
def test_the_schedule_is_a_pure_function_of_truth_and_serial(truth, serial):
    first = schedule(truth, 1, 10, 20, rng_of(truth, serial))
    rng_of(truth, serial + 1).random()
    assert schedule(truth, 1, 10, 20, rng_of(truth, serial)) == first


def test_another_serial_or_seed_shakes_differently():
    truth = Truth(itl_ms=10, jitter=Jitter("normal", ms=1.0), seed=3)
    one = schedule(truth, 1, 5, 10, rng_of(truth, 0))
    assert one != schedule(truth, 1, 5, 10, rng_of(truth, 1))
    other = Truth(itl_ms=10, jitter=Jitter("normal", ms=1.0), seed=4)
    assert one != schedule(other, 1, 5, 10, rng_of(other, 0))


def test_every_part_of_the_prefill_by_hand():
    truth = Truth(
        queue_ms=2, prefill_ms=3, prefill_us_per_token=10, prefill_ns_per_token_squared=5, cold_first_ms=7
    )
    # 100 tokens: 2 + 3 + 100 * 0.010 + 10,000 * 5e-6 = 6.05 ms; the first of its shape 7 ms more
    assert schedule(truth, 1, 100, 1, rng_of(truth, 0)) == ((6_050_000, 1),)
    assert schedule(truth, 0, 100, 1, rng_of(truth, 0)) == ((13_050_000, 1),)
    # 60 of them cached: 2 + 3 + 40 * 0.010 + (10,000 - 3,600) * 5e-6 = 5.432 ms
    assert schedule(truth, 1, 100, 1, rng_of(truth, 0), 60) == ((5_432_000, 1),)


def test_gaps_grow_with_the_context_by_hand():
    truth = Truth(ttft_ms=1, itl_ms=2, itl_per_context_token_us=100, tokens_per_chunk=2)
    # prompt 10; chunk 1 holds tokens 0 and 1; chunk 2 comes behind contexts 12 and 13, chunk 3 behind 14
    gaps = [2 * 2 * MS + (12 + 13) * 100_000, 2 * MS + 14 * 100_000]
    assert schedule(truth, 1, 10, 5, rng_of(truth, 0)) == (
        (1 * MS, 2),
        (1 * MS + gaps[0], 2),
        (1 * MS + sum(gaps), 1),
    )


@pytest.mark.parametrize("per_chunk", [1, 3, 7])
def test_with_a_first_chunk_of_one_the_last_token_does_not_depend_on_the_chunks(per_chunk):
    truth = Truth(ttft_ms=50, itl_ms=10, tokens_per_chunk=per_chunk, first_chunk_tokens=1)
    assert schedule(truth, 1, 10, 100, rng_of(truth, 0))[-1][0] == 50 * MS + 99 * 10 * MS


@pytest.mark.parametrize(
    ("jitter", "mean", "spread"),
    [
        (Jitter("uniform", ms=3.0), 10.0, 3.0 / 3**0.5),
        (Jitter("normal", relative=0.1), 10.0, 1.0),
        (Jitter("lognormal", relative=0.5), 10.0, 5.0),
        (Jitter("lognormal", ms=2.0), 10.0, 2.0),
    ],
)
def test_jitter_has_the_mean_and_spread_it_says(jitter, mean, spread):
    truth = Truth(itl_ms=10, jitter=jitter)
    offsets = [offset / MS for offset, _ in schedule(truth, 1, 1, 40_000, rng_of(truth, 0))]
    gaps = [b - a for a, b in itertools.pairwise(offsets)]
    assert statistics.fmean(gaps) == pytest.approx(mean, rel=0.02)
    assert statistics.stdev(gaps) == pytest.approx(spread, rel=0.04)


@pytest.mark.parametrize(
    ("table", "field"),
    [
        ({"itl_ms": -1.0}, "itl_ms"),
        ({"itl_ms": float("nan")}, "itl_ms"),
        ({"ttft_ms": float("inf")}, "ttft_ms"),
        ({"ttft_ms": 5.0, "queue_ms": 1.0}, "ttft_ms"),
        ({"tokens_per_chunk": 0}, "tokens_per_chunk"),
        ({"slots": 0}, "slots"),
        ({"jitter": {"kind": "normal"}}, "jitter"),
        ({"jitter": {"kind": "normal", "ms": 1.0, "relative": 0.1}}, "jitter"),
        ({"jitter": {"kind": "cauchy", "ms": 1.0}}, "--truth"),
        ({"ttft": 5.0}, "--truth"),
    ],
)
def test_what_cannot_be_is_refused_by_name(table, field):
    with pytest.raises(InputError) as caught:
        truth_of(table)
    assert caught.value.field == field
    if field == "--truth":
        assert any(word in str(caught.value) for word in ("ttft", "cauchy"))


def test_schedule_refuses_no_tokens_and_too_many_cached():
    truth = Truth()
    with pytest.raises(InputError, match="max_tokens"):
        schedule(truth, 0, 5, 0, rng_of(truth, 0))
    with pytest.raises(InputError, match="cached_tokens"):
        schedule(truth, 0, 5, 1, rng_of(truth, 0), 6)

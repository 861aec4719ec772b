"""A sentence's verdict follows the arithmetic: another model, chip or length gives another one."""

from __future__ import annotations

from datetime import date

import pytest

from phasemeter.explain.audit.claims import Agreement, Claims, Growth, Placed, Row, SetUp, Setup, Statement
from phasemeter.explain.audit.judge import audit

ERNIE = {"model": "ernie-4.5-0.3b", "hardware": "a100-40gb", "engine": "vllm"}
LARGE = {"model": "qwen3-8b", "hardware": "a100-40gb", "engine": "vllm"}


def verdict(claim, setup: dict, *rows: Row) -> str:
    place = Setup(**setup)
    placed = [Placed(row, place) for row in rows]
    return next(
        one for one in audit(Claims("t", (*placed, Placed(claim, place)))) if one.id == claim.id
    ).verdict.value


def say(kind: str, tokens, output=(), **more) -> Statement:
    return Statement("s", kind, input_tokens=tuple(tokens), output_tokens=tuple(output), **more)


def grow(low: int, high: int, metric: str = "prefill", **how) -> Growth:
    return Growth("g", metric, low, high, **how)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(64, 512, "misleading"), (10_000, 60_000, "plausible"), (200_000, 1_600_000, "true")],
)
def test_the_square_law_is_true_only_far_beyond_the_crossover(low, high, expected):
    assert verdict(grow(low, high, law="O(N^2)"), ERNIE) == expected


def test_four_times_a_doubling_is_false_below_and_true_far_above_the_crossover():
    assert verdict(grow(64, 512, factor_per_doubling=4.0), ERNIE) == "false"
    assert verdict(grow(400_000, 3_200_000, factor_per_doubling=4.0), ERNIE) == "true"
    assert verdict(grow(64, 512, factor_per_doubling=1.1), ERNIE) == "plausible"
    assert verdict(grow(64, 512, exponent=0.0), ERNIE) == "plausible"
    assert verdict(grow(64, 512, law="O(N^3)"), ERNIE) == "false"


def test_growth_of_prefill_needs_no_hardware_but_tpot_does():
    no_chip = {"model": "ernie-4.5-0.3b"}
    assert verdict(grow(64, 512, factor_per_doubling=4.0), no_chip) == "false"
    assert verdict(grow(64, 512, "tpot", factor=1.2), no_chip) == "undecidable"
    assert verdict(grow(64, 512, factor=2.0), {"hardware": "h200"}) == "undecidable"


def test_time_per_token_may_grow_where_the_cache_is_large_beside_the_weights():
    assert verdict(grow(128, 512, "tpot", factor=1.3), ERNIE) == "implausible"
    assert verdict(grow(128, 512, "tpot", factor=1.02), ERNIE) in {"true", "plausible"}
    assert verdict(grow(1_000, 120_000, "tpot", factor=2.0), ERNIE) in {"true", "plausible"}


def test_decode_total_is_linear_for_short_answers_only():
    assert verdict(grow(128, 512, "decode_total", law="O(N)"), ERNIE) == "true"
    assert verdict(grow(100_000, 800_000, "decode_total", law="O(N)"), ERNIE) != "true"


@pytest.mark.parametrize(
    ("tokens", "setup", "expected"),
    [
        ([64], ERNIE, "false"),
        ([64, 512], ERNIE, "misleading"),
        ([100_000], ERNIE, "true"),
        ([4096], LARGE, "true"),
        ([4096], {**LARGE, "engine": None}, "undecidable"),
        ([4096], {**LARGE, "hardware": None}, "undecidable"),
    ],
)
def test_what_binds_prefill(tokens, setup, expected):
    assert verdict(say("prefill_compute_bound", tokens), setup) == expected


def test_what_binds_decode():
    assert verdict(say("decode_memory_bound", [128], [128]), ERNIE) == "misleading"
    assert verdict(say("decode_memory_bound", [128], [128]), {**LARGE, "hardware": "l4"}) == "true"
    assert verdict(say("decode_memory_bound", [16], [16], batch=4096), LARGE) == "false"


def test_what_speeds_prefill_up():
    assert verdict(say("bandwidth_speeds_prefill", [64, 512]), ERNIE) == "false"
    assert verdict(say("bandwidth_speeds_prefill", [16]), {**LARGE, "hardware": "l4"}) == "true"
    assert verdict(say("compute_speeds_prefill", [16]), {**LARGE, "hardware": "l4"}) == "false"
    assert verdict(say("compute_speeds_prefill", [8192]), LARGE) == "true"
    assert verdict(say("bandwidth_speeds_prefill", [8192]), LARGE) == "false"


def test_a_batch_and_one_requests_prefill():
    assert verdict(say("batch_raises_prefill_of_one", [16], batch=4), ERNIE) == "false"
    assert verdict(say("batch_raises_prefill_of_one", [2048], batch=4), LARGE) == "true"
    assert verdict(say("batch_raises_throughput", [64], [64], batch=8), ERNIE) == "true"
    assert verdict(say("batch_raises_throughput", [64], [64], batch=1), ERNIE) == "false"


def test_cache_hits_and_decode():
    assert verdict(say("cache_hit_rate_decides_decode", [256], [512]), ERNIE) == "false"
    assert verdict(say("cache_hit_rate_decides_decode", [256], [512], batch=32), ERNIE) == "misleading"
    small = {**LARGE, "hardware": "rtx-4090"}  # 16.4 GB of weights leave 7 GB: 47,000 tokens
    assert verdict(say("cache_hit_rate_decides_decode", [100_000], [512]), small) == "misleading"


def test_recomputing():
    claim = say("decode_recomputes_attention", [256], [512], rows=("r",))
    assert (
        verdict(claim, ERNIE, Row("r", input_tokens=256, output_tokens=512, prefill_ms=180.0, tpot_ms=5.0))
        == "false"
    )
    assert (
        verdict(claim, ERNIE, Row("r", input_tokens=256, output_tokens=512, prefill_ms=6.0, tpot_ms=5.0))
        == "misleading"
    )
    bare = say("decode_recomputes_attention", [256], [512])
    assert verdict(bare, {**ERNIE, "kv_cache": False}) == "true"
    assert verdict(bare, ERNIE) == "misleading"


def test_late_tokens():
    assert verdict(say("late_slowdown", [256], [512]), ERNIE) == "misleading"
    assert verdict(say("late_slowdown", [1_000], [100_000]), ERNIE) == "true"


def test_decode_dominates_long_answers_not_long_prompts():
    assert verdict(say("decode_dominates", [256], [512]), ERNIE) == "true"
    assert verdict(say("decode_dominates", [100_000], [2]), ERNIE) == "false"
    assert verdict(say("decode_dominates", [256], [2]), ERNIE) == "misleading"


def test_settings():
    claim = Statement("s", "setting_has_effect", setting="batch_size", object="SamplingParams")
    assert verdict(claim, {**ERNIE, "version": "0.3.3"}) == "false"
    assert (
        verdict(Statement("s", "setting_has_effect", setting="top_k", object="SamplingParams"), ERNIE)
        == "true"
    )
    seqs = Statement("s", "setting_has_effect", setting="max_num_seqs", object="SamplingParams")
    assert verdict(seqs, ERNIE) == "misleading"
    assert verdict(claim, {**ERNIE, "engine": "sglang"}) == "undecidable"
    # stream_interval came later than 0.3.3
    stream = Statement("s", "setting_has_effect", setting="stream_interval")
    assert verdict(stream, {**ERNIE, "version": "0.3.3"}) == "false"
    assert verdict(stream, {**ERNIE, "version": "0.32.0"}) == "true"


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        ({**ERNIE, "version": "0.3.3"}, "impossible"),
        ({**ERNIE, "version": "0.6.0"}, "impossible"),
        ({**ERNIE, "version": "0.9.1"}, "undecidable"),
        ({**ERNIE, "version": "v0.9.2"}, "plausible"),
        ({**ERNIE, "version": "0.32.0"}, "plausible"),
        ({**ERNIE, "version": "0.32.0", "date": date(2025, 6, 1)}, "impossible"),
        ({**ERNIE, "version": "0.9.2", "date": date(2025, 7, 1)}, "impossible"),
        ({**ERNIE, "version": "newest"}, "undecidable"),
        ({**ERNIE, "engine": "sglang", "version": "0.5"}, "undecidable"),
        ({**ERNIE, "engine": "transformers", "version": "4.50.0"}, "undecidable"),
        ({**ERNIE, "engine": "transformers", "version": "5.19.0"}, "plausible"),
        ({**LARGE, "version": "0.8.3"}, "undecidable"),
        ({**LARGE, "version": "0.9.2", "hardware": "a10g"}, "plausible"),
        ({**LARGE, "version": "0.9.2", "hardware": "t4", "dtype": "float32"}, "impossible"),
        ({**LARGE, "version": "0.9.2", "hardware": "t4", "dtype": "float32", "gpus": 4}, "plausible"),
    ],
)
def test_set_ups(setup, expected):
    assert verdict(SetUp("u"), setup) == expected


def test_set_ups_are_judged_unasked_once_and_do_not_spread():
    setup = Setup(**ERNIE, version="0.3.3")
    rows = [Placed(Row(f"r{n}", input_tokens=n, prefill_ms=10.0), setup) for n in (64, 128)]
    found = [(one.id, one.verdict.value) for one in audit(Claims("t", tuple(rows)))]
    assert found == [("set-up", "impossible"), ("r64", "plausible"), ("r128", "plausible")]


def test_two_tables():
    rows = [Row("a", input_tokens=64, prefill_ms=10.0), Row("b", input_tokens=64, prefill_ms=12.0)]
    rows += [Row("c", input_tokens=64, prefill_ms=20.0), Row("d", input_tokens=128, prefill_ms=10.0)]
    for other, expected in (("b", "true"), ("c", "false"), ("d", "undecidable")):
        assert verdict(Agreement("s", "prefill", ("a",), (other,)), {}, *rows) == expected

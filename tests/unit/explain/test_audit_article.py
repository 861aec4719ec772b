"""The article's claims come out as arithmetic by hand says; the oracle here shares no code with the audit."""

from __future__ import annotations

from pathlib import Path

import pytest

from phasemeter.explain.audit.judge import audit
from phasemeter.explain.audit.read import read_claims
from phasemeter.report.audit_view import audit_view

ARTICLE = Path(__file__).parents[3] / "examples" / "article-claims.toml"
PUBLIC = ARTICLE.with_name("public-4090-claims.csv")

# ERNIE-4.5-0.3B by hand: 18 layers, hidden 1024, 16 heads and 2 KV heads of 128, 3072 feed-forward, vocabulary 103424
LINEAR = 18 * (1024 * 2048 + 2 * 1024 * 256 + 2048 * 1024 + 3 * 1024 * 3072)
HEAD = 103424 * 1024
WEIGHT_BYTES = 2 * (LINEAR + HEAD + 18 * 2 * 1024 + 1024)
KV_BYTES = 2 * 18 * 2 * 128 * 2
PEAK, BANDWIDTH = 312e12, 1555e9


def by_hand(tokens: int) -> tuple[float, float, float]:
    """FLOPs, floor in ms, attention's share."""
    attention = 4 * 18 * 16 * 128 * tokens * (tokens + 1) / 2
    flops = 2 * tokens * LINEAR + attention + 2 * HEAD
    memory_s = (WEIGHT_BYTES + tokens * KV_BYTES) / BANDWIDTH
    return flops, 1e3 * max(flops / PEAK, memory_s), attention / flops


@pytest.fixture(scope="module")
def judged():
    return {one.id: one for one in audit(read_claims(ARTICLE))}


@pytest.fixture(scope="module")
def texts():
    claims = read_claims(ARTICLE)
    return {
        lang: {line.id: line for line in audit_view(claims, audit(claims), lang).lines}
        for lang in ("en", "zh")
    }


VERDICTS = {
    "environment": "impossible",
    "list-64": "plausible",
    "list-128": "implausible",
    "list-256": "implausible",
    "list-512": "implausible",
    "doubling": "false",
    "complexity": "misleading",
    "square-law": "false",
    "prefill-compute-bound": "misleading",
    "batch-lengthens-prefill": "misleading",
    "batch-throughput": "true",
    "bandwidth-prefill": "false",
    "compute-prefill": "false",
    "decode-recomputes": "false",
    "decode-memory-bound": "misleading",
    "cache-hit-rate": "false",
    "late-slowdown": "misleading",
    "table-64.prefill": "plausible",
    "table-64.tpot": "plausible",
    "table-64.decode_total": "plausible",
    "table-64.total": "true",
    "table-128.prefill": "implausible",
    "table-128.tpot": "plausible",
    "table-128.decode_total": "plausible",
    "table-128.total": "true",
    "table-256.prefill": "implausible",
    "table-256.tpot": "plausible",
    "table-256.decode_total": "plausible",
    "table-256.total": "true",
    "tables-agree": "true",
    "table-square": "false",
    "tpot-grows": "implausible",
    "decode-dominates": "true",
    "decode-linear": "true",
    "batch-size-setting": "false",
}


def test_every_claim_has_its_verdict_and_a_set_up_that_cannot_run_does_not_spread(judged):
    assert {name: one.verdict.value for name, one in judged.items()} == VERDICTS


@pytest.mark.parametrize(
    ("tokens", "claimed_ms", "floor_ms", "share", "tflops"),
    [
        (64, 15, 0.465, 0.009, 2.2),
        (128, 45, 0.466, 0.018, 1.5),
        (256, 180, 0.467, 0.036, 0.75),
        (512, 720, 0.899, 0.069, 0.39),
    ],
)
def test_the_lists_floors_shares_and_rates(judged, tokens, claimed_ms, floor_ms, share, tflops):
    bound = judged[f"list-{tokens}"].bound
    flops, floor, attention = by_hand(tokens)
    assert bound["floor_ms"] == pytest.approx(floor, rel=1e-9)
    assert bound["floor_ms"] == pytest.approx(floor_ms, abs=0.0005)
    assert bound["attention_share"] == pytest.approx(attention, rel=1e-9)
    assert bound["attention_share"] == pytest.approx(share, abs=0.0005)
    assert bound["implied_tflops"] == pytest.approx(flops / claimed_ms / 1e9, rel=1e-9)
    assert bound["implied_tflops"] == pytest.approx(tflops, rel=0.03)
    low, high = bound["host_ms"]
    assert 0 < low < 15 < high < 45


def test_the_working_shows_the_numbers(texts):
    told = {name: " ".join((*one.working, one.reason)) for name, one in texts["en"].items()}
    for tokens, parts in {
        64: ("0.465 ms", "0.9 %", "32.3× the floor", "33.1 GFLOP"),
        128: ("0.466 ms", "1.8 %", "96.7×", "66.7 GFLOP"),
        256: ("0.467 ms", "3.6 %", "385×"),
        512: ("0.899 ms", "6.9 %", "801×", "0.390 TFLOP/s"),
    }.items():
        assert [part for part in parts if part not in told[f"list-{tokens}"]] == []
    assert "N* = 6,912 tokens" in told["complexity"]
    assert "factor 3.00" in told["doubling"]
    assert "own rows fitted: exponent 1.88" in told["doubling"]
    assert "own rows do not show it either" in told["doubling"]
    assert "0.9.2" in told["environment"]
    assert "#20220" in told["environment"]
    assert "4.38 ms" in told["table-64.total"]
    assert "4.41 ms" in told["table-64.total"]
    assert "nothing is computed anew" in told["decode-recomputes"]


def test_growth_of_time_per_token_by_hand(judged):
    """384 more tokens of context are 7.08 MB: 4.55 us of 465; slow kernels and one attention split allow 2.6 %."""
    more_ms = 384 * KV_BYTES / BANDWIDTH * 1e3
    assert more_ms == pytest.approx(0.00455, abs=0.00001)
    most = 1 + (4 * more_ms + 18 * 0.0054) / 4.4
    high = judged["tpot-grows"].bound["exponent"][1]
    assert 4**high == pytest.approx(most, rel=1e-6)


def test_the_second_row_contradicts_the_first_even_without_a_host_bound(judged):
    bound = judged["list-128"].bound
    assert bound["own_rows_most_ms"] == pytest.approx(4 * by_hand(128)[1] + 2 * (15 - by_hand(64)[1]))
    assert bound["own_rows_most_ms"] < 45


def test_chinese_holds_the_same_verdicts_numbers_and_the_quoted_sentences(texts):
    english, chinese = texts["en"], texts["zh"]
    assert [one.verdict for one in english.values()] == [one.verdict for one in chinese.values()]
    assert chinese["doubling"].statement == "实际观察到的趋势：长度加倍，时间增加约4倍"
    assert chinese["list-512"].word == "不可信"
    assert "下限 0.899 ms" in " ".join(chinese["list-512"].working)
    assert all(one.reason for one in chinese.values())


def test_the_public_4090_rows_lie_below_the_floor_where_a_prefix_cache_answered():
    judged = {one.id: one for one in audit(read_claims(PUBLIC))}
    verdicts = {name: one.verdict.value for name, one in judged.items() if name.endswith(".ttft")}
    assert verdicts == {
        "a100-128.ttft": "plausible",
        "4090-128.ttft": "plausible",
        "4090-2048.ttft": "impossible",
        "4090-3072.ttft": "impossible",
        "4090-4096.ttft": "impossible",
    }
    cached = judged["4090-4096.ttft"].bound["least_cached_tokens"]
    # Qwen3-4B: 36 layers, 2560 wide, 32 heads and 8 KV heads of 128, 9728; what is left must fit 76.6 ms
    linear = 36 * (2560 * 4096 * 2 + 2 * 2560 * 1024 + 3 * 2560 * 9728)

    def seconds(new: int) -> float:
        attention = 4 * 36 * 4096 * (new * (4096 - new) + new * (new + 1) / 2)
        return (2 * new * linear + attention + 2 * 151936 * 2560) / 165.2e12

    assert seconds(4096 - cached) <= 0.0766 < seconds(4096 - cached + 1)
    assert all(
        one.verdict.value in {"plausible", "true"} for name, one in judged.items() if name not in verdicts
    )

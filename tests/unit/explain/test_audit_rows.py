"""Rows: between floor and host is plausible, below the floor impossible, whatever the lengths; each number alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.explain.audit.claims import Claims, Growth, Placed, Row, Setup
from phasemeter.explain.audit.judge import audit
from phasemeter.report.audit_view import audit_json, audit_view
from phasemeter.roofline.floor import decode_floor, prefill_floor
from phasemeter.roofline.hardware import find_hardware
from phasemeter.roofline.presets import load_shape

MODELS = ("ernie-4.5-0.3b", "qwen3-0.6b", "qwen3-8b", "smollm2-135m")
CHIPS = ("a100-40gb", "h200", "rtx-4090", "l4")
FIELDS = {"prefill": "prefill_ms", "ttft": "ttft_ms", "tpot": "tpot_ms"}
HOST = {"prefill": 19.0, "ttft": 25.0, "tpot": 5.0}


def judge(setup: Setup, *rows: Row):
    return {one.id: one for one in audit(Claims("t", tuple(Placed(row, setup) for row in rows)))}


def floor_ms(model: str, chip: str, metric: str, tokens: int, output: int) -> float:
    shape, hardware = load_shape(model), find_hardware(chip)
    if metric == "tpot":
        return decode_floor(shape, tokens + output // 2, hardware).seconds * 1e3
    return prefill_floor(shape, tokens, hardware).seconds * 1e3


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    chip=st.sampled_from(CHIPS),
    metric=st.sampled_from(sorted(FIELDS)),
    tokens=st.integers(1, 20_000),
    output=st.integers(2, 2_000),
)
def test_floor_and_a_middling_host_are_plausible_half_the_floor_is_impossible(
    model, chip, metric, tokens, output
):
    least = floor_ms(model, chip, metric, tokens, output)
    setup = Setup(model=model, hardware=chip, engine="vllm")
    for ms, verdict in (
        (least + HOST[metric], "plausible"),
        (least, "plausible"),
        (least * 0.5, "impossible"),
        (least * 4.0 + 200.0, "implausible"),
    ):
        row = Row("r", input_tokens=tokens, output_tokens=output, **{FIELDS[metric]: ms})
        found = judge(setup, row)["r"]
        assert found.verdict.value == verdict, (ms, found.bound)
        assert found.bound["floor_ms"] == pytest.approx(least)


def test_an_unknown_gpu_model_or_length_is_undecidable_and_says_what_is_missing():
    row = Row("r", input_tokens=64, prefill_ms=15.0)
    for setup, key in (
        (Setup(model="ernie-4.5-0.3b", hardware="RTX 9999", engine="vllm"), "missing_hardware"),
        (Setup(model="ernie-4.5-0.3b", engine="vllm"), "missing_hardware_name"),
        (Setup(model="gpt-9", hardware="h200", engine="vllm"), "missing_model"),
        (Setup(hardware="h200", engine="vllm"), "missing_model_name"),
    ):
        found = judge(setup, row)["r"]
        assert (found.verdict.value, found.reason.key) == ("undecidable", key)
    known = Setup(model="ernie-4.5-0.3b", hardware="h200", engine="vllm")
    for lacking, key in (
        (Row("r", prefill_ms=15.0), "missing_input_tokens"),
        (Row("r", input_tokens=4, decode_total_ms=15.0), "missing_output_tokens"),
        (Row("r", input_tokens=4, output_tokens=1, tpot_ms=15.0), "missing_second_token"),
        (Row("r", input_tokens=4, output_tokens=9, output_tokens_per_s=15.0), "missing_batch"),
    ):
        assert judge(known, lacking)["r"].reason.key == key


def test_without_a_host_bound_only_the_floor_and_slow_kernels_decide():
    setup = Setup(model="qwen3-8b", hardware="h200", engine="somebody's")
    least = floor_ms("qwen3-8b", "h200", "prefill", 1024, 1)
    verdicts = [
        judge(setup, Row("r", input_tokens=1024, prefill_ms=ms))["r"].verdict.value
        for ms in (least / 2, least * 2, least * 10)
    ]
    assert verdicts == ["impossible", "plausible", "undecidable"]


def test_gpus_together_lower_the_floor_and_cached_tokens_too():
    row = Row("r", input_tokens=4096, prefill_ms=30.0)
    alone = judge(Setup(model="qwen3-8b", hardware="h200", engine="vllm"), row)["r"].bound["floor_ms"]
    four = judge(Setup(model="qwen3-8b", hardware="h200", engine="vllm", gpus=4), row)["r"].bound["floor_ms"]
    assert four == pytest.approx(alone / 4)
    hit = Row("r", input_tokens=4096, cached_tokens=4000, prefill_ms=30.0)
    assert (
        judge(Setup(model="qwen3-8b", hardware="h200", engine="vllm"), hit)["r"].bound["floor_ms"] < alone / 8
    )


def test_weights_that_fit_the_last_level_cache_set_no_memory_floor():
    """ERNIE's 721 MB on a CPU with 384 MB of cache: memory; on four of them: 1.5 GB of cache, arithmetic alone."""
    row = Row("r", input_tokens=1, output_tokens=8, tpot_ms=0.4)
    one = judge(Setup(model="smollm2-135m", hardware="epyc-9654"), row)["r"]
    chip = find_hardware("epyc-9654")
    fits = load_shape("smollm2-135m").weight_bytes() <= (chip.l2_bytes or 0)
    assert (one.bound["memory_ms"] == 0.0) is fits
    assert judge(Setup(model="qwen3-8b", hardware="epyc-9654"), row)["r"].bound["memory_ms"] > 0


def test_a_row_that_needs_a_far_slower_host_than_its_neighbour_is_implausible():
    setup = Setup(model="ernie-4.5-0.3b", hardware="h200", engine="vllm")
    rows = (Row("a", input_tokens=64, prefill_ms=6.0), Row("b", input_tokens=128, prefill_ms=30.0))
    found = judge(setup, *rows)
    assert [one.verdict.value for one in found.values()] == ["plausible", "implausible"]
    assert found["b"].reason.key == "against_own_rows"
    assert judge(setup, rows[1])["b"].verdict.value == "plausible"
    elsewhere = Placed(rows[1], Setup(model="ernie-4.5-0.3b", hardware="h100", engine="vllm"))
    apart = audit(Claims("t", (Placed(rows[0], setup), elsewhere)))
    assert [one.verdict.value for one in apart] == ["plausible", "plausible"]


def test_our_own_measured_medians_are_all_plausible():
    """The committed H200 medians (docs/article-remeasured.md), both starts each as a source of its own."""
    medians = {
        "default": (
            (64, 6.66, 9.97, 1.44),
            (512, 7.52, 11.9, 1.49),
            (2048, 12.4, 18.3, 1.47),
            (7000, 16.8, 26.7, 1.21),
        ),
        "eager": (
            (64, 17.5, 21.5, 7.33),
            (512, 16.9, 20.9, 7.28),
            (2048, 18.8, 24.7, 7.55),
            (7000, 19.4, 29.7, 7.11),
        ),
    }
    setup = Setup(model="ernie-4.5-0.3b", hardware="h200", engine="vllm", version="0.26.0")
    for rows in medians.values():
        made = [
            Row(f"n{n}", input_tokens=n, output_tokens=16, prefill_ms=p, ttft_ms=t, tpot_ms=d)
            for n, p, t, d in rows
        ]
        found = judge(setup, *made)
        assert {one.verdict.value for one in found.values()} == {"plausible"}
        assert len(found) == 13  # three numbers a row, and the set-up


def test_throughput_is_held_against_the_step_of_the_whole_batch():
    setup = Setup(model="qwen3-8b", hardware="h200", engine="vllm")
    step_s = decode_floor(load_shape("qwen3-8b"), 128 + 32, find_hardware("h200"), 64).seconds
    for rate, verdict in (
        (64 / step_s * 1.2, "impossible"),
        (64 / step_s * 0.5, "plausible"),
        (5.0, "implausible"),
    ):
        row = Row("r", input_tokens=128, output_tokens=64, batch=64, output_tokens_per_s=rate)
        assert judge(setup, row)["r"].verdict.value == verdict


def test_totals_follow_from_parts_or_not():
    setup = Setup()
    row = {"input_tokens": 8, "output_tokens": 11, "tpot_ms": 5.0}
    found = judge(setup, Row("r", **row, decode_total_ms=50.0))["r.total"]
    assert (found.verdict.value, found.bound["closest"]) == ("true", "n-1")
    assert (
        judge(setup, Row("r", **row, decode_total_ms=50.0, divides_by="n"))["r.total"].verdict.value
        == "false"
    )
    assert judge(setup, Row("r", **row, decode_total_ms=70.0))["r.total"].verdict.value == "false"
    assert judge(setup, Row("r", **row, ttft_ms=20.0, e2e_ms=70.0))["r.whole"].verdict.value == "true"
    assert judge(setup, Row("r", **row, ttft_ms=20.0, e2e_ms=60.0))["r.whole"].verdict.value == "false"


def test_a_batch_that_the_memory_does_not_hold_waits_and_sets_no_higher_floor():
    """Qwen3-8B leaves 24 GB of a 40 GB card to the cache: about 170,000 tokens, so 16 sequences of 10,000."""
    setup = Setup(model="qwen3-8b", hardware="a100-40gb", engine="vllm")
    shape, chip = load_shape("qwen3-8b"), find_hardware("a100-40gb")
    fits = (
        int((0.95 * (chip.memory_bytes or 0) - shape.weight_bytes()) / shape.kv_bytes_per_token()) // 10_050
    )
    assert 10 < fits < 20
    row = Row("r", input_tokens=10_000, output_tokens=100, batch=512, tpot_ms=40.0, ttft_ms=9e7)
    found = judge(setup, row)
    assert found["r.tpot"].bound["floor_ms"] == pytest.approx(
        decode_floor(shape, 10_050, chip, fits).seconds * 1e3
    )
    assert found["r.tpot"].verdict.value == "plausible"
    assert (found["r.ttft"].verdict.value, found["r.ttft"].reason.key) == ("undecidable", "missing_queue")


def test_in_a_batch_other_prompts_prefills_may_come_between_the_steps():
    setup = Setup(model="qwen3-8b", hardware="h200", engine="vllm")
    alone = Row("r", input_tokens=4096, output_tokens=128, tpot_ms=100.0)
    assert judge(setup, alone)["r"].verdict.value == "implausible"
    many = Row("r", input_tokens=4096, output_tokens=128, batch=64, tpot_ms=100.0)
    assert judge(setup, many)["r"].verdict.value == "plausible"


TIMES = st.none() | st.floats(1e-300, 1e9)
TOKENS = st.none() | st.integers(1, 10**9)


@settings(max_examples=80, deadline=None)
@given(
    setup=st.builds(
        Setup,
        model=st.sampled_from([None, "gpt-9", *MODELS]),
        hardware=st.sampled_from([None, "nine", "epyc-9654", "t4", *CHIPS]),
        engine=st.sampled_from([None, "vllm", "transformers", "x"]),
        version=st.sampled_from([None, "0", "0.3.3", "1.0rc1", "new"]),
        dtype=st.sampled_from(["bfloat16", "fp8", "int4", "float32"]),
        gpus=st.sampled_from([1, 8]),
    ),
    rows=st.lists(
        st.builds(
            Row,
            id=st.just("r"),
            input_tokens=TOKENS,
            output_tokens=TOKENS,
            batch=st.none() | st.integers(1, 64),
            prefill_ms=TIMES,
            ttft_ms=TIMES,
            tpot_ms=TIMES,
            decode_total_ms=TIMES,
            e2e_ms=TIMES,
            output_tokens_per_s=TIMES,
        ),
        max_size=2,
    ),
    growth=st.builds(
        Growth,
        id=st.just("g"),
        metric=st.sampled_from(["prefill", "ttft", "tpot", "decode_total"]),
        from_tokens=st.integers(1, 1000),
        to_tokens=st.integers(1001, 10**9),
        factor=st.floats(1e-300, 1e9),
    ),
)
def test_whatever_is_claimed_gets_a_verdict_in_both_languages(setup, rows, growth):
    placed = [Placed(Row(**{**row_fields(row), "id": f"r{n}"}), setup) for n, row in enumerate(rows)]
    claims = Claims("t", (*placed, Placed(growth, setup)))
    found = audit(claims)
    assert len({one.id for one in found}) == len(found)
    for lang in ("en", "zh"):
        told = audit_json(audit_view(claims, found, lang))["claims"]
        assert isinstance(told, list)
        assert all(one["working"][-1] == one["reason"] for one in told)
        assert "{" not in "".join(one["reason"] for one in told)


def row_fields(row: Row) -> dict[str, object]:
    return {name: getattr(row, name) for name in row.__struct_fields__}

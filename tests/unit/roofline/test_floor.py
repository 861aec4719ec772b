"""Numbers of the physics page for ERNIE-4.5-0.3B, and properties that must hold for any model and machine."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.record.errors import InputError
from phasemeter.roofline.floor import (
    decode_floor,
    decode_total_floor,
    floor,
    mbu,
    mfu,
    prefill_floor,
    ridge_tokens,
)
from phasemeter.roofline.hardware import Hardware, all_hardware, arithmetic_dtype, find_hardware
from phasemeter.roofline.model import PRESETS, ModelShape, load_shape
from phasemeter.roofline.work import (
    Batch,
    Item,
    Work,
    attention_pairs,
    decode,
    expected_experts,
    prefill,
    work,
)

ERNIE = load_shape("ernie-4.5-0.3b")
MOE = load_shape("ernie-4.5-21b-a3b")
A100 = find_hardware("a100-40gb-sxm")

presets = st.sampled_from([load_shape(name) for name in PRESETS])
machines = st.sampled_from(all_hardware())
tokens = st.integers(1, 20_000)


def native(hardware: Hardware) -> str:
    return arithmetic_dtype(hardware, "bfloat16")


@pytest.mark.parametrize(
    ("n", "gflop", "share", "compute_ms", "memory_ms", "floor_ms"),
    [
        (64, 33.1, 0.9, 0.106, 0.465, 0.465),
        (128, 66.7, 1.8, 0.214, 0.466, 0.466),
        (256, 135.5, 3.6, 0.434, 0.467, 0.467),
        (512, 280.5, 6.9, 0.899, 0.470, 0.899),
    ],
)
def test_prefill_floors(
    n: int, gflop: float, share: float, compute_ms: float, memory_ms: float, floor_ms: float
) -> None:
    needed = work(ERNIE, prefill(n))
    least = floor(needed, A100)
    assert round(needed.flops / 1e9, 1) == gflop
    assert round(100 * needed.by_name["attention"].flops / needed.flops, 1) == share
    assert round(least.compute_s * 1e3, 3) == compute_ms
    assert round(least.memory_s * 1e3, 3) == memory_ms
    assert round(least.seconds * 1e3, 3) == floor_ms
    assert prefill_floor(ERNIE, n, A100) == least


def test_prefill_of_512_in_parts() -> None:
    needed = work(ERNIE, prefill(512))
    parts = needed.by_name
    assert sum(parts[name].flops for name in ("qkv", "o", "mlp")) == 2 * 512 * 254_803_968
    assert parts["attention"].flops == 4 * 18 * 16 * 128 * 512 * 513 / 2
    assert parts["lm_head"].flops == 2 * 105_906_176
    assert needed.bytes == 721_496_064 + 512 * 18_432
    assert round(needed.bytes / 1e6, 1) == 730.9
    assert floor(needed, A100).bound == "compute"
    assert 8.4 < needed.flops / work(ERNIE, prefill(64)).flops < 8.5


@pytest.mark.parametrize(
    ("name", "ms"),
    [
        ("a100-40gb-sxm", 0.464),
        ("a100-80gb-sxm", 0.354),
        ("h100-sxm", 0.215),
        ("h200", 0.150),
        ("b200", 0.0937),
        ("mi300x", 0.136),
        ("l40s", 0.835),
        ("rtx-4090", 0.716),
        ("a10g", 1.20),
        ("t4", 2.25),
        ("l4", 2.41),
        ("epyc-9654", 1.57),
    ],
)
def test_decode_floors(name: str, ms: float) -> None:
    hardware = find_hardware(name)
    least = decode_floor(ERNIE, 1, hardware, dtype=native(hardware))
    assert least.bound == "memory"
    assert least.seconds * 1e3 == pytest.approx(ms, rel=3e-3)


def test_decode_reads_weights_once_and_context_rows_each() -> None:
    assert work(ERNIE, decode(512, 8)).bytes == 721_496_064 + 8 * 512 * 18_432
    step = decode_floor(ERNIE, 1001, A100).seconds - decode_floor(ERNIE, 1, A100).seconds
    assert step / 1000 * 1e9 == pytest.approx(11.9, abs=0.05)
    assert work(ERNIE, decode(512)).flops == 2 * (254_803_968 + 105_906_176) + 4 * 18 * 2048 * 512
    assert round(ERNIE.weight_bytes() / ERNIE.kv_bytes_per_token()) == 39_144
    growth = decode_floor(ERNIE, 512, A100).seconds / decode_floor(ERNIE, 128, A100).seconds - 1
    assert growth == pytest.approx(0.0098, abs=1e-4)


@pytest.mark.parametrize(("prompt", "output", "ms"), [(64, 128, 59.6), (128, 256, 119.6), (256, 512, 240.7)])
def test_decode_totals(prompt: int, output: int, ms: float) -> None:
    total = decode_total_floor(ERNIE, prompt, output, A100)
    assert round(total.seconds * 1e3, 1) == ms
    exact = sum(decode_floor(ERNIE, prompt + i, A100).seconds for i in range(1, output + 1))
    assert total.seconds == pytest.approx(exact, rel=1e-4)
    assert total.seconds <= exact * (1 + 1e-12)


@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("a100-40gb-sxm", 284),
        ("a100-80gb-sxm", 217),
        ("h100-sxm", 418),
        ("h200", 292),
        ("l4", 571),
        ("l40s", 593),
        ("a10g", 165),
        ("t4", 288),
        ("rtx-4090", 232),
        ("mi300x", 349),
    ],
)
def test_ridge(name: str, n: int) -> None:
    hardware = find_hardware(name)
    assert round(ridge_tokens(ERNIE, hardware, native(hardware))) == n


def test_ridge_of_a_b200_depends_on_the_board() -> None:
    hgx = find_hardware("b200")
    assert round(ridge_tokens(ERNIE, hgx)) == 414
    faster = msgspec.structs.replace(hgx, memory_bandwidth_bytes_per_s=8e12)
    assert round(ridge_tokens(ERNIE, faster)) == 398


def test_a_chip_without_bfloat16_computes_it_in_another_format_but_reads_two_bytes() -> None:
    turing, milan = find_hardware("t4"), find_hardware("epyc-7763")
    assert decode_floor(ERNIE, 1, turing) == decode_floor(ERNIE, 1, turing, dtype="float16")
    assert round(ridge_tokens(ERNIE, turing)) == 288
    least = prefill_floor(ERNIE, 512, milan)
    assert least.memory_s == pytest.approx(730_933_248 / 204.8e9)
    assert least.compute_s == pytest.approx(work(ERNIE, prefill(512)).flops / 7.168e12)


def test_the_bound_changes_at_the_ridge() -> None:
    ridge = ridge_tokens(ERNIE, A100)
    assert prefill_floor(ERNIE, int(ridge * 0.9), A100).bound == "memory"
    assert prefill_floor(ERNIE, int(ridge * 1.1), A100).bound == "compute"


def test_attention_intensity_of_decode_is_heads_per_kv_head() -> None:
    attention = work(ERNIE, decode(10_000)).by_name["attention"]
    written = work(ERNIE, decode(10_000)).by_name["kv_write"]
    assert attention.flops / (attention.bytes + written.bytes) == pytest.approx(16 / 2)


def test_a_chunk_costs_what_the_whole_costs_less_the_first() -> None:
    whole, first, second = (
        work(ERNIE, batch) for batch in (prefill(512), prefill(256), prefill(256, cached=256))
    )
    attention = [part.by_name["attention"].flops for part in (whole, first, second)]
    assert attention[0] == attention[1] + attention[2]
    assert second.by_name["attention"].read_bytes == 256 * 18_432


def test_the_head_works_on_samples_only() -> None:
    all_rows = work(ERNIE, Batch(items=(Item(512),), samples=512))
    assert all_rows.by_name["lm_head"].flops == 512 * 2 * 105_906_176
    none = work(ERNIE, Batch(items=(Item(512),), samples=0))
    assert none.by_name["lm_head"].bytes == 0
    assert none.by_name["embed"].read_bytes == 512 * 1024 * 2


def test_embedding_traffic_when_untied_or_learned() -> None:
    untied = msgspec.structs.replace(ERNIE, tied_embeddings=False)
    assert work(untied, prefill(4)).by_name["embed"].read_bytes == 4 * 1024 * 2
    learned = msgspec.structs.replace(ERNIE, position_parameters=2048 * 1024)
    assert work(learned, prefill(4)).by_name["embed"].read_bytes == 4 * 1024 * 2


def test_quantised_weights_and_cache() -> None:
    weights = work(ERNIE, decode(1), weight_dtype="int4").bytes - 18_432
    assert weights / 1e6 == pytest.approx(343, abs=0.5)
    assert weights == ERNIE.weight_bytes("int4")
    assert work(ERNIE, decode(100), kv_dtype="fp8").bytes == 721_496_064 + 100 * 9_216


def test_sliding_window_limits_pairs_and_rows() -> None:
    assert attention_pairs(4, 0) == 10
    assert attention_pairs(4, 0, 2) == 1 + 2 + 2 + 2
    assert attention_pairs(2, 10, 4) == 8
    windowed = msgspec.structs.replace(ERNIE, sliding_window=128, sliding_layers=ERNIE.layers)
    assert work(windowed, decode(5000)).bytes == work(ERNIE, decode(128)).bytes
    assert work(windowed, decode(5000)).flops == work(ERNIE, decode(128)).flops
    half = msgspec.structs.replace(windowed, sliding_layers=9)
    assert (
        work(half, decode(5000)).bytes
        == (work(windowed, decode(5000)).bytes + work(ERNIE, decode(5000)).bytes) / 2
    )


@given(new=st.integers(1, 60), context=st.integers(0, 60), window=st.integers(1, 80))
def test_windowed_pairs_against_counting(new: int, context: int, window: int) -> None:
    counted = sum(min(context + i + 1, window) for i in range(new))
    assert attention_pairs(new, context, window) == counted
    assert attention_pairs(new, context) == sum(context + i + 1 for i in range(new))


def test_experts() -> None:
    assert expected_experts(64, 6, 1) == pytest.approx(6)
    assert expected_experts(64, 6, 10_000) == pytest.approx(64)
    one = work(MOE, decode(1))
    assert one.bytes == pytest.approx(2 * MOE.active_parameters + MOE.kv_bytes_per_token())
    assert one.flops == pytest.approx(
        2 * (MOE.active_matmul_parameters + MOE.head_parameters) + 4 * 28 * 20 * 128
    )
    many = work(MOE, prefill(10_000))
    assert many.bytes == pytest.approx(MOE.weight_bytes() + 10_000 * MOE.kv_bytes_per_token())
    plain = msgspec.structs.replace(MOE, shared_expert_intermediate=0, dense_layers=0)
    assert {"mlp", "shared_expert"}.isdisjoint(work(plain, decode(1)).by_name)


@given(shape=presets)
def test_traffic_of_one_token_is_what_the_model_holds(shape: ModelShape) -> None:
    lookup = 0 if shape.tied_embeddings else (1 - shape.vocab) * shape.hidden * 2
    expected = 2 * shape.active_parameters + lookup + shape.kv_bytes_per_token()
    assert work(shape, decode(1)).bytes == pytest.approx(expected)


@given(shape=presets, hardware=machines, n=tokens, more=st.integers(1, 5_000), batch=st.integers(1, 64))
def test_floors_grow_with_tokens_and_batch(
    shape: ModelShape, hardware: Hardware, n: int, more: int, batch: int
) -> None:
    dtype = native(hardware)
    least = prefill_floor(shape, n, hardware, dtype=dtype)
    longer = prefill_floor(shape, n + more, hardware, dtype=dtype)
    wider = prefill_floor(shape, n, hardware, batch + 1, dtype)
    cached = prefill_floor(shape, n, hardware, dtype=dtype, cached=more)
    for bigger in (longer, wider, cached):
        assert bigger.seconds >= least.seconds
        assert bigger.operators_s >= least.operators_s
        assert bigger.compute_s > least.compute_s
        assert bigger.memory_s > least.memory_s


@given(shape=presets, hardware=machines, context=tokens, more=st.integers(1, 5_000), batch=st.integers(1, 64))
def test_decode_floors_grow_with_context_and_batch(
    shape: ModelShape, hardware: Hardware, context: int, more: int, batch: int
) -> None:
    dtype = native(hardware)
    least = decode_floor(shape, context, hardware, batch, dtype)
    assert decode_floor(shape, context + more, hardware, batch, dtype).seconds > least.seconds
    assert decode_floor(shape, context, hardware, batch + 1, dtype).seconds > least.seconds


@given(shape=presets, hardware=machines, n=tokens, context=st.integers(0, 9_000), batch=st.integers(1, 9))
def test_the_parts_of_a_floor_agree(
    shape: ModelShape, hardware: Hardware, n: int, context: int, batch: int
) -> None:
    dtype = native(hardware)
    needed = work(shape, Batch(items=(Item(n, context),) * batch), dtype)
    least = floor(needed, hardware, dtype)
    assert least.seconds == max(least.compute_s, least.memory_s)
    assert least.operators_s >= least.seconds * (1 - 1e-12)
    assert least.operators_s == least.arithmetic_s + least.traffic_s
    assert least.operators_s <= least.compute_s + least.memory_s
    assert (least.bound == "compute") == (least.compute_s >= least.memory_s)
    assert mfu(needed, hardware, dtype, least.seconds) <= 1 + 1e-12
    assert mbu(needed, hardware, least.seconds) <= 1 + 1e-12
    busiest = max(mfu(needed, hardware, dtype, least.seconds), mbu(needed, hardware, least.seconds))
    assert busiest == pytest.approx(1)
    assert floor(needed, hardware, dtype, activations=True).memory_s > least.memory_s


@given(shape=presets, context=tokens)
def test_grouped_heads_save_bytes_not_attention_flops(shape: ModelShape, context: int) -> None:
    full = work(msgspec.structs.replace(shape, kv_heads=shape.heads), decode(context)).by_name
    grouped = work(shape, decode(context)).by_name
    assert full["attention"].flops == grouped["attention"].flops
    assert full["attention"].read_bytes >= grouped["attention"].read_bytes
    assert full["kv_write"].write_bytes > grouped["kv_write"].write_bytes


@given(a=st.integers(1, 3000), b=st.integers(1, 3000))
def test_a_batch_is_cheaper_than_its_parts(a: int, b: int) -> None:
    def least(*items: Item) -> float:
        return floor(work(ERNIE, Batch(items=items)), A100).seconds

    assert least(Item(a), Item(1, b)) <= least(Item(a)) + least(Item(1, b))


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: prefill(0), "tokens"),
        (lambda: prefill(-5), "tokens"),
        (lambda: prefill(cast("int", 1.5)), "tokens"),
        (lambda: prefill(True), "tokens"),
        (lambda: prefill(1, 0), "batch"),
        (lambda: prefill(1, 1, -1), "cached"),
        (lambda: decode(0), "context"),
        (lambda: decode(1, 0), "batch"),
        (lambda: work(ERNIE, Batch(items=())), "batch"),
        (lambda: work(ERNIE, Batch(items=(Item(0),))), "new"),
        (lambda: work(ERNIE, Batch(items=(Item(1, -1),))), "context"),
        (lambda: work(ERNIE, Batch(items=(Item(1),), samples=2)), "samples"),
        (lambda: work(ERNIE, Batch(items=(Item(1),), samples=-1)), "samples"),
        (lambda: work(ERNIE, prefill(1), "float17"), "dtype"),
        (lambda: work(ERNIE, prefill(1), kv_dtype="nope"), "kv_dtype"),
        (lambda: work(ERNIE, prefill(1), weight_dtype="nope"), "weight_dtype"),
        (lambda: floor(work(ERNIE, prefill(1)), find_hardware("t4")), "dtype"),
        (lambda: prefill_floor(ERNIE, 1, A100, dtype="nope"), "dtype"),
        (lambda: decode_total_floor(ERNIE, 0, 1, A100), "prompt"),
        (lambda: decode_total_floor(ERNIE, 1, 0, A100), "output"),
        (lambda: mbu(Work(operators=()), A100, 0.0), "seconds"),
        (lambda: mfu(Work(operators=()), A100, "bfloat16", float("nan")), "seconds"),
    ],
)
def test_bad_input_is_named(call: object, field: str) -> None:
    assert callable(call)
    with pytest.raises(InputError) as caught:
        call()
    assert caught.value.field == field

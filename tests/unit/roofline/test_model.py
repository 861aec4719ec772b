from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.record.errors import InputError
from phasemeter.roofline.families import FAMILIES
from phasemeter.roofline.model import PRESETS, all_presets, load_shape, preset_config, shape_from_config

ERNIE = load_shape("ernie-4.5-0.3b")
LLAMA_LIKE: dict[str, object] = {
    "model_type": "llama",
    "num_hidden_layers": 12,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
}


def with_fields(**fields: object) -> dict[str, object]:
    return {**LLAMA_LIKE, **fields}


def without(field: str) -> dict[str, object]:
    return {key: value for key, value in LLAMA_LIKE.items() if key != field}


def test_ernie_exactly() -> None:
    assert ERNIE.head_dim == 128
    assert ERNIE.attention_parameters == 2 * 2_097_152 + 2 * 262_144
    assert ERNIE.matmul_parameters == 254_803_968
    assert ERNIE.norm_parameters == 37_888
    assert ERNIE.head_parameters == 105_906_176
    assert ERNIE.parameters == ERNIE.active_parameters == 360_748_032
    assert ERNIE.weight_bytes() == 721_496_064
    assert ERNIE.kv_bytes_per_token() == 18_432
    assert ERNIE.crossover_tokens() == 6_912


def test_ernie_in_four_bits_is_half_not_a_quarter() -> None:
    assert ERNIE.weight_bytes("int4") / 1e6 == pytest.approx(343, abs=0.5)
    assert ERNIE.weight_bytes("bfloat16") / ERNIE.weight_bytes("int4") == pytest.approx(2.1, abs=0.01)
    assert ERNIE.weight_bytes("float8") == 254_803_968 + 2 * (105_906_176 + 37_888)
    assert ERNIE.weight_bytes("float32") == 4 * 360_748_032


# Totals of the published safetensors files (the hub's model pages).
@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("ernie-4.5-0.3b", 360_748_032),
        ("qwen3-0.6b", 596_049_920),
        ("qwen3-1.7b", 1_720_574_976),
        ("qwen3-4b", 4_022_468_096),
        ("qwen3-8b", 8_190_735_360),
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.1-8b", 8_030_261_248),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_published_totals(name: str, total: int) -> None:
    assert load_shape(name).parameters == total


def test_experts_total_and_active() -> None:
    moe = load_shape("ernie-4.5-21b-a3b")
    assert moe.parameters == 21_825_437_888
    assert moe.active_parameters == pytest.approx(3e9, rel=0.15)
    assert (moe.dense_layers, moe.moe_layers) == (1, 27)
    assert moe.shared_expert_intermediate == 2 * 1536


@pytest.mark.parametrize("preset", all_presets(), ids=lambda preset: preset.name)
def test_every_preset_is_complete_and_sourced(preset: object) -> None:
    found = next(known for known in all_presets() if known is preset)
    assert len(found.source) > 20
    for field in (
        "architectures",
        "rope_theta",
        "rms_norm_eps",
        "bos_token_id",
        "eos_token_id",
        "hidden_act",
    ):
        assert field in found.config
    for alias in (found.name, found.name.upper(), *found.aliases):
        assert load_shape(alias).name == found.name


def test_preset_config_is_a_fresh_copy() -> None:
    preset_config("llama-3.2-1b")["hidden_size"] = 1
    assert preset_config("llama-3.2-1b")["hidden_size"] == 2048


def test_config_round_trip_through_a_file(tmp_path: Path) -> None:
    for name in PRESETS:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(preset_config(name)), encoding="utf-8")
        assert load_shape(str(folder)) == load_shape(str(folder / "config.json")) == load_shape(name)


def test_an_explicit_head_dim_wins_and_null_is_derived() -> None:
    assert shape_from_config(with_fields(head_dim=32), "x").head_dim == 32
    assert shape_from_config(with_fields(head_dim=None), "x").head_dim == 8
    assert shape_from_config(LLAMA_LIKE, "x").head_dim == 8
    assert shape_from_config(with_fields(model_type="ernie4_5"), "x").head_dim == 128
    assert shape_from_config(with_fields(model_type="ernie4_5", head_dim=None), "x").head_dim == 8


def test_defaults_of_the_model_type() -> None:
    assert not shape_from_config(LLAMA_LIKE, "x").tied_embeddings
    assert shape_from_config(with_fields(model_type="ernie4_5"), "x").tied_embeddings
    assert shape_from_config(with_fields(model_type="gemma"), "x").tied_embeddings
    assert shape_from_config(with_fields(tie_word_embeddings=True), "x").tied_embeddings
    assert shape_from_config(without("num_key_value_heads"), "x").kv_heads == 8
    assert shape_from_config(with_fields(num_key_value_heads=None), "x").kv_heads == 8


def test_biases() -> None:
    qwen = shape_from_config(with_fields(model_type="qwen2"), "x")
    assert (qwen.attention_bias, qwen.output_bias) == (True, False)
    llama = shape_from_config(with_fields(attention_bias=True, mlp_bias=True), "x")
    assert llama.bias_parameters == 12 * (96 + 64 + 2 * 96 + 64)


def test_gpt2_field_names() -> None:
    config = {
        "model_type": "gpt2",
        "n_layer": 12,
        "n_embd": 768,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    for inner in ({}, {"n_inner": None}, {"n_inner": 3072}):
        gpt2 = shape_from_config({**config, **inner}, "gpt2")
        assert gpt2.parameters == 124_439_808  # openai-community/gpt2
        assert not gpt2.gated_mlp


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 64}, (64, 12)),
        ({"model_type": "mistral", "sliding_window": None}, (None, 0)),
        ({"model_type": "mistral"}, (4096, 12)),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, (None, 0)),
        (
            {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 8},
            (64, 4),
        ),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True}, (None, 0)),
        ({"model_type": "gemma2", "sliding_window": 64}, (64, 6)),
        ({"model_type": "gemma3_text", "sliding_window": 64}, (64, 10)),
        ({"model_type": "gemma3_text", "sliding_window": 64, "sliding_window_pattern": 3}, (64, 8)),
        (
            {
                "model_type": "gemma2",
                "sliding_window": 64,
                "layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 9,
            },
            (64, 3),
        ),
        ({"sliding_window": 64}, (None, 0)),
        ({"model_type": "mistral", "sliding_window": 0}, (None, 0)),
    ],
)
def test_sliding_windows(fields: dict[str, object], expected: tuple[int | None, int]) -> None:
    shape = shape_from_config(with_fields(**fields), "x")
    assert (shape.sliding_window, shape.sliding_layers) == expected


def test_experts_of_each_kind() -> None:
    mixtral = shape_from_config(
        with_fields(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2), "x"
    )
    assert (mixtral.experts, mixtral.expert_intermediate, mixtral.dense_layers) == (4, 96, 0)
    qwen = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    two = shape_from_config(
        with_fields(
            model_type="qwen2_moe", shared_expert_intermediate_size=48, decoder_sparse_step=2, **qwen
        ),
        "x",
    )
    assert (two.dense_layers, two.shared_expert_intermediate, two.shared_expert_gate) == (6, 48, True)
    three = shape_from_config(with_fields(model_type="qwen3_moe", mlp_only_layers=[0, 3], **qwen), "x")
    assert (three.dense_layers, three.shared_expert_intermediate) == (2, 0)
    ernie = with_fields(model_type="ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=32)
    assert shape_from_config({**ernie, "moe_layer_end_index": 9}, "x").dense_layers == 3
    assert shape_from_config({**ernie, "moe_layer_interval": 2}, "x").moe_layers == 6


def test_nested_text_config() -> None:
    outer = {
        "model_type": "gemma3",
        "tie_word_embeddings": False,
        "text_config": with_fields(model_type="gemma3_text"),
    }
    shape = shape_from_config(outer, "x")
    assert (shape.model_type, shape.tied_embeddings) == ("gemma3_text", False)


def test_an_unknown_model_type_is_read_like_llama_and_says_so() -> None:
    shape = shape_from_config(with_fields(model_type="brandnew"), "x")
    assert "brandnew" in shape.assumption
    assert shape.gated_mlp
    assert not shape_from_config(with_fields(model_type="brandnew", hidden_act="gelu"), "x").gated_mlp
    assert not shape_from_config(LLAMA_LIKE, "x").assumption


def test_weight_dtype_is_read() -> None:
    assert shape_from_config(with_fields(torch_dtype="float16"), "x").weight_dtype == "float16"
    assert shape_from_config(with_fields(dtype="float32"), "x").weight_dtype == "float32"


@pytest.mark.parametrize(
    "field", ["model_type", *(f for f in LLAMA_LIKE if f not in {"num_key_value_heads"})]
)
def test_a_missing_field_is_named(field: str) -> None:
    if field == "max_position_embeddings":
        assert shape_from_config(without(field), "x").max_positions is None
        return
    with pytest.raises(InputError, match=field):
        shape_from_config(without(field), "x")


@pytest.mark.parametrize("field", [f for f in LLAMA_LIKE if f != "model_type"])
@pytest.mark.parametrize("bad", [0, -3, 1.5, "64", True, [], {}])
def test_a_bad_count_is_named(field: str, bad: object) -> None:
    with pytest.raises(InputError) as caught:
        shape_from_config(with_fields(**{field: bad}), "x")
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"attention_bias": 1}, "attention_bias"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_key_value_heads": 16}, "num_key_value_heads"),
        ({"hidden_size": 65}, "head_dim"),
        ({"head_dim": 0}, "head_dim"),
        ({"model_type": 3}, "model_type"),
        ({"model_type": "bert"}, "model_type"),
        ({"model_type": "deepseek_v3"}, "model_type"),
        ({"model_type": "brandnew", "kv_lora_rank": 512}, "kv_lora_rank"),
        ({"model_type": "brandnew", "num_local_experts": 8}, "model_type"),
        ({"model_type": "mixtral"}, "num_local_experts"),
        ({"model_type": "mixtral", "num_local_experts": 4}, "num_experts_per_tok"),
        ({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok"),
        ({"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2}, "moe_intermediate_size"),
        ({"model_type": "mistral", "sliding_window": -1}, "sliding_window"),
        ({"model_type": "gemma2", "sliding_window": 8, "layer_types": ["full_attention"]}, "layer_types"),
        ({"model_type": "opt", "max_position_embeddings": None}, "max_position_embeddings"),
        ({"model_type": "opt", "word_embed_proj_dim": 32}, "word_embed_proj_dim"),
        ({"torch_dtype": "complex64"}, "torch_dtype"),
    ],
)
def test_a_config_that_cannot_be_is_refused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        shape_from_config(with_fields(**fields), "x")
    assert caught.value.field == field


@pytest.mark.parametrize("typed", ["qwen3-06b", "Qwen/Qwen3-0.7B"])
def test_an_unknown_preset_suggests_near_ones(typed: str) -> None:
    with pytest.raises(InputError, match=r"qwen3-0\.6b"):
        load_shape(typed)
    with pytest.raises(InputError, match=r"qwen3-0\.6b"):
        preset_config(typed)


@pytest.mark.parametrize("typed", ["", "   ", "zzzz", "no/such/path/config.json", "a" * 5000, "nul\0byte"])
def test_what_is_neither_name_nor_path_is_refused(typed: str) -> None:
    with pytest.raises(InputError) as caught:
        load_shape(typed)
    assert caught.value.field == "model"


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe", b"", b"null"])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match="JSON"):
        load_shape(str(file))


def test_a_directory_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        load_shape(str(tmp_path))


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        load_shape(str(tmp_path))


@given(
    kind=st.sampled_from(
        sorted(set(FAMILIES) - {"mixtral", "qwen2_moe", "qwen3_moe", "ernie4_5_moe", "gpt2"})
    ),
    heads=st.sampled_from([1, 2, 4, 8]),
    groups=st.sampled_from([1, 2, 4]),
    head_dim=st.integers(1, 256),
    layers=st.integers(1, 40),
    hidden=st.integers(1, 4096),
)
def test_fewer_kv_heads_save_cache_not_flops(
    kind: str, heads: int, groups: int, head_dim: int, layers: int, hidden: int
) -> None:
    sizes = {"num_attention_heads": heads * groups, "head_dim": head_dim, "num_hidden_layers": layers}
    config = with_fields(model_type=kind, hidden_size=hidden, **sizes)
    full = shape_from_config({**config, "num_key_value_heads": heads * groups}, "full")
    grouped = shape_from_config({**config, "num_key_value_heads": heads}, "grouped")
    assert grouped.kv_bytes_per_token() * groups == full.kv_bytes_per_token()
    assert grouped.parameters <= full.parameters
    assert grouped.active_parameters == grouped.parameters

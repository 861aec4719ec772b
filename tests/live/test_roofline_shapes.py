"""Our parameter counts against what transformers builds (on the meta device: no weights, no download)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phasemeter.roofline.families import FAMILIES
from phasemeter.roofline.model import PRESETS, load_shape, preset_config, shape_from_config

pytestmark = pytest.mark.live

_SMALL: dict[str, object] = {
    "num_hidden_layers": 12,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ROUTED: dict[str, object] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SPECIAL: dict[str, dict[str, object]] = {
    "gpt2": {"n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 128},
    "opt": {"num_key_value_heads": 8, "word_embed_proj_dim": 64, "ffn_dim": 96},
    "phi": {"num_key_value_heads": 8},
    "gpt_neox": {"num_key_value_heads": 8},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        **_ROUTED,
        "shared_expert_intermediate_size": 48,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
    },
    "qwen3_moe": {**_ROUTED, "mlp_only_layers": [0, 3]},
    "ernie4_5_moe": {
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 32,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 2,
    },
}


def _small(kind: str) -> dict[str, object]:
    common = _SMALL
    if kind == "gpt2":
        common = {key: _SMALL[key] for key in ("vocab_size", "bos_token_id", "eos_token_id")}
    if kind == "opt":
        common = {key: value for key, value in _SMALL.items() if key != "intermediate_size"}
    return {**common, "model_type": kind, **_SPECIAL.get(kind, {})}


def _built(config: dict[str, object]) -> tuple[int, dict[str, Any]]:
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    read = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(read)
    return sum(tensor.numel() for tensor in model.parameters()), json.loads(
        read.to_json_string(use_diff=False)
    )


@pytest.mark.parametrize("name", PRESETS)
def test_presets_build_with_the_count_we_give(name: str) -> None:
    count, _ = _built(preset_config(name))
    assert load_shape(name).parameters == count


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_families_build_with_the_count_we_give(kind: str) -> None:
    config = _small(kind)
    ours = shape_from_config(config, kind)
    count, written = _built(config)
    assert ours.parameters == count
    assert shape_from_config(written, kind) == ours

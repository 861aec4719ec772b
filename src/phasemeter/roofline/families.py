"""What a model type implies where its config.json is silent.

Every row was read from the configuration and modelling files of transformers 5.24 and its parameter count
compared with `AutoModelForCausalLM.from_config` (tests/live/test_roofline_shapes.py). A field of the
config.json always wins.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Family(msgspec.Struct, frozen=True):
    """Defaults of one model type. Biases are `True`, `False` or the config field that says so."""

    tied: bool = False
    gated: bool = True
    head_dim: int | None = None
    kv_heads: int | None = None
    attention_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    head_bias: bool | str = False
    bias_default: bool = False
    qk_norm: bool = False
    norm_bias: bool = False
    norms_per_layer: int = 2
    learned_positions: bool = False
    position_offset: int = 0
    sliding: Literal["none", "all", "flag", "pattern"] = "none"
    sliding_pattern: int = 1
    window_default: int | None = None
    moe: Literal["none", "mixtral", "qwen", "ernie"] = "none"
    shared_expert_gate: bool = False
    router_bias: bool = False


_LLAMA = Family(attention_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias")
_ATTENTION_ONLY = msgspec.structs.replace(_LLAMA, mlp_bias=False)
_ERNIE = Family(
    tied=True, attention_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", head_bias="use_bias"
)
_GEMMA = msgspec.structs.replace(_ATTENTION_ONLY, tied=True, head_dim=256)
_ALL_BIASES = Family(gated=False, attention_bias=True, output_bias=True, mlp_bias=True, norm_bias=True)

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": Family(sliding="all", window_default=4096, kv_heads=8),
    "mixtral": Family(sliding="all", moe="mixtral", kv_heads=8),
    "qwen2": Family(attention_bias=True, sliding="flag"),
    "qwen3": msgspec.structs.replace(_ATTENTION_ONLY, head_dim=128, qk_norm=True, sliding="flag"),
    "qwen2_moe": Family(
        attention_bias="qkv_bias", bias_default=True, sliding="flag", moe="qwen", shared_expert_gate=True
    ),
    "qwen3_moe": msgspec.structs.replace(_ATTENTION_ONLY, qk_norm=True, moe="qwen", sliding="flag"),
    "ernie4_5": msgspec.structs.replace(_ERNIE, head_dim=128),
    "ernie4_5_moe": msgspec.structs.replace(_ERNIE, moe="ernie", router_bias=True),
    "gemma": _GEMMA,
    "gemma2": msgspec.structs.replace(
        _GEMMA, norms_per_layer=4, sliding="pattern", sliding_pattern=2, window_default=4096
    ),
    "gemma3_text": msgspec.structs.replace(
        _GEMMA, norms_per_layer=4, qk_norm=True, sliding="pattern", sliding_pattern=6, window_default=4096
    ),
    "phi": msgspec.structs.replace(_ALL_BIASES, head_bias=True, norms_per_layer=1),
    "phi3": Family(sliding="all"),
    "gpt2": msgspec.structs.replace(_ALL_BIASES, tied=True, learned_positions=True),
    "opt": msgspec.structs.replace(_ALL_BIASES, tied=True, learned_positions=True, position_offset=2),
    "gpt_neox": msgspec.structs.replace(
        _ALL_BIASES, attention_bias="attention_bias", output_bias="attention_bias", bias_default=True
    ),
    "starcoder2": Family(
        tied=True,
        gated=False,
        kv_heads=2,
        attention_bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        bias_default=True,
        norm_bias=True,
        sliding="all",
    ),
    "smollm3": msgspec.structs.replace(_LLAMA, tied=True, kv_heads=4, sliding="flag"),
    "granite": _LLAMA,
}

# A model type that is not above is read like Llama, with the base class's own default for tying
# (PretrainedConfig).
ASSUMED = msgspec.structs.replace(_LLAMA, tied=True, sliding="all")

# Fields and types of architectures whose attention or state these formulas do not describe.
FOREIGN_FIELDS: dict[str, str] = {
    "kv_lora_rank": "multi-head latent attention",
    "ssm_cfg": "a state-space model",
    "state_size": "a state-space model",
    "mamba_d_state": "a hybrid with state-space layers",
    "linear_num_value_heads": "a hybrid with linear attention",
    "is_encoder_decoder": "an encoder-decoder model",
    "n_routed_experts": "DeepSeek-style experts",
}
FOREIGN_TYPES = frozenset(
    {
        "bert",
        "roberta",
        "xlm-roberta",
        "distilbert",
        "albert",
        "electra",
        "deberta",
        "deberta-v2",
        "modernbert",
        "t5",
        "mt5",
        "bart",
        "mbart",
        "whisper",
        "mamba",
        "mamba2",
        "falcon_mamba",
        "rwkv",
        "jamba",
        "bamba",
        "zamba",
        "zamba2",
        "recurrent_gemma",
        "deepseek_v2",
        "deepseek_v3",
        "bloom",
        "falcon",
        "mpt",
        "gpt_bigcode",
        "gptj",
        "gpt_neo",
        "codegen",
        "gpt_oss",
        "chatglm",
        "llama4",
        "llama4_text",
    }
)

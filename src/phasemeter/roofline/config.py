"""Read a Hugging Face config.json into a ModelShape.

`head_dim` is read, and derived as hidden / heads only where neither the file nor the model type says:
deriving it blindly halves the attention of ERNIE-4.5-0.3B (128, not 1024 / 16 = 64).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from phasemeter.record.errors import InputError
from phasemeter.roofline.dtypes import canonical_dtype
from phasemeter.roofline.families import ASSUMED, FAMILIES, FOREIGN_FIELDS, FOREIGN_TYPES, Family
from phasemeter.roofline.shape import ModelShape

Config = Mapping[str, object]

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads",)
_INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
_EXPERTS = ("num_local_experts", "num_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "moe_k")
_PLAIN_ACTIVATIONS = frozenset({"relu", "gelu", "gelu_new", "gelu_fast", "relu2"})


def shape_from_config(config: Config, name: str) -> ModelShape:
    """The shape of the decoder that a config.json describes (its `text_config` if it is nested).

    Model types in `families.FAMILIES` are exact; others are read like Llama and say so in `assumption`.
    Raises InputError, naming the field, for a missing, non-positive or wrongly typed one, and for an
    architecture whose work these formulas do not describe.
    """
    text = _decoder(config)
    kind = _model_type(text)
    family = FAMILIES.get(kind, ASSUMED)
    heads, hidden = _integer(text, _HEADS), _integer(text, _HIDDEN)
    layers = _integer(text, _LAYERS)
    if (projected := _optional(text, ("word_embed_proj_dim",))) not in {None, hidden}:
        raise InputError("word_embed_proj_dim", projected, f"only {hidden}, the hidden size, is supported")
    window, sliding_layers = _sliding(text, family, layers)
    intermediate = _intermediate(text, hidden)
    positions = _optional(text, _POSITIONS)
    experts = _experts(text, family, layers, intermediate)
    return ModelShape(
        name=name,
        model_type=kind,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(text, family, heads),
        head_dim=_head_dim(text, family, hidden, heads),
        intermediate=intermediate,
        vocab=_integer(text, ("vocab_size",)),
        tied_embeddings=_boolean(text, "tie_word_embeddings", default=family.tied),
        gated_mlp=_gated(text, kind, family),
        max_positions=positions,
        sliding_window=window,
        sliding_layers=sliding_layers,
        attention_bias=_bias(text, family.attention_bias, family),
        output_bias=_bias(text, family.output_bias, family),
        mlp_bias=_bias(text, family.mlp_bias, family),
        head_bias=_bias(text, family.head_bias, family),
        qk_norm=family.qk_norm,
        norm_bias=family.norm_bias,
        norms_per_layer=family.norms_per_layer,
        position_parameters=_position_parameters(family, positions, hidden),
        experts=experts.get("experts", 0),
        experts_per_token=experts.get("experts_per_token", 0),
        expert_intermediate=experts.get("expert_intermediate", 0),
        shared_expert_intermediate=experts.get("shared", 0),
        shared_expert_gate=family.shared_expert_gate,
        router_bias=family.router_bias,
        dense_layers=experts.get("dense_layers", 0),
        weight_dtype=_weight_dtype(text),
        assumption="" if kind in FAMILIES else f"model type {kind!r} is not known here: read like Llama",
    )


def _decoder(config: Config) -> Config:
    """The part that describes the decoder; tying and the dtype may stand one level up."""
    nested = config.get("text_config")
    if not isinstance(nested, Mapping):
        return config
    inner = cast("Config", nested)
    outer = {key: config[key] for key in ("tie_word_embeddings", "torch_dtype", "dtype") if key in config}
    return {**outer, **inner}


def _model_type(config: Config) -> str:
    kind = config.get("model_type", "")
    if not isinstance(kind, str) or not kind:
        raise InputError("model_type", kind, "a config.json names its model type, such as 'llama'")
    if kind in FOREIGN_TYPES:
        raise InputError(
            "model_type", kind, f"not supported; supported: {', '.join(FAMILIES)} and types like Llama"
        )
    for field, what in FOREIGN_FIELDS.items():
        if config.get(field):
            raise InputError(
                field, config[field], f"this is {what}, whose work these formulas do not describe"
            )
    return kind


def _find(config: Config, fields: tuple[str, ...]) -> tuple[str, object]:
    """The first of the fields that is there and not null; else the first name and None."""
    for field in fields:
        if config.get(field) is not None:
            return field, config[field]
    return fields[0], None


def _optional(config: Config, fields: tuple[str, ...], least: int = 1) -> int | None:
    field, value = _find(config, fields)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(field, value, f"must be a whole number, {least} or more; mend the config.json")
    return value


def _integer(config: Config, fields: tuple[str, ...]) -> int:
    value = _optional(config, fields)
    if value is None:
        raise InputError(fields[0], "missing", "the config.json must give it; is this a model's config.json?")
    return value


def _boolean(config: Config, field: str, *, default: bool) -> bool:
    value = config.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise InputError(field, value, "must be true or false; mend the config.json")
    return value


def _bias(config: Config, rule: bool | str, family: Family) -> bool:  # noqa: FBT001
    return _boolean(config, rule, default=family.bias_default) if isinstance(rule, str) else rule


def _head_dim(config: Config, family: Family, hidden: int, heads: int) -> int:
    read = _optional(config, ("head_dim",))
    if read is not None:
        return read
    if family.head_dim is not None and "head_dim" not in config:
        return family.head_dim
    if hidden % heads:
        raise InputError(
            "head_dim", "missing", f"{hidden} hidden over {heads} heads is not whole; give head_dim"
        )
    return hidden // heads


def _kv_heads(config: Config, family: Family, heads: int) -> int:
    kv_heads = _optional(config, _KV_HEADS)
    if kv_heads is None:
        kv_heads = family.kv_heads if family.kv_heads and _KV_HEADS[0] not in config else heads
    if kv_heads > heads or heads % kv_heads:
        raise InputError("num_key_value_heads", kv_heads, f"must divide the {heads} attention heads")
    return kv_heads


def _intermediate(config: Config, hidden: int) -> int:
    value = _optional(config, _INTERMEDIATE)
    if value is not None:
        return value
    if "n_embd" in config:  # GPT-2 leaves n_inner null and means four times the width
        return 4 * hidden
    return _integer(config, _INTERMEDIATE)


def _gated(config: Config, kind: str, family: Family) -> bool:
    if kind in FAMILIES:
        return family.gated
    return config.get("hidden_act", "silu") not in _PLAIN_ACTIVATIONS


def _position_parameters(family: Family, positions: int | None, hidden: int) -> int:
    if not family.learned_positions:
        return 0
    if positions is None:
        raise InputError("max_position_embeddings", "missing", "this model type has a table of that length")
    return (positions + family.position_offset) * hidden


def _weight_dtype(config: Config) -> str:
    for field in ("dtype", "torch_dtype"):
        value = config.get(field)
        if isinstance(value, str):
            return canonical_dtype(value, field)
    return "bfloat16"


def _sliding(config: Config, family: Family, layers: int) -> tuple[int | None, int]:
    """The window in tokens and how many layers have it; (None, 0) without one."""
    window = _optional(config, ("sliding_window",), least=0)
    if window is None and "sliding_window" not in config:
        window = family.window_default
    flag = _boolean(config, "use_sliding_window", default=family.sliding != "flag")
    if not window or not flag:
        return None, 0
    count = _sliding_layers(config, family, layers)
    return (window, count) if count else (None, 0)


def _sliding_layers(config: Config, family: Family, layers: int) -> int:
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        listed = cast("list[object]", kinds)
        if len(listed) != layers:
            raise InputError(
                "layer_types", f"{len(listed)} entries", f"must name each of the {layers} layers"
            )
        return sum(1 for kind in listed if kind == "sliding_attention")
    if family.sliding == "all":
        return layers
    if family.sliding == "flag":
        start = _optional(config, ("max_window_layers",), least=0)
        return max(
            0, layers - (28 if start is None else start)
        )  # 28: default of Qwen2Config.max_window_layers
    if family.sliding == "pattern":
        every = _optional(config, ("sliding_window_pattern",)) or family.sliding_pattern
        return layers - layers // every
    return 0


def _experts(config: Config, family: Family, layers: int, intermediate: int) -> dict[str, int]:
    """Sizes of the experts; empty for a dense model."""
    experts = _optional(config, _EXPERTS, least=0)
    if family.moe == "none":
        if experts:
            raise InputError("model_type", config["model_type"], "its experts are not known here")
        return {}
    if not experts:
        raise InputError(_EXPERTS[0], experts, "a model with experts must say how many")
    chosen = _integer(config, _CHOSEN)
    if chosen > experts:
        raise InputError(_CHOSEN[0], chosen, f"at most the {experts} experts there are")
    width = intermediate if family.moe == "mixtral" else _integer(config, ("moe_intermediate_size",))
    dense = sum(1 for layer in range(layers) if not _has_experts(config, family, layer, layers))
    return {
        "experts": experts,
        "experts_per_token": chosen,
        "expert_intermediate": width,
        "shared": _shared_width(config, family, width),
        "dense_layers": dense,
    }


def _shared_width(config: Config, family: Family, width: int) -> int:
    if family.moe == "ernie":
        return width * (_optional(config, ("moe_num_shared_experts",), least=0) or 0)
    return (
        (_optional(config, ("shared_expert_intermediate_size",), least=0) or 0)
        if family.shared_expert_gate
        else 0
    )


def _has_experts(config: Config, family: Family, layer: int, layers: int) -> bool:
    """Whether one layer has experts: rules of Qwen2MoeDecoderLayer and Ernie4_5_MoeDecoderLayer."""
    if family.moe == "mixtral":
        return True
    if family.moe == "qwen":
        step = _optional(config, ("decoder_sparse_step",)) or 1
        plain = config.get("mlp_only_layers")
        listed = cast("list[object]", plain) if isinstance(plain, list) else []
        return layer not in listed and (layer + 1) % step == 0
    start = _optional(config, ("moe_layer_start_index",), least=0)
    end = config.get("moe_layer_end_index")
    last = layers - 1 if not isinstance(end, int) or end < 0 else end
    every = _optional(config, ("moe_layer_interval",)) or 1
    return (layer + 1) % every == 0 and (1 if start is None else start) <= layer <= last

"""How many FLOPs and bytes one forward pass needs: a batch of (new, context) becomes work, operator by
operator.

Sources: Pope et al., arXiv 2211.05102 (2 FLOPs a parameter and token); kipply, "Transformer inference
arithmetic" (KV bytes); vLLM `v1/metrics/perf.py` (the head works on sampled rows only). What is counted:

- FLOPs are the matrix products alone, 2 a multiply-add. Attention is exactly causal: a new token sees what is
  cached plus itself and the new ones before it. Softmax, norms and rotary embedding are vector work and not
  counted.
- Bytes are compulsory traffic, each once a pass: weights (once whatever the batch), cached KV read, new KV
  written. A tied embedding's lookup rows are part of the head's matrix and cost nothing more when the head
  runs.
- Activations can stay in cache; their unfused traffic is given apart (`activation_bytes`) and is in no floor
  unless asked for.
"""

from __future__ import annotations

import msgspec

from phasemeter.record.errors import InputError
from phasemeter.roofline.dtypes import canonical_dtype, element_bytes, unquantised_bytes
from phasemeter.roofline.shape import ModelShape


class Item(msgspec.Struct, frozen=True):
    """One sequence in a pass: `new` tokens are processed, `context` tokens are already in the KV cache before
    them.
    """

    new: int
    context: int = 0


class Batch(msgspec.Struct, frozen=True):
    """The sequences of one forward pass; `samples` rows go through the head (default: one a sequence)."""

    items: tuple[Item, ...]
    samples: int | None = None


class OperatorWork(msgspec.Struct, frozen=True):
    """One operator over all layers: FLOPs, compulsory bytes, unfused activation bytes, and in how many layers
    it runs.
    """

    name: str
    flops: float = 0.0
    read_bytes: float = 0.0
    write_bytes: float = 0.0
    activation_bytes: float = 0.0
    count: int = 1

    @property
    def bytes(self) -> float:
        """Compulsory bytes, read and written."""
        return self.read_bytes + self.write_bytes


class Work(msgspec.Struct, frozen=True):
    """The work of one forward pass, as a list of operators."""

    operators: tuple[OperatorWork, ...]

    @property
    def flops(self) -> float:
        """FLOPs of all operators."""
        return sum(operator.flops for operator in self.operators)

    @property
    def bytes(self) -> float:
        """Compulsory bytes of all operators."""
        return sum(operator.bytes for operator in self.operators)

    @property
    def activation_bytes(self) -> float:
        """Activation bytes of all operators if nothing were fused or kept in cache."""
        return sum(operator.activation_bytes for operator in self.operators)

    @property
    def by_name(self) -> dict[str, OperatorWork]:
        """The operators by name."""
        return {operator.name: operator for operator in self.operators}


class _Pass(msgspec.Struct, frozen=True):
    """Everything the operators ask for: sums over the batch, and bytes an element."""

    shape: ModelShape
    tokens: int
    samples: int
    pairs: int
    cached_rows: int
    matrix_bytes: float
    plain_bytes: float
    kv_bytes: float
    activation_bytes: float


def prefill(tokens: int, batch: int = 1, cached: int = 0) -> Batch:
    """`batch` prompts of `tokens` new tokens each, behind `cached` tokens already in the KV cache.

    Raises InputError unless tokens and batch are at least 1 and cached at least 0.
    """
    return Batch(
        items=(Item(whole_number("tokens", tokens), whole_number("cached", cached, least=0)),)
        * whole_number("batch", batch)
    )


def decode(context: int, batch: int = 1) -> Batch:
    """One decode step of `batch` sequences, the new token attending over `context` tokens, itself included.

    So the cache holds `context - 1` before the step; KV read and written together are `context` rows.
    Raises InputError unless both are at least 1.
    """
    return Batch(items=(Item(1, whole_number("context", context) - 1),) * whole_number("batch", batch))


def work(
    shape: ModelShape,
    batch: Batch,
    dtype: str = "bfloat16",
    kv_dtype: str | None = None,
    weight_dtype: str | None = None,
) -> Work:
    """FLOPs and bytes of one forward pass; `kv_dtype` and `weight_dtype` are `dtype` unless given.

    With N new tokens and S cached: linears 2 N P_mm; attention 4 L n_q d (N S + N (N+1)/2); head 2 P_head a
    sample. Raises InputError for an empty batch, a count out of range or an unknown dtype.
    """
    step = _collect(shape, batch, canonical_dtype(dtype), kv_dtype or dtype, weight_dtype or dtype)
    feed_forward = _feed_forward(step)
    return Work(operators=(_embed(step), _norms(step), *_attention(step), *feed_forward, _head(step)))


def attention_pairs(new: int, context: int, window: int | None = None) -> int:
    """How many (query, key) pairs causal attention needs: sum over the new tokens of the keys each one sees.

    Without a window N S + N (N+1)/2; with one, each token sees at most `window` keys, itself included.
    """
    if window is None:
        return new * context + new * (new + 1) // 2
    growing = min(new, max(0, window - context))
    return growing * context + growing * (growing + 1) // 2 + (new - growing) * window


def expected_experts(experts: int, chosen: int, tokens: int) -> float:
    """Expected number of distinct experts of one layer that `tokens` tokens touch: E (1 - (1 - k/E)^N).

    Each token picks k of E evenly and apart from the others, so it misses a given expert with probability 1 -
    k/E; linearity of expectation gives the sum. A skewed router touches fewer, so here bytes are an
    expectation, no bound.
    """
    return experts * (1.0 - (1.0 - chosen / experts) ** tokens)


def whole_number(field: str, value: int, least: int = 1) -> int:
    """The value itself if it is an int of at least `least`; raises InputError, naming the field, if not."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(field, value, f"must be a whole number, {least} or more")
    return value


def _collect(shape: ModelShape, batch: Batch, dtype: str, kv_dtype: str, weight_dtype: str) -> _Pass:
    if not batch.items:
        raise InputError("batch", "empty", "give at least one sequence")
    for item in batch.items:
        whole_number("new", item.new)
        whole_number("context", item.context, least=0)
    tokens = sum(item.new for item in batch.items)
    samples = len(batch.items) if batch.samples is None else whole_number("samples", batch.samples, least=0)
    if samples > tokens:
        raise InputError("samples", samples, f"at most one a new token, here {tokens}")
    return _Pass(
        shape=shape,
        tokens=tokens,
        samples=samples,
        pairs=sum(_layer_pairs(shape, item) for item in batch.items),
        cached_rows=sum(_layer_rows(shape, item) for item in batch.items),
        matrix_bytes=element_bytes(weight_dtype, "weight_dtype"),
        plain_bytes=unquantised_bytes(weight_dtype, "weight_dtype"),
        kv_bytes=element_bytes(kv_dtype, "kv_dtype"),
        activation_bytes=unquantised_bytes(dtype),
    )


def _layer_pairs(shape: ModelShape, item: Item) -> int:
    """Attention pairs summed over the layers, windowed ones apart."""
    full = (shape.layers - shape.sliding_layers) * attention_pairs(item.new, item.context)
    return full + shape.sliding_layers * attention_pairs(item.new, item.context, shape.sliding_window)


def _layer_rows(shape: ModelShape, item: Item) -> int:
    """Cached KV rows read, summed over the layers: a windowed layer needs window - 1 of them at most."""
    window = shape.sliding_window
    near = item.context if window is None else min(item.context, window - 1)
    return (shape.layers - shape.sliding_layers) * item.context + shape.sliding_layers * near


def _embed(step: _Pass) -> OperatorWork:
    shape = step.shape
    shared = shape.tied_embeddings and step.samples > 0
    rows = 0 if shared else step.tokens
    rows += step.tokens if shape.position_parameters else 0
    return OperatorWork(
        "embed",
        read_bytes=rows * shape.hidden * step.plain_bytes,
        activation_bytes=step.tokens * shape.hidden * step.activation_bytes,
    )


def _norms(step: _Pass) -> OperatorWork:
    shape = step.shape
    width = 2 * shape.hidden * (shape.norms_per_layer * shape.layers + 1)
    return OperatorWork(
        "norms",
        read_bytes=shape.norm_parameters * step.plain_bytes,
        activation_bytes=step.tokens * width * step.activation_bytes,
        count=shape.norms_per_layer * shape.layers + 1,
    )


def _attention(step: _Pass) -> tuple[OperatorWork, ...]:
    shape, tokens, layers = step.shape, step.tokens, step.shape.layers
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    qkv, out = shape.hidden * (queries + 2 * keys), queries * shape.hidden
    qkv_bias = queries + 2 * keys if shape.attention_bias else 0
    out_bias = shape.hidden if shape.output_bias else 0
    moved = step.activation_bytes * tokens * layers
    return (
        OperatorWork(
            "qkv",
            flops=2.0 * tokens * layers * qkv,
            read_bytes=layers * (qkv * step.matrix_bytes + qkv_bias * step.plain_bytes),
            activation_bytes=moved * (shape.hidden + queries + 2 * keys),
            count=layers,
        ),
        OperatorWork("kv_write", write_bytes=tokens * layers * 2 * keys * step.kv_bytes, count=layers),
        OperatorWork(
            "attention",
            flops=4.0 * queries * step.pairs,
            read_bytes=step.cached_rows * 2 * keys * step.kv_bytes,
            activation_bytes=moved * 2 * queries,
            count=layers,
        ),
        OperatorWork(
            "o",
            flops=2.0 * tokens * layers * out,
            read_bytes=layers * (out * step.matrix_bytes + out_bias * step.plain_bytes),
            activation_bytes=moved * (queries + shape.hidden),
            count=layers,
        ),
    )


def _feed_forward(step: _Pass) -> tuple[OperatorWork, ...]:
    shape = step.shape
    dense = shape.layers if shape.experts == 0 else shape.dense_layers
    bias = dense * shape.mlp_bias_parameters * step.plain_bytes
    operators: list[OperatorWork] = []
    if dense:
        operators.append(_mlp(step, "mlp", dense, shape.intermediate, 1.0, bias))
    if not shape.experts:
        return tuple(operators)
    sparse, tokens = shape.moe_layers, step.tokens
    router = shape.router_parameters
    operators.append(
        OperatorWork(
            "router",
            flops=2.0 * tokens * sparse * router,
            read_bytes=sparse * (router + shape.router_bias_parameters) * step.plain_bytes,
            activation_bytes=tokens * sparse * (shape.hidden + shape.experts) * step.activation_bytes,
            count=sparse,
        )
    )
    distinct = expected_experts(shape.experts, shape.experts_per_token, tokens)
    experts = _mlp(step, "experts", sparse, shape.expert_intermediate, distinct)
    k = shape.experts_per_token
    operators.append(
        msgspec.structs.replace(
            experts, flops=k * experts.flops, activation_bytes=k * experts.activation_bytes
        )
    )
    if shape.shared_expert_intermediate:
        operators.append(_mlp(step, "shared_expert", sparse, shape.shared_expert_intermediate))
    return tuple(operators)


def _mlp(
    step: _Pass, name: str, layers: int, intermediate: int, copies: float = 1.0, bias_bytes: float = 0.0
) -> OperatorWork:
    """One feed-forward block in `layers` layers: FLOPs of one copy a token, weights of `copies` read."""
    shape = step.shape
    matrix = (3 if shape.gated_mlp else 2) * shape.hidden * intermediate
    moved = 2 * shape.hidden + (6 if shape.gated_mlp else 4) * intermediate
    return OperatorWork(
        name,
        flops=2.0 * step.tokens * layers * matrix,
        read_bytes=layers * copies * matrix * step.matrix_bytes + bias_bytes,
        activation_bytes=step.tokens * layers * moved * step.activation_bytes,
        count=layers,
    )


def _head(step: _Pass) -> OperatorWork:
    shape = step.shape
    weights = shape.head_parameters + (shape.vocab if shape.head_bias else 0)
    return OperatorWork(
        "lm_head",
        flops=2.0 * step.samples * shape.head_parameters,
        read_bytes=weights * step.plain_bytes if step.samples else 0.0,
        activation_bytes=step.samples * (shape.hidden + shape.vocab) * step.activation_bytes,
    )

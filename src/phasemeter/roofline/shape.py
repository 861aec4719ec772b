"""The numbers of a decoder-only transformer that decide its FLOPs and bytes, and what follows from them.

Notation of the formulas: L layers, h hidden, n_q heads, n_kv key/value heads, d head_dim, f intermediate, V
vocab.
"""

from __future__ import annotations

import msgspec

from phasemeter.roofline.dtypes import element_bytes, unquantised_bytes


class ModelShape(msgspec.Struct, frozen=True):
    """Sizes of one architecture, as in its config.json; all counts are parameters or tokens, never bytes.

    `dense_layers` counts the layers with an ordinary feed-forward block in a model with experts (0 without
    experts). `sliding_layers` of the layers see only `sliding_window` tokens. `assumption` says in words what
    had to be assumed.
    """

    name: str
    model_type: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied_embeddings: bool
    gated_mlp: bool = True
    max_positions: int | None = None
    sliding_window: int | None = None
    sliding_layers: int = 0
    attention_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: bool = False
    norm_bias: bool = False
    norms_per_layer: int = 2
    position_parameters: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    shared_expert_intermediate: int = 0
    shared_expert_gate: bool = False
    router_bias: bool = False
    dense_layers: int = 0
    weight_dtype: str = "bfloat16"
    assumption: str = ""

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def attention_parameters(self) -> int:
        """Matrix parameters of q, k, v and o of one layer: h n_q d + 2 h n_kv d + n_q d h."""
        return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)

    @property
    def matmul_parameters(self) -> int:
        """P_mm: parameters of the layers' matrices, all experts included; no head, embedding, norm, bias."""
        return self._matmul(self.experts)

    @property
    def active_matmul_parameters(self) -> int:
        """The part of P_mm that one token passes through (all of it without experts): 2 FLOPs each."""
        return self._matmul(self.experts_per_token)

    @property
    def head_parameters(self) -> int:
        """P_head = V h, whether tied to the embedding or not."""
        return self.vocab * self.hidden

    @property
    def norm_parameters(self) -> int:
        """Scales (and biases) of all norms, the final one and the query/key norms included."""
        each = self.hidden * (2 if self.norm_bias else 1)
        per_layer = self.norms_per_layer * each + (2 * self.head_dim if self.qk_norm else 0)
        return self.layers * per_layer + each

    @property
    def mlp_bias_parameters(self) -> int:
        """Biases of one ordinary feed-forward block."""
        return ((2 if self.gated_mlp else 1) * self.intermediate + self.hidden) if self.mlp_bias else 0

    @property
    def router_parameters(self) -> int:
        """Parameters of one layer's router, and of the gate of its shared expert where there is one."""
        return self.hidden * (self.experts + (1 if self.shared_expert_gate else 0)) if self.experts else 0

    @property
    def router_bias_parameters(self) -> int:
        """Score corrections of one layer's router."""
        return self.experts if self.router_bias else 0

    @property
    def bias_parameters(self) -> int:
        """All biases of the layers and the head."""
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim if self.attention_bias else 0
        out = self.hidden if self.output_bias else 0
        dense = self.dense_layers if self.experts else self.layers
        router = self.moe_layers * self.router_bias_parameters
        head = self.vocab if self.head_bias else 0
        return self.layers * (qkv + out) + dense * self.mlp_bias_parameters + router + head

    @property
    def parameters(self) -> int:
        """All parameters; a tied embedding counts once."""
        tables = self.head_parameters * (1 if self.tied_embeddings else 2) + self.position_parameters
        return self.matmul_parameters + tables + self.norm_parameters + self.bias_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token touches: all but the experts it is not sent to."""
        return self.parameters - self.matmul_parameters + self.active_matmul_parameters

    def kv_bytes_per_token(self, dtype: str = "bfloat16") -> float:
        """KV cache bytes of one token: 2 L n_kv d elements; a sliding window does not lower it here."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes(dtype)

    def weight_bytes(self, dtype: str = "bfloat16") -> float:
        """Bytes of all weights; a quantised dtype applies to the layers' matrices, the rest stays 2 bytes."""
        router = self.moe_layers * self.router_parameters
        matrices = self.matmul_parameters - router
        return matrices * element_bytes(dtype) + (self.parameters - matrices) * unquantised_bytes(dtype)

    def crossover_tokens(self) -> float:
        """N*: prompt length at which causal attention needs as many FLOPs as the linears: P_mm / (L n_q d).

        2 N P_mm = 4 L n_q d N^2 / 2. Below it a prefill grows about linearly, far above it with the square.
        With experts the active P_mm counts; a sliding window is left out (it moves N* up).
        """
        return self.active_matmul_parameters / (self.layers * self.heads * self.head_dim)

    def _matmul(self, experts: int) -> int:
        wide = (3 if self.gated_mlp else 2) * self.hidden
        dense = self.dense_layers if self.experts else self.layers
        sparse = (
            wide * (experts * self.expert_intermediate + self.shared_expert_intermediate)
            + self.router_parameters
        )
        return (
            self.layers * self.attention_parameters
            + dense * wide * self.intermediate
            + self.moe_layers * sparse
        )

"""The chip's part of a time: what a pass needs, its floor, and what the same pass takes at a claimed time."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from msgspec import Struct

from phasemeter.explain.audit.place import Chip
from phasemeter.roofline.shape import ModelShape
from phasemeter.roofline.work import Batch, decode, prefill, work

_GROUPS = 64
_MEMORY_FOR_CACHE_SHARE = 0.95
"""vLLM's `gpu_memory_utilization` is 0.90 in 0.3.3, 0.92 in 0.32.0; weights come off it. Others may take more."""


class Pass(Struct, frozen=True):
    """One forward pass, or several added up: FLOPs by part, bytes, and the least times in ms."""

    linear_flops: float
    attention_flops: float
    head_flops: float
    bytes: float
    compute_ms: float
    memory_ms: float
    floor_ms: float

    @property
    def flops(self) -> float:
        """All of them."""
        return self.linear_flops + self.attention_flops + self.head_flops

    @property
    def attention_share(self) -> float:
        """The part that grows with the square of the length."""
        return self.attention_flops / self.flops

    @property
    def bound(self) -> Literal["compute", "memory"]:
        """Which of the two sets the floor."""
        return "compute" if self.compute_ms >= self.memory_ms else "memory"


def prefill_pass(chip: Chip, tokens: int, batch: int = 1, cached_tokens: int = 0) -> Pass:
    """`batch` prompts of `tokens` tokens, of which `cached_tokens` each are in a cache already."""
    return _pass(chip, prefill(tokens - cached_tokens, batch, cached_tokens))


def decode_pass(chip: Chip, context: int, batch: int = 1) -> Pass:
    """One decode step of `batch` sequences at a context, the new token included."""
    return _pass(chip, decode(max(1, context), batch))


def decode_total_pass(chip: Chip, prompt: int, steps: int, batch: int = 1) -> Pass:
    """`steps` decode steps behind a prompt, in at most 64 groups at the mean context of each (rounded down)."""
    groups = min(steps, _GROUPS)
    edges = [steps * index // groups for index in range(groups + 1)]
    parts = [
        _times(decode_pass(chip, prompt + (low + 1 + high) // 2, batch), high - low)
        for low, high in pairwise(edges)
    ]
    return added(parts)


def added(parts: list[Pass]) -> Pass:
    """Passes one behind the other."""
    return Pass(*(sum(getattr(part, field) for part in parts) for field in Pass.__struct_fields__))


def least_cached_tokens(chip: Chip, tokens: int, limit_ms: float) -> int | None:
    """The fewest tokens of a prompt that must have come from a cache for its prefill to be possible in `limit_ms`;
    None where even the last token alone takes longer."""
    if prefill_pass(chip, tokens, 1, tokens - 1).floor_ms > limit_ms:
        return None
    low, high = 0, tokens - 1
    while low < high:
        middle = (low + high) // 2
        if prefill_pass(chip, tokens, 1, middle).floor_ms <= limit_ms:
            high = middle
        else:
            low = middle + 1
    return low


def capacity_tokens(chip: Chip) -> int | None:
    """Tokens that the KV cache can hold beside the weights; None where the memory is not known."""
    memory = chip.hardware.memory_bytes
    if memory is None:
        return None
    left = _MEMORY_FOR_CACHE_SHARE * memory - chip.shape.weight_bytes(chip.dtype)
    return max(0, int(left / chip.shape.kv_bytes_per_token(chip.dtype)))


def ridge_length(chip: Chip, batch: int = 1) -> int | None:
    """The shortest prompt whose prefill is bound by arithmetic; None up to a million tokens."""
    low, high = 1, 2**20
    if prefill_pass(chip, high, batch).bound == "memory":
        return None
    while low < high:
        middle = (low + high) // 2
        if prefill_pass(chip, middle, batch).bound == "compute":
            high = middle
        else:
            low = middle + 1
    return low


def prefill_flops(shape: ModelShape, tokens: int) -> tuple[float, float]:
    """FLOPs of one prompt without attention, and attention's (causal); they need no hardware."""
    needed = work(shape, prefill(tokens))
    attention = needed.by_name["attention"].flops
    return needed.flops - attention, attention


def _pass(chip: Chip, batch: Batch) -> Pass:
    needed = work(chip.shape, batch, chip.dtype)
    attention, head = needed.by_name["attention"].flops, needed.by_name["lm_head"].flops
    compute_ms = needed.flops / chip.peak_flops_per_s * 1e3
    memory_ms = 0.0 if chip.cached else needed.bytes / chip.bandwidth_bytes_per_s * 1e3
    return Pass(
        linear_flops=needed.flops - attention - head,
        attention_flops=attention,
        head_flops=head,
        bytes=needed.bytes,
        compute_ms=compute_ms,
        memory_ms=memory_ms,
        floor_ms=max(compute_ms, memory_ms),
    )


def _times(one: Pass, times: int) -> Pass:
    return Pass(*(times * getattr(one, field) for field in Pass.__struct_fields__))

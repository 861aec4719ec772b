"""The shortest time physics allows for some work on some machine: the roofline.

Williams, Waterman and Patterson, "Roofline" (CACM 2009); Pope et al., arXiv 2211.05102. Arithmetic takes at
least FLOPs / peak, traffic at least bytes / bandwidth; both can overlap, so a pass takes at least the longer
of the two. Launches, the host and the network come on top: for a small model they are most of the time.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal

import msgspec

from phasemeter.record.errors import InputError
from phasemeter.roofline.dtypes import element_bytes
from phasemeter.roofline.hardware import Hardware, arithmetic_dtype, peak_flops_per_s
from phasemeter.roofline.shape import ModelShape
from phasemeter.roofline.work import OperatorWork, Work, decode, prefill, whole_number, work

# Steps of a long decode are grouped; within a group the mean context stands for all (the floor is convex in
# it).
_MOST_GROUPS = 64


class Floor(msgspec.Struct, frozen=True):
    """The least time for one piece of work, in seconds.

    `seconds` = max(compute_s, memory_s) holds for every engine. `operators_s`, the sum over operators of each
    one's max, is tighter and holds for engines that run operators one after another; it is `arithmetic_s`
    (operators whose FLOPs bind) + `traffic_s` (operators whose bytes bind).
    """

    seconds: float
    compute_s: float
    memory_s: float
    bound: Literal["compute", "memory"]
    operators_s: float
    arithmetic_s: float
    traffic_s: float


def floor(work: Work, hardware: Hardware, dtype: str = "bfloat16", *, activations: bool = False) -> Floor:
    """The floor of one forward pass; `dtype` is the format the arithmetic runs in.

    `activations` adds unfused activation traffic: an estimate for eager execution, no longer a lower bound.
    Raises InputError when the chip has no rate for `dtype`.
    """
    peak = peak_flops_per_s(hardware, dtype)
    times = [
        _operator_times(operator, hardware, peak, activations=activations) for operator in work.operators
    ]
    compute_s = sum(compute for compute, _ in times)
    memory_s = sum(memory for _, memory in times)
    arithmetic_s = sum(compute for compute, memory in times if compute >= memory)
    traffic_s = sum(memory for compute, memory in times if compute < memory)
    return _build(compute_s, memory_s, arithmetic_s, traffic_s)


def mfu(work: Work, hardware: Hardware, dtype: str, seconds: float) -> float:
    """Model FLOPs utilisation: needed FLOPs / (seconds x peak), 1 = the datasheet (Pope et al., 2211.05102).

    Not clamped: above 1 the time, the dtype or the peak is wrong. Raises InputError if seconds is not > 0.
    """
    return work.flops / (_positive(seconds) * peak_flops_per_s(hardware, dtype))


def mbu(work: Work, hardware: Hardware, seconds: float) -> float:
    """Memory bandwidth utilisation: compulsory bytes / (seconds x bandwidth). As `mfu`, not clamped."""
    return work.bytes / (_positive(seconds) * hardware.memory_bandwidth_bytes_per_s)


def prefill_floor(
    shape: ModelShape,
    tokens: int,
    hardware: Hardware,
    batch: int = 1,
    dtype: str = "bfloat16",
    cached: int = 0,
) -> Floor:
    """Floor of one prefill pass: `batch` prompts of `tokens` new tokens behind `cached` ones, a sample each.

    `dtype` is what weights and KV are stored in; a chip without units for it computes in `arithmetic_dtype`.
    """
    needed = work(shape, prefill(tokens, batch, cached), dtype)
    return floor(needed, hardware, arithmetic_dtype(hardware, dtype))


def decode_floor(
    shape: ModelShape, context: int, hardware: Hardware, batch: int = 1, dtype: str = "bfloat16"
) -> Floor:
    """Floor of one decode step; the new token attends over `context` tokens, itself included.

    `dtype` as in `prefill_floor`; `context` as in `work.decode`.
    """
    return floor(work(shape, decode(context, batch), dtype), hardware, arithmetic_dtype(hardware, dtype))


def decode_total_floor(
    shape: ModelShape, prompt: int, output: int, hardware: Hardware, dtype: str = "bfloat16"
) -> Floor:
    """Floor of `output` decode steps of one sequence, at contexts prompt + 1 to prompt + output.

    Where the prefill gives the first token, as in servers, n tokens take n - 1 decode steps: then pass that.
    Long outputs are summed in at most 64 groups at the mean context of each, rounded down.
    """
    whole_number("prompt", prompt)
    whole_number("output", output)
    groups = min(output, _MOST_GROUPS)
    edges = [output * index // groups for index in range(groups + 1)]
    parts = [
        (end - start, decode_floor(shape, prompt + (start + 1 + end) // 2, hardware, 1, dtype))
        for start, end in itertools.pairwise(edges)
    ]
    return _build(
        sum(steps * part.compute_s for steps, part in parts),
        sum(steps * part.memory_s for steps, part in parts),
        sum(steps * part.arithmetic_s for steps, part in parts),
        sum(steps * part.traffic_s for steps, part in parts),
    )


def ridge_tokens(shape: ModelShape, hardware: Hardware, dtype: str = "bfloat16") -> float:
    """New tokens at which a prefill's linears take as long as reading the weights: above it compute binds.

    N = (peak / bandwidth) x weight bytes x (P_mm + P_head) / (2 P_mm active): attention, KV and the head's
    FLOPs are left out, as all are small there. Below it, and for decode, memory (or the host) binds. A model
    with experts reads all of them near the ridge. `dtype` as in `prefill_floor`.
    """
    peak = peak_flops_per_s(hardware, arithmetic_dtype(hardware, dtype))
    ridge = peak / hardware.memory_bandwidth_bytes_per_s
    read = shape.matmul_parameters + shape.head_parameters
    return ridge * element_bytes(dtype) * read / (2.0 * shape.active_matmul_parameters)


def _operator_times(
    operator: OperatorWork, hardware: Hardware, peak: float, *, activations: bool
) -> tuple[float, float]:
    moved = operator.bytes + (operator.activation_bytes if activations else 0.0)
    return operator.flops / peak, moved / hardware.memory_bandwidth_bytes_per_s


def _build(compute_s: float, memory_s: float, arithmetic_s: float, traffic_s: float) -> Floor:
    return Floor(
        seconds=max(compute_s, memory_s),
        compute_s=compute_s,
        memory_s=memory_s,
        bound="compute" if compute_s >= memory_s else "memory",
        operators_s=arithmetic_s + traffic_s,
        arithmetic_s=arithmetic_s,
        traffic_s=traffic_s,
    )


def _positive(seconds: float) -> float:
    if not math.isfinite(seconds) or seconds <= 0:
        raise InputError("seconds", seconds, "must be positive and finite")
    return seconds

"""Floors beside what was measured: the least a phase must take, and the share of the ceilings that it
used."""

from __future__ import annotations

from msgspec import Struct

from phasemeter.explain.roof import Roof
from phasemeter.roofline.floor import Floor, floor, mbu, mfu
from phasemeter.roofline.work import OperatorWork, Work, decode, prefill, work

_MOST_LENGTHS = 128


class FloorCheck(Struct, frozen=True):
    """Floors of one shape by one set of ceilings, and what was measured over them.

    Ratios are measured median / floor (1 is perfect; below 1 is impossible and flagged by a check).
    `mfu_prefill` is FLOPs of the prefill / (its median time x peak); `mbu_decode` is bytes of one decode
    step / (median TPOT x bandwidth). None where the phase was not seen. `prefill_from` says which measured
    phase stood in: "prefill", or "first" where the engine did not tell them apart (then the ratio is an
    upper and MFU a lower bound).
    """

    ceilings: str
    """"measured" (on this machine, in the run's header) or "datasheet"."""
    hardware: str
    prefill_floor_ms: float
    prefill_bound: str
    tpot_floor_ms: float
    tpot_bound: str
    decode_batch: int
    """Sequences taken to share one decode step: the concurrency asked, or what was seen where that was
    less; in an open loop the mean number of requests in their decode phase, rounded down."""
    decode_context_tokens: int
    """Mean context of the decode steps: input + output / 2, rounded down."""
    prefill_from: str | None = None
    prefill_ratio: float | None = None
    tpot_ratio: float | None = None
    mfu_prefill: float | None = None
    mbu_decode: float | None = None
    tpot_alone_floor_ms: float | None = None
    """TPOT floor of a sequence that shares its step with nobody: nothing can be faster, whatever the load."""


class Load(Struct, frozen=True):
    """The work of one request of a shape, as far as it was seen: new and cached prompt tokens, tokens
    generated and sequences in a decode step. Of a bucket of shapes these are means, and `mix` lists (input tokens,
    cached tokens, requests), so that the prefill's work is the mean work of its requests."""

    input_tokens: int
    cached_tokens: int
    output_tokens: float
    decode_batch: int
    mix: tuple[tuple[int, int, int], ...] = ()

    @property
    def new_tokens(self) -> int:
        """Prompt tokens that had to be processed; at least one, since the last one gives the first logits."""
        return max(1, self.input_tokens - self.cached_tokens)

    @property
    def context_tokens(self) -> int:
        """Mean context of the decode steps. Step i of n - 1 attends over input + i tokens, itself
        included."""
        return max(1, int(self.input_tokens + self.output_tokens / 2))


def prefill_of(roof: Roof, load: Load) -> tuple[Work, Floor]:
    """Work and floor of one request's prefill, alone in its pass; of a bucket the mean work of its requests."""
    return _priced(_mean_prefill(roof, load) if load.mix else _prefill(roof, load), roof)


def _prefill(roof: Roof, load: Load) -> Work:
    batch = prefill(load.new_tokens, cached=load.input_tokens - load.new_tokens)
    return work(roof.shape, batch, roof.dtype)


def _mean_prefill(roof: Roof, load: Load) -> Work:
    """Operator by operator. A mean of maxima is no less than the maximum of means, so this is still a floor of the
    mean time. Of very many lengths evenly spaced ones stand for their neighbours."""
    step = -(-len(load.mix) // _MOST_LENGTHS)
    taken = load.mix[step // 2 :: step]
    whole = sum(count for _, _, count in taken)
    sums: dict[str, OperatorWork] = {}
    for tokens, cached, count in taken:
        needed = _prefill(roof, Load(tokens, cached, load.output_tokens, load.decode_batch))
        for one in needed.operators:
            sofar = sums.get(one.name, OperatorWork(one.name, count=one.count))
            sums[one.name] = _added(sofar, one, count / whole)
    return Work(tuple(sums.values()))


def _added(sofar: OperatorWork, one: OperatorWork, share: float) -> OperatorWork:
    return OperatorWork(
        name=one.name,
        flops=sofar.flops + share * one.flops,
        read_bytes=sofar.read_bytes + share * one.read_bytes,
        write_bytes=sofar.write_bytes + share * one.write_bytes,
        activation_bytes=sofar.activation_bytes + share * one.activation_bytes,
        count=one.count,
    )


def decode_step_of(roof: Roof, load: Load, batch: int | None = None) -> tuple[Work, Floor]:
    """Work and floor of one decode step at the mean context, shared by the load's batch (or by `batch`)."""
    step = decode(load.context_tokens, load.decode_batch if batch is None else batch)
    return _priced(work(roof.shape, step, roof.dtype), roof)


def floor_check(
    roof: Roof, load: Load, *, prefill_ms: float | None, prefill_from: str | None, tpot_ms: float | None
) -> FloorCheck:
    """Lay the floors of one roof over the medians of one shape."""
    prefill_work, prefill_floor = prefill_of(roof, load)
    step_work, step_floor = decode_step_of(roof, load)
    prefill_s, tpot_s = _positive_s(prefill_ms), _positive_s(tpot_ms)
    return FloorCheck(
        ceilings=roof.source,
        hardware=roof.hardware.name,
        prefill_floor_ms=prefill_floor.seconds * 1e3,
        prefill_bound=prefill_floor.bound,
        tpot_floor_ms=step_floor.seconds * 1e3,
        tpot_bound=step_floor.bound,
        decode_batch=load.decode_batch,
        decode_context_tokens=load.context_tokens,
        prefill_from=prefill_from,
        prefill_ratio=None if prefill_s is None else prefill_s / prefill_floor.seconds,
        tpot_ratio=None if tpot_s is None else tpot_s / step_floor.seconds,
        mfu_prefill=None
        if prefill_s is None
        else mfu(prefill_work, roof.hardware, roof.arithmetic, prefill_s),
        mbu_decode=None if tpot_s is None else mbu(step_work, roof.hardware, tpot_s),
        tpot_alone_floor_ms=decode_step_of(roof, load, batch=1)[1].seconds * 1e3,
    )


def kv_us_per_token(roof: Roof, load: Load) -> float:
    """What one more token of context costs a decode step at the ceilings, microseconds: one row of KV cache
    read and the arithmetic over it, whichever is longer."""
    far = Load(load.input_tokens + 1024, 0, load.output_tokens, load.decode_batch)
    more = decode_step_of(roof, far)[1].seconds - decode_step_of(roof, load)[1].seconds
    return more * 1e6 / 1024


def _priced(needed: Work, roof: Roof) -> tuple[Work, Floor]:
    return needed, floor(needed, roof.hardware, roof.arithmetic)


def _positive_s(ms: float | None) -> float | None:
    return ms / 1e3 if ms is not None and ms > 0 else None

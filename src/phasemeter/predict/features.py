"""What the time of a cell can depend on, as numbers: seconds at the ceilings where model and machine are known, else
plain counts.

With a roof (model shape, ceilings) `memory`, `compute`, `attention` and `kv` are seconds that the work takes at the
ceilings: a coefficient of 1 is a perfect kernel, 2 one that reaches half of the ceiling, and 1 is a bound. Without
a roof they count tokens, (query, key) pairs and tokens of context, and coefficients are seconds a unit. `one`,
`sequences`, `foreign` and the like are counts in both cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from phasemeter.explain.roof import Roof
from phasemeter.record.errors import InputError
from phasemeter.roofline.floor import floor
from phasemeter.roofline.work import Batch, Item, Work, work

Features = Mapping[str, float]

DEFAULT_BUDGET_TOKENS = 8192
"""Tokens of prompts that one step takes at most where the engine does not tell: vLLM's default for online serving
(`max_num_batched_tokens`, vLLM 0.26)."""


class Query(Struct, frozen=True):
    """What is asked, or was measured: `batch` requests of `input_tokens` and `output_tokens` in flight together,
    `cached_tokens` of each prompt already in the cache. `budget_tokens` bounds the prompt tokens of one step."""

    input_tokens: int
    output_tokens: int
    batch: int = 1
    cached_tokens: int = 0
    budget_tokens: int = DEFAULT_BUDGET_TOKENS

    @property
    def new_tokens(self) -> int:
        """Prompt tokens to be processed, at least one."""
        return max(1, self.input_tokens - self.cached_tokens)

    @property
    def context_tokens(self) -> int:
        """Mean context of the decode steps."""
        return max(1, self.input_tokens + self.output_tokens // 2)


class Cell(Struct, frozen=True):
    """One phase of one cell as it was measured: one value in seconds for each block (repeat)."""

    phase: str
    query: Query
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Median over the blocks."""
        ordered = sorted(self.seconds)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def checked(cell: Cell) -> Cell:
    """The cell itself. Raises InputError for a time that is not positive and finite, or a count below its least."""
    for value in cell.seconds:
        if not math.isfinite(value) or value <= 0.0:
            raise InputError(f"{cell.phase} time", value, "must be positive and finite, in seconds")
    if not cell.seconds:
        raise InputError(f"{cell.phase} times", "none", "give at least one value for each cell")
    checked_query(cell.query)
    return cell


def checked_query(query: Query) -> Query:
    """The query itself. Raises InputError for a count below its least."""
    for name, value, least in (
        ("input_tokens", query.input_tokens, 1),
        ("output_tokens", query.output_tokens, 1),
        ("batch", query.batch, 1),
        ("cached_tokens", query.cached_tokens, 0),
    ):
        if value < least:
            raise InputError(name, value, f"must be a whole number, {least} or more")
    return query


def features(phase: str, query: Query, roof: Roof | None) -> dict[str, float]:
    """The features of one cell of `phase`: prefill, first, decode (a token as the client sees it), step (as the engine
    does) or front_end."""
    return _BY_PHASE[phase](query, roof)


def floor_s(phase: str, query: Query, roof: Roof | None) -> float:
    """The least seconds that the phase can take; 0 where there is no roof, or for the front end, which has none."""
    if roof is None or phase == "front_end":
        return 0.0
    needed = work(
        roof.shape, _decode_batch(query) if phase in ("decode", "step") else _alone(query), roof.dtype
    )
    return floor(needed, roof.hardware, roof.arithmetic).seconds


def prefill_batch(query: Query) -> Batch:
    """The step in which a request of this query is prefilled: as many of its batch as the budget takes."""
    together = max(1, min(query.batch, query.budget_tokens // query.new_tokens))
    return Batch((Item(query.new_tokens, query.input_tokens - query.new_tokens),) * together)


def work_features(needed: Work, roof: Roof) -> dict[str, float]:
    """One pass as seconds at the ceilings: `memory` weights and written KV, `compute` matrix products, `attention` its
    FLOPs, `kv` the cache read."""
    bandwidth, peak = roof.hardware.memory_bandwidth_bytes_per_s, roof.peak_flops_per_s
    attention = needed.by_name["attention"]
    return {
        "memory": (needed.bytes - attention.read_bytes) / bandwidth,
        "compute": (needed.flops - attention.flops) / peak,
        "attention": attention.flops / peak,
        "kv": attention.read_bytes / bandwidth,
    }


def _alone(query: Query) -> Batch:
    return Batch((Item(query.new_tokens, query.input_tokens - query.new_tokens),))


def _decode_batch(query: Query) -> Batch:
    return Batch((Item(1, query.context_tokens - 1),) * query.batch)


def _prefill(query: Query, roof: Roof | None) -> dict[str, float]:
    batch = prefill_batch(query)
    together, new = len(batch.items), query.new_tokens
    tokens = together * new
    full = 1.0 if query.batch * new > query.budget_tokens else 0.0
    found: dict[str, float] = {"one": 1.0, "sequences": together - 1.0, "tokens": float(tokens), "full": full}
    if roof is not None:
        found |= work_features(work(roof.shape, batch, roof.dtype), roof)
    else:
        cached = query.input_tokens - new
        found |= {
            "memory": 1.0,
            "compute": float(tokens),
            "attention": together * (new * cached + new * (new + 1) / 2.0),
            "kv": float(together * cached),
        }
    return found


def _first(query: Query, roof: Roof | None) -> dict[str, float]:
    """As prefill, and what a closed loop adds: its batch's other prompts, and the wait for a place, which is the mean
    time between two requests' ends, output / batch decode steps."""
    found = _prefill(query, roof)
    found["others"] = float(query.batch - 1)
    found["input"] = float(query.input_tokens)
    found["batch_input"] = float(query.batch * query.new_tokens)
    found["turns"] = query.output_tokens / query.batch
    found["output"] = float(query.output_tokens)
    return found


def _decode(query: Query, roof: Roof | None) -> dict[str, float]:
    found: dict[str, float] = {"one": 1.0, "sequences": float(query.batch)}
    foreign = query.batch * query.new_tokens / query.output_tokens
    found["foreign"] = foreign
    found["foreign_pairs"] = foreign * query.new_tokens
    found["foreign_context"] = foreign * query.batch
    if roof is not None:
        found |= work_features(work(roof.shape, _decode_batch(query), roof.dtype), roof)
        found["compute"] += found.pop("attention")
    else:
        found |= {
            "memory": 1.0,
            "compute": float(query.batch),
            "kv": float(query.batch * query.context_tokens),
        }
    return found


def _front_end(query: Query, roof: Roof | None) -> dict[str, float]:
    del roof  # tokenising and delivery know nothing of the chip
    return {
        "one": 1.0,
        "input": float(query.input_tokens),
        "others": float(query.batch - 1),
        "batch_input": float((query.batch - 1) * query.input_tokens),
    }


_BY_PHASE = {
    "prefill": _prefill,
    "first": _first,
    "decode": _decode,
    "step": _decode,
    "front_end": _front_end,
}
PHASES = tuple(_BY_PHASE)

"""What somebody says about inference time, typed: a set-up, rows of numbers, growth, comparisons and sentences."""

from __future__ import annotations

from datetime import date
from typing import Literal

from msgspec import Struct

TimeMetric = Literal["prefill", "ttft", "tpot", "decode_total", "e2e", "throughput"]


class Setup(Struct, frozen=True, forbid_unknown_fields=True):
    """What a claim says that it was measured on; what it leaves out is None. `gpus` share each layer (tensor
    parallel). `kv_cache` is False where the engine keeps no cache between tokens. `date` is the source's."""

    model: str | None = None
    hardware: str | None = None
    gpus: int = 1
    engine: str | None = None
    version: str | None = None
    dtype: str = "bfloat16"
    kv_cache: bool = True
    date: date | None = None


class SetUp(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="set_up"):
    """The set-up itself: could this engine run this model on this hardware?"""

    id: str
    statement: str = ""
    statement_zh: str = ""


class Row(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="row"):
    """One row of a table: lengths in tokens a sequence, times in ms, throughput over all sequences.

    `batch` sequences run together (1 unless said; throughput needs it said). `cached_tokens` of the input came
    from a prefix cache. `divides_by` says how the source got time per token from the total.
    """

    id: str
    statement: str = ""
    statement_zh: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    batch: int | None = None
    cached_tokens: int = 0
    prefill_ms: float | None = None
    ttft_ms: float | None = None
    decode_total_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    output_tokens_per_s: float | None = None
    divides_by: Literal["n", "n-1"] | None = None


class Growth(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="growth"):
    """How a time grows from one length to another; exactly one of the four ways to say it.

    Lengths are input tokens for prefill and ttft, mean contexts for tpot, output tokens for decode_total (then
    `input_tokens` is the prompt). `factor` is end / start, `factor_per_doubling` time for twice the length,
    `exponent` of a power law, `law` an order such as "O(N^2)". `rows` are the source's own rows of it.
    """

    id: str
    metric: Literal["prefill", "ttft", "tpot", "decode_total"]
    from_tokens: int
    to_tokens: int
    statement: str = ""
    statement_zh: str = ""
    factor: float | None = None
    factor_per_doubling: float | None = None
    exponent: float | None = None
    law: Literal["O(1)", "O(N)", "O(N^2)", "O(N^3)"] | None = None
    input_tokens: int = 1
    rows: tuple[str, ...] = ()


class Agreement(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="agreement"):
    """Two tables of one source give the same metric for the same lengths: `rows` of one, `other_rows` of the other,
    in one order. They agree when every pair differs by at most `within_share` of the smaller."""

    id: str
    metric: TimeMetric
    rows: tuple[str, ...]
    other_rows: tuple[str, ...]
    statement: str = ""
    statement_zh: str = ""
    within_share: float = 0.25


StatementKind = Literal[
    "prefill_compute_bound",
    "decode_memory_bound",
    "decode_dominates",
    "decode_recomputes_attention",
    "cache_hit_rate_decides_decode",
    "bandwidth_speeds_prefill",
    "compute_speeds_prefill",
    "batch_raises_prefill_of_one",
    "batch_raises_throughput",
    "late_slowdown",
    "setting_has_effect",
]


class Statement(Struct, frozen=True, forbid_unknown_fields=True):
    """A sentence of the closed vocabulary. `input_tokens` and `output_tokens` are the lengths it is said of (pairs,
    where both are given); `factor` is by how much a resource grows; `setting` stands beside `object`."""

    id: str
    kind: StatementKind
    statement: str = ""
    statement_zh: str = ""
    input_tokens: tuple[int, ...] = ()
    output_tokens: tuple[int, ...] = ()
    batch: int = 1
    factor: float = 2.0
    setting: str = ""
    object: str = ""
    rows: tuple[str, ...] = ()


Claim = SetUp | Row | Growth | Agreement | Statement

NEEDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "prefill_compute_bound": (frozenset({"input_tokens"}), frozenset({"batch"})),
    "decode_memory_bound": (frozenset({"input_tokens", "output_tokens"}), frozenset({"batch"})),
    "decode_dominates": (frozenset({"input_tokens", "output_tokens"}), frozenset({"batch", "rows"})),
    "decode_recomputes_attention": (frozenset({"input_tokens", "output_tokens"}), frozenset({"rows"})),
    "cache_hit_rate_decides_decode": (frozenset({"input_tokens", "output_tokens"}), frozenset({"batch"})),
    "bandwidth_speeds_prefill": (frozenset({"input_tokens"}), frozenset({"factor", "batch"})),
    "compute_speeds_prefill": (frozenset({"input_tokens"}), frozenset({"factor", "batch"})),
    "batch_raises_prefill_of_one": (frozenset({"input_tokens", "batch"}), frozenset[str]()),
    "batch_raises_throughput": (frozenset({"input_tokens", "output_tokens", "batch"}), frozenset[str]()),
    "late_slowdown": (frozenset({"input_tokens", "output_tokens"}), frozenset({"batch"})),
    "setting_has_effect": (frozenset({"setting"}), frozenset({"object"})),
}
"""What each kind of sentence must and may give, beside id, kind and the two texts."""


class Placed(Struct, frozen=True):
    """A claim with the set-up it is made of."""

    claim: Claim
    setup: Setup


class Claims(Struct, frozen=True):
    """All claims of one source, in its order."""

    title: str
    placed: tuple[Placed, ...]

    def row(self, name: str) -> Placed | None:
        """The row that goes by this id; None when there is none."""
        for placed in self.placed:
            if isinstance(placed.claim, Row) and placed.claim.id == name:
                return placed
        return None


def time_of(row: Row, metric: TimeMetric) -> float | None:
    """What a row says of one metric: ms, or tokens/s for throughput."""
    return {
        "prefill": row.prefill_ms,
        "ttft": row.ttft_ms,
        "tpot": row.tpot_ms,
        "decode_total": row.decode_total_ms,
        "e2e": row.e2e_ms,
        "throughput": row.output_tokens_per_s,
    }[metric]

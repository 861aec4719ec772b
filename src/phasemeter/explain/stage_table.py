"""The requests of one stage as columns, and the level that its stages make together.

Times are nanoseconds from the stage's first arrival; latencies are milliseconds, NaN inside these arrays where a
request has none (nothing that leaves `explain` carries a NaN).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.latency import gaps_ns
from phasemeter.explain.phases import Reading
from phasemeter.explain.shape_key import Asked
from phasemeter.explain.stages import stretches
from phasemeter.record.engine import Outcome

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from phasemeter.explain.stats import Floats

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

LATENCIES = ("ttft", "ttft_from_arrival", "tpot", "e2e")


class StageTable(Struct, frozen=True, eq=False):
    """One stage, in order of arrival. `arrived_ns` is the intended arrival in an open loop, the start in a closed one
    (a slot that becomes free is no arrival from outside); `last_ns` is the last of them: from then on the stage
    drains."""

    origin: str
    asked: Asked
    block: int
    arrived_ns: Floats
    ended_ns: Floats
    ok: Bools
    given_up: Bools
    """Given up on purpose: neither ok nor failed."""
    tokens: Floats
    ms: dict[str, Floats]
    """By the names in `LATENCIES`."""
    gaps_ms: Callable[[int], Floats]
    """Every gap of one request by its place: per token where the server told the counts, else per piece."""

    @property
    def last_ns(self) -> float:
        """The last arrival."""
        return float(self.arrived_ns[-1])


def stage_tables(readings: Sequence[Reading], origin: dict[str, str]) -> tuple[StageTable, ...]:
    """Every stage of the measured requests."""
    timelines = [reading.timeline for reading in readings]
    return tuple(
        _table(stretch.origin, stretch.asked, stretch.block, [readings[i] for i in stretch.members])
        for stretch in stretches(timelines, origin)
    )


def by_level(tables: Sequence[StageTable]) -> dict[Asked, list[StageTable]]:
    """The stages of every level, levels in order."""
    found: defaultdict[Asked, list[StageTable]] = defaultdict(list)
    for table in tables:
        found[table.asked].append(table)
    return {asked: found[asked] for asked in sorted(found, key=lambda asked: asked.order)}


def _table(origin: str, asked: Asked, block: int, members: list[Reading]) -> StageTable:
    import numpy as np

    is_open = asked.concurrency is None
    came = np.asarray(
        [r.timeline.arrived_ns if is_open else r.timeline.started_ns for r in members], dtype=np.int64
    )
    order = np.argsort(came, kind="stable")
    zero_ns = int(came[order[0]])
    places: list[int] = order.tolist()
    ordered = [members[i] for i in places]

    def column(pick: Callable[[Reading], float | None]) -> Floats:
        values = [pick(r) for r in ordered]
        return np.asarray([math.nan if ns is None else ns / 1e6 for ns in values], dtype=np.float64)

    return StageTable(
        origin=origin,
        asked=asked,
        block=block,
        arrived_ns=(came[order] - zero_ns).astype(np.float64),
        ended_ns=np.asarray([r.timeline.end_ns - zero_ns for r in ordered], dtype=np.float64),
        ok=np.asarray([r.timeline.outcome is Outcome.OK for r in ordered], dtype=np.bool_),
        given_up=np.asarray([r.timeline.given_up for r in ordered], dtype=np.bool_),
        tokens=np.asarray([r.tokens for r in ordered], dtype=np.float64),
        ms={
            "ttft": column(lambda r: r.ttft_ns),
            "ttft_from_arrival": column(lambda r: r.ttft_from_arrival_ns),
            "tpot": column(lambda r: r.tpot_ns),
            "e2e": column(lambda r: r.e2e_ns),
        },
        gaps_ms=lambda i: gaps_ns(ordered[i]) / 1e6,
    )

"""The requests of one stage as columns, and the level that its stages make together.

Times are nanoseconds from the stage's first arrival; latencies are milliseconds, NaN inside these arrays where a
request has none (nothing that leaves `explain` carries a NaN).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.columns import ABSENT
from phasemeter.explain.latency import token_gaps_ns
from phasemeter.explain.phases import Reading
from phasemeter.explain.readings import Readings, readings_of
from phasemeter.explain.shape_key import Asked
from phasemeter.explain.stages import Stretch, stretches
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
    gaps_ms: Callable[[Ints], tuple[Floats, Ints]]
    """The gaps of the requests at these places, one behind the other, and how many each has: per token where the server
    told the counts, else per piece."""

    @property
    def last_ns(self) -> float:
        """The last arrival."""
        return float(self.arrived_ns[-1])


def stage_tables(readings: Sequence[Reading], origin: dict[str, str]) -> tuple[StageTable, ...]:
    """Every stage of the measured requests."""
    import numpy as np

    columns = readings_of(readings)
    return tuple(
        _table(stretch, columns.take(np.array(stretch.members, dtype=np.int64)))
        for stretch in stretches(columns, origin)
    )


def by_level(tables: Sequence[StageTable]) -> dict[Asked, list[StageTable]]:
    """The stages of every level, levels in order."""
    found: defaultdict[Asked, list[StageTable]] = defaultdict(list)
    for table in tables:
        found[table.asked].append(table)
    return {asked: found[asked] for asked in sorted(found, key=lambda asked: asked.order)}


def _table(stretch: Stretch, members: Readings) -> StageTable:
    import numpy as np

    came = members.told("arrived" if stretch.asked.concurrency is None else "started")
    order = np.argsort(came, kind="stable")
    zero_ns = came[order[0]]
    ordered = members.take(order)
    tpot, known = ordered.tpot_ns()
    return StageTable(
        origin=stretch.origin,
        asked=stretch.asked,
        block=stretch.block,
        arrived_ns=(came[order] - zero_ns).astype(np.float64),
        ended_ns=(ordered.told("end") - zero_ns).astype(np.float64),
        ok=ordered.where(Outcome.OK),
        given_up=ordered.told("given_up") == 1,
        tokens=ordered.tokens().astype(np.float64),
        ms={name: _ms(ordered.ns(name)) for name in LATENCIES if name != "tpot"}
        | {"tpot": np.where(known, tpot / 1e6, np.nan)},
        gaps_ms=partial(_gaps_ms, ordered),
    )


def _gaps_ms(ordered: Readings, places: Ints) -> tuple[Floats, Ints]:
    gaps, sizes = token_gaps_ns(ordered.take(places))
    return gaps / 1e6, sizes


def _ms(ns: Ints) -> Floats:
    import numpy as np

    return np.where(ns == ABSENT, np.nan, ns / 1e6)

"""Which requests were one stretch of load: a stage of a load at one level, or one visit of a cell of a grid.

The record does not say where a stage began; it shows in the order of starts. Neighbours with one level and one block
are a stage. In a closed loop a grid visits its shapes one after another within a block: where each shape's requests
stand together and none overlaps the next shape's, every one of them is a visit of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from phasemeter.explain.phases import Reading
from phasemeter.explain.readings import Readings, clocks, readings_of
from phasemeter.explain.shape_key import Asked, asked_of
from phasemeter.record.timeline import Timeline

if TYPE_CHECKING:
    from phasemeter.explain.columns import Ints


class Stretch(Struct, frozen=True):
    """Requests of one clock that were one stretch of load, as places in the sequence they were taken from, in order of
    their start."""

    origin: str
    asked: Asked
    block: int
    members: tuple[int, ...]


def stretches(
    requests: Sequence[Reading] | Sequence[Timeline], origin: dict[str, str]
) -> tuple[Stretch, ...]:
    """The stretches of every clock, in order of their first start."""
    import numpy as np

    readings = readings_of(requests)
    levels: dict[tuple[Asked, int], int] = {}
    level = readings.by_cell(lambda cell: levels.setdefault((asked_of(cell), cell.block), len(levels)))
    names = list(levels)
    started = readings.told("started")
    found: list[Stretch] = []
    origins, clock = clocks(readings, origin)
    for number, name in enumerate(origins):
        places = np.flatnonzero(clock == number)
        places = places[np.argsort(started[places], kind="stable")]
        for part in _runs_of(places, level):
            asked, block = names[int(level[part[0]])]
            found += [
                Stretch(name, asked, block, tuple(cast("list[int]", members.tolist())))
                for members in _visits(part, asked, readings)
            ]
    return tuple(found)


def _runs_of(places: Ints, value: Ints) -> list[Ints]:
    """`places` cut wherever their value changes."""
    import numpy as np

    return np.split(places, np.flatnonzero(np.diff(value[places])) + 1)


def _visits(members: Ints, asked: Asked, readings: Readings) -> list[Ints]:
    import numpy as np

    if asked.concurrency is None:
        return [members]
    cell = readings.told("cell")
    parts = _runs_of(members, cell)
    if len(parts) == 1 or np.unique(cell[members]).size < len(parts):
        return [members]
    ended, started = readings.told("end"), readings.told("started")
    apart = all(ended[part].max() <= started[later[0]] for part, later in pairwise(parts))
    return parts if apart else [members]

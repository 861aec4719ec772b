"""Which requests were one stretch of load: a stage of a load at one level, or one visit of a cell of a grid.

The record does not say where a stage began; it shows in the order of starts. Neighbours with one level and one block
are a stage. In a closed loop a grid visits its shapes one after another within a block: where each shape's requests
stand together and none overlaps the next shape's, every one of them is a visit of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby, pairwise

from msgspec import Struct

from phasemeter.explain.shape_key import Asked, asked_of
from phasemeter.record.timeline import Timeline


class Stretch(Struct, frozen=True):
    """Requests of one clock that were one stretch of load, as places in the sequence they were taken from, in order of
    their start."""

    origin: str
    asked: Asked
    block: int
    members: tuple[int, ...]


def stretches(timelines: Sequence[Timeline], origin: dict[str, str]) -> tuple[Stretch, ...]:
    """The stretches of every clock, in order of their first start."""
    by_origin: defaultdict[str, list[int]] = defaultdict(list)
    for i, timeline in enumerate(timelines):
        by_origin[origin[timeline.id]].append(i)
    found: list[Stretch] = []
    for name, places in by_origin.items():
        places.sort(key=lambda i: timelines[i].started_ns)
        for (asked, block), group in groupby(places, key=lambda i: _level(timelines[i])):
            visits = _visits(list(group), asked, timelines)
            found += [Stretch(name, asked, block, tuple(members)) for members in visits]
    return tuple(found)


def _level(timeline: Timeline) -> tuple[Asked, int]:
    return asked_of(timeline.cell), timeline.cell.block


def _visits(members: list[int], asked: Asked, timelines: Sequence[Timeline]) -> list[list[int]]:
    if asked.concurrency is None:
        return [members]
    parts = [list(group) for _, group in groupby(members, key=lambda i: timelines[i].cell)]
    if len(parts) == 1 or len({timelines[part[0]].cell for part in parts}) < len(parts):
        return [members]
    ends = [max(timelines[i].end_ns for i in part) for part in parts]
    starts = [timelines[part[0]].started_ns for part in parts]
    apart = all(end <= start for end, (_, start) in zip(ends, pairwise(starts), strict=False))
    return parts if apart else [members]

"""What makes requests comparable: the level of load that was asked for, and a shape or a bucket of shapes at it.

A level is a concurrency (closed loop), a rate (open loop), or neither: a trace keeps its own times. Where a level has
more than `MOST_SHAPES` distinct shapes they are grouped into buckets of input length, one for each power of two
[2^k, 2^(k+1)); the buckets are split by powers of two of the output length too where that leaves at most so many.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from statistics import median_low

from msgspec import Struct

from phasemeter.record.request import Cell
from phasemeter.record.timeline import Timeline

MOST_SHAPES = 24


class Asked(Struct, frozen=True):
    """A level of load: `concurrency` of a closed loop, `rate_per_s` of an open one, neither of a trace."""

    concurrency: int | None = None
    rate_per_s: float | None = None

    @property
    def order(self) -> tuple[int, float]:
        """Closed loops by concurrency, then open ones by rate, then traces."""
        if self.concurrency is not None:
            return 0, float(self.concurrency)
        return (2, 0.0) if self.rate_per_s is None else (1, self.rate_per_s)

    @property
    def text(self) -> str:
        """As a check's evidence names it: "concurrency 8", "rate 4/s" or "trace"."""
        if self.concurrency is not None:
            return f"concurrency {self.concurrency}"
        return "trace" if self.rate_per_s is None else f"rate {self.rate_per_s:g}/s"


class ShapeKey(Struct, frozen=True):
    """What makes two requests comparable. `input_range` and `output_range` are there for a bucket of several shapes
    (smallest and largest that was asked for); its `input_tokens` and `output_tokens` are then medians."""

    input_tokens: int
    output_tokens: int
    concurrency: int | None = 1
    rate_per_s: float | None = None
    input_range: tuple[int, int] | None = None
    output_range: tuple[int, int] | None = None

    @property
    def asked(self) -> Asked:
        """The level of load it belongs to."""
        return Asked(self.concurrency, self.rate_per_s)

    @property
    def one_shape(self) -> bool:
        """Whether all of its requests asked for the same lengths."""
        return self.input_range is None

    @property
    def order(self) -> tuple[int, int, tuple[int, float]]:
        """By lengths, then by level."""
        return self.input_tokens, self.output_tokens, self.asked.order


def asked_of(cell: Cell) -> Asked:
    """The level that a cell belongs to."""
    return Asked(cell.concurrency, cell.rate_per_s)


def shape_key(timeline: Timeline) -> ShapeKey:
    """The one shape that a request asked for, whatever bucket it falls into."""
    return key_of_cell(timeline.cell)


def key_of_cell(cell: Cell) -> ShapeKey:
    """The one shape that a cell asks for."""
    return ShapeKey(cell.input_tokens, cell.output_tokens, cell.concurrency, cell.rate_per_s)


_Lengths = tuple[int, int]
Grouping = Callable[[Timeline], ShapeKey]


def grouping(timelines: Iterable[Timeline]) -> Grouping:
    """How requests are grouped in a run whose measured requests are `timelines`. Others (warm-up) are put where their
    lengths belong, or stand as a shape of their own."""
    key_of = cell_grouping(Counter(timeline.cell for timeline in timelines).items())
    return lambda timeline: key_of(timeline.cell)


def cell_grouping(cells: Iterable[tuple[Cell, int]]) -> Callable[[Cell], ShapeKey]:
    """The same by cells, each with how many of the measured requests it has: what a key depends on."""
    counts: defaultdict[Asked, Counter[_Lengths]] = defaultdict(Counter)
    for cell, n in cells:
        counts[asked_of(cell)][cell.input_tokens, cell.output_tokens] += n
    buckets = {
        (asked, lengths): key
        for asked, found in counts.items()
        if len(found) > MOST_SHAPES
        for lengths, key in _buckets(asked, found).items()
    }
    if not buckets:
        return key_of_cell

    def key_of(cell: Cell) -> ShapeKey:
        found = buckets.get((asked_of(cell), (cell.input_tokens, cell.output_tokens)))
        return key_of_cell(cell) if found is None else found

    return key_of


def _buckets(asked: Asked, counts: Counter[_Lengths]) -> dict[_Lengths, ShapeKey]:
    """Every pair of lengths of one level with the bucket that it falls into."""
    by_both = _gathered(counts, lambda pair: (pair[0].bit_length(), pair[1].bit_length()))
    groups = (
        by_both if len(by_both) <= MOST_SHAPES else _gathered(counts, lambda pair: (pair[0].bit_length(), 0))
    )
    return {pair: key for group in groups for key in [_key(asked, group, counts)] for pair in group}


def _gathered(
    counts: Counter[_Lengths], place: Callable[[_Lengths], tuple[int, int]]
) -> list[list[_Lengths]]:
    groups: defaultdict[tuple[int, int], list[_Lengths]] = defaultdict(list)
    for pair in sorted(counts):
        groups[place(pair)].append(pair)
    return list(groups.values())


def _key(asked: Asked, group: list[_Lengths], counts: Counter[_Lengths]) -> ShapeKey:
    ins = [n for pair in group for n in [pair[0]] * counts[pair]]
    outs = [n for pair in group for n in [pair[1]] * counts[pair]]
    several = len(group) > 1
    return ShapeKey(
        input_tokens=median_low(ins),
        output_tokens=median_low(outs),
        concurrency=asked.concurrency,
        rate_per_s=asked.rate_per_s,
        input_range=(min(ins), max(ins)) if several else None,
        output_range=(min(outs), max(outs)) if several else None,
    )

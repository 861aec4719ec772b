"""Many requests read at once: `Readings` is a sequence of `phases.Reading` that keeps columns instead of objects.

Code that looks at one request takes a `Reading` from it, made when asked for; code that looks at all of them takes
columns, where absent is `ABSENT`. Both say the same: `phases.read` is the definition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar, cast, overload

from msgspec import Struct

from phasemeter.explain.columns import ABSENT, OUTCOMES, Columns, columns_of
from phasemeter.explain.phases import Reading, read
from phasemeter.record.engine import Outcome
from phasemeter.record.request import Cell
from phasemeter.record.timeline import Timeline

if TYPE_CHECKING:
    from phasemeter.explain.columns import Bools, Ints
    from phasemeter.explain.stats import Floats


Group = TypeVar("Group", bound=Hashable)


class Readings(Sequence[Reading]):
    """Some requests of `columns`, by their places in it, in any order."""

    def __init__(self, columns: Columns, places: Ints) -> None:
        self.columns = columns
        self.places = places

    def __len__(self) -> int:
        return int(self.places.size)

    @overload
    def __getitem__(self, index: int) -> Reading: ...

    @overload
    def __getitem__(self, index: slice) -> Readings: ...

    def __getitem__(self, index: int | slice) -> Reading | Readings:
        if isinstance(index, slice):
            return Readings(self.columns, self.places[index])
        return self._read(int(self.places[index]))

    def __iter__(self) -> Iterator[Reading]:
        return map(self._read, cast("list[int]", self.places.tolist()))

    def _read(self, place: int) -> Reading:
        return read(self.columns.timelines[place])

    def __add__(self, other: Readings) -> Readings:
        import numpy as np

        if other.columns is not self.columns:
            return readings_of([*self, *other])
        return Readings(self.columns, np.concatenate((self.places, other.places)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Readings):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"<{len(self)} readings>"

    def take(self, which: Bools | Ints) -> Readings:
        """Those where a mask is true, or those at the given places of this sequence."""
        return Readings(self.columns, self.places[which])

    def told(self, name: str) -> Ints:
        """One column (see `columns.FIELDS`); `ABSENT` where nobody told."""
        return self.columns.table[name][self.places]

    def ns(self, name: str) -> Ints:
        """A phase or latency by its name in `phases.Phases` or `phases.Reading` (without `_ns`); `ABSENT` where
        there is none."""
        return _NS[name](self)

    def tpot_ns(self) -> tuple[Floats, Bools]:
        """(decode / (tokens - 1), whether there is one); 0 where there is none."""
        import numpy as np

        decode, tokens = self.ns("decode"), self.tokens()
        found = (decode != ABSENT) & (tokens > 1)
        return np.where(found, decode, 0) / np.where(found, tokens - 1, 1), found

    def tokens(self) -> Ints:
        """usage.completion_tokens where told, else counted."""
        import numpy as np

        told = self.told("usage_completion")
        return np.where(told == ABSENT, self.told("counted"), told)

    def where(self, outcome: Outcome) -> Bools:
        """Which of them ended so."""
        return self.told("outcome") == OUTCOMES.index(outcome)

    def ids(self) -> list[str]:
        """Request ids."""
        ids = self.columns.ids
        return [ids[i] for i in self.places.tolist()]

    def by_cell(self, what: Callable[[Cell], int]) -> Ints:
        """A number that depends on each request's cell alone."""
        import numpy as np

        numbers = np.array([what(cell) for cell in self.columns.cells], dtype=np.int64)
        return numbers[self.told("cell")]

    def told_of(self, cell: Callable[[Cell], bool]) -> Bools:
        """Which of them have such a cell."""
        return self.by_cell(cell) == 1

    def cells(self) -> list[tuple[Cell, int]]:
        """The cells that are there, in order of their first request, each with how many requests it has."""
        return [(self.columns.cells[i], n) for i, n in tally(self.told("cell"))]

    def grouped(self, what: Callable[[Cell], Group]) -> dict[Group, Readings]:
        """The requests by what their cells say, groups in order of their first request."""
        import numpy as np

        names: dict[Group, int] = {}
        numbers = self.by_cell(lambda cell: names.setdefault(what(cell), len(names)))
        order = np.argsort(numbers, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if order.size else []
        parts.sort(key=lambda part: int(part[0]))
        listed = list(names)
        return {listed[int(numbers[part[0]])]: self.take(part) for part in parts}

    def gap_sizes(self) -> Ints:
        """How many gaps each request has."""
        offsets = self.columns.offsets
        return offsets[self.places + 1] - offsets[self.places]

    def gaps(self) -> Ints:
        """All gaps between generated pieces, ns, request by request. Not to be written to."""
        return self._flat(self.columns.gaps)

    def gap_tokens(self) -> Ints | None:
        """The tokens of the piece that ended each gap; None where all of these are 1 or untold."""
        flat = self.columns.gap_tokens
        return None if flat is None else self._flat(flat)

    def _flat(self, flat: Ints) -> Ints:
        import numpy as np

        if not len(self):
            return flat[:0]
        offsets, places = self.columns.offsets, self.places
        if places.size == 1 or bool((np.diff(places) == 1).all()):
            return flat[offsets[places[0]] : offsets[places[-1] + 1]]
        if bool((np.diff(places) > 0).all()):
            chosen = np.zeros(offsets.size - 1, dtype=np.bool_)
            chosen[places] = True
            return flat[np.repeat(chosen, np.diff(offsets))]
        starts, ends = offsets[places].tolist(), offsets[places + 1].tolist()
        return np.concatenate([flat[a:b] for a, b in zip(starts, ends, strict=True)])


def readings_of(requests: Sequence[Reading] | Sequence[Timeline]) -> Readings:
    """`requests` in columns; as they are where they are columns already."""
    import numpy as np

    if isinstance(requests, Readings):
        return requests
    first = requests[0] if requests else None
    if isinstance(first, Reading):
        requests = [reading.timeline for reading in cast("Sequence[Reading]", requests)]
    columns = columns_of(cast("Sequence[Timeline]", requests))
    return Readings(columns, np.arange(len(columns.ids), dtype=np.int64))


def milliseconds(ns: Ints) -> tuple[Floats, Bools]:
    """(the values that are not absent, in milliseconds; which these are)."""
    found = ns != ABSENT
    return ns[found] / 1e6, found


def clocks(readings: Readings, origin: dict[str, str]) -> tuple[list[str], Ints]:
    """(the clocks' names in order of their first request, the number of each request's clock in it)."""
    import numpy as np

    if readings and len(one := set(origin.values())) == 1:
        return list(one), np.zeros(len(readings), dtype=np.int64)
    names: dict[str, int] = {}
    numbers = [names.setdefault(origin[name], len(names)) for name in readings.ids()]
    return list(names), np.array(numbers, dtype=np.int64)


def outcomes_of(readings: Readings) -> Counter[str]:
    """How many ended how, in order of the first of each; those given up on purpose as "cancelled_planned"."""
    import numpy as np

    names = (*(outcome.value for outcome in OUTCOMES), "cancelled_planned")
    number = np.where(readings.told("given_up") == 1, len(OUTCOMES), readings.told("outcome"))
    return Counter({names[i]: n for i, n in tally(number)})


def tally(numbers: Ints) -> list[tuple[int, int]]:
    """(a number, how often it is there), in order of the first of each."""
    import numpy as np

    found, first, counts = np.unique(numbers, return_index=True, return_counts=True)
    return [(int(found[i]), int(counts[i])) for i in np.argsort(first).tolist()]


class _Sent(Struct, frozen=True, eq=False):
    ns: Ints
    inferred: Bools


def _sent(readings: Readings) -> _Sent:
    """See `phases._sent`."""
    import numpy as np

    sent, connected = readings.told("sent"), readings.told("connected")
    inferred = (sent == ABSENT) & (readings.told("pieces") > 0)
    fallback = np.where(connected == ABSENT, readings.told("started"), connected)
    return _Sent(np.where(inferred, fallback, sent), inferred)


def sent_inferred(readings: Readings) -> Bools:
    """Requests whose moment of sending nobody stamped, so that `connect` and `first` are inferred."""
    return _sent(readings).inferred


def _less(late: Ints, early: Ints) -> Ints:
    import numpy as np

    return np.where((late == ABSENT) | (early == ABSENT), ABSENT, late - early)


def _tail(readings: Readings) -> Ints:
    import numpy as np

    sent, last = _sent(readings).ns, readings.told("last_token")
    reached = np.where(sent == ABSENT, readings.told("started"), np.where(last == ABSENT, sent, last))
    return readings.told("end") - reached


def _told_inside(readings: Readings, name: str) -> Ints:
    """What the engine told of its inside counts for requests that have a token."""
    import numpy as np

    return np.where(readings.told("pieces") > 0, readings.told(name), ABSENT)


def _queue(readings: Readings) -> Ints:
    import numpy as np

    return np.where(_told_inside(readings, "prefill") == ABSENT, ABSENT, readings.told("queue"))


def _first(readings: Readings) -> Ints:
    return _less(readings.told("first_token"), _sent(readings).ns)


def _front_end(readings: Readings) -> Ints:
    import numpy as np

    prefill, queue = _told_inside(readings, "prefill"), _queue(readings)
    rest = _first(readings) - prefill - np.where(queue == ABSENT, 0, queue)
    return np.where(prefill == ABSENT, ABSENT, rest)


_NS: dict[str, Callable[[Readings], Ints]] = {
    "late": lambda r: r.told("started") - r.told("arrived"),
    "connect": lambda r: _less(_sent(r).ns, r.told("started")),
    "first": _first,
    "front_end": _front_end,
    "queue": _queue,
    "prefill": lambda r: _told_inside(r, "prefill"),
    "decode": lambda r: _less(r.told("last_token"), r.told("first_token")),
    "engine_decode": lambda r: _told_inside(r, "engine_decode"),
    "tail": _tail,
    "e2e": lambda r: r.told("end") - r.told("arrived"),
    "ttft": _first,
    "ttft_from_arrival": lambda r: _less(r.told("first_token"), r.told("arrived")),
    "ttfa": lambda r: _less(r.told("first_answer"), _sent(r).ns),
}

"""The requests of a run file, kept as the lines they stand in.

A `Timeline` of a hundred tokens takes some 8 KB as objects and 2 KB as its line, and decoding a line takes
microseconds. So a run holds the lines, and a timeline is decoded each time it is asked for: a run of ten million tokens
fits into memory, and whoever needs all of it at once reads it into columns (`explain.columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast, overload

import msgspec

from phasemeter.record.timeline import Timeline

_decoder = msgspec.json.Decoder(Timeline)


class KeptRequests(Sequence[Timeline]):
    """Timelines by their encoded lines, each of which was decoded once and found sound. `finish` is applied to every
    timeline that is handed out. Equal to any sequence of the same timelines."""

    def __init__(self, lines: Sequence[bytes], finish: Callable[[Timeline], Timeline] | None = None) -> None:
        self._lines = lines
        self._finish = finish

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> Timeline: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Timeline]: ...

    def __getitem__(self, index: int | slice) -> Timeline | Sequence[Timeline]:
        if isinstance(index, slice):
            return KeptRequests(self._lines[index], self._finish)
        return self._decoded(self._lines[index])

    def __iter__(self) -> Iterator[Timeline]:
        return map(self._decoded, self._lines)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        theirs = cast("Sequence[object]", other)
        return len(self) == len(theirs) and all(a == b for a, b in zip(self, theirs, strict=True))

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"<{len(self)} requests>"

    def _decoded(self, line: bytes) -> Timeline:
        timeline = _decoder.decode(line)
        return timeline if self._finish is None else self._finish(timeline)

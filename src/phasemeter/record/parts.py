"""The parts of one run that several processes wrote, put together into one record in the order in which requests ended.

Each part is a run file of its own with the header of the whole. Stamps of a part from another machine are moved onto
this run's clock by the measured offset; inside a request nothing moves against anything.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from phasemeter.record.errors import InputError
from phasemeter.record.file import UNREADABLE, RunWriter
from phasemeter.record.run import Footer, Header, Sample
from phasemeter.record.timeline import Timeline

PART_GLOB = "part-*.jsonl"


class Part(Struct, frozen=True):
    """One part file; `ahead_ns` is how far its clock runs ahead of the run's (0 on one machine)."""

    path: Path
    ahead_ns: int = 0


class _Peek(Struct):
    type: str
    end_ns: int = 0
    started_ns: int = 0
    t_ns: int = 0


class _Place(Struct, frozen=True, order=True, gc=False):
    t_ns: int
    part: int
    offset: int
    length: int


_peeks = msgspec.json.Decoder(_Peek)
_timelines = msgspec.json.Decoder(Timeline)
_samples = msgspec.json.Decoder(Sample)


def parts_in(folder: Path) -> list[Part]:
    """The part files of a folder, in order."""
    return [Part(path) for path in sorted(folder.glob(PART_GLOB))]


def part_header(part: Part) -> Header:
    """The header of a part. Raises InputError where it has none."""
    with part.path.open("rb") as file:
        try:
            return msgspec.json.decode(file.readline(), type=Header)
        except UNREADABLE:
            raise InputError(
                "run file", str(part.path), "was cut before its header was complete; leave it out"
            ) from None


def write_joined(
    writer: RunWriter, parts: Sequence[Part], more: Iterable[Timeline] = ()
) -> tuple[Footer, ...]:
    """Append the requests and samples of `parts`, and `more` requests (of a process that died), to `writer` in the
    order in which they ended; returns the parts' footers. Lines that a kill cut are left out. Memory: some 100 bytes a
    request."""
    places, footers = _index(parts)
    starts, ends = _spans(parts, places)
    extra = sorted(more, key=lambda timeline: timeline.end_ns)
    waiting = 0
    with _Files(parts) as files:
        for place in sorted(places):
            while waiting < len(extra) and extra[waiting].end_ns <= place.t_ns:
                writer.write(extra[waiting])
                waiting += 1
            text, ahead_ns = files.read(place), parts[place.part].ahead_ns
            if _peeks.decode(text).type == "sample":
                sample = _samples.decode(text)
                writer.write(replace(sample, t_ns=sample.t_ns - ahead_ns))
                continue
            timeline = moved(_timelines.decode(text), -ahead_ns)
            others = bisect_right(starts, timeline.started_ns) - bisect_left(ends, timeline.started_ns)
            writer.write(replace(timeline, in_flight=max(1, others)))
    for timeline in extra[waiting:]:
        writer.write(timeline)
    return footers


def moved(timeline: Timeline, by_ns: int) -> Timeline:
    """The same request on a clock whose readings are larger by `by_ns`."""
    if by_ns == 0:
        return timeline
    return replace(
        timeline,
        arrived_ns=timeline.arrived_ns + by_ns,
        started_ns=timeline.started_ns + by_ns,
        end_ns=timeline.end_ns + by_ns,
        connected_ns=_moved(timeline.connected_ns, by_ns),
        sent_ns=_moved(timeline.sent_ns, by_ns),
        first_byte_ns=_moved(timeline.first_byte_ns, by_ns),
    )


def requests_of(part: Part) -> Iterator[Timeline]:
    """The requests of one part on its own clock, in the order of the file; what a kill cut is left out."""
    with part.path.open("rb") as file:
        for text in file:
            try:
                if _peeks.decode(text).type == "request":
                    yield _timelines.decode(text)
            except UNREADABLE:
                continue


def _moved(t_ns: int | None, by_ns: int) -> int | None:
    return None if t_ns is None else t_ns + by_ns


def _index(parts: Sequence[Part]) -> tuple[list[_Place], tuple[Footer, ...]]:
    places: list[_Place] = []
    footers: list[Footer] = []
    for number, part in enumerate(parts):
        offset = 0
        with part.path.open("rb") as file:
            for text in file:
                length = len(text)
                try:
                    peek = _peeks.decode(text)
                    if peek.type == "footer":
                        footers.append(msgspec.json.decode(text, type=Footer))
                    elif peek.type in {"request", "sample"}:
                        t_ns = (peek.end_ns or peek.t_ns) - part.ahead_ns
                        places.append(_Place(t_ns, number, offset, length))
                except UNREADABLE:
                    pass
                offset += length
    return places, tuple(footers)


def _spans(parts: Sequence[Part], places: Sequence[_Place]) -> tuple[list[int], list[int]]:
    """Starts and ends of all requests on the run's clock, sorted."""
    starts: list[int] = []
    ends: list[int] = []
    with _Files(parts) as files:
        for place in places:
            peek = _peeks.decode(files.read(place))
            if peek.type == "request":
                starts.append(peek.started_ns - parts[place.part].ahead_ns)
                ends.append(place.t_ns)
    return sorted(starts), sorted(ends)


class _Files:
    """The part files, open."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._files = [part.path.open("rb") for part in parts]

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def read(self, place: _Place) -> bytes:
        """The line that lies there."""
        file = self._files[place.part]
        file.seek(place.offset)
        return file.read(place.length)

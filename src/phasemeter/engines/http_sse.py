"""Server-sent events from stamped pieces of a body (WHATWG HTML, "Server-sent events", 9.2.6).

Works on bytes, so that a character split over pieces cannot be damaged, and on the joined body, so that an
event may be cut anywhere. An event carries the stamp of the piece in which its closing blank line ended:
that is the first moment at which a client could know it whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

_BOM = b"\xef\xbb\xbf"
_BLANK = (b"\n", b"\r\n", b"\r")


class SseEvent(Struct, frozen=True, gc=False):
    """One event, or one comment (then `data` is None). `closed` is False for a last event without its
    blank line."""

    recv_ns: int
    data: bytes | None
    name: bytes = b""
    closed: bool = True


def sse_events(stamps_ns: Sequence[int], pieces: Sequence[bytes]) -> Iterator[SseEvent]:
    """The events and comments of a stream in order. Lines end in LF, CRLF or CR; a byte order mark is
    skipped.

    An event without data dispatches nothing, as the standard says; a last event that the stream ended in
    the middle of is given with `closed=False`, stamped with its last byte."""
    body = b"".join(pieces)
    where = _Where(stamps_ns, pieces)
    position = len(_BOM) if body.startswith(_BOM) else 0
    data: list[bytes] = []
    name = b""
    # bytes.splitlines knows exactly the three line ends of the standard
    for line in body[position:].splitlines(keepends=True):
        position += len(line)
        if line in _BLANK:
            if data:
                yield SseEvent(where.stamp_ns(position), _joined(data), name)
            data, name = [], b""
        elif line.startswith(b":"):
            yield SseEvent(where.stamp_ns(position), None)
        else:
            field, value = _field(line)
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value
    if data:
        yield SseEvent(where.stamp_ns(position), _joined(data), name, closed=False)


def plain_events(stamps_ns: Sequence[int], pieces: Sequence[bytes]) -> tuple[list[int], list[bytes]] | None:
    """(stamps, data) of a stream whose every event is one `data: ` line and a blank one, ended by LF, as nearly all
    servers write; None for any other, which `sse_events` reads. Several times as quick, and the same answer."""
    body = b"".join(pieces)
    if not (body.startswith(_OPENING) and body.endswith(b"\n\n")) or b"\r" in body:
        return None
    data = body[len(_OPENING) : -2].split(_BETWEEN)
    if body.count(b"\n") != 2 * len(data):
        return None
    stamps: list[int] = []
    end, at, reached = 0, 0, len(pieces[0])
    for event in data:
        end += len(event) + len(_BETWEEN)
        while reached < end:
            at += 1
            reached += len(pieces[at])
        stamps.append(stamps_ns[at])
    return stamps, data


_OPENING = b"data: "
_BETWEEN = b"\n\ndata: "


class _Where:
    """Which piece holds a byte; asked with rising positions only."""

    def __init__(self, stamps_ns: Sequence[int], pieces: Sequence[bytes]) -> None:
        self._stamps_ns = stamps_ns
        self._pieces = pieces
        self._at = 0
        self._end = len(pieces[0]) if pieces else 0

    def stamp_ns(self, position: int) -> int:
        """Stamp of the piece that holds the byte before `position`."""
        while self._end < position:
            self._at += 1
            self._end += len(self._pieces[self._at])
        return self._stamps_ns[self._at]


def _field(line: bytes) -> tuple[bytes, bytes]:
    field, _, value = line.rstrip(b"\r\n").partition(b":")
    return field, value[1:] if value.startswith(b" ") else value


def _joined(data: list[bytes]) -> bytes:
    return data[0] if len(data) == 1 else b"\n".join(data)

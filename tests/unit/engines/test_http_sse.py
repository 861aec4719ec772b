"""Server-sent events: the same events whatever the cuts, and stamps of the pieces that closed them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from phasemeter.engines.http_sse import SseEvent, sse_events

LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.sampled_from(
    [
        b"data: {}",
        b"data:x",
        b"data",
        b"data:  two",
        b": note",
        b"event: error",
        b"id: 4",
        b"retry: 9",
        b"",
        "data: 你🌍".encode(),
    ]
)


def _cut(body: bytes, cuts: list[int]) -> tuple[list[int], list[bytes]]:
    edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    pieces = [body[a:b] for a, b in pairwise(edges)]
    return [100 + i for i in range(len(pieces))], pieces


def _reference(
    stamps: list[int], pieces: list[bytes], end: bytes
) -> list[tuple[int, bytes | None, bytes, bool]]:
    """A slow reader, a byte at a time, for bodies with one kind of line end."""
    found: list[tuple[int, bytes | None, bytes, bool]] = []
    line = b""
    data: list[bytes] = []
    name = b""
    stamp = 0
    for stamp, piece in zip(stamps, pieces, strict=True):
        for value in piece:
            line += bytes([value])
            if not line.endswith(end):
                continue
            text, line = line[: -len(end)], b""
            if text == b"":
                if data:
                    found.append((stamp, b"\n".join(data), name, True))
                data, name = [], b""
            elif text.startswith(b":"):
                found.append((stamp, None, b"", True))
            else:
                field, _, rest = text.partition(b":")
                rest = rest.removeprefix(b" ")
                if field == b"data":
                    data.append(rest)
                elif field == b"event":
                    name = rest
    if data:
        found.append((stamp, b"\n".join(data), name, False))
    return found


def _flat(events: list[SseEvent]) -> list[tuple[int, bytes | None, bytes, bool]]:
    return [(e.recv_ns, e.data, e.name, e.closed) for e in events]


@given(st.lists(LINES, max_size=12), LINE_ENDS, st.lists(st.integers(0, 10_000), max_size=40))
def test_any_cut_gives_the_events_of_a_slow_reader(lines: list[bytes], end: bytes, cuts: list[int]) -> None:
    body = b"".join(line + end for line in lines)
    stamps, pieces = _cut(body, cuts)
    assert _flat(list(sse_events(stamps, pieces))) == _reference(stamps, pieces, end)


@given(st.lists(LINES, max_size=8), LINE_ENDS, st.lists(st.integers(0, 10_000), max_size=40))
def test_a_byte_order_mark_changes_nothing_but_stamps(
    lines: list[bytes], end: bytes, cuts: list[int]
) -> None:
    body = b"".join(line + end for line in lines)
    plain = [(e.data, e.name) for e in sse_events(*_cut(body, cuts))]
    marked = [(e.data, e.name) for e in sse_events(*_cut(b"\xef\xbb\xbf" + body, cuts))]
    assert plain == marked


def test_nothing() -> None:
    assert list(sse_events([], [])) == []
    assert list(sse_events([5], [b"\n\n"])) == []


def test_empty_pieces_do_not_shift_stamps() -> None:
    events = list(sse_events([1, 2, 3, 4], [b"", b"data: a\n", b"", b"\n"]))
    assert _flat(events) == [(4, b"a", b"", True)]


def test_unclosed_event_has_the_stamp_of_its_last_byte() -> None:
    events = list(sse_events([1, 2], [b"data: a\n\nda", b"ta: b"]))
    assert _flat(events) == [(1, b"a", b"", True), (2, b"b", b"", False)]

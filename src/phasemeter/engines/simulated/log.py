"""What the server sent and when: one line a request, in a ring for `GET /log` and in a file of JSON lines.

All stamps are the server's monotonic clock. On Linux and macOS it is one clock for the whole machine, so a
client on the same machine may compare its own stamps of `time.monotonic_ns()` with them.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import msgspec
from msgspec import Struct

from phasemeter.record.errors import InputError

_KEPT = 4096


class Entry(Struct, frozen=True):
    """One request as it was served. Four arrays of equal length hold one element a write.

    planned_ns      when the write was due, counted from `received_ns`
    sent_ns         the clock right before the write
    kinds, tokens   what the write completed, and how many tokens were in it
    outcome         completed, client_aborted, server_stopped, fault:NAME (a fault ended it), or status:CODE
    queue_ns, prefill_ns, decode_ns  the true phases, as planned
    late_max_ns     the largest difference between a write and its plan
    slow_reader_writes  writes behind which bytes still waited for the client: their stamp is not when they
                        left
    """

    id: str
    serial: int
    connection: int
    path: str
    model: str
    stream: bool
    outcome: str
    status: int
    received_ns: int
    end_ns: int
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    cached_tokens: int | None = None
    start_ns: int | None = None
    queue_ns: int | None = None
    prefill_ns: int | None = None
    decode_ns: int | None = None
    sent_tokens: int = 0
    planned_ns: tuple[int, ...] = ()
    sent_ns: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    tokens: tuple[int, ...] = ()
    late_max_ns: int | None = None
    slow_reader_writes: int = 0
    faults: tuple[str, ...] = ()


class Log:
    """Keeps the last 4,096 entries and appends every entry to `path`. Raises InputError if that cannot be
    written."""

    def __init__(self, path: Path | None) -> None:
        self._ring: deque[Entry] = deque(maxlen=_KEPT)
        self.requests = 0
        try:
            self._file = None if path is None else path.open("ab")
        except OSError as error:
            raise InputError(
                "--log", str(path), f"cannot be written ({error.strerror}); name another place"
            ) from None

    def add(self, entry: Entry) -> None:
        """Take one finished request."""
        self.requests += 1
        self._ring.append(entry)
        if self._file is not None:
            self._file.write(msgspec.json.encode(entry) + b"\n")
            self._file.flush()

    def entries(self, last: int | None = None) -> tuple[Entry, ...]:
        """The last entries that are kept, oldest first."""
        kept = tuple(self._ring)
        return kept if last is None else kept[len(kept) - min(last, len(kept)) :]

    def close(self) -> None:
        """Flush and close the file. Safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = None


def lateness_ns(entries: tuple[Entry, ...]) -> list[int]:
    """How much later than planned every write was, sorted, nanoseconds."""
    return sorted(
        sent - entry.received_ns - planned
        for entry in entries
        for sent, planned in zip(entry.sent_ns, entry.planned_ns, strict=True)
    )

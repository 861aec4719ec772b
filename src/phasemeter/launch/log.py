"""A log file that another process writes: its lines as they come, and its end."""

from __future__ import annotations

import re
from pathlib import Path

_TAIL_BYTES = 64_000
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Log:
    """Follows one file. Carriage returns (progress bars) end a line as newlines do; colours are left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._rest = b""

    def new_lines(self, *, to_the_end: bool = False) -> list[str]:
        """Whole lines since the last call, blank ones left out; `to_the_end` also gives an unfinished last one."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                more = file.read()
        except FileNotFoundError:
            return []
        self._read += len(more)
        pieces = (self._rest + more).replace(b"\r", b"\n").split(b"\n")
        self._rest = pieces.pop()
        if to_the_end:
            pieces.append(self._rest)
            self._rest = b""
        return [line for line in map(_plain, pieces) if line]

    def tail(self, lines: int) -> tuple[str, ...]:
        """The last lines of the file, blank ones left out; reads nothing away from `new_lines`."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _TAIL_BYTES))
                data = file.read()
        except FileNotFoundError:
            return ()
        kept = [line for line in map(_plain, data.replace(b"\r", b"\n").split(b"\n")) if line]
        return tuple(kept[-lines:])


def _plain(line: bytes) -> str:
    return _COLOUR.sub("", line.decode("utf-8", errors="replace")).rstrip()

"""A text file that a user named: UTF-8 with or without a byte order mark, plain or gzipped, and a file that ends."""

from __future__ import annotations

import errno
import gzip
import zlib
from pathlib import Path
from typing import TextIO

UNZIPPABLE = (EOFError, zlib.error)
"""What reading a damaged gzip file may raise beside OSError and ValueError."""


def open_text(path: Path) -> TextIO:
    """Open it for reading, line ends as they are. Raises OSError, also for a device or a pipe: they may never end, and
    every process of a run reads the file again."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is no regular file; write it to one first", str(path))
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
    if zipped:
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def read_text(path: Path) -> str:
    """All of it. Raises OSError, ValueError (no UTF-8) and what `UNZIPPABLE` names."""
    with open_text(path) as file:
        return file.read()

"""The Prometheus text format: a whole page read into points, or a few named values picked out of its bytes.

`parse` reads everything and takes milliseconds for a page of vLLM; it is for when nothing is timed. `picked` looks for
the wanted names with `bytes.find` and touches no other line: it is for while requests are in flight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from msgspec import Struct

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class Point(Struct, frozen=True):
    """One sample of the exposition format."""

    name: str
    labels: dict[str, str]
    value: float


def parse(text: str) -> list[Point]:
    """Every sample of a Prometheus text page; comments and lines that are none are left out."""
    found: list[Point] = []
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line.strip())
        if match is None or line.startswith("#"):
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        labels = {name: _plain(raw) for name, raw in _LABEL.findall(match[2] or "")}
        found.append(Point(match[1], labels, value))
    return found


def picked(page: bytes, name: bytes) -> list[float]:
    """The finite values of every sample called `name`, whatever its labels; nothing else of the page is read."""
    return [value for raw in _lines_of(page, name) if math.isfinite(value := _number(raw))]


def _lines_of(page: bytes, name: bytes) -> Iterator[bytes]:
    """What stands behind the labels of each of its lines."""
    at = page.find(name)
    while at >= 0:
        end = page.find(b"\n", at)
        end = len(page) if end < 0 else end
        rest = page[at + len(name) : end]
        if (at == 0 or page[at - 1 : at] == b"\n") and rest[:1] in (b"{", b" ", b"\t"):
            yield rest[rest.rfind(b"}") + 1 :]
        at = page.find(name, end)


def _number(raw: bytes) -> float:
    words = raw.split()
    try:
        return float(words[0]) if words else math.nan
    except ValueError:
        return math.nan


def _plain(raw: str) -> str:
    return re.sub(r"\\[\\\"n]", lambda m: _ESCAPES[m[0]], raw)

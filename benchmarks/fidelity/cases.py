"""What is measured: cases, and the order in which clients take them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from msgspec import Struct

LEVELS = (1, 8, 32, 128, 256, 512, 1000)
_WAVES = {1: 16, 8: 8, 32: 6, 128: 5, 256: 5, 512: 4}
"""Requests a slot; `_FEWEST` where a level is not named."""
_FEWEST = 3
_NOT_FOR_PEERS = ("truths",)
_FAULTS = ("error", "empty", "reset", "cut")


class Case(Struct, frozen=True):
    """One server and one load, whichever client sends it."""

    part: str
    concurrency: int
    requests: int
    ttft_ms: float = 50.0
    itl_ms: float = 10.0
    input_tokens: int = 64
    output_tokens: int = 128
    fault: str = "none"

    @property
    def ideal_s(self) -> float:
        """How long it takes a client that loses no time."""
        each_ms = self.ttft_ms + self.itl_ms * (self.output_tokens - 1)
        return each_ms / 1e3 * -(-self.requests // self.concurrency)

    def server_options(self) -> list[str]:
        """For the truth server."""
        times = ["--ttft-ms", f"{self.ttft_ms:g}", "--itl-ms", f"{self.itl_ms:g}"]
        options = [*times, "--tokens", str(self.output_tokens)]
        return options if self.fault == "none" else [*options, "--fault", self.fault, "--fault-every", "4"]


def _levels(levels: Sequence[int], waves: int | None) -> list[Case]:
    return [Case("levels", c, c * (waves or _WAVES.get(c, _FEWEST))) for c in levels]


def _truths(levels: Sequence[int], waves: int | None) -> list[Case]:
    """The same build against other truths: nothing in it may have been fitted to one of them."""
    return [
        Case("truths", c, c * (waves or _WAVES.get(c, _FEWEST)), ttft_ms, itl_ms)
        for c in levels
        for ttft_ms in (20.0, 50.0, 137.0)
        for itl_ms in (3.0, 10.0)
    ]


def _faults(levels: Sequence[int], waves: int | None) -> list[Case]:
    return [
        Case("faults", c, c * (waves or 4), fault=fault, output_tokens=32)
        for c in levels
        for fault in _FAULTS
    ]


def _long(levels: Sequence[int], waves: int | None) -> list[Case]:
    return [Case("long", c, c * (waves or 3), input_tokens=50_000) for c in levels]


PARTS = {
    "levels": (_levels, LEVELS),
    "truths": (_truths, (32, 128)),
    "faults": (_faults, (8,)),
    "long": (_long, (32,)),
}


def cases_of(parts: Sequence[str], levels: Sequence[int], waves: int | None) -> list[Case]:
    """The cases of the named parts, at the given levels or at each part's own."""
    return [case for part in parts for case in PARTS[part][0](levels or PARTS[part][1], waves)]


def ordered(
    cases: Sequence[Case], tools: Sequence[str], rounds: int, seed: int
) -> Iterator[tuple[int, Case, str]]:
    """(round, case, tool): each round goes through every case, with the tools in a random order of their own."""
    draw = random.Random(seed)
    for number in range(1, rounds + 1):
        for case in cases:
            able = [tool for tool in tools if tool == "phasemeter" or case.part not in _NOT_FOR_PEERS]
            for tool in draw.sample(able, len(able)):
                yield number, case, tool

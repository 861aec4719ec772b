"""What is sampled beside the requests: how late our own event loop was, our CPU, and whatever probes are handed in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType

from phasemeter.record.clock import Clock

Probe = Callable[[], dict[str, float]]
"""Reads something once; names carry their units."""

_EVERY_S = 0.02


class LoopLag:
    """Measures how late the event loop calls us while a block runs: the largest lateness of a 20 ms ticker, `most_ns`.
    What the loop is late with, it may be late with on a token too."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self.most_ns = 0

    async def _tick(self) -> None:
        while True:
            due_ns = self._clock.now_ns() + round(_EVERY_S * 1e9)
            await asyncio.sleep(_EVERY_S)
            self.most_ns = max(self.most_ns, self._clock.now_ns() - due_ns)

    def taken_ns(self) -> int:
        """The largest lateness since the last call."""
        most_ns, self.most_ns = self.most_ns, 0
        return most_ns

    async def __aenter__(self) -> LoopLag:
        self._task = asyncio.ensure_future(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None


def reading(probes: Sequence[Probe]) -> dict[str, float]:
    """All probes' values together."""
    values: dict[str, float] = {}
    for probe in probes:
        values |= probe()
    return values

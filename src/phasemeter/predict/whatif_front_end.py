"""The front end before an engine: HTTP, tokenising, hand-over. One process that all requests share.

An event loop turns to each of its requests in turn, so those that are in it together slow each other down and get done
about together: processor sharing, not a queue. That is how vLLM's API server is seen to behave: where 64 requests came
at once, all took the front end 64 times as long and the engine got them together (docs/whatif.md). By virtual time: it
runs at 1 / n of the clock's while n requests share, and each leaves a fixed virtual time after it came.
"""

from __future__ import annotations

import heapq
from typing import Protocol, runtime_checkable

from phasemeter.predict.steps import StepModel
from phasemeter.predict.whatif_times import checked_s


@runtime_checkable
class SharedFrontEnd(Protocol):
    """A step model whose front end is shared."""

    def front_end_busy_s(self, input_tokens: int) -> float:
        """Seconds of a request's `front_end_s` that are work of the shared process; the rest is latency alone. What is
        more than that counts as that much."""
        ...


class FrontEnd:
    """One replica's. `next_s`: when the next request is done with the shared part; negative for none."""

    def __init__(self, model: StepModel) -> None:
        self._takes_s = model.front_end_s
        self._busy_s = model.front_end_busy_s if isinstance(model, SharedFrontEnd) else None
        self.shared = self._busy_s is not None
        self.next_s = -1.0
        self._inside: list[tuple[float, int, float]] = []
        self._virtual = self._at_s = 0.0

    def alone_s(self, tokens: int) -> float:
        """Seconds of a request that shares with nobody."""
        return checked_s(self._takes_s(tokens))

    def enter(self, i: int, tokens: int, now_s: float) -> bool:
        """Request `i` is sent; whether `next_s` has changed."""
        takes_s = self.alone_s(tokens)
        busy_s = min(takes_s, checked_s(self._busy_s(tokens))) if self._busy_s is not None else 0.0
        self._pass(now_s)
        heapq.heappush(self._inside, (self._virtual + busy_s, i, takes_s - busy_s))
        before, self.next_s = self.next_s, self._due_s()
        return self.next_s != before

    def leave(self, now_s: float) -> list[tuple[int, float]]:
        """Those that are done at `next_s`, which is now: (request, seconds of latency that remain)."""
        self._virtual, self._at_s = max(self._virtual, self._inside[0][0]), now_s
        done: list[tuple[int, float]] = []
        while self._inside and self._inside[0][0] <= self._virtual:
            _, i, rest_s = heapq.heappop(self._inside)
            done.append((i, rest_s))
        self.next_s = self._due_s()
        return done

    def _pass(self, now_s: float) -> None:
        if self._inside:
            self._virtual += (now_s - self._at_s) / len(self._inside)
        self._at_s = now_s

    def _due_s(self) -> float:
        if not self._inside:
            return -1.0
        return self._at_s + max(0.0, self._inside[0][0] - self._virtual) * len(self._inside)

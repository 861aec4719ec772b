"""An event loop with timers finer than a millisecond, for a server whose sends must come when they should.

asyncio on epoll and uvloop both round timers to whole milliseconds. Here the wait is made with `select` on
the epoll descriptor itself, which takes microseconds and any number of sockets; the last part before a timer
may be spun.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
from collections.abc import Callable

SPIN_S = 0.0004
"""How long before a timer the loop stops sleeping: a sleep ends up to so much late on a common Linux."""


class FineLoop:
    """A loop factory with a switch: `spin(True)` for the most exact timers, at the price of a busy core."""

    def __init__(self) -> None:
        self._set: Callable[[float], None] = lambda _seconds: None

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """The loop; on systems without epoll the usual one."""
        if sys.platform != "linux":
            return asyncio.new_event_loop()
        selector = _FineSelector()
        self._set = selector.set_spin
        return asyncio.SelectorEventLoop(selector)

    def spin(self, *, on: bool) -> None:
        """Spin before timers, or let the core sleep."""
        self._set(SPIN_S if on else 0.0)


if sys.platform == "linux":

    class _FineSelector(selectors.EpollSelector):
        """Epoll that waits with microseconds."""

        _spin_s = 0.0

        def set_spin(self, seconds: float) -> None:
            self._spin_s = seconds

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0:
                sleep_s = timeout - self._spin_s
                if sleep_s > 0:
                    select.select([self.fileno()], [], [], sleep_s)
                timeout = 0
            return super().select(timeout)

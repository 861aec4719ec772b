"""An event loop whose time is virtual: instead of waiting it moves a ManualClock to the next timer.

A minute of simulated load takes milliseconds, and phases come out exact to the nanosecond. Nothing outside
the process can take part: sockets, pipes and threads have no virtual time, so they are refused.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from phasemeter.record.clock import ManualClock
from phasemeter.record.errors import PhasemeterError

T = TypeVar("T")


class VirtualTimeError(PhasemeterError):
    """Virtual time cannot go on: everything waits and no timer is set, or a real socket was used."""


def run_virtual(main: Callable[[ManualClock], Coroutine[Any, Any, T]], start_ns: int = 0) -> T:
    """Run `main(clock)` to its end in virtual time and return what it returns.

    Raises VirtualTimeError when everything waits for something that is not a timer, or a socket is used.
    """
    clock = ManualClock(start_ns)
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(main(clock))


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop itself; `run_virtual` is the usual way to it."""

    def __init__(self, clock: ManualClock) -> None:
        self._virtual_clock = clock
        super().__init__(_VirtualSelector(clock))

    def time(self) -> float:
        """Virtual seconds. A float holds whole nanoseconds exactly enough up to 50 days."""
        return self._virtual_clock.now_ns() / 1e9


class _VirtualSelector(selectors.BaseSelector):
    """Never waits: a time-out is time that has passed."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:  # noqa: ANN401 - the base class's signature
        if self._keys:  # the first is the loop's own wake-up pipe
            raise VirtualTimeError("a real socket or pipe was used in virtual time; use real time for it")
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = selectors.SelectorKey(fileobj, fd, events, data)
        self._keys[fd] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:  # noqa: ANN401 - the base class's signature
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        return self._keys.pop(fd)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise VirtualTimeError(
                "everything waits and no timer is set: virtual time would stand still for ever"
            )
        if timeout > 0:
            # at least 1 ns, or a timer a rounding error away would never be reached
            self._clock.advance_to(self._clock.now_ns() + max(1, round(timeout * 1e9)))
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

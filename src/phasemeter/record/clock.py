"""The one clock. Every stamp in Phasemeter is an integer of nanoseconds from an injected `Clock`.

This file is the only place that may import `time`; the linter bans it everywhere else. A run carries one
`Anchor`, taken once, so that its monotonic stamps can be shown as wall time: nothing else reads the wall.
"""

from __future__ import annotations

import time
from typing import Protocol

from msgspec import Struct


class Clock(Protocol):
    """Monotonic time as integer nanoseconds; the origin is arbitrary."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary, fixed origin."""
        ...


class MonotonicClock:
    """The operating system's monotonic clock (never stepped by NTP)."""

    now_ns = staticmethod(time.monotonic_ns)


class ManualClock:
    """A clock that moves only when told to, for tests and for the virtual event loop."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """The time that was last set."""
        return self._now_ns

    def advance_to(self, t_ns: int) -> None:
        """Move forward to `t_ns`; a time in the past leaves the clock where it is."""
        self._now_ns = max(self._now_ns, t_ns)


class Anchor(Struct, frozen=True):
    """One pairing of the run's clock with the wall, taken at the start of a run."""

    clock_ns: int
    wall_ns: int


def anchor(clock: Clock) -> Anchor:
    """Pair `clock` with the wall clock now."""
    return Anchor(clock_ns=clock.now_ns(), wall_ns=time.time_ns())


def cpu_ns() -> int:
    """CPU time of this process so far (user and system), nanoseconds."""
    return time.process_time_ns()


def wall_text(wall_ns: int) -> str:
    """A wall time as ISO 8601 in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(wall_ns / 1e9))

"""Who is told: live observers are plain callables (`record.event.Observer`), and so is what takes finished requests."""

from __future__ import annotations

from collections.abc import Callable

from phasemeter.record.timeline import Timeline

TimelineSink = Callable[[Timeline], None]
"""Takes each request once, when its reply has been parsed: the file writer, for one."""

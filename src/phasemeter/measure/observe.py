"""Fan-out from a driver to plain callables: the file writer, the progress line, whatever else listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from phasemeter.record.event import Event, Observer
from phasemeter.record.timeline import Timeline

TimelineSink = Callable[[Timeline], None]


def fan_out(observers: Sequence[Observer]) -> Observer:
    """One observer that hands each event to all of `observers`, in order."""
    if len(observers) == 1:
        return observers[0]

    def observe(event: Event) -> None:
        for observer in observers:
            observer(event)

    return observe

"""Find one request of a run: by its id, by the beginning of its id, or as the slowest of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches

from phasemeter.explain.phases import Reading, read
from phasemeter.record.engine import Outcome
from phasemeter.record.errors import InputError
from phasemeter.record.run import Run
from phasemeter.record.timeline import Timeline

_MOST_NAMED = 5
_MOST_COMPARED = 20_000
"""Ids that are compared letter by letter with an unknown one, so that a large run answers at once."""


def ttft(reading: Reading) -> float | None:
    """Sent to first token, ns."""
    return reading.ttft_ns


def itl(reading: Reading) -> float | None:
    """The longest gap, ns; per token where the server told the counts. None without a gap."""
    counts = reading.gap_tokens
    if counts is None:
        return max(reading.gaps_ns, default=None)
    return max((gap / max(1, n) for gap, n in zip(reading.gaps_ns, counts, strict=True)), default=None)


def e2e(reading: Reading) -> float | None:
    """Intended arrival to the end, ns."""
    return reading.e2e_ns


SLOWEST: dict[str, Callable[[Reading], float | None]] = {
    "slowest-ttft": ttft,
    "slowest-itl": itl,
    "slowest-e2e": e2e,
}


def pick_request(run: Run, asked: str) -> Timeline:
    """The request that `asked` names. The slowest is looked for among the measured ones that succeeded. Raises
    InputError, which names near ids, where there is none or where several ids begin so."""
    if asked in SLOWEST:
        return _slowest(run, asked)
    near: list[Timeline] = []
    for timeline in run.requests:
        if timeline.id == asked:
            return timeline
        if asked and timeline.id.startswith(asked):
            near.append(timeline)
    if len(near) == 1:
        return near[0]
    if near:
        named = _named([timeline.id for timeline in near])
        raise InputError("--request", asked, f"{len(near)} ids begin so; give more of one of {named}")
    ids = [timeline.id for timeline in run.requests]
    if not ids:
        raise InputError("--request", asked, "the run holds no request")
    close = get_close_matches(asked, ids[:_MOST_COMPARED], n=_MOST_NAMED, cutoff=0.5) or ids
    words = ", ".join(SLOWEST)
    raise InputError("--request", asked, f"no such request; there are {_named(close)}; or give {words}")


def ranked(readings: Iterable[Reading], value: Callable[[Reading], float | None]) -> list[tuple[float, str]]:
    """(value, id) of every request that has it, least first."""
    found = [(number, reading.timeline.id) for reading in readings if (number := value(reading)) is not None]
    return sorted(found)


def _slowest(run: Run, asked: str) -> Timeline:
    value = SLOWEST[asked]
    most, found = -1.0, None
    for timeline in run.requests:
        if timeline.cell.warmup or timeline.outcome is not Outcome.OK:
            continue
        number = value(read(timeline))
        if number is not None and number > most:
            most, found = number, timeline
    if found is None:
        raise InputError("--request", asked, "no measured request has one; give the id of a request")
    return found


def _named(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else ""
    return ", ".join(ids[:_MOST_NAMED]) + more

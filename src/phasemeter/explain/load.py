"""Load as it really was: requests in flight, and throughput over the measured windows.

A merged run holds requests of several clocks: `origin` keeps them apart, and stamps of two origins never
meet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.phases import Reading
from phasemeter.explain.shape_key import Asked, asked_of
from phasemeter.explain.stages import stretches
from phasemeter.record.run import Run
from phasemeter.record.timeline import Timeline

if TYPE_CHECKING:
    from phasemeter.explain.stats import Floats


class Level(Struct, frozen=True):
    """Requests in flight among the measured requests of one level asked: a concurrency, a rate, or neither (a trace).
    The mean is over `busy_s`, the time in which at least one of them was in flight. Rates are over the stages of
    an open loop: (requests - stages) / (last - first), by intended arrival and by the actual start; None in a closed
    loop, which has no arrivals of its own, and for less than two requests."""

    asked: int | None
    requests: int
    seen_max: int
    seen_mean: float
    rate_per_s: float | None = None
    busy_s: float = 0.0
    arrived_per_s: float | None = None
    sent_per_s: float | None = None


class Concurrency(Struct, frozen=True):
    """Requests in flight (sent to end). The first three are those of the largest level asked, `asked` None in an open
    loop; all None without a measured request."""

    asked: int | None = None
    seen_max: int | None = None
    seen_mean: float | None = None
    levels: tuple[Level, ...] = ()


class Throughput(Struct, frozen=True):
    """Of successful requests, over the measured windows only: a window runs from the first start to the last
    end of one visit of a cell, overlapping windows are joined, warm-up is outside. None where there was
    none."""

    output_tokens_per_s: float | None = None
    requests_per_s: float | None = None
    peak_output_tokens_per_s: float | None = None
    """Best second: each window cut into equal parts of a second or a little more (a shorter one is one part),
    tokens counted at their stamps, a piece of k tokens as k."""
    window_s: float | None = None


_Windows = list[tuple[int, int]]


def origins(run: Run) -> dict[str, str]:
    """Which clock each request id belongs to: "" in a run of its own, the run's id in a merged one."""
    ids = [timeline.id for timeline in run.requests]
    merged = bool(ids) and ids[0].startswith(f"{run.header.run_id}/")
    return {name: name.split("/", 1)[0] if merged else "" for name in ids}


def concurrency(readings: Sequence[Reading], origin: dict[str, str]) -> Concurrency:
    """Requests in flight at every level asked, failed ones included while they lasted."""
    by_level: defaultdict[Asked, list[Timeline]] = defaultdict(list)
    for reading in readings:
        by_level[asked_of(reading.timeline.cell)].append(reading.timeline)
    levels = tuple(_level(a, by_level[a], origin) for a in sorted(by_level, key=lambda asked: asked.order))
    if not levels:
        return Concurrency()
    top = levels[-1]
    return Concurrency(top.asked, top.seen_max, top.seen_mean, levels)


def throughput(ok: Sequence[Reading], measured: Sequence[Reading], origin: dict[str, str]) -> Throughput:
    """Rates of the successful requests over the windows of all measured ones."""
    import numpy as np

    windows = _windows(measured, origin)
    busy_ns = sum(end - start for found in windows.values() for start, end in found)
    if not ok or busy_ns <= 0:
        return Throughput()
    peaks: list[float] = []
    for name, found in windows.items():
        mine = [reading for reading in ok if origin[reading.timeline.id] == name]
        if not mine:
            continue
        stamps, counts = _tokens(mine)
        zero_ns = mine[0].timeline.started_ns
        peaks += [_peak(stamps, counts, a - zero_ns, b - zero_ns) for a, b in found if b > a]
    return Throughput(
        output_tokens_per_s=sum(reading.tokens for reading in ok) * 1e9 / busy_ns,
        requests_per_s=len(ok) * 1e9 / busy_ns,
        peak_output_tokens_per_s=float(np.max(peaks)) if peaks else None,
        window_s=busy_ns / 1e9,
    )


def _tokens(readings: Sequence[Reading]) -> tuple[Floats, Floats]:
    """(stamps relative to the first reading's start, tokens) of every generated piece."""
    import numpy as np

    stamps: list[Floats] = [np.empty(0)]
    counts: list[Floats] = [np.empty(0)]
    for reading in readings:
        if reading.first_token_ns is None:
            continue
        since_ns = reading.first_token_ns - readings[0].timeline.started_ns
        stamps.append(since_ns + np.cumsum((0, *reading.gaps_ns), dtype=np.float64))
        later = reading.gap_tokens if reading.gap_tokens is not None else (1,) * len(reading.gaps_ns)
        counts.append(np.asarray((reading.counted - sum(later), *later), dtype=np.float64))
    return np.concatenate(stamps), np.concatenate(counts)


def _peak(stamps: Floats, counts: Floats, start_ns: int, end_ns: int) -> float:
    import numpy as np

    inside = (stamps >= start_ns) & (stamps <= end_ns)
    if not inside.any():
        return 0.0
    parts = max(1, (end_ns - start_ns) // 1_000_000_000)
    width_ns = (end_ns - start_ns) / parts
    # only the parts that hold tokens are counted: one bad stamp can make a window of years
    part = np.minimum((stamps[inside] - start_ns) // width_ns, parts - 1)
    _, owner = np.unique(part, return_inverse=True)
    return float(np.bincount(owner, weights=counts[inside]).max()) * 1e9 / width_ns


def _windows(readings: Sequence[Reading], origin: dict[str, str]) -> dict[str, _Windows]:
    """One window for each stage or visit, by clock."""
    timelines = [reading.timeline for reading in readings]
    by_origin: defaultdict[str, _Windows] = defaultdict(list)
    for stretch in stretches(timelines, origin):
        end_ns = max(timelines[i].end_ns for i in stretch.members)
        by_origin[stretch.origin].append((timelines[stretch.members[0]].started_ns, end_ns))
    return {name: _joined(windows) for name, windows in by_origin.items()}


def _joined(windows: _Windows) -> _Windows:
    found: _Windows = []
    for start, end in sorted(windows):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _level(asked: Asked, timelines: list[Timeline], origin: dict[str, str]) -> Level:
    by_origin: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for t in timelines:
        start = t.sent_ns if t.sent_ns is not None else t.started_ns
        by_origin[origin[t.id]].append((start, max(start, t.end_ns)))
    seen_max, busy_ns, area_ns = 0, 0, 0
    for intervals in by_origin.values():
        most, busy, area = _in_flight(intervals)
        seen_max, busy_ns, area_ns = max(seen_max, most), busy_ns + busy, area_ns + area
    stages = () if asked.concurrency is not None else stretches(timelines, origin)
    members = [[timelines[i] for i in stage.members] for stage in stages]
    return Level(
        asked=asked.concurrency,
        requests=len(timelines),
        seen_max=seen_max,
        seen_mean=area_ns / busy_ns if busy_ns > 0 else float(seen_max),
        rate_per_s=asked.rate_per_s,
        busy_s=busy_ns / 1e9,
        arrived_per_s=_rate_per_s([[t.arrived_ns for t in stage] for stage in members]),
        sent_per_s=_rate_per_s([[t.started_ns for t in stage] for stage in members]),
    )


def _rate_per_s(stages: list[list[int]]) -> float | None:
    """n points bound n - 1 gaps; the time between stages is in none."""
    gaps = sum(len(stamps) - 1 for stamps in stages)
    span_ns = sum(max(stamps) - min(stamps) for stamps in stages)
    return gaps * 1e9 / span_ns if span_ns > 0 else None


def _in_flight(intervals: list[tuple[int, int]]) -> tuple[int, int, int]:
    """(most at once, ns with at least one, request-ns). An end at the very moment of a start comes first, so
    that a slot handed on does not count twice."""
    edges = sorted([(start, 1) for start, _ in intervals] + [(end, -1) for _, end in intervals])
    most, now, busy, last = 0, 0, 0, edges[0][0]
    for t_ns, step in edges:
        if now > 0:
            busy += t_ns - last
        last = t_ns
        now += step
        most = max(most, now)
    return max(most, 1), busy, sum(end - start for start, end in intervals)

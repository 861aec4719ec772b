"""Load as it really was: requests in flight, and throughput over the measured windows.

A merged run holds requests of several clocks: `origin` keeps them apart, and stamps of two origins never
meet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from phasemeter.explain.columns import ABSENT, total
from phasemeter.explain.phases import Reading
from phasemeter.explain.readings import Readings, clocks, readings_of
from phasemeter.explain.shape_key import Asked, asked_of
from phasemeter.explain.stages import stretches
from phasemeter.record.run import Run

if TYPE_CHECKING:
    from phasemeter.explain.columns import Ints
    from phasemeter.explain.stats import Floats

_AT_ONCE = 1_000_000


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
    return origins_by_id([timeline.id for timeline in run.requests], run.header.run_id)


def origins_by_id(ids: Sequence[str], run_id: str) -> dict[str, str]:
    """The same from the ids of a run's requests, in order."""
    if not ids or not ids[0].startswith(f"{run_id}/"):
        return dict.fromkeys(ids, "")
    return {name: name.split("/", 1)[0] for name in ids}


def concurrency(readings: Sequence[Reading], origin: dict[str, str]) -> Concurrency:
    """Requests in flight at every level asked, failed ones included while they lasted."""
    by_level = readings_of(readings).grouped(asked_of)
    levels = tuple(_level(a, by_level[a], origin) for a in sorted(by_level, key=lambda asked: asked.order))
    if not levels:
        return Concurrency()
    top = levels[-1]
    return Concurrency(top.asked, top.seen_max, top.seen_mean, levels)


def throughput(ok: Sequence[Reading], measured: Sequence[Reading], origin: dict[str, str]) -> Throughput:
    """Rates of the successful requests over the windows of all measured ones."""
    import numpy as np

    columns = readings_of(ok)
    windows = _windows(readings_of(measured), origin)
    busy_ns = sum(end - start for found in windows.values() for start, end in found)
    if not columns or busy_ns <= 0:
        return Throughput()
    peaks: list[float] = []
    names, clock = clocks(columns, origin)
    for name, found in windows.items():
        wide = [(a, b) for a, b in found if b > a]
        if name in names and wide:
            peaks += _peaks(columns.take(clock == names.index(name)), wide)
    return Throughput(
        output_tokens_per_s=total(columns.tokens()) * 1e9 / busy_ns,
        requests_per_s=len(columns) * 1e9 / busy_ns,
        peak_output_tokens_per_s=float(np.max(peaks)) if peaks else None,
        window_s=busy_ns / 1e9,
    )


def _tokens(readings: Readings) -> Iterator[tuple[Floats, Floats]]:
    """(stamps relative to the first request's start, tokens) of every generated piece, some thousand requests at a
    time."""
    import numpy as np

    zero_ns = int(readings.told("started")[0])
    sizes = readings.gap_sizes()
    bounds = np.searchsorted(np.cumsum(sizes + 1), np.arange(0, int(sizes.sum()) + sizes.size, _AT_ONCE))
    bounds = np.unique(np.append(bounds, sizes.size))
    for begin, end in pairwise(cast("list[int]", bounds.tolist())):
        part = readings[begin:end]
        part = part.take(part.told("pieces") > 0)
        n = part.told("pieces")
        firsts = np.cumsum(n) - n
        gaps, later = part.gaps(), part.gap_tokens()
        steps, tokens = np.zeros(int(n.sum())), np.ones(int(n.sum()))
        follows = np.ones(steps.size, dtype=np.bool_)
        follows[firsts] = False
        steps[follows] = gaps
        if later is not None:
            tokens[follows] = later
        so_far = np.concatenate(([0.0], np.cumsum(tokens * follows)))
        tokens[firsts] = part.told("counted") - (so_far[firsts + n] - so_far[firsts])
        since = np.cumsum(steps)
        yield np.repeat(part.told("first_token") - zero_ns - since[firsts], n) + since, tokens


def _peaks(readings: Readings, windows: _Windows) -> list[float]:
    """Tokens a second in the best part of each window; windows are disjoint and in order."""
    import numpy as np

    zero_ns = int(readings.told("started")[0])
    starts = np.array([a - zero_ns for a, _ in windows], dtype=np.float64)
    ends = np.array([b - zero_ns for _, b in windows], dtype=np.float64)
    parts = [max(1, (b - a) // 1_000_000_000) for a, b in windows]
    widths = np.array([(b - a) / n for (a, b), n in zip(windows, parts, strict=True)])
    lasts = np.array(parts, dtype=np.int64) - 1
    firsts = np.cumsum(lasts + 1) - lasts - 1
    sums: defaultdict[int, float] = defaultdict(float)
    for stamps, counts in _tokens(readings):
        window = np.searchsorted(starts, stamps, side="right") - 1
        inside = (window >= 0) & (stamps <= ends[window])
        window, stamps = window[inside], stamps[inside]
        part = np.minimum((stamps - starts[window]) // widths[window], lasts[window]).astype(np.int64)
        # only the parts that hold tokens are counted: one bad stamp can make a window of years
        places, owner = np.unique(firsts[window] + part, return_inverse=True)
        added = np.bincount(owner, weights=counts[inside])
        for place, n in zip(cast("list[int]", places.tolist()), added.tolist(), strict=True):
            sums[place] += n
    best = [0.0] * len(windows)
    for place, n in sums.items():
        window = int(np.searchsorted(firsts, place, side="right")) - 1
        best[window] = max(best[window], n * 1e9 / float(widths[window]))
    return best


def _windows(readings: Readings, origin: dict[str, str]) -> dict[str, _Windows]:
    """One window for each stage or visit, by clock."""
    import numpy as np

    started, ended = readings.told("started"), readings.told("end")
    by_origin: defaultdict[str, _Windows] = defaultdict(list)
    for stretch in stretches(readings, origin):
        members = np.array(stretch.members, dtype=np.int64)
        by_origin[stretch.origin].append((int(started[members[0]]), int(ended[members].max())))
    return {name: _joined(windows) for name, windows in by_origin.items()}


def _joined(windows: _Windows) -> _Windows:
    found: _Windows = []
    for start, end in sorted(windows):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _level(asked: Asked, readings: Readings, origin: dict[str, str]) -> Level:
    import numpy as np

    sent, started = readings.told("sent"), readings.told("started")
    starts = np.where(sent == ABSENT, started, sent)
    ends = np.maximum(starts, readings.told("end"))
    seen_max, busy_ns, area_ns = 0, 0, 0
    names, clock = clocks(readings, origin)
    for number in range(len(names)):
        most, busy, area = _in_flight(starts[clock == number], ends[clock == number])
        seen_max, busy_ns, area_ns = max(seen_max, most), busy_ns + busy, area_ns + area
    stages = () if asked.concurrency is not None else stretches(readings, origin)
    members = [np.array(stage.members, dtype=np.int64) for stage in stages]
    arrived = readings.told("arrived")
    return Level(
        asked=asked.concurrency,
        requests=len(readings),
        seen_max=seen_max,
        seen_mean=area_ns / busy_ns if busy_ns > 0 else float(seen_max),
        rate_per_s=asked.rate_per_s,
        busy_s=busy_ns / 1e9,
        arrived_per_s=_rate_per_s([arrived[places] for places in members]),
        sent_per_s=_rate_per_s([started[places] for places in members]),
    )


def _rate_per_s(stages: list[Ints]) -> float | None:
    """n points bound n - 1 gaps; the time between stages is in none."""
    gaps = sum(stamps.size - 1 for stamps in stages)
    span_ns = sum(int(stamps.max()) - int(stamps.min()) for stamps in stages)
    return gaps * 1e9 / span_ns if span_ns > 0 else None


def _in_flight(starts: Ints, ends: Ints) -> tuple[int, int, int]:
    """(most at once, ns with at least one, request-ns). An end at the very moment of a start comes first, so
    that a slot handed on does not count twice."""
    import numpy as np

    edges = np.concatenate((ends, starts))
    order = np.argsort(
        edges, kind="stable"
    )  # ends stand before starts, and so they stay where they are equal
    now = np.cumsum(np.where(order < ends.size, -1, 1))
    lasted = np.diff(edges[order])
    return max(int(now.max()), 1), total(lasted[now[:-1] > 0]), total(ends - starts)

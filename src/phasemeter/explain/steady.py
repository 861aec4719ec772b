"""Ramp, steady window and drain of a stage, told apart by event time (decision 007).

    first arrival --ramp--> window opens --steady--> last arrival --drain--> last end

The drain begins with the last arrival (in a closed loop: the last start, when slots are no longer refilled). The ramp
is what the marginal standard error rule cuts from the series of requests in flight, completions and time to first
token, each binned by the time of the event and not by the request's number. What is left must not drift: a straight
line through its batch means is tested, with the batches' correlation. An overloaded open loop fails here, because its
queue grows for as long as requests arrive. Intervals come from batch means.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.batch_means import Estimate, Trend, lag_one, mean_of_batches, mser, trend_of
from phasemeter.explain.stage_table import StageTable
from phasemeter.explain.stats import Dist, distribution

if TYPE_CHECKING:
    from phasemeter.explain.stage_table import Ints
    from phasemeter.explain.stats import Floats

MIN_REQUESTS = 100
"""Fewer in a stage, and no window is looked for: twenty bins of five requests are the least that shows a ramp."""
BINS_FROM, BINS_TO, PER_BIN = 20, 200, 5
BATCHES = (32, 24, 16, 10)
"""Tried in turn until neighbouring batches are no longer correlated."""
DRIFT_RATIO = 0.20
"""A change of less than this from first to last is no drift, however surely it is there."""


COMPLETIONS = "completions a second"


class State(StrEnum):
    """What a stage did over its time."""

    STEADY = "steady"
    GROWING = "growing"
    """Drifting upwards: more in flight, or later first tokens, the longer it lasts."""
    DRIFTING = "drifting"
    UNSETTLED = "unsettled"
    """The ramp takes half the stage or more: too short to tell."""


class Window(Struct, frozen=True):
    """Where one stage's steady window lies, seconds from its first arrival, or why there is none."""

    block: int
    state: State
    evidence: str
    from_s: float | None = None
    to_s: float | None = None
    drain_s: float = 0.0
    requests: int = 0
    batches: int = 0


class Steady(Struct, frozen=True):
    """The steady part of a level: requests that arrived in its windows, all stages together. Numbers are None unless
    every stage is steady. Rates are of successful requests that ended in the windows."""

    state: State
    evidence: str
    windows: tuple[Window, ...]
    requests: int = 0
    ttft_ms: Dist | None = None
    ttft_from_arrival_ms: Dist | None = None
    tpot_ms: Dist | None = None
    e2e_ms: Dist | None = None
    requests_per_s: Estimate | None = None
    output_tokens_per_s: Estimate | None = None
    in_flight: Estimate | None = None


class Member(Struct, frozen=True, eq=False):
    """Which requests of a stage lie in its window, and the batch of each (numbered through the level)."""

    inside: Ints
    """Places in the stage's table."""
    batch: Ints
    from_ns: float
    """Where the window opens; the stage's first arrival is 0."""
    batches: int


def steady_of(tables: Sequence[StageTable]) -> Steady | None:
    """The steady part of one level's stages; None where a stage is too short for one to be looked for."""
    if not tables or any(int(t.ok.sum()) < MIN_REQUESTS or t.last_ns <= 0 for t in tables):
        return None
    windows = tuple(window_of(table) for table in tables)
    worst = max(windows, key=lambda w: list(State).index(w.state) if w.state is not State.GROWING else 9)
    if worst.state is not State.STEADY:
        return Steady(worst.state, worst.evidence, windows)
    return _numbers(tables, windows, worst.evidence)


def window_of(table: StageTable) -> Window:
    """The window of one stage of at least a hundred successful requests."""
    bins = min(BINS_TO, max(BINS_FROM, int(table.ok.sum()) // PER_BIN))
    series = _series(table, 0.0, table.last_ns, bins)
    cut = max(mser(values) for name, values in series.items() if name != COMPLETIONS)
    drain_s = max(0.0, float(table.ended_ns.max()) - table.last_ns) / 1e9
    if cut > bins // 2:
        return _unsettled(table, series, cut / bins, drain_s)
    from_ns = table.last_ns * cut / bins
    inside = table.arrived_ns >= from_ns
    batches = _n_batches(table, from_ns)
    drift = _drift(_series(table, from_ns, table.last_ns, batches))
    state, evidence = State.STEADY, "no drift in requests in flight, completions or latencies"
    if drift is not None:
        state = drift[0]
        evidence = f"no steady window: drifting; {drift[1]} from the end of the ramp to the last arrival"
    return Window(
        block=table.block,
        state=state,
        evidence=evidence,
        from_s=from_ns / 1e9,
        to_s=table.last_ns / 1e9,
        drain_s=drain_s,
        requests=int(inside.sum()),
        batches=batches,
    )


def members(tables: Sequence[StageTable], windows: Sequence[Window] | None) -> list[Member]:
    """The requests that arrived in the windows (without windows: all of them) with batches of equal time; those given
    up on purpose are left out."""
    import numpy as np

    found: list[Member] = []
    so_far = 0
    for i, table in enumerate(tables):
        window = None if windows is None else windows[i]
        from_ns = 0.0 if window is None or window.from_s is None else window.from_s * 1e9
        n = _n_batches(table, from_ns) if window is None else window.batches
        inside = np.flatnonzero((table.arrived_ns >= from_ns) & ~table.given_up).astype(np.int64)
        width = max(1.0, (table.last_ns - from_ns) / n)
        batch = np.minimum((table.arrived_ns[inside] - from_ns) // width, n - 1).astype(np.int64) + so_far
        found.append(Member(inside, batch, from_ns, n))
        so_far += n
    return found


def in_flight_means(table: StageTable, edges_ns: Floats) -> Floats:
    """Mean number in flight between neighbouring edges: the requests' time in each bin over the bin's width."""
    import numpy as np

    def area(stamps: Floats) -> Floats:
        ordered = np.sort(stamps)
        sums = np.concatenate(([0.0], np.cumsum(ordered)))
        n = np.searchsorted(ordered, edges_ns, side="right")
        return n * edges_ns - sums[n]

    inside = area(table.arrived_ns) - area(np.maximum(table.ended_ns, table.arrived_ns))
    return np.diff(inside) / np.maximum(np.diff(edges_ns), 1.0)


def rates_between(table: StageTable, edges_ns: Floats) -> tuple[Floats, Floats]:
    """(requests, tokens) of successful requests that ended in each bin, a second."""
    import numpy as np

    width_s = np.maximum(np.diff(edges_ns), 1.0) / 1e9
    ended = table.ended_ns[table.ok]
    requests = np.histogram(ended, edges_ns)[0] / width_s
    return requests, np.histogram(ended, edges_ns, weights=table.tokens[table.ok])[0] / width_s


def _series(table: StageTable, from_ns: float, to_ns: float, bins: int) -> dict[str, Floats]:
    """Means by event time: in flight and completions over each bin, latencies of what arrived in it (bins without an
    arrival repeat the one before)."""
    import numpy as np

    edges = np.linspace(from_ns, to_ns, bins + 1)
    found = {
        "requests in flight": in_flight_means(table, edges),
        COMPLETIONS: rates_between(table, edges)[0],
    }
    for name, label in (("ttft_from_arrival", "time to first token"), ("e2e", "end to end time")):
        values = table.ms[name]
        seen = table.ok & np.isfinite(values) & (table.arrived_ns >= from_ns)
        place = np.minimum((table.arrived_ns[seen] - from_ns) / max(to_ns - from_ns, 1.0) * bins, bins - 1)
        place = place.astype(np.int64)
        counts = np.bincount(place, minlength=bins)
        if counts.any():
            sums = np.bincount(place, weights=values[seen], minlength=bins)
            found[label] = _filled(sums.astype(np.float64), counts.astype(np.float64))
    return found


def _filled(sums: Floats, counts: Floats) -> Floats:
    import numpy as np

    there = np.flatnonzero(counts)
    before = there[np.maximum(np.searchsorted(there, np.arange(counts.size), side="right") - 1, 0)]
    return sums[before] / counts[before]


def _n_batches(table: StageTable, from_ns: float) -> int:
    """The most batches whose neighbours are not correlated (two standard errors of a white series), at least ten."""
    inside = int((table.ok & (table.arrived_ns >= from_ns)).sum())
    for n in BATCHES:
        if inside < 4 * n:
            continue
        series = _series(table, from_ns, table.last_ns, n)
        if max(lag_one(values) for values in series.values()) < 2.0 / n**0.5:
            return n
    return BATCHES[-1]


def _drift(series: dict[str, Floats]) -> tuple[State, str] | None:
    """The largest change that is both clear and large, None where there is none."""
    found: list[tuple[str, Trend]] = []
    for name, values in series.items():
        trend = trend_of(values)
        if trend is not None and trend.significant and abs(trend.change) > DRIFT_RATIO:
            found.append((name, trend))
    if not found:
        return None
    grows = [entry for entry in found if entry[0] != COMPLETIONS and entry[1].change > 0]
    name, trend = max(grows or found, key=lambda entry: abs(entry[1].change))
    return (State.GROWING if grows else State.DRIFTING), f"{name} changes by {trend.change:+.0%}"


def _unsettled(table: StageTable, series: dict[str, Floats], cut: float, drain_s: float) -> Window:
    """Growing to the end, or too short to tell."""
    drift = _drift({name: values[values.size // 4 :] for name, values in series.items()})
    if drift is not None:
        evidence = f"no steady window: drifting; {drift[1]} over the last three quarters"
        return Window(table.block, drift[0], evidence, drain_s=drain_s)
    evidence = f"no steady window: the ramp takes {cut:.0%} of the stage; measure longer"
    return Window(table.block, State.UNSETTLED, evidence, drain_s=drain_s)


def _numbers(tables: Sequence[StageTable], windows: tuple[Window, ...], evidence: str) -> Steady:
    import numpy as np

    inside = members(tables, windows)
    dists: dict[str, Dist | None] = {}
    for name in ("ttft", "ttft_from_arrival", "tpot", "e2e"):
        values = np.concatenate([t.ms[name][m.inside] for t, m in zip(tables, inside, strict=True)])
        batch = np.concatenate([m.batch for m in inside])
        ok = np.concatenate([t.ok[m.inside] for t, m in zip(tables, inside, strict=True)])
        seen = ok & np.isfinite(values)
        dists[f"{name}_ms"] = distribution(values[seen], batch[seen])
    rates: list[tuple[Floats, Floats, Floats, Floats]] = []
    for table, window in zip(tables, windows, strict=True):
        edges = np.linspace((window.from_s or 0.0) * 1e9, table.last_ns, window.batches + 1)
        rates.append((*rates_between(table, edges), in_flight_means(table, edges), np.diff(edges)))
    columns = [np.concatenate([r[i] for r in rates]) for i in range(4)]
    requests, tokens, flying = (mean_of_batches(values, columns[3]) for values in columns[:3])
    return Steady(
        State.STEADY,
        evidence,
        windows,
        requests=sum(m.inside.size for m in inside),
        **dists,
        requests_per_s=requests,
        output_tokens_per_s=tokens,
        in_flight=flying,
    )

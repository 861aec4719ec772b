"""What a comparison compares: the requests of one side by stratum, and the units that are drawn again.

A stratum is a shape (input tokens, output tokens, level of load). Where lengths come from a distribution nearly every
request has a shape of its own; then lengths are grouped by factors of two. Effects are taken within strata, so that
another mix of lengths never looks like a change.

A unit is what was measured independently: a whole run where a side has five or more, else a block of the plan where
each stratum has five or more, else a batch of consecutive requests, no smaller than the requests in flight (these wait
for each other). With fewer than five units there is no interval.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.latency import gaps_ns
from phasemeter.explain.load import origins
from phasemeter.explain.phases import Reading, Span, read
from phasemeter.explain.shape_key import MOST_SHAPES, Asked
from phasemeter.explain.stages import stretches
from phasemeter.explain.stats import MIN_FOR_INTERVAL
from phasemeter.record.engine import Outcome
from phasemeter.record.run import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Units = NDArray[np.int64]

MOST_BATCHES = 30
"""Batch means want few, long batches (Schmeiser 1982 finds more than 30 of no use)."""
QUANTITIES = ("ttft", "ttft_from_arrival", "prefill", "queue", "front_end", "tpot", "itl", "e2e")
"""Latencies that are compared, milliseconds; definitions in docs/definitions.md."""


class Stratum(Struct, frozen=True):
    """Requests that may be compared: lengths from low to high (both equal for a shape) at one level of load."""

    input_low: int
    input_high: int
    output_low: int
    output_high: int
    concurrency: int | None
    rate_per_s: float | None = None

    @property
    def order(self) -> tuple[float, ...]:
        """Sorts strata by load, then lengths."""
        return *self.asked.order, self.input_low, self.output_low

    @property
    def asked(self) -> Asked:
        """The level of load."""
        return Asked(self.concurrency, self.rate_per_s)


class Sample(Struct, frozen=True):
    """Values of one quantity in one stratum, milliseconds, and the unit that each came from."""

    values: Floats
    units: Units


class Flow(Struct, frozen=True):
    """What was done in one stratum, by request: `seconds` until the next one started (the last of a visit: until the
    visit ended), so that they add up to the measured windows."""

    seconds: Floats
    tokens: Floats
    requests: Floats
    good: Floats | None
    units: Units


class Stock(Struct, frozen=True):
    """One stratum of one side. `n_units` is None where there are fewer than five, `waves` how many there are."""

    requests: int
    failed: int
    n_units: int | None
    waves: int
    samples: dict[str, Sample]
    flow: Flow


class Side(Struct, frozen=True):
    """One side of a comparison, read once. `visit` numbers the stretch of load of each request, `mixed` says whether
    one stretch holds several shapes; `by_token` says whether gaps are per token,
    None where it is not the same for all requests."""

    run: Run
    measured: tuple[Reading, ...]
    origin: dict[str, str]
    visit: dict[str, int]
    mixed: bool
    runs: int
    blocks: int
    by_token: bool | None
    good: Callable[[Reading], bool] | None = None


class Drawing(Struct, frozen=True):
    """What of a side is drawn again: `kind` is run, block or batch; `place` numbers the runs or blocks, which all
    strata share; batches are of one stratum."""

    kind: str
    place: dict[tuple[str, int], int]


BATCHES = Drawing("batch", {})


def side_of(run: Run, good: Callable[[Reading], bool] | None = None) -> Side:
    """Read `run`; `good` says of one successful request whether it meets the service level."""
    origin = origins(run)
    measured = tuple(read(t) for t in run.requests if not t.cell.warmup)
    timelines = [r.timeline for r in measured]
    found = stretches(timelines, origin)
    shapes = [
        {(timelines[i].cell.input_tokens, timelines[i].cell.output_tokens) for i in s.members} for s in found
    ]
    told = {r.gap_tokens is not None for r in measured if r.gaps_ns and is_ok(r)}
    return Side(
        run=run,
        measured=measured,
        origin=origin,
        visit={timelines[i].id: number for number, s in enumerate(found) for i in s.members},
        mixed=any(len(several) > 1 for several in shapes),
        runs=len({origin[r.timeline.id] for r in measured}),
        blocks=len({(origin[r.timeline.id], r.timeline.cell.block) for r in measured}),
        by_token=told.pop() if len(told) == 1 else None,
        good=good,
    )


def is_ok(reading: Reading) -> bool:
    """Whether the request succeeded."""
    return reading.timeline.outcome is Outcome.OK


def has_many_lengths(sides: Iterable[Side]) -> bool:
    """Whether lengths come from a distribution, so that shapes must be grouped: more than `MOST_SHAPES` shapes at one
    level with fewer than five requests each."""
    for side in sides:
        found = Counter(_exact(r) for r in side.measured)
        levels: defaultdict[Asked, list[int]] = defaultdict(list)
        for key, n in found.items():
            levels[key.asked].append(n)
        if any(len(ns) > MOST_SHAPES and sum(ns) < MIN_FOR_INTERVAL * len(ns) for ns in levels.values()):
            return True
    return False


def strata_of(side: Side, *, grouped: bool) -> dict[Stratum, list[Reading]]:
    """Measured requests by stratum, strata in order."""
    found: defaultdict[Stratum, list[Reading]] = defaultdict(list)
    for reading in side.measured:
        exact = _exact(reading)
        found[_grouped(exact) if grouped else exact].append(reading)
    return {key: found[key] for key in sorted(found, key=lambda k: k.order)}


def levels_of(strata: dict[Stratum, list[Reading]]) -> dict[Stratum, list[Reading]]:
    """The same requests by level of load alone: what throughput is compared within where lengths are mixed."""
    found: defaultdict[Asked, list[Reading]] = defaultdict(list)
    for key, readings in strata.items():
        found[key.asked] += readings
    return {
        Stratum(0, 0, 0, 0, asked.concurrency, asked.rate_per_s): readings
        for asked, readings in found.items()
    }


def drawing_of(side: Side, strata: Iterable[Sequence[Reading]]) -> Drawing:
    """What of a side is drawn again: see the module."""
    if side.runs >= MIN_FOR_INTERVAL:
        kind = "run"
    else:
        counts = [len({_block(side, r) for r in readings}) for readings in strata]
        kind = "block" if counts and min(counts) >= MIN_FOR_INTERVAL else "batch"
    if kind == "batch":
        return BATCHES
    names = sorted({_shared(side, r, kind) for r in side.measured})
    return Drawing(kind, {name: i for i, name in enumerate(names)})


def stock_of(side: Side, key: Stratum, readings: Sequence[Reading], drawing: Drawing) -> Stock:
    """Everything of one stratum that is compared."""
    import numpy as np

    ordered = sorted(
        readings, key=lambda r: (side.origin[r.timeline.id], r.timeline.started_ns, r.timeline.id)
    )
    if drawing.kind == "batch":
        waves = len(ordered) // _least_batch(key)
        n_units = min(waves, MOST_BATCHES)
        numbers = np.arange(len(ordered), dtype=np.int64) * max(n_units, 1) // max(len(ordered), 1)
    else:
        numbers = np.asarray([drawing.place[_shared(side, r, drawing.kind)] for r in ordered], dtype=np.int64)
        waves = n_units = len(drawing.place)
    ok = np.asarray([is_ok(r) for r in ordered], dtype=bool)
    return Stock(
        requests=int(ok.sum()),
        failed=int((~ok).sum()),
        n_units=n_units if n_units >= MIN_FOR_INTERVAL else None,
        waves=waves,
        samples=_samples([r for r in ordered if is_ok(r)], numbers[ok]),
        flow=_flow(side, ordered, numbers, ok),
    )


def _exact(reading: Reading) -> Stratum:
    cell = reading.timeline.cell
    lengths = (cell.input_tokens, cell.input_tokens, cell.output_tokens, cell.output_tokens)
    return Stratum(*lengths, cell.concurrency, cell.rate_per_s)


def _grouped(exact: Stratum) -> Stratum:
    """Lengths in [2^k, 2^(k+1))."""
    low_in, low_out = _power(exact.input_low), _power(exact.output_low)
    return Stratum(
        low_in,
        max(2 * low_in - 1, 0),
        low_out,
        max(2 * low_out - 1, 0),
        exact.concurrency,
        exact.rate_per_s,
    )


def _power(n: int) -> int:
    return 1 << (n.bit_length() - 1) if n > 0 else 0


def _least_batch(key: Stratum) -> int:
    """Requests in flight depend on each other; in an open loop nobody bounds them, so batches are of five."""
    return MIN_FOR_INTERVAL if key.concurrency is None else max(1, key.concurrency)


def _block(side: Side, reading: Reading) -> tuple[str, int]:
    return side.origin[reading.timeline.id], reading.timeline.cell.block


def _shared(side: Side, reading: Reading, kind: str) -> tuple[str, int]:
    origin, block = _block(side, reading)
    return (origin, 0) if kind == "run" else (origin, block)


def _samples(ok: Sequence[Reading], units: Units) -> dict[str, Sample]:
    found = {name: _sample(ok, units, pick) for name, pick in _PICKS.items()}
    found["itl"] = _gaps(ok, units)
    return {name: sample for name, sample in found.items() if sample is not None}


def _span_ns(span: Span | None) -> int | None:
    return None if span is None else span.ns


_PICKS: dict[str, Callable[[Reading], float | None]] = {
    "ttft": lambda r: r.ttft_ns,
    "ttft_from_arrival": lambda r: r.ttft_from_arrival_ns,
    "prefill": lambda r: _span_ns(r.phases.prefill),
    "queue": lambda r: _span_ns(r.phases.queue),
    "front_end": lambda r: _span_ns(r.phases.front_end),
    "tpot": lambda r: r.tpot_ns,
    "e2e": lambda r: r.e2e_ns,
}


def _sample(ok: Sequence[Reading], units: Units, pick: Callable[[Reading], float | None]) -> Sample | None:
    import numpy as np

    picked = [(i, ns) for i, r in enumerate(ok) if (ns := pick(r)) is not None]
    if not picked:
        return None
    values = np.asarray([ns for _, ns in picked], dtype=np.float64) / 1e6
    return Sample(values, units[[i for i, _ in picked]])


def _gaps(ok: Sequence[Reading], units: Units) -> Sample | None:
    import numpy as np

    gaps = [gaps_ns(r) for r in ok]
    if not any(g.size for g in gaps):
        return None
    return Sample(np.concatenate(gaps) / 1e6, np.repeat(units, [g.size for g in gaps]))


def _flow(side: Side, ordered: Sequence[Reading], units: Units, ok: NDArray[np.bool_]) -> Flow:
    import numpy as np

    good = None
    if side.good is not None:
        good = np.asarray([is_ok(r) and side.good(r) for r in ordered], dtype=np.float64)
    return Flow(
        seconds=_seconds(side, ordered),
        tokens=np.asarray([r.tokens for r in ordered], dtype=np.float64) * ok,
        requests=ok.astype(np.float64),
        good=good,
        units=units,
    )


def _seconds(side: Side, ordered: Sequence[Reading]) -> Floats:
    import numpy as np

    visits: defaultdict[int, list[int]] = defaultdict(list)
    for i, r in enumerate(ordered):
        visits[side.visit[r.timeline.id]].append(i)
    seconds = np.zeros(len(ordered))
    for places in visits.values():
        starts = [ordered[i].timeline.started_ns for i in places]
        end = max(ordered[i].timeline.end_ns for i in places)
        # differences as integers first: nanoseconds of a clock that ran for months have 17 digits
        seconds[places] = [(b - a) / 1e9 for a, b in zip(starts, [*starts[1:], end], strict=True)]
    return seconds

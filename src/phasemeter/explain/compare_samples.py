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
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from phasemeter.explain.latency import token_gaps_ns
from phasemeter.explain.load import origins
from phasemeter.explain.readings import Readings, clocks, milliseconds, readings_of
from phasemeter.explain.shape_key import MOST_SHAPES, Asked
from phasemeter.explain.stages import stretches
from phasemeter.explain.stats import MIN_FOR_INTERVAL
from phasemeter.record.engine import Outcome
from phasemeter.record.request import Cell
from phasemeter.record.run import Run

if TYPE_CHECKING:
    from phasemeter.explain.columns import Bools, Ints
    from phasemeter.explain.stats import Floats

    Good = Callable[[Readings], Bools]
    """Which of some successful requests meet the service level."""

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


class Sample(Struct, frozen=True, eq=False):
    """Values of one quantity in one stratum, milliseconds, and the unit that each came from."""

    values: Floats
    units: Ints


class Flow(Struct, frozen=True, eq=False):
    """What was done in one stratum, by request: `seconds` until the next one started (the last of a visit: until the
    visit ended), so that they add up to the measured windows."""

    seconds: Floats
    tokens: Floats
    requests: Floats
    good: Floats | None
    units: Ints


class Stock(Struct, frozen=True, eq=False):
    """One stratum of one side. `n_units` is None where there are fewer than five."""

    n_units: int | None
    samples: dict[str, Sample]
    flow: Flow


class Side(Struct, frozen=True, eq=False):
    """One side of a comparison, read once. By measured request: the number of its clock, and of its stretch of load;
    `mixed` says whether one stretch holds several shapes; `by_token` whether gaps are per token, None where it is not
    the same for all requests."""

    run: Run
    measured: Readings
    clock: Ints
    visit: Ints
    mixed: bool
    runs: int
    blocks: int
    by_token: bool | None
    good: Good | None = None


Strata = dict[Stratum, "Ints"]
"""Places of a side's measured requests by stratum."""


class Drawing(Struct, frozen=True):
    """What of a side is drawn again: `kind` is run, block or batch; `place` numbers the (clock, block)s of runs or
    blocks, which all strata share; batches are of one stratum."""

    kind: str
    place: dict[tuple[int, int], int]


BATCHES = Drawing("batch", {})


def side_of(run: Run, good: Good | None = None) -> Side:
    """Read `run`; `good` says which successful requests meet the service level."""
    import numpy as np

    everything = readings_of(run.requests)
    measured = everything.take(everything.told_of(lambda cell: not cell.warmup))
    origin = origins(run)
    names, clock = clocks(measured, origin)
    visit, mixed = np.zeros(len(measured), dtype=np.int64), False
    lengths = _cell_numbers(measured, lambda cell: (cell.input_tokens, cell.output_tokens))
    for number, stretch in enumerate(stretches(measured, origin)):
        members = np.asarray(stretch.members, dtype=np.int64)
        visit[members] = number
        mixed = mixed or np.unique(lengths[members]).size > 1
    told = measured.told("counts_told")[(measured.gap_sizes() > 0) & measured.where(Outcome.OK)]
    return Side(
        run=run,
        measured=measured,
        clock=clock,
        visit=visit,
        mixed=mixed,
        runs=len(names),
        blocks=len(set(_shared(clock, _block(measured)))),
        by_token=bool(told[0]) if told.size and bool((told == told[0]).all()) else None,
        good=good,
    )


def has_many_lengths(sides: Iterable[Side]) -> bool:
    """Whether lengths come from a distribution, so that shapes must be grouped: more than `MOST_SHAPES` shapes at one
    level with fewer than five requests each."""
    for side in sides:
        found: Counter[Stratum] = Counter()
        for cell, n in side.measured.cells():
            found[_exact(cell)] += n
        levels: defaultdict[Asked, list[int]] = defaultdict(list)
        for key, n in found.items():
            levels[key.asked].append(n)
        if any(len(ns) > MOST_SHAPES and sum(ns) < MIN_FOR_INTERVAL * len(ns) for ns in levels.values()):
            return True
    return False


def strata_of(side: Side, *, grouped: bool) -> Strata:
    """Measured requests by stratum, strata in order."""
    import numpy as np

    numbers: dict[Stratum, int] = {}

    def number(cell: Cell) -> int:
        exact = _exact(cell)
        return numbers.setdefault(_grouped(exact) if grouped else exact, len(numbers))

    of = side.measured.by_cell(number)
    found = {key: np.flatnonzero(of == i).astype(np.int64) for key, i in numbers.items()}
    return {key: found[key] for key in sorted(found, key=lambda k: k.order) if found[key].size}


def levels_of(strata: Strata) -> Strata:
    """The same requests by level of load alone: what throughput is compared within where lengths are mixed."""
    import numpy as np

    found: defaultdict[Asked, list[Ints]] = defaultdict(list)
    for key, places in strata.items():
        found[key.asked].append(places)
    return {
        Stratum(0, 0, 0, 0, asked.concurrency, asked.rate_per_s): np.concatenate(parts)
        for asked, parts in found.items()
    }


def drawing_of(side: Side, strata: Iterable[Ints]) -> Drawing:
    """What of a side is drawn again: see the module."""
    block = _block(side.measured)
    kind = "run"
    if side.runs < MIN_FOR_INTERVAL:
        counts = [len(set(_shared(side.clock[places], block[places]))) for places in strata]
        kind = "block" if counts and min(counts) >= MIN_FOR_INTERVAL else "batch"
    if kind == "batch":
        return BATCHES
    names = sorted(set(_shared(side.clock, block * (kind == "block"))))
    return Drawing(kind, {name: i for i, name in enumerate(names)})


def stock_of(side: Side, key: Stratum, places: Ints, drawing: Drawing) -> Stock:
    """Everything of one stratum that is compared."""
    import numpy as np

    places = places[np.lexsort((side.measured.told("started")[places], side.clock[places]))]
    readings = side.measured.take(places)
    if drawing.kind == "batch":
        n_units = min(len(readings) // _least_batch(key), MOST_BATCHES)
        numbers = np.arange(len(readings), dtype=np.int64) * max(n_units, 1) // max(len(readings), 1)
    else:
        n_units = len(drawing.place)
        names = _shared(side.clock[places], _block(readings) * (drawing.kind == "block"))
        numbers = np.asarray([drawing.place[name] for name in names], dtype=np.int64)
    ok = readings.where(Outcome.OK)
    return Stock(
        n_units=n_units if n_units >= MIN_FOR_INTERVAL else None,
        samples=_samples(readings.take(ok), numbers[ok]),
        flow=_flow(side, places, numbers, ok),
    )


def _exact(cell: Cell) -> Stratum:
    lengths = (cell.input_tokens, cell.input_tokens, cell.output_tokens, cell.output_tokens)
    return Stratum(*lengths, cell.concurrency, cell.rate_per_s)


def _grouped(exact: Stratum) -> Stratum:
    """Lengths in [2^k, 2^(k+1))."""
    low_in, low_out = _power(exact.input_low), _power(exact.output_low)
    high_in, high_out = max(2 * low_in - 1, 0), max(2 * low_out - 1, 0)
    return Stratum(low_in, high_in, low_out, high_out, exact.concurrency, exact.rate_per_s)


def _power(n: int) -> int:
    return 1 << (n.bit_length() - 1) if n > 0 else 0


def _least_batch(key: Stratum) -> int:
    """Requests in flight depend on each other; in an open loop nobody bounds them, so batches are of five."""
    return MIN_FOR_INTERVAL if key.concurrency is None else max(1, key.concurrency)


def _block(readings: Readings) -> Ints:
    return readings.by_cell(lambda cell: cell.block)


def _cell_numbers(readings: Readings, what: Callable[[Cell], object]) -> Ints:
    numbers: dict[object, int] = {}
    return readings.by_cell(lambda cell: numbers.setdefault(what(cell), len(numbers)))


def _shared(clock: Ints, block: Ints) -> list[tuple[int, int]]:
    return list(zip(cast("list[int]", clock.tolist()), cast("list[int]", block.tolist()), strict=True))


def _samples(ok: Readings, units: Ints) -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    for name in QUANTITIES:
        if name == "itl":
            gaps, sizes = token_gaps_ns(ok)
            sample = Sample(gaps / 1e6, units.repeat(sizes))
        elif name == "tpot":
            ns, there = ok.tpot_ns()
            sample = Sample(ns[there] / 1e6, units[there])
        else:
            values, there = milliseconds(ok.ns(name))
            sample = Sample(values, units[there])
        if sample.values.size:
            found[name] = sample
    return found


def _flow(side: Side, places: Ints, units: Ints, ok: Bools) -> Flow:
    import numpy as np

    readings = side.measured.take(places)
    good = None
    if side.good is not None:
        good = np.zeros(ok.size)
        good[ok] = side.good(readings.take(ok))
    return Flow(
        seconds=_seconds(readings, side.visit[places]),
        tokens=readings.tokens() * ok.astype(np.float64),
        requests=ok.astype(np.float64),
        good=good,
        units=units,
    )


def _seconds(readings: Readings, visit: Ints) -> Floats:
    import numpy as np

    started, ended = readings.told("started"), readings.told("end")
    seconds = np.zeros(visit.size)
    order = np.lexsort((started, visit))
    for part in np.split(order, np.flatnonzero(np.diff(visit[order])) + 1):
        if part.size:  # integers first: nanoseconds of a clock that ran for months have 17 digits
            seconds[part] = np.diff(started[part], append=ended[part].max()) / 1e9
    return seconds

"""What a server's own sums say of a run: the difference of two scrapes of /metrics, for all requests together.

A Prometheus histogram is a sum, a count and cumulative buckets since the server began. The difference of two scrapes
is exact in its sum and count (so the mean is too), while a quantile is known only as far as its bucket is wide:
vLLM's request phases begin with one bucket from 0 to 0.3 s, in which a small model's prefill disappears. Such a
quantile is refused here instead of being interpolated to a number that nobody measured.

A server counts everybody's requests. Where it finished another number between the two scrapes than we had answered,
its sums are not ours, and none is shown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from msgspec import Struct, to_builtins

from phasemeter.record.engine import EngineReport, Outcome
from phasemeter.record.errors import UndecidedError
from phasemeter.record.run import Run
from phasemeter.record.scrape import Histogram, Moment, Scrape
from phasemeter.record.timeline import Timeline

BUCKETS_FLAG = "--custom-histogram-buckets"
BUCKETS_SINCE = (0, 32)
"""First vLLM in which that flag was seen; 0.26 does not have it, those in between were not looked at."""
WIDEST = 2.0
"""A bucket whose upper end is more than so many times its lower end is too coarse to place a quantile in."""
SPLIT = ("queue", "prefill", "decode", "inference", "ttft", "e2e")
"""What is shown, in this order. inference is prefill and decode; ttft and e2e begin at the API process."""
QUANTILES = (0.5, 0.9, 0.99)

_NEVER_COUNTED = frozenset({Outcome.REFUSED, Outcome.HTTP_ERROR, Outcome.CONNECT_FAILED})
"""What never reached the engine, so that it cannot have finished there."""


class CoarseError(UndecidedError):
    """The bucket that a quantile lies in says too little. Bounds in the metric's unit, `upper` may be infinite."""

    def __init__(self, lower: float, upper: float, message: str) -> None:
        self.lower, self.upper = lower, upper
        super().__init__(message)


class Agreement(Struct, frozen=True):
    """Our sum beside the server's, milliseconds, over `count` requests (ours) and `their_count` (theirs). `agrees`
    within 1 ms or 2 % of theirs, whichever is more, and on the count."""

    name: str
    ours_ms: float
    theirs_ms: float
    count: int
    their_count: int
    agrees: bool


class PhaseTotal(Struct, frozen=True):
    """One phase over all requests: sum and mean are exact, a quantile is the bucket (lower, upper) that it lies in, or
    None where that bucket says too little; `coarse_s` then holds its bounds in seconds (upper None: open above)."""

    name: str
    n: int
    sum_ms: float
    mean_ms: float | None
    p50_ms: tuple[float, float] | None = None
    p90_ms: tuple[float, float] | None = None
    p99_ms: tuple[float, float] | None = None
    coarse_s: tuple[float, float | None] | None = None
    note: str = ""


class ServerMetrics(Struct, frozen=True):
    """What /metrics said of the measured requests.

    finished   requests that the server finished between the two scrapes, None where that is not known
    ours       requests of ours that it must have finished; at_most: and that it may have (failed on the way)
    refused    why its sums cannot be taken for ours; "" where they can. `phases` and `counters` are empty then
    reported   measured requests that have an engine's report of their own
    shown      whether the sums are all there is: no request has a report of its own
    takes_buckets  whether this version has a flag for finer buckets
    """

    source: str
    finished: int | None
    ours: int
    at_most: int
    reported: int
    refused: str = ""
    phases: tuple[PhaseTotal, ...] = ()
    counters: dict[str, float] = {}
    takes_buckets: bool = False

    @property
    def shown(self) -> bool:
        """Nothing better is known of the engine's inside."""
        return self.reported == 0


def server_metrics(run: Run) -> ServerMetrics | None:
    """The sums over all measured requests; None where /metrics was not read before and after them."""
    told = _told(run)
    if told is None:
        return None
    measured = _measured(run)
    outcomes = [timeline.outcome for timeline in measured]
    ours = sum(outcome is Outcome.OK for outcome in outcomes)
    at_most = sum(outcome not in _NEVER_COUNTED for outcome in outcomes)
    reported = sum(_told_split(timeline) is not None for timeline in measured)
    if isinstance(told, str):
        return ServerMetrics("vllm", None, ours, at_most, reported, refused=told)
    finished = finished_of(told)
    refused = _not_ours(finished, ours, at_most)
    takes_buckets = _takes_buckets(run)
    return ServerMetrics(
        source=told.source,
        finished=finished,
        ours=ours,
        at_most=at_most,
        reported=reported,
        refused=refused,
        phases=()
        if refused
        else tuple(
            phase_total(name, told.histograms[name], takes_buckets=takes_buckets)
            for name in SPLIT
            if name in told.histograms
        ),
        counters={} if refused else told.counters,
        takes_buckets=takes_buckets,
    )


def sums_beside(run: Run) -> list[Agreement]:
    """The sums of what was told of single requests beside those of /metrics, for every phase that both have. Empty
    where there is nothing to compare."""
    told = _told(run)
    if told is None or isinstance(told, str):
        return []
    reports = [report for timeline in _measured(run) if (report := _told_split(timeline)) is not None]
    return agreements(reports, told)


def server_metrics_json(told: ServerMetrics | None) -> dict[str, object] | None:
    """As in `explain --json`: an object with `phases` by name, or null."""
    if told is None:
        return None
    whole: dict[str, object] = to_builtins(told)
    phases = {
        phase.name: {k: v for k, v in to_builtins(phase).items() if k != "name"} for phase in told.phases
    }
    return whole | {"phases": phases, "shown": told.shown}


def between(before: Scrape, after: Scrape) -> Scrape:
    """What happened between two scrapes of one server. Raises UndecidedError when a count fell: the server was
    started anew in between."""
    histograms = {name: _less(now, before.histograms.get(name)) for name, now in after.histograms.items()}
    return Scrape(
        source=after.source,
        histograms=histograms,
        finished=_grown(before.finished, after.finished),
        counters=_grown(before.counters, after.counters),
    )


def finished_of(told: Scrape) -> int | None:
    """Requests whose times the server summed up; None where it does not tell."""
    whole = told.histograms.get("e2e")
    if whole is not None:
        return whole.count
    return round(sum(told.finished.values())) if told.finished else None


def quantile(histogram: Histogram, q: float, *, takes_buckets: bool = False) -> tuple[float, float]:
    """The bucket (lower, upper bound) that the `q` quantile lies in, with 0 < q <= 1.

    Raises UndecidedError for an empty histogram, and CoarseError where that bucket is open above, begins at zero or
    is wider than a factor of two: it says nothing then. `takes_buckets` tells that this server knows
    `--custom-histogram-buckets` (vLLM 0.26 does not, 0.32 does)."""
    if not histogram.count or not histogram.buckets:
        raise UndecidedError("the histogram is empty: no request finished between the two scrapes")
    lower = 0.0
    for upper, below in histogram.buckets:
        if below >= q * histogram.count:
            if lower <= 0.0 or upper > WIDEST * lower:
                raise _too_coarse(lower, upper, takes_buckets=takes_buckets)
            return lower, upper
        lower = upper
    raise _too_coarse(lower, math.inf, takes_buckets=takes_buckets)


def phase_total(name: str, histogram: Histogram, *, takes_buckets: bool = False) -> PhaseTotal:
    """Sum, mean and as much of the quantiles as the buckets allow."""
    places: list[tuple[float, float] | None] = []
    coarse: CoarseError | None = None
    for q in QUANTILES:
        try:
            lower, upper = quantile(histogram, q, takes_buckets=takes_buckets)
            places.append((lower * 1e3, upper * 1e3))
        except CoarseError as error:
            coarse = coarse or error
            places.append(None)
        except UndecidedError:
            places.append(None)
    mean = histogram.mean
    return PhaseTotal(
        name,
        histogram.count,
        histogram.total * 1e3,
        None if mean is None else mean * 1e3,
        *places,
        coarse_s=None
        if coarse is None
        else (coarse.lower, None if math.isinf(coarse.upper) else coarse.upper),
        note="" if coarse is None else str(coarse),
    )


def agreements(reports: Sequence[EngineReport], told: Scrape) -> list[Agreement]:
    """Sums of what was told of single requests beside the sums of /metrics over the same stretch, for every phase that
    both have. `reports` must hold every sequence that finished between the two scrapes."""
    found: list[Agreement] = []
    for name in ("queue", "prefill", "decode", "e2e"):
        theirs = told.histograms.get(name)
        values = [ns for report in reports if (ns := getattr(report, f"{name}_ns")) is not None]
        if theirs is not None and values:
            found.append(agreement(name, sum(values) / 1e6, len(values), theirs))
    return found


def agreement(name: str, ours_ms: float, count: int, theirs: Histogram) -> Agreement:
    """One sum of ours, in milliseconds over `count` values, beside a histogram of seconds."""
    theirs_ms = theirs.total * 1e3
    close = abs(ours_ms - theirs_ms) <= max(1.0, 0.02 * theirs_ms)
    return Agreement(name, ours_ms, theirs_ms, count, theirs.count, close and count == theirs.count)


def _told(run: Run) -> Scrape | str | None:
    """The difference of the run's two scrapes; the reason where they have none; None without both."""
    by_moment = {scrape.moment: scrape for scrape in run.scrapes}
    before, after = by_moment.get(Moment.BEFORE), by_moment.get(Moment.AFTER)
    if before is None or after is None:
        return None
    try:
        return between(before, after)
    except UndecidedError as error:
        return str(error)


def _measured(run: Run) -> list[Timeline]:
    return [timeline for timeline in run.requests if not timeline.cell.warmup]


def _told_split(timeline: Timeline) -> EngineReport | None:
    """The request's own report, where it tells a phase of the engine."""
    report = timeline.report
    if report is None or (report.queue_ns is None and report.prefill_ns is None):
        return None
    return report


def _not_ours(finished: int | None, ours: int, at_most: int) -> str:
    if finished is None:
        return "/metrics does not tell how many requests finished, so its sums cannot be laid on ours"
    if finished > at_most:
        return (
            f"the server finished {finished} requests between the two scrapes and at most {at_most} of them were "
            "ours: others use it, and its sums are theirs too"
        )
    if finished < ours:
        return (
            f"the server finished {finished} requests between the two scrapes and {ours} of ours were answered: "
            "/metrics tells of one of several processes, or of another server"
        )
    return ""


def _takes_buckets(run: Run) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", run.header.engine.version or "")
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= BUCKETS_SINCE


def _less(now: Histogram, then: Histogram | None) -> Histogram:
    if then is None:
        return now
    if now.count < then.count:
        raise UndecidedError("a count of /metrics fell: the server was started anew between the two scrapes")
    old = dict(then.buckets)
    buckets = tuple((at, n - old.get(at, 0)) for at, n in now.buckets)
    return Histogram(now.total - then.total, now.count - then.count, buckets)


def _grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def _too_coarse(lower: float, upper: float, *, takes_buckets: bool) -> CoarseError:
    reach = f"above {lower:g} s" if math.isinf(upper) else f"between {lower:g} and {upper:g} s"
    mend = (
        f"start the server with finer buckets ({BUCKETS_FLAG} '{{\"request_latency\": [0.001, 0.002, ...]}}')"
        if takes_buckets
        else "no flag for finer buckets is known of this version: give the server the phasemeter-vllm plugin"
    )
    return CoarseError(lower, upper, f"all that /metrics says is that the quantile lies {reach}; {mend}")

"""vLLM's own /metrics: sums and counts between two scrapes, for a server that tells nothing of single requests.

A Prometheus histogram is a sum, a count and cumulative buckets since the server began. The difference of two
scrapes is exact in its sum and count (so the mean is too), while a quantile is known only as far as its bucket is
wide: vLLM's request phases begin with one bucket from 0 to 0.3 s, in which a small model's prefill disappears. Such
a quantile is refused here instead of being interpolated to a number that nobody measured.

These are aggregates of everything the server did, warm-up and other clients' requests included.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from msgspec import Struct

from phasemeter.record.engine import SeenRequest
from phasemeter.record.errors import UndecidedError

PHASES = {
    "queue": "vllm:request_queue_time_seconds",
    "prefill": "vllm:request_prefill_time_seconds",
    "decode": "vllm:request_decode_time_seconds",
    "inference": "vllm:request_inference_time_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
    "ttft": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
}
"""Our names of vLLM's time histograms. `ttft` runs from the arrival at the API process; it is not `prefill`."""

BUCKETS_FLAG = "--custom-histogram-buckets"
WIDEST = 2.0
"""A bucket whose upper end is more than so many times its lower end is too coarse to place a quantile in."""

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class Point(Struct, frozen=True):
    """One sample of the exposition format."""

    name: str
    labels: dict[str, str]
    value: float


class Histogram(Struct, frozen=True):
    """Sum and count, and for every upper bound how many values lay at or below it. In the metric's own unit."""

    total: float
    count: int
    buckets: tuple[tuple[float, int], ...] = ()

    @property
    def mean(self) -> float | None:
        """Exact; None of nothing."""
        return self.total / self.count if self.count else None


class Scrape(Struct, frozen=True):
    """What one scrape said: time histograms by our names, finished requests by reason, other counters by name.
    Engines and models are added up. A metric that the server does not have is not in here."""

    histograms: dict[str, Histogram]
    finished: dict[str, float]
    counters: dict[str, float]


class Agreement(Struct, frozen=True):
    """Our sum beside vLLM's, milliseconds, over `count` requests (ours) and `their_count` (theirs). `agrees` within
    1 ms or 2 % of theirs, whichever is more, and on the count."""

    name: str
    ours_ms: float
    theirs_ms: float
    count: int
    their_count: int
    agrees: bool


def parse(text: str) -> list[Point]:
    """Every sample of a Prometheus text page; comments and lines that are none are left out."""
    found: list[Point] = []
    for line in text.splitlines():
        match = _SAMPLE.fullmatch(line.strip())
        if match is None or line.startswith("#"):
            continue
        try:
            value = float(match[3])
        except ValueError:
            continue
        labels = {name: _plain(raw) for name, raw in _LABEL.findall(match[2] or "")}
        found.append(Point(match[1], labels, value))
    return found


def scrape_of(text: str) -> Scrape:
    """Read a /metrics page of vLLM."""
    points = parse(text)
    ours = {metric: name for name, metric in PHASES.items()}
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    finished: dict[str, float] = {}
    counters: dict[str, float] = {}
    for point in points:
        base, _, part = point.name.rpartition("_")
        name = ours.get(base)
        if name is not None and part == "sum":
            sums[name] = sums.get(name, 0.0) + point.value
        elif name is not None and part == "count":
            counts[name] = counts.get(name, 0.0) + point.value
        elif name is not None and part == "bucket":
            at = float(point.labels.get("le", "inf"))
            held = buckets.setdefault(name, {})
            held[at] = held.get(at, 0.0) + point.value
        elif point.name == "vllm:request_success_total":
            reason = point.labels.get("finished_reason", "unknown")
            finished[reason] = finished.get(reason, 0.0) + point.value
        elif part == "total" and point.name.startswith("vllm:"):
            counters[base] = counters.get(base, 0.0) + point.value
    histograms = {
        name: Histogram(
            sums[name],
            round(counts[name]),
            tuple((at, round(n)) for at, n in sorted(buckets.get(name, {}).items())),
        )
        for name in sums
        if name in counts
    }
    return Scrape(histograms, finished, counters)


def between(before: Scrape, after: Scrape) -> Scrape:
    """What happened between two scrapes of one server. Raises UndecidedError when a count fell: the server was
    started anew in between."""
    histograms = {name: _less(now, before.histograms.get(name)) for name, now in after.histograms.items()}
    return Scrape(
        histograms, _grown(before.finished, after.finished), _grown(before.counters, after.counters)
    )


def quantile(histogram: Histogram, q: float, *, takes_buckets: bool = False) -> tuple[float, float]:
    """The bucket (lower, upper bound) that the `q` quantile lies in, with 0 < q <= 1.

    Raises UndecidedError for an empty histogram, and where that bucket is open above, begins at zero or is wider
    than a factor of two: it says nothing then. `takes_buckets` tells that this server knows
    `--custom-histogram-buckets` (vLLM 0.26 does not, 0.32 does)."""
    if not histogram.count or not histogram.buckets:
        raise UndecidedError("the histogram is empty: no request finished between the two scrapes")
    lower = 0.0
    for upper, below in histogram.buckets:
        if below >= q * histogram.count:
            if lower <= 0.0 or upper > WIDEST * lower or math.isinf(upper):
                raise UndecidedError(_too_coarse(lower, upper, takes_buckets=takes_buckets))
            return lower, upper
        lower = upper
    raise UndecidedError(_too_coarse(lower, math.inf, takes_buckets=takes_buckets))


def agreements(seen: Sequence[SeenRequest], told: Scrape) -> list[Agreement]:
    """Sums of what a plugin told of single requests beside the sums of /metrics over the same stretch, for every
    phase that both have. `seen` must hold every sequence that finished between the two scrapes."""
    found: list[Agreement] = []
    for name in ("queue", "prefill", "decode", "e2e"):
        theirs = told.histograms.get(name)
        values = [ns for line in seen if (ns := getattr(line.report, f"{name}_ns")) is not None]
        if theirs is not None and values:
            found.append(agreement(name, sum(values) / 1e6, len(values), theirs))
    return found


def agreement(name: str, ours_ms: float, count: int, theirs: Histogram) -> Agreement:
    """One sum of ours, in milliseconds over `count` values, beside a histogram of seconds."""
    theirs_ms = theirs.total * 1e3
    close = abs(ours_ms - theirs_ms) <= max(1.0, 0.02 * theirs_ms)
    return Agreement(name, ours_ms, theirs_ms, count, theirs.count, close and count == theirs.count)


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


def _too_coarse(lower: float, upper: float, *, takes_buckets: bool) -> str:
    reach = f"above {lower:g} s" if math.isinf(upper) else f"between {lower:g} and {upper:g} s"
    mend = (
        f"start the server with finer buckets ({BUCKETS_FLAG} '{{\"request_latency\": [0.001, 0.002, ...]}}')"
        if takes_buckets
        else "this version has no flag for finer buckets: give the server the phasemeter-vllm plugin"
    )
    return f"all that /metrics says is that the quantile lies {reach}; {mend}"


def _plain(raw: str) -> str:
    return re.sub(r"\\[\\\"n]", lambda m: _ESCAPES[m[0]], raw)

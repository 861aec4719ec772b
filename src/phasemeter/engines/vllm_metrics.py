"""vLLM's own /metrics page as a `Scrape`: the sums and counts of its request phases, and a few counters.

These are aggregates of everything the server did since it began, warm-up and other clients' requests included; what
may be said of the difference of two is `explain.server_metrics`.
"""

from __future__ import annotations

import math

from phasemeter.engines.exposition import Point, parse
from phasemeter.record.scrape import Histogram, Scrape

PHASES = {
    "queue": "vllm:request_queue_time_seconds",
    "prefill": "vllm:request_prefill_time_seconds",
    "decode": "vllm:request_decode_time_seconds",
    "inference": "vllm:request_inference_time_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
    "ttft": "vllm:time_to_first_token_seconds",
}
"""Our names of vLLM's time histograms. `ttft` runs from the arrival at the API process; it is not `prefill`."""

COUNTERS = (
    "vllm:prompt_tokens",
    "vllm:generation_tokens",
    "vllm:num_preemptions",
    "vllm:prefix_cache_queries",
    "vllm:prefix_cache_hits",
    "vllm:admission_rejections",
)
"""The counters that are kept, by vLLM's names without `_total`."""

_OURS = {metric: name for name, metric in PHASES.items()}


def scrape_of(text: str) -> Scrape:
    """Read a /metrics page of vLLM; of any other server's page nothing is found."""
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    finished: dict[str, float] = {}
    counters: dict[str, float] = {}
    for point in parse(text):
        base, _, part = point.name.rpartition("_")
        name = _OURS.get(base)
        if not math.isfinite(point.value):
            continue
        if name is not None:
            _add_part(point, part, name, sums, counts, buckets)
        elif point.name == "vllm:request_success_total":
            reason = point.labels.get("finished_reason", "unknown")
            finished[reason] = finished.get(reason, 0.0) + point.value
        elif part == "total" and base in COUNTERS:
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
    return Scrape(histograms=histograms, finished=finished, counters=counters)


def _add_part(
    point: Point,
    part: str,
    name: str,
    sums: dict[str, float],
    counts: dict[str, float],
    buckets: dict[str, dict[float, float]],
) -> None:
    if part == "sum":
        sums[name] = sums.get(name, 0.0) + point.value
    elif part == "count":
        counts[name] = counts.get(name, 0.0) + point.value
    elif part == "bucket" and (at := _bound(point)) is not None:
        held = buckets.setdefault(name, {})
        held[at] = held.get(at, 0.0) + point.value


def _bound(point: Point) -> float | None:
    """A finite upper bound; that of the last bucket is infinite and its value is the count."""
    try:
        at = float(point.labels.get("le", "inf"))
    except ValueError:
        return None
    return at if math.isfinite(at) else None

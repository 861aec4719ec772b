"""Whether one request meets the objectives of `--slo` (see `explain.slo`), for comparing goodput."""

from __future__ import annotations

from collections.abc import Callable

from phasemeter.explain.latency import gaps_ns
from phasemeter.explain.phases import Reading
from phasemeter.explain.slo import Condition, parse_slo

_PICKS: dict[str, Callable[[Reading], float | None]] = {
    "ttft": lambda r: r.ttft_ns,
    "ttft_from_arrival": lambda r: r.ttft_from_arrival_ns,
    "tpot": lambda r: r.tpot_ns,
    "e2e": lambda r: r.e2e_ns,
}


def service_level(text: str) -> Callable[[Reading], bool]:
    """Whether a successful request keeps every condition of `text`, such as "ttft=200ms,tpot=20ms". A latency that it
    does not have (TPOT of one token) breaks none. Raises InputError for what cannot be read."""
    conditions = parse_slo(text).conditions
    return lambda reading: all(_keeps(reading, condition) for condition in conditions)


def _keeps(reading: Reading, condition: Condition) -> bool:
    ns = (
        _own_gap_ns(reading, condition.percentile)
        if condition.metric == "itl"
        else _PICKS[condition.metric](reading)
    )
    return ns is None or ns <= condition.limit_ms * 1e6


def _own_gap_ns(reading: Reading, percentile: float | None) -> float | None:
    """That percentile of the request's own gaps, else its largest."""
    import numpy as np

    gaps = gaps_ns(reading)
    return float(np.percentile(gaps, percentile or 100.0)) if gaps.size else None

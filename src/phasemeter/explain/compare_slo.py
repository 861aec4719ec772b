"""Which requests meet the objectives of `--slo` (see `explain.slo`), for comparing goodput."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phasemeter.explain.columns import ABSENT
from phasemeter.explain.latency import token_gaps_ns
from phasemeter.explain.slo import Condition, parse_slo

if TYPE_CHECKING:
    from phasemeter.explain.columns import Bools
    from phasemeter.explain.compare_samples import Good
    from phasemeter.explain.readings import Readings


def service_level(text: str) -> Good:
    """Which of some successful requests keep every condition of `text`, such as "ttft=200ms,tpot=20ms". A latency that
    a request does not have (TPOT of one token) breaks none. Raises InputError for what cannot be read."""
    conditions = parse_slo(text).conditions

    def good(readings: Readings) -> Bools:
        import numpy as np

        kept = np.ones(len(readings), dtype=np.bool_)
        for condition in conditions:
            kept &= ~_breaks(readings, condition)
        return kept

    return good


def _breaks(readings: Readings, condition: Condition) -> Bools:
    limit_ns = condition.limit_ms * 1e6
    if condition.metric == "itl":
        return _own_gaps_break(readings, condition.percentile or 100.0, limit_ns)
    if condition.metric == "tpot":
        ns, found = readings.tpot_ns()
        return found & (ns > limit_ns)
    ns = readings.ns(condition.metric)
    return (ns != ABSENT) & (ns > limit_ns)


def _own_gaps_break(readings: Readings, percentile: float, limit_ns: float) -> Bools:
    """Whether that percentile of a request's own gaps (100: its largest) is above the limit."""
    import numpy as np

    gaps, sizes = token_gaps_ns(readings)
    found = np.zeros(sizes.size, dtype=np.bool_)
    ends = np.cumsum(sizes)
    for i in np.flatnonzero(sizes).tolist():
        found[i] = np.percentile(gaps[ends[i] - sizes[i] : ends[i]], percentile) > limit_ns
    return found

"""One turn: what a client says beside what the server knows. Pure: two accounts in, one row of numbers out.

ttft error   the client's TTFT minus the server's (first token's write - arrival of the request's last byte). Where
             the client tells which request was which (X-Request-Id), request by request: the median of the errors
             and the 99th percentile of their size. Elsewhere the difference of the two p50s and of the two p99s.
itl error    the difference of the two medians of the gaps, as a part of the server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from seen import Seen
from truth import Truth, seen_concurrency

_PAIRED_FROM = 0.99
"""A client's ids are used when so large a part of its requests is found by them."""


def compare(seen: Seen, truth: Truth, cpu_ns: int) -> dict[str, Any]:
    """The row of one turn. Absent is None."""
    tokens = sum(len(one.late_ns) for one in truth.served)
    most, mean = seen_concurrency(truth)
    late = [ns for one in truth.served for ns in one.late_ns]
    theirs = [ns / 1e6 for one in truth.served if (ns := truth.ttft_ns(one)) is not None]
    gaps = [ns / 1e6 for one in truth.served for ns in truth.gaps_ns(one)]
    ours = [request.ttft_ms for request in seen.good]
    pairs = _paired(seen, truth)
    first = _of_pairs(pairs) if pairs is not None else _of_quantiles(ours, theirs)
    itl_p50, true_itl_p50 = _quantile(seen.gaps_ms, 50), _quantile(gaps, 50)
    return {
        "ttft_p50_ms": _quantile(ours, 50),
        "ttft_p99_ms": _quantile(ours, 99),
        "ttft_true_p50_ms": _quantile(theirs, 50),
        "ttft_true_p99_ms": _quantile(theirs, 99),
        "ttft_error_p50_ms": first[0],
        "ttft_error_p99_ms": first[1],
        "paired": pairs is not None,
        "itl_p50_ms": itl_p50,
        "itl_p99_ms": _quantile(seen.gaps_ms, 99),
        "itl_true_p50_ms": true_itl_p50,
        "itl_true_p99_ms": _quantile(gaps, 99),
        "itl_error_p50": None if itl_p50 is None or not true_itl_p50 else abs(itl_p50 / true_itl_p50 - 1),
        "gaps_are": seen.gaps_are,
        "cpu_us_per_token": cpu_ns / 1e3 / tokens if tokens else None,
        "tokens": tokens,
        "seen_concurrency_max": most,
        "seen_concurrency_mean": mean,
        "requests_at_server": len(truth.served),
        "good": seen.counted,
        "failed": seen.failed,
        "failed_as": seen.failed_as,
        "faults": faults(truth),
        "says": seen.says,
        "server_late_p50_ms": _quantile([ns / 1e6 for ns in late], 50),
        "server_late_p99_ms": _quantile([ns / 1e6 for ns in late], 99),
        "server_read_late_max_ms": truth.summary.read_late_max_ns / 1e6,
    }


def faults(truth: Truth) -> dict[str, int]:
    """How many requests the server spoiled, by the way it did."""
    found: dict[str, int] = {}
    for one in truth.served:
        if one.fault != "none":
            found[one.fault] = found.get(one.fault, 0) + 1
    return found


def _paired(seen: Seen, truth: Truth) -> list[tuple[float, float]] | None:
    """(client's, server's) TTFT of every request that both know by the same id; None when the ids do not tell."""
    true_ms = {one.id: ns / 1e6 for one in truth.served if one.id and (ns := truth.ttft_ns(one)) is not None}
    # vLLM's clients tell only a request's place, which is how its id ends
    places = {f"-{name.rpartition('-')[2]}": ms for name, ms in true_ms.items()}
    if len(places) != len(true_ms):
        places = {}
    pairs: list[tuple[float, float]] = []
    for request in seen.good:
        name = request.id or ""
        known = places.get(name) if name.startswith("-") else true_ms.get(name)
        if known is not None:
            pairs.append((request.ttft_ms, known))
    return pairs if pairs and len(pairs) >= _PAIRED_FROM * len(seen.good) else None


def _of_pairs(pairs: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    errors = [ours - theirs for ours, theirs in pairs]
    return _quantile(errors, 50), _quantile([abs(error) for error in errors], 99)


def _of_quantiles(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float | None, float | None]:
    if not ours or not theirs:
        return None, None
    p50, p99 = (float(np.percentile(ours, q) - np.percentile(theirs, q)) for q in (50, 99))
    return p50, p99


def _quantile(values: Sequence[float], q: float) -> float | None:
    return float(np.percentile(values, q)) if len(values) else None

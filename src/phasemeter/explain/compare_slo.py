"""A service level as `compare --slo` takes it: limits that one request meets or not."""

from __future__ import annotations

import re
from collections.abc import Callable

from phasemeter.explain.phases import Reading
from phasemeter.record.errors import InputError

_PICKS: dict[str, Callable[[Reading], float | None]] = {
    "ttft": lambda r: r.ttft_ns,
    "ttft_from_arrival": lambda r: r.ttft_from_arrival_ns,
    "tpot": lambda r: r.tpot_ns,
    "e2e": lambda r: r.e2e_ns,
}
_TO_NS = {"us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
_SPEC = re.compile(r"(\w+)\s*=\s*([0-9]+(?:\.[0-9]+)?)\s*(us|µs|ms|s)")


def service_level(text: str) -> Callable[[Reading], bool]:
    """Whether a request keeps every limit of `text`, such as "ttft=200ms,tpot=20ms". A latency that a request does
    not have (TPOT of one token) breaks no limit. Raises InputError for what cannot be read."""
    limits: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        found = _SPEC.fullmatch(part)
        if found is None or found[1] not in _PICKS:
            raise InputError(
                "--slo", part, f"write METRIC=LIMIT such as ttft=200ms; metrics: {', '.join(_PICKS)}"
            )
        limits[found[1]] = float(found[2]) * _TO_NS[found[3]]
    if not limits:
        raise InputError("--slo", text, "name at least one limit, such as ttft=200ms")

    def keeps(reading: Reading) -> bool:
        told = ((_PICKS[name](reading), limit) for name, limit in limits.items())
        return all(ns is None or ns <= limit for ns, limit in told)

    return keeps

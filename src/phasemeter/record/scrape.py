"""What a server's /metrics said at one moment: the few sums, counts and buckets that a run keeps, and where to read
them. Two such lines frame the measured requests; `explain.server_metrics` takes their difference."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, runtime_checkable

from msgspec import Struct


class Histogram(Struct, frozen=True):
    """Sum and count since the server began, and for every finite upper bound how many values lay at or below it; what
    lies above the last bound is in `count` alone. In the metric's own unit (seconds)."""

    total: float
    count: int
    buckets: tuple[tuple[float, int], ...] = ()

    @property
    def mean(self) -> float | None:
        """Exact; None of nothing."""
        return self.total / self.count if self.count else None


class Moment(StrEnum):
    """When a scrape was made. Both lie outside of every timed stretch."""

    BEFORE = "before"
    """After the warm-up, before the first measured request."""
    AFTER = "after"
    """After the last measured request."""


class Scrape(Struct, frozen=True, omit_defaults=True, tag="scrape"):
    """What one scrape said: time histograms by our names, finished requests by reason, other counters by the server's
    name. Engines and models are added up. A metric that the server does not have is not in here."""

    t_ns: int = 0
    moment: Moment | None = None
    source: str = "vllm"
    histograms: dict[str, Histogram] = {}
    finished: dict[str, float] = {}
    counters: dict[str, float] = {}


class MetricsPlace(Struct, frozen=True):
    """Where a server's /metrics is: the address without a query, and what a request to it must carry."""

    url: str
    headers: dict[str, str] = {}
    verify_tls: bool = True

    def __repr__(self) -> str:
        return f"MetricsPlace(url={self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", self.url)]  # a header may hold the key


@runtime_checkable
class Metered(Protocol):
    """An engine behind which there is a server that may serve /metrics."""

    def metrics_place(self) -> MetricsPlace | None:
        """Where to look; None while there is no server."""
        ...

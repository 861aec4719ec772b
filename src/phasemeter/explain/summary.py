"""From a run to everything that is said about it. Pure: the same run gives the same summary."""

from __future__ import annotations

from msgspec import Struct

from phasemeter.explain.cold import Cold
from phasemeter.explain.growth import Exponent
from phasemeter.explain.load import Concurrency, Throughput
from phasemeter.explain.shapes import Latency, PhaseDists, ShapeSummary
from phasemeter.explain.verdict import Check, Verdict
from phasemeter.record.run import Header, Run


class Requests(Struct, frozen=True):
    """Requests by what came of them. Warm-up requests are counted apart and are in none of the other
    numbers."""

    planned: int | None
    ok: int
    failed: int
    by_outcome: dict[str, int]
    warmup: int


class Ceiling(Struct, frozen=True):
    """One set of ceilings in use. Peak in FLOP/s of the dtype in use, bandwidth in bytes/s, launch in ns."""

    source: str
    """"measured" or "datasheet"."""
    hardware: str
    dtype: str
    peak_flops_per_s: float | None
    read_bytes_per_s: float | None
    launch_ns: float | None = None


class Summary(Struct, frozen=True):
    """Everything that is derived from one run.

    `tokens_counted` says how: "usage" (the server's total), "server" (the server told each piece's count) or
    "chunk" (nobody told; each piece counts one). `started` is ISO 8601 in UTC. `shape_name` and
    `hardware_name` are what the floors were computed for.
    """

    name: str
    started: str
    header: Header
    requests: Requests
    latency: Latency
    phases: PhaseDists
    throughput: Throughput
    concurrency: Concurrency
    cold: Cold
    tokens_counted: str
    shapes: tuple[ShapeSummary, ...]
    growth: tuple[Exponent, ...]
    ceilings: tuple[Ceiling, ...]
    checks: tuple[Check, ...]
    verdict: Verdict
    shape_name: str | None = None
    hardware_name: str | None = None


def summarise(run: Run, *, hardware: str | None = None, model_shape: str | None = None) -> Summary:
    """Derive everything from `run`. `hardware` (a name in the table) and `model_shape` (a preset or a
    config.json) stand in for what the header does not know, or replace it. Raises InputError for names that
    are not known."""
    raise NotImplementedError

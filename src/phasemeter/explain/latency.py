"""Distributions over many requests: phases of the budget and the latencies read off them, milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.phases import PHASE_NAMES, Basis, Reading, Span
from phasemeter.explain.stats import MIN_FOR_INTERVAL, Dist, distribution

if TYPE_CHECKING:
    from phasemeter.explain.stats import Floats

_MOST_CLUSTERS = 200
_MOST_TOKENS_A_PIECE = 4096
"""A piece that claims more stands for so many gaps: a server's word must not decide how much memory is taken."""


class PhaseDist(Struct, frozen=True):
    """A phase over many requests, milliseconds. The basis is inferred as soon as one request's was."""

    dist: Dist
    basis: Basis


class PhaseDists(Struct, frozen=True):
    """The budget over many requests. Means add up: late + connect + first + decode + tail = end to end, and
    where every request has a report first = front_end + queue + prefill. Medians need not add up. Absent is
    None."""

    late: PhaseDist | None = None
    connect: PhaseDist | None = None
    first: PhaseDist | None = None
    front_end: PhaseDist | None = None
    queue: PhaseDist | None = None
    prefill: PhaseDist | None = None
    decode: PhaseDist | None = None
    engine_decode: PhaseDist | None = None
    tail: PhaseDist | None = None


class Latency(Struct, frozen=True):
    """The distributions of successful measured requests; definitions in docs/definitions.md. All
    milliseconds."""

    ttft_ms: Dist | None = None
    ttft_from_arrival_ms: Dist | None = None
    ttfa_ms: Dist | None = None
    """To the first answer token; None where no request had reasoning (then it is TTFT)."""
    tpot_ms: Dist | None = None
    itl_ms: Dist | None = None
    """Every gap; per token where the server tells the count, else per piece."""
    itl_chunk_ms: Dist | None = None
    """Every gap between pieces."""
    itl_token_ms: Dist | None = None
    """A piece of k tokens gives its gap / k, k times; None where the server does not tell the count."""
    e2e_ms: Dist | None = None
    """From the intended arrival to the end of the stream."""


def phase_dists(readings: Sequence[Reading], blocks: Sequence[int]) -> PhaseDists:
    """Every phase over the requests that have it; `blocks` names the block of each request."""
    return PhaseDists(**{name: _phase(name, readings, blocks) for name in PHASE_NAMES})


def latency(readings: Sequence[Reading], blocks: Sequence[int]) -> Latency:
    """Every latency over the requests that have it."""
    thought = any("g" in reading.timeline.kinds for reading in readings)
    chunk, token, every = _gap_dists(readings, blocks)
    return Latency(
        ttft_ms=_dist(readings, blocks, lambda r: r.ttft_ns),
        ttft_from_arrival_ms=_dist(readings, blocks, lambda r: r.ttft_from_arrival_ns),
        ttfa_ms=_dist(readings, blocks, lambda r: r.ttfa_ns) if thought else None,
        tpot_ms=_dist(readings, blocks, lambda r: r.tpot_ns),
        itl_ms=every,
        itl_chunk_ms=chunk,
        itl_token_ms=token,
        e2e_ms=_dist(readings, blocks, lambda r: r.e2e_ns),
    )


def gaps_ns(reading: Reading) -> Floats:
    """The request's gaps: per token where the server told the counts, else per piece."""
    return _chunk_gaps(reading) if reading.gap_tokens is None else _token_gaps(reading)


def _gap_dists(
    readings: Sequence[Reading], blocks: Sequence[int]
) -> tuple[Dist | None, Dist | None, Dist | None]:
    """(per piece, per token, per token where told else per piece), each worked out once where they agree."""
    chunk = _gaps(readings, blocks, [_chunk_gaps(r) for r in readings])
    told = sum(reading.gap_tokens is not None for reading in readings)
    if told == 0:
        return chunk, None, chunk
    single = all(n == 1 for reading in readings for n in reading.gap_tokens or ())
    if told == len(readings) and single:
        return chunk, chunk, chunk
    token = _gaps(readings, blocks, [_token_gaps(r) for r in readings])
    if told == len(readings):
        return chunk, token, token
    return chunk, token, _gaps(readings, blocks, [gaps_ns(r) for r in readings])


def _chunk_gaps(reading: Reading) -> Floats:
    import numpy as np

    return np.asarray(reading.gaps_ns, dtype=np.float64)


def _token_gaps(reading: Reading) -> Floats:
    import numpy as np

    if reading.gap_tokens is None:
        return np.empty(0)
    tokens = np.asarray(reading.gap_tokens, dtype=np.int64)
    times = np.minimum(tokens, _MOST_TOKENS_A_PIECE)
    return np.repeat(_chunk_gaps(reading) / np.maximum(tokens, 1), times)


def _dist(
    readings: Sequence[Reading], blocks: Sequence[int], pick: Callable[[Reading], float | None]
) -> Dist | None:
    values: list[float] = []
    kept: list[int] = []
    for reading, block in zip(readings, blocks, strict=True):
        ns = pick(reading)
        if ns is not None:
            values.append(ns / 1e6)
            kept.append(block)
    return distribution(values, kept)


def _phase(name: str, readings: Sequence[Reading], blocks: Sequence[int]) -> PhaseDist | None:
    def span(reading: Reading) -> Span | None:
        return getattr(reading.phases, name)

    dist = _dist(readings, blocks, lambda r: None if (found := span(r)) is None else found.ns)
    if dist is None:
        return None
    inferred = any((found := span(r)) is not None and found.basis is Basis.INFERRED for r in readings)
    return PhaseDist(dist, Basis.INFERRED if inferred else Basis.OBSERVED)


def _gaps(readings: Sequence[Reading], blocks: Sequence[int], gaps: Sequence[Floats]) -> Dist | None:
    """Pooled gaps. Gaps of one request depend on each other, so requests are drawn whole where there are
    too few blocks to draw those."""
    import numpy as np

    if not readings:
        return None
    clusters = list(blocks)
    if len(set(blocks)) < MIN_FOR_INTERVAL:
        n_clusters = min(len(readings), _MOST_CLUSTERS)
        clusters = [i * n_clusters // len(readings) for i in range(len(readings))]
    owners = np.repeat(np.asarray(clusters, dtype=np.int64), [g.size for g in gaps])
    return distribution(np.concatenate(gaps) / 1e6, owners)

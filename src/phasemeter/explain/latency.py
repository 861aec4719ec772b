"""Distributions over many requests: phases of the budget and the latencies read off them, milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.columns import ABSENT
from phasemeter.explain.phases import PHASE_NAMES, Basis, Reading
from phasemeter.explain.readings import Readings, milliseconds, readings_of, sent_inferred
from phasemeter.explain.stats import MIN_FOR_INTERVAL, Dist, distribution, grouped_distribution

if TYPE_CHECKING:
    from phasemeter.explain.columns import Bools, Ints
    from phasemeter.explain.stats import Blocks, Floats

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


def phase_dists(readings: Sequence[Reading], blocks: Blocks) -> PhaseDists:
    """Every phase over the requests that have it; `blocks` names the block of each request."""
    columns = readings_of(readings)
    inferred = sent_inferred(columns)
    return PhaseDists(**{name: _phase(name, columns, blocks, inferred) for name in PHASE_NAMES})


def latency(readings: Sequence[Reading], blocks: Blocks) -> Latency:
    """Every latency over the requests that have it."""
    columns = readings_of(readings)
    chunk, token, every = _gap_dists(columns, blocks)
    tpot, known = columns.tpot_ns()
    return Latency(
        ttft_ms=_dist(columns.ns("ttft"), blocks),
        ttft_from_arrival_ms=_dist(columns.ns("ttft_from_arrival"), blocks),
        ttfa_ms=_dist(columns.ns("ttfa"), blocks) if columns.told("thought").any() else None,
        tpot_ms=distribution(tpot[known] / 1e6, _blocks(blocks)[known]),
        itl_ms=every,
        itl_chunk_ms=chunk,
        itl_token_ms=token,
        e2e_ms=_dist(columns.ns("e2e"), blocks),
    )


def gaps_ns(reading: Reading) -> Floats:
    """The request's gaps: per token where the server told the counts, else per piece."""
    import numpy as np

    gaps = np.asarray(reading.gaps_ns, dtype=np.float64)
    if reading.gap_tokens is None:
        return gaps
    tokens = np.asarray(reading.gap_tokens, dtype=np.int64)
    return np.repeat(gaps / np.maximum(tokens, 1), np.minimum(tokens, _MOST_TOKENS_A_PIECE))


def token_gaps_ns(readings: Readings) -> tuple[Floats | Ints, Ints]:
    """(what `gaps_ns` gives of every request, one behind the other; how many of each request)."""
    import numpy as np

    gaps, tokens, sizes = readings.gaps(), readings.gap_tokens(), readings.gap_sizes()
    if tokens is None:
        return gaps, sizes
    times = np.minimum(tokens, _MOST_TOKENS_A_PIECE)
    so_far = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(times)))
    ends = np.cumsum(sizes)
    return np.repeat(gaps / tokens, times), so_far[ends] - so_far[ends - sizes]


def _gap_dists(readings: Readings, blocks: Blocks) -> tuple[Dist | None, Dist | None, Dist | None]:
    """(per piece, per token, per token where told else per piece), each worked out once where they agree."""
    import numpy as np

    clusters = _clusters(_blocks(blocks))
    chunk = grouped_distribution(readings.gaps(), clusters, readings.gap_sizes(), 1e6)
    told = readings.told("counts_told") == 1
    if not told.any():
        return chunk, None, chunk
    tokens = readings.gap_tokens()
    single = tokens is None or bool((tokens == 1).all())
    if told.all() and single:
        return chunk, chunk, chunk
    sizes = np.zeros(told.size, dtype=np.int64)
    values, sizes[told] = token_gaps_ns(readings.take(told))
    token = grouped_distribution(values, clusters, sizes, 1e6)
    if told.all():
        return chunk, token, token
    values, sizes = token_gaps_ns(readings)
    return chunk, token, grouped_distribution(values, clusters, sizes, 1e6)


def _blocks(blocks: Blocks) -> Ints:
    import numpy as np

    return np.asarray(blocks, dtype=np.int64)


def _clusters(blocks: Ints) -> Ints:
    """What gaps are drawn by. Gaps of one request depend on each other, so requests are drawn whole where there are
    too few blocks to draw those."""
    import numpy as np

    n = blocks.size
    if n == 0 or np.unique(blocks).size >= MIN_FOR_INTERVAL:
        return blocks
    return np.arange(n, dtype=np.int64) * min(n, _MOST_CLUSTERS) // n


def _dist(ns: Ints, blocks: Blocks) -> Dist | None:
    values, found = milliseconds(ns)
    return distribution(values, _blocks(blocks)[found])


def _phase(name: str, readings: Readings, blocks: Blocks, sent_inferred: Bools) -> PhaseDist | None:
    ns = readings.ns(name)
    dist = _dist(ns, blocks)
    if dist is None:
        return None
    inferred = name == "front_end" or (name in ("connect", "first") and sent_inferred[ns != ABSENT].any())
    return PhaseDist(dist, Basis.INFERRED if inferred else Basis.OBSERVED)

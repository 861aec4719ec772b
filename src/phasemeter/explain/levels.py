"""Every level of load of a run in one line each: what was asked, what came of it, whole and steady."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from phasemeter.explain.batch_means import Estimate, mean_of_batches
from phasemeter.explain.load import Concurrency
from phasemeter.explain.shape_key import Asked
from phasemeter.explain.slo import LevelSlo, Slo, judge_level, percentile_of, sampled
from phasemeter.explain.stage_table import StageTable, by_level
from phasemeter.explain.stats import Dist, distribution
from phasemeter.explain.steady import (
    Member,
    State,
    Steady,
    in_flight_means,
    members,
    rates_between,
    steady_of,
)

_BATCHES = 10


class Tail(Struct, frozen=True):
    """A 99th percentile with its interval; failed requests count as slower than any. None among failed requests."""

    value_ms: float | None
    ci95_ms: tuple[float | None, float | None]


class LevelLoad(Struct, frozen=True):
    """One level. Latencies are of all successful requests of the level, whole run; `steady` holds those of the steady
    window, None where a stage has too few requests for one. `completed_per_s` and `output_tokens_per_s` are over the
    steady windows, else over the second half of the time in which requests arrived; they are what a saturated server
    gives. `p99` are on the same requests."""

    asked: Asked
    stages: int
    requests: int
    ok: int
    failed: int
    arrived_per_s: float | None
    sent_per_s: float | None
    seen_max: int
    seen_mean: float
    ttft_ms: Dist | None
    tpot_ms: Dist | None
    e2e_ms: Dist | None
    completed_per_s: Estimate | None
    output_tokens_per_s: Estimate | None
    in_flight: Estimate | None
    ttft_p99: Tail
    tpot_p99: Tail
    steady: Steady | None = None
    slo: LevelSlo | None = None

    @property
    def offered(self) -> float | None:
        """What the level is called by on an axis of load: the concurrency, or the rate asked (a trace: seen)."""
        if self.asked.concurrency is not None:
            return float(self.asked.concurrency)
        return self.asked.rate_per_s if self.asked.rate_per_s is not None else self.arrived_per_s


def levels_of(
    tables: Sequence[StageTable], concurrency: Concurrency, slo: Slo | None = None
) -> tuple[LevelLoad, ...]:
    """One entry for every level, in order."""
    seen = {Asked(level.asked, level.rate_per_s): level for level in concurrency.levels}
    found: list[LevelLoad] = []
    for asked, stages in by_level(tables).items():
        steady = steady_of(stages)
        settled = steady if steady is not None and steady.state is State.STEADY else None
        inside = members(stages, None if settled is None else settled.windows)
        rates = _rates(stages, settled)
        failed = sum(int((~t.ok & ~t.given_up).sum()) for t in stages)
        found.append(
            LevelLoad(
                asked=asked,
                stages=len(stages),
                requests=sum(t.ok.size for t in stages),
                ok=sum(int(t.ok.sum()) for t in stages),
                failed=failed,
                arrived_per_s=seen[asked].arrived_per_s,
                sent_per_s=seen[asked].sent_per_s,
                seen_max=seen[asked].seen_max,
                seen_mean=seen[asked].seen_mean,
                ttft_ms=_dist(stages, "ttft"),
                tpot_ms=_dist(stages, "tpot"),
                e2e_ms=_dist(stages, "e2e"),
                completed_per_s=rates[0],
                output_tokens_per_s=rates[1],
                in_flight=rates[2],
                ttft_p99=_tail(stages, inside, "ttft"),
                tpot_p99=_tail(stages, inside, "tpot"),
                steady=steady,
                slo=None if slo is None else judge_level(stages, steady, slo),
            )
        )
    return tuple(found)


def _tail(stages: Sequence[StageTable], inside: Sequence[Member], metric: str) -> Tail:
    return Tail(*percentile_of(sampled(stages, inside, metric), 99.0))


def _dist(stages: Sequence[StageTable], metric: str) -> Dist | None:
    """All of a level's successful requests; batches of equal time stand for blocks."""
    import numpy as np

    whole = members(stages, None)
    values = np.concatenate([t.ms[metric][m.inside] for t, m in zip(stages, whole, strict=True)])
    ok = np.concatenate([t.ok[m.inside] for t, m in zip(stages, whole, strict=True)])
    seen = ok & np.isfinite(values)
    return distribution(values[seen], np.concatenate([m.batch for m in whole])[seen])


def _rates(
    stages: Sequence[StageTable], settled: Steady | None
) -> tuple[Estimate | None, Estimate | None, Estimate | None]:
    """(requests, tokens) a second and requests in flight, by batches."""
    import numpy as np

    if settled is not None:
        return settled.requests_per_s, settled.output_tokens_per_s, settled.in_flight
    usable = [table for table in stages if table.last_ns > 0]
    if not usable:
        return None, None, None
    edges = [np.linspace(table.last_ns / 2, table.last_ns, _BATCHES + 1) for table in usable]
    both = [rates_between(table, edge) for table, edge in zip(usable, edges, strict=True)]
    flying = [in_flight_means(table, edge) for table, edge in zip(usable, edges, strict=True)]
    widths = np.concatenate([np.diff(edge) for edge in edges])
    requests = mean_of_batches(np.concatenate([requests for requests, _ in both]), widths)
    tokens = mean_of_batches(np.concatenate([tokens for _, tokens in both]), widths)
    return requests, tokens, mean_of_batches(np.concatenate(flying), widths)

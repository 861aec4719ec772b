"""A simulation's answer in numbers that leave it: percentiles with the interval that the model's own leave."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from phasemeter.predict.features import Query
from phasemeter.predict.routing import policy_of
from phasemeter.predict.steps import StepModel
from phasemeter.predict.whatif import simulate
from phasemeter.predict.whatif_fitted import Machine, bracket, kv_blocks_of
from phasemeter.predict.whatif_load import EngineSettings, Traffic
from phasemeter.predict.whatif_outcome import Outcome
from phasemeter.predict.whatif_slo import grows

METRICS = ("ttft", "queue", "prefill", "front_end", "tpot", "itl", "e2e")
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class What(Struct, frozen=True):
    """What is asked. `steady`: one rate, so the first tenth of the requests fills the engine and is left out."""

    traffic: Traffic
    settings: EngineSettings
    replicas: int = 1
    policy: str = "least-tokens"
    seed: int = 0
    steady: bool = True


class Level(Struct, frozen=True):
    """One number at the middle of the model's intervals, and with the model at either end of them."""

    lo: float | None
    mid: float | None
    hi: float | None


class Told(Struct, frozen=True):
    """Milliseconds by metric and percentile; None where no request has the metric. `running` and `waiting` are means
    over all replicas, `kv_used` the most of one's blocks that were in use at a sample, None where there is no limit."""

    machine: str
    requests: int
    replicas: int
    settings: EngineSettings
    kv_assumed: bool
    ms: dict[str, dict[str, Level]]
    requests_per_s: Level
    output_tokens_per_s: Level
    running: float
    waiting: float
    busy_ratio: float
    preemptions: int
    cached_ratio: float
    kv_used: float | None
    growing: bool
    outside: tuple[str, ...]
    changed: tuple[str, ...] = ()


def what_if(what: What, machine: Machine) -> Told:
    """Simulate `what` on `machine` three times. Raises InputError."""
    settings = what.settings
    if settings.kv_blocks is None:
        settings = replace(settings, kv_blocks=kv_blocks_of(machine, settings.block_size))
    mid = _play(what, settings, machine.steps)
    n = len(what.traffic.input_tokens)
    typical = Query(
        max(1, round(sum(what.traffic.input_tokens) / n)),
        max(1, round(sum(what.traffic.output_tokens) / n)),
        batch=min(settings.max_num_seqs, max(1, round((mid.present - mid.waiting) / what.replicas))),
        budget_tokens=settings.max_num_batched_tokens,
    )
    ends = bracket(machine, typical)
    three = (_play(what, settings, ends.lo), mid, _play(what, settings, ends.hi))
    settled = tuple(_settled(outcome, what) for outcome in three)
    ms = {
        metric: {name: _level([one.quantile_ms(metric, share) for one in settled]) for name, share in _SHARES.items()}
        for metric in METRICS
    }  # fmt: skip
    blocks = None if settings.kv_blocks is None else settings.kv_blocks * what.replicas
    return Told(
        machine=machine.name,
        requests=n,
        replicas=what.replicas,
        settings=settings,
        kv_assumed=what.settings.kv_blocks is None and blocks is not None,
        ms=ms,
        requests_per_s=_level([n / one.lasted_s for one in three]),
        output_tokens_per_s=_level([float(one.output_tokens.sum()) / one.lasted_s for one in three]),
        running=mid.present - mid.waiting,
        waiting=mid.waiting,
        busy_ratio=mid.busy_ratio,
        preemptions=int(mid.preemptions.sum()),
        cached_ratio=float(mid.cached_tokens.sum() / mid.input_tokens.sum()),
        kv_used=None if not blocks else float(mid.series[:, 3].max()) / blocks,
        growing=what.steady and what.traffic.users is None and grows(settled[1]),
        outside=ends.outside,
        changed=machine.changed,
    )


def _play(what: What, settings: EngineSettings, model: StepModel) -> Outcome:
    policy = policy_of(what.policy, what.seed)
    return simulate(what.traffic, settings, model, replicas=what.replicas, policy=policy)


def _settled(outcome: Outcome, what: What) -> Outcome:
    return outcome.from_request(outcome.requests // 10) if what.steady else outcome


def _level(three: Sequence[float | None]) -> Level:
    """In order of size: a slower model has fewer tokens a second and more milliseconds."""
    values = [value for value in three if value is not None]
    if len(values) < 3:
        return Level(None, three[1], None)
    return Level(min(values), three[1], max(values))

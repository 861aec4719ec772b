"""How many replicas of what, with which flags, carry a traffic within its objectives, and at what price.

Every answer is a simulation (`whatif`) of the asked traffic, made faster by the headroom. The number of replicas is the
least that meets the objectives (more replicas make nothing worse: doubling, then halving the bracket), at the middle of
the model's intervals and at both ends. Flags are searched one after the other on few values; a value is told only where
it takes 5 % or more off the fullest limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from phasemeter.explain.slo import Slo
from phasemeter.predict.features import Query
from phasemeter.predict.routing import policy_of
from phasemeter.predict.steps import StepModel
from phasemeter.predict.whatif import MOST_REPLICAS, simulate
from phasemeter.predict.whatif_fitted import Bracket, Machine, bracket, kv_blocks_of
from phasemeter.predict.whatif_load import EngineSettings, Traffic
from phasemeter.predict.whatif_slo import Standing, check_slo, stand
from phasemeter.record.errors import InputError

SEQUENCES = (16, 32, 64, 128, 256, 512, 1024)
BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
WORTH = 0.95
"""A flag is worth setting where it leaves at most so much of the fullest limit's use."""
MOST_FACTOR = 8.0


class Ask(Struct, frozen=True, dict=True):
    """What is asked. `steady`: the traffic has one rate, so its first tenth (an empty engine fills) does not count and
    growing numbers mean overload. `fixed`: flags that the user has set, which are not searched."""

    traffic: Traffic
    slo: Slo
    settings: EngineSettings
    steady: bool = True
    headroom: float = 0.2
    replicas_max: int = 64
    policy: str = "least-tokens"
    fixed: tuple[str, ...] = ()
    seed: int = 0

    @cached_property
    def lasts_s(self) -> float:
        """From the first arrival to the last, one mean gap more."""
        arrive = self.traffic.arrive_s or (0.0,)
        return (arrive[-1] - arrive[0]) * len(arrive) / max(1, len(arrive) - 1)

    def faster(self, factor: float) -> Traffic:
        """The same requests, arriving `factor` times as fast."""
        arrive = self.traffic.arrive_s or ()
        return replace(self.traffic, arrive_s=[t / factor for t in arrive])


class Point(Struct, frozen=True):
    """One number of replicas: the share of the fullest limit that is used, at both ends and the middle of the model's
    intervals; None where it cannot keep up."""

    replicas: int
    lo: float | None
    mid: float | None
    hi: float | None


class Option(Struct, frozen=True):
    """What one kind of machine needs. `replicas` is (lo, mid, hi): with a model as fast, as it is, and as slow as its
    intervals allow; None: more than were allowed. `standing` and the numbers after it belong to `replicas` at the
    middle (or to the most allowed). `carries`: so many times the asked traffic is still within the objectives."""

    machine: str
    changed: tuple[str, ...]
    outside: tuple[str, ...]
    replicas: tuple[int | None, int | None, int | None]
    plain_replicas: int | None
    settings: EngineSettings
    flags: dict[str, int]
    standing: Standing
    busy_ratio: float
    running: float
    preemptions: int
    carries: float | None
    frontier: tuple[Point, ...]
    kv_assumed: bool = False
    usd_per_hour: float | None = None
    usd_per_million_output: float | None = None
    usd_per_million_tokens: float | None = None

    @property
    def told(self) -> str:
        """met: even with the slow end of the model; undecided: with its middle; not met."""
        if self.replicas[1] is None:
            return "not met"
        return "met" if self.replicas[2] is not None else "undecided"


def check_ask(ask: Ask) -> None:
    """Raises InputError for what cannot be planned."""
    if ask.traffic.arrive_s is None:
        raise InputError("traffic", "a closed loop", "capacity is asked for arrivals: give --rate or --trace")
    if not 0.0 <= ask.headroom <= 10.0:
        raise InputError("--headroom", ask.headroom, "a share of the traffic, 0 to 10, such as 0.2")
    if not 1 <= ask.replicas_max <= MOST_REPLICAS:
        raise InputError("--replicas-max", ask.replicas_max, f"from 1 to {MOST_REPLICAS}")
    check_slo(ask.slo)


def plan(ask: Ask, machine: Machine, usd_per_hour: float | None = None) -> Option:
    """What `machine` needs for `ask`. Raises InputError."""
    check_ask(ask)
    assumed = ask.settings.kv_blocks is None
    settings = ask.settings
    if assumed:
        settings = replace(settings, kv_blocks=kv_blocks_of(machine, settings.block_size))
        assumed = settings.kv_blocks is not None
    desk = _Desk(ask, machine)
    plain = desk.least(settings, desk.middle)
    chosen = desk.flags(settings, plain or ask.replicas_max)
    mid = plain if chosen == settings else desk.least(chosen, desk.middle)
    n = mid or ask.replicas_max
    three = desk.bracket(chosen, n)
    replicas = (desk.least(chosen, three.lo), mid, desk.least(chosen, three.hi) if mid else None)
    played = desk.played(chosen, three.mid, n)
    return Option(
        machine=machine.name,
        changed=machine.changed,
        outside=three.outside,
        replicas=replicas,
        plain_replicas=plain,
        settings=chosen,
        flags={name: getattr(chosen, name) for name in _FLAGS if getattr(chosen, name) != getattr(settings, name)},
        standing=played.standing,
        busy_ratio=played.busy_ratio,
        running=played.running,
        preemptions=played.preemptions,
        carries=desk.carries(chosen, n) if mid else None,
        frontier=desk.frontier(chosen, three, n),
        kv_assumed=assumed,
        **_costs(ask, n if mid else None, usd_per_hour),
    )  # fmt: skip


def plans(ask: Ask, machines: Sequence[Machine], prices: dict[str, float]) -> tuple[Option, ...]:
    """One option a machine, the cheapest that is met first where prices are known, else by replicas."""
    found = [plan(ask, machine, prices.get(machine.name)) for machine in machines]

    def order(option: Option) -> tuple[bool, float, int]:
        cost = option.usd_per_million_output
        return option.replicas[1] is None, float("inf") if cost is None else cost, option.replicas[1] or 0

    return tuple(sorted(found, key=order))


_FLAGS = ("max_num_seqs", "max_num_batched_tokens")


class _Played(Struct, frozen=True):
    """What is kept of one simulation. `running`: sequences together on one replica, mean."""

    standing: Standing
    busy_ratio: float
    running: float
    preemptions: int


class _Desk:
    """One machine's simulations, each made once."""

    def __init__(self, ask: Ask, machine: Machine) -> None:
        self._ask, self._machine = ask, machine
        self.middle: StepModel = machine.steps
        self._traffic = ask.faster(1.0 + ask.headroom)
        self._seen: dict[tuple[EngineSettings, int, int], _Played] = {}
        self._models: list[StepModel] = []

    def least(self, settings: EngineSettings, model: StepModel) -> int | None:
        """The fewest replicas that meet the objectives; None where the most allowed do not."""
        return least(lambda n: self.played(settings, model, n).standing.met, self._ask.replicas_max)

    def flags(self, settings: EngineSettings, replicas: int) -> EngineSettings:
        """The settings with the flags that are worth setting."""
        best = settings
        for name, values in zip(_FLAGS, (SEQUENCES, BUDGETS), strict=True):
            if name in self._ask.fixed:
                continue
            before = self._use(best, replicas)
            tried = [replace(best, **{name: value}) for value in values if self._possible(best, name, value)]
            found = min(tried, key=lambda one: self._use(one, replicas), default=best)
            if self._use(found, replicas) < WORTH * before:
                best = found
        return best

    def bracket(self, settings: EngineSettings, replicas: int) -> Bracket:
        """The three models for the requests that run together here."""
        running = max(1, round(self.played(settings, self.middle, replicas).running))
        prompts, outputs = self._traffic.input_tokens, self._traffic.output_tokens
        return bracket(
            self._machine,
            Query(
                max(1, round(sum(prompts) / len(prompts))),
                max(1, round(sum(outputs) / len(outputs))),
                batch=min(running, settings.max_num_seqs),
                budget_tokens=settings.max_num_batched_tokens,
            ),
        )

    def carries(self, settings: EngineSettings, replicas: int) -> float:
        """How many times the asked traffic these replicas carry, within 2 %."""
        low, high = 1.0 + self._ask.headroom, 1.0 + self._ask.headroom
        while high < MOST_FACTOR and self._carried(settings, replicas, high * 1.5):
            low = high = high * 1.5
        high *= 1.5
        while high > low * 1.02:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self._carried(settings, replicas, middle) else (low, middle)
        return low

    def frontier(self, settings: EngineSettings, three: Bracket, replicas: int) -> tuple[Point, ...]:
        """The numbers of replicas around the answer."""
        numbers = sorted(
            {max(1, replicas + d) for d in (-2, -1, 0, 1, 2)} | {max(1, replicas // 2), 2 * replicas}
        )
        models = (three.lo, three.mid, three.hi)
        return tuple(
            Point(n, *(self.played(settings, model, n).standing.used for model in models))
            for n in numbers
            if n <= self._ask.replicas_max
        )  # fmt: skip

    def _use(self, settings: EngineSettings, replicas: int) -> float:
        used = self.played(settings, self.middle, replicas).standing.used
        return float("inf") if used is None else used

    def _possible(self, settings: EngineSettings, name: str, value: int) -> bool:
        if value == getattr(settings, name):
            return False
        if name == "max_num_seqs":
            return value <= settings.max_num_batched_tokens
        longest = max(self._traffic.input_tokens) + max(self._traffic.output_tokens)
        return value >= settings.max_num_seqs and (settings.chunked_prefill or value >= longest)

    def _carried(self, settings: EngineSettings, replicas: int, factor: float) -> bool:
        return self._run(self._ask.faster(factor), settings, self.middle, replicas).standing.met

    def played(self, settings: EngineSettings, model: StepModel, replicas: int) -> _Played:
        """The simulation with headroom."""
        if not any(known is model for known in self._models):
            self._models.append(model)  # kept alive, so that its id stays its own
        key = (settings, id(model), replicas)
        if key not in self._seen:
            self._seen[key] = self._run(self._traffic, settings, model, replicas)
        return self._seen[key]

    def _run(self, traffic: Traffic, settings: EngineSettings, model: StepModel, replicas: int) -> _Played:
        ask = self._ask
        policy = policy_of(ask.policy, ask.seed)
        outcome = simulate(traffic, settings, model, replicas=replicas, policy=policy)
        first = outcome.requests // 10 if ask.steady else 0
        return _Played(
            stand(outcome.from_request(first), ask.slo, steady=ask.steady),
            outcome.busy_ratio,
            (outcome.present - outcome.waiting) / replicas,
            int(outcome.preemptions.sum()),
        )


def least(meets: Callable[[int], bool], most: int) -> int | None:
    """The least number from 1 to `most` that meets, where every larger one does too; None where `most` does not."""
    low, high = 0, 1
    while not meets(high):
        if high >= most:
            return None
        low, high = high, min(most, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def _costs(ask: Ask, replicas: int | None, usd_per_hour: float | None) -> dict[str, float | None]:
    if replicas is None or usd_per_hour is None:
        return {}
    spent = replicas * usd_per_hour
    hours = ask.lasts_s / 3600
    output = float(sum(ask.traffic.output_tokens))
    both = output + float(sum(ask.traffic.input_tokens))
    if hours <= 0.0:
        return {"usd_per_hour": spent}
    return {
        "usd_per_hour": spent,
        "usd_per_million_output": spent * hours / output * 1e6,
        "usd_per_million_tokens": spent * hours / both * 1e6,
    }

"""The engine's steps as columns: what each cost, and running sums over them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.stats import Dist, distribution
from phasemeter.record.engine import EngineStep

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

MIN_FOR_BASELINE = 3


class StepKind(Struct, frozen=True):
    """Steps that did the same: "prefill", "decode" or "mixed". Cost in milliseconds."""

    kind: str
    steps: int
    prefill_tokens: int
    decode_tokens: int
    cost_ms: Dist | None
    running_mean: float | None
    waiting_max: int | None
    kv_usage_max: float | None


class Baseline(Struct, frozen=True):
    """What a step costs that decodes so many requests and prefills nothing."""

    decode_requests: int
    steps: int
    median_ms: float
    engine: int | None = None
    """The engine core that made them, where the server tells it."""


class StepTable:
    """The steps of one engine as columns, in order of their ends, with sums that run along them. `least` is the
    baseline of each step in nanoseconds, None where there is none at all."""

    def __init__(
        self, steps: list[EngineStep], ends: Integers, costs: Floats, baselines: tuple[Baseline, ...]
    ) -> None:
        import numpy as np

        self.steps = steps
        self.ends = ends
        self.costs = costs
        self.baselines = baselines
        decode = _column([s.decode_requests for s in steps])
        prefill = _column([s.prefill_tokens for s in steps])
        mixed = (prefill > 0) & (decode > 0)
        least, borrowed = _least_ns(baselines, decode)
        self.least = least if baselines else None
        self.running = {
            "shared": _sums(decode > 1),
            "prefill_steps": _sums(mixed),
            "prefill_tokens": _sums(np.where(mixed, prefill, 0)),
            "prefill_steps_ns": _sums(np.where(mixed, costs, 0.0)),
            "interference_ns": _sums(np.where(mixed, costs - least, 0.0)),
            "borrowed": _sums(mixed & borrowed),
        }

    @classmethod
    def of(cls, told: Sequence[EngineStep]) -> StepTable:
        """From steps in any order, all with their tokens; at least one."""
        import numpy as np

        steps = sorted(told, key=lambda step: step.engine_ns)
        ends = np.asarray([step.engine_ns for step in steps], dtype=np.int64)
        decode = _column([s.decode_requests for s in steps])
        alone = np.asarray([float(s.duration_ns or 0) for s in steps])
        costs = np.where(decode > 0, np.diff(ends, prepend=ends[:1]).astype(np.float64), alone)
        if steps and decode[0] > 0:
            costs[0] = alone[0]  # nobody saw the step before
        return cls(steps, ends, costs, _baselines(steps, costs))

    def over(self, name: str, first: int, last: int) -> float:
        """A running sum over steps first + 1 to last."""
        sums = self.running[name]
        return float(sums[last + 1] - sums[first + 1])


def tables_of(told: Mapping[int | None, Sequence[EngineStep]]) -> dict[int | None, StepTable]:
    """A table for each engine core that told steps."""
    return {engine: StepTable.of(steps) for engine, steps in told.items()}


def by_engine(steps: Iterable[EngineStep]) -> dict[int | None, list[EngineStep]]:
    """Steps apart by the engine core that made them: each has a batch of its own."""
    groups: dict[int | None, list[EngineStep]] = {}
    for step in steps:
        groups.setdefault(step.engine, []).append(step)
    return groups


def engine_of(engines: Collection[int | None], engine: int | None) -> tuple[int | None] | None:
    """(the engine whose steps a request of `engine` shared,); None where that is not known. An older record, or one
    of a single engine, numbers only one side or neither."""
    if engine in engines:
        return (engine,)
    only = next(iter(engines)) if len(engines) == 1 else None
    return (only,) if len(engines) == 1 and (engine is None or only is None) else None


def kinds_of(tables: Iterable[StepTable]) -> tuple[StepKind, ...]:
    """The steps of all engines by what they did."""
    groups: dict[str, list[tuple[EngineStep, float]]] = {"prefill": [], "decode": [], "mixed": []}
    for table in tables:
        for step, cost in zip(table.steps, table.costs, strict=True):
            name = kind_of(step)
            if name is not None:
                groups[name].append((step, float(cost)))
    return tuple(_one_kind(name, members) for name, members in groups.items() if members)


def _one_kind(name: str, members: Sequence[tuple[EngineStep, float]]) -> StepKind:
    steps = [step for step, _ in members]
    running = [s.running for s in steps if s.running is not None]
    return StepKind(
        kind=name,
        steps=len(steps),
        prefill_tokens=sum(s.prefill_tokens or 0 for s in steps),
        decode_tokens=sum(s.decode_tokens or 0 for s in steps),
        cost_ms=distribution([cost / 1e6 for _, cost in members]),
        running_mean=sum(running) / len(running) if running else None,
        waiting_max=max((s.waiting for s in steps if s.waiting is not None), default=None),
        kv_usage_max=max((s.kv_usage_ratio for s in steps if s.kv_usage_ratio is not None), default=None),
    )


def kind_of(step: EngineStep) -> str | None:
    """What it did: "prefill", "decode" or "mixed"; None for a step that did neither."""
    prefills, decodes = (step.prefill_tokens or 0) > 0, (step.decode_requests or 0) > 0
    if prefills:
        return "mixed" if decodes else "prefill"
    return "decode" if decodes else None


def _baselines(steps: list[EngineStep], costs: Floats) -> tuple[Baseline, ...]:
    import numpy as np

    groups: dict[int, list[float]] = {}
    for step, cost in zip(steps, costs, strict=True):
        if kind_of(step) == "decode":
            groups.setdefault(step.decode_requests or 0, []).append(float(cost))
    return tuple(
        Baseline(size, len(values), float(np.median(values)) / 1e6, steps[0].engine)
        for size, values in sorted(groups.items())
        if len(values) >= MIN_FOR_BASELINE
    )


def _least_ns(baselines: tuple[Baseline, ...], decode: Integers) -> tuple[Floats, NDArray[np.bool_]]:
    """The baseline of every step by its decoding requests, and for which of them it was interpolated (beyond
    the sizes seen: the nearest one's)."""
    import numpy as np

    if not baselines:
        return np.zeros(decode.size), np.zeros(decode.size, dtype=np.bool_)
    sizes = np.asarray([b.decode_requests for b in baselines], dtype=np.float64)
    medians = np.asarray([b.median_ms * 1e6 for b in baselines])
    return np.interp(decode.astype(np.float64), sizes, medians), ~np.isin(decode, sizes)


def _column(values: Sequence[int | None]) -> Integers:
    import numpy as np

    return np.asarray([value or 0 for value in values], dtype=np.int64)


def _sums(values: NDArray[np.generic]) -> Floats:
    """Running sums with a zero in front, so that a stretch is one subtraction."""
    import numpy as np

    return np.concatenate(([0.0], np.cumsum(values.astype(np.float64))))

"""What the checks look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from phasemeter.explain.cold import Cold
from phasemeter.explain.facts import Contradiction
from phasemeter.explain.levels import LevelLoad
from phasemeter.explain.load import Concurrency, Throughput
from phasemeter.explain.readings import Readings
from phasemeter.explain.shapes import ShapeSummary
from phasemeter.explain.verdict import Check, Verdict
from phasemeter.record.run import Run


class Case(Struct, frozen=True):
    """A run and what was derived from it. `ok` and `failed` are measured requests, `warm` the warm-up."""

    run: Run
    ok: Readings
    failed: Readings
    warm: Readings
    shapes: tuple[ShapeSummary, ...]
    concurrency: Concurrency
    levels: tuple[LevelLoad, ...]
    throughput: Throughput
    cold: Cold
    origin: dict[str, str]
    contradictions: dict[str, list[Contradiction]]
    """By request id; only measured requests that contradict themselves."""

    @property
    def measured(self) -> Readings:
        """All measured requests, successful or not."""
        return self.ok + self.failed

    @property
    def in_process(self) -> bool:
        """The engine calculates in the client's own process, so its CPU is the client's CPU."""
        return self.run.header.engine.kind == "local"


Doubt = Callable[[Case], Check]


def graded(name: str, verdict: Verdict, evidence: str, mend: str) -> Check:
    """A check that keeps its advice for when there is something to mend."""
    return Check(name, verdict, evidence, mend if verdict is not Verdict.OK else "")


def grade(value: float, *, warn: float, invalid: float | None = None) -> Verdict:
    """`value` above `invalid` or `warn`, else ok."""
    if invalid is not None and value > invalid:
        return Verdict.INVALID
    return Verdict.WARN if value > warn else Verdict.OK


def share(part: Sequence[object], whole: Sequence[object]) -> float:
    """Part of whole; 0 of nothing."""
    return len(part) / len(whole) if whole else 0.0


def percent(ratio: float) -> str:
    """A ratio as text, with a digit below 10 %."""
    return f"{ratio:.1%}" if ratio < 0.1 else f"{ratio:.0%}"

"""What a load asks for, beside a grid of shapes: a workload, arrivals, and how long; a run's header keeps it.

A load is a list of stages at one level each, visited one after another; between two stages the engine drains. The
same structs travel to worker processes: each draws the whole plan from the seed and sends its own share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from msgspec import Struct

from phasemeter.measure.item import Item
from phasemeter.record.request import Sampling


class Stage(Struct, frozen=True, omit_defaults=True):
    """One level of load. Closed loop: `concurrency`; open loop: `rate_per_s`; neither: the workload's own arrivals (a
    trace). It ends after `requests` arrivals or after `duration_ns`, whichever comes first; one of them is given,
    except for a trace, which has an end. `block` counts interleaved repeats of a level from 0."""

    concurrency: int | None = None
    rate_per_s: float | None = None
    requests: int | None = None
    duration_ns: int | None = None
    block: int = 0


class Arrivals(Struct, frozen=True, omit_defaults=True):
    """How arrivals of an open loop are spaced; see `measure.arrivals`.

    kind    constant | poisson | gamma | bursts | ramp
    cv      gamma: coefficient of variation of the gaps (1 is Poisson)
    on_s, off_s    bursts: Poisson arrivals for `on_s`, none for `off_s`; the rate is the mean over both
    from_rate_per_s   ramp: rises (or falls) evenly from here to the stage's rate over the stage
    """

    kind: str = "poisson"
    cv: float | None = None
    on_s: float | None = None
    off_s: float | None = None
    from_rate_per_s: float | None = None


class Patience(Struct, frozen=True, omit_defaults=True):
    """When the client gives a request up. None: never (but for `total_s`). `cancel_ratio` of the requests, drawn by the
    seed, are given up on purpose after `cancel_after_tokens` generated tokens (outcome "cancelled", tag
    `cancel=planned`)."""

    connect_s: float | None = None
    first_token_s: float | None = None
    gap_s: float | None = None
    total_s: float = 600.0
    cancel_ratio: float = 0.0
    cancel_after_tokens: int = 8


class Share(Struct, frozen=True, omit_defaults=True):
    """Which part of a plan a process sends. Slots, and an open loop's arrivals, are dealt out in turn: number k goes to
    process k % of. A closed loop's requests are dealt to the slots in turn, so that a process without a slot gets none
    and one with more slots gets more. A conversation stays whole and counts as one."""

    mine: int = 0
    of: int = 1

    def part(self, n: int) -> int:
        """How many of `n` slots are this process's."""
        return n // self.of + (self.mine < n % self.of)

    def dealt(self, n: int, slots: int | None) -> int:
        """How many of `n` requests are this process's; `slots` of a closed loop, None in an open one."""
        if slots is None:
            return self.part(n)
        rounds, rest = divmod(n, slots)
        return rounds * self.part(slots) + self.part(rest)

    def takes(self, number: int, slots: int | None) -> bool:
        """Whether the request (or conversation) of this number is this process's."""
        return (number if slots is None else number % slots) % self.of == self.mine


WHOLE = Share()


LATE_LIMIT_MS = 10.0


class Load(Struct, frozen=True, omit_defaults=True):
    """All that a load measurement was asked for; travels as JSON.

    workload   its specification as `measure.workload.open_workload` reads it
    stagger_s  closed loop: slots start evenly over so long instead of all at once
    think_s    closed loop: a slot waits so long (mean of an exponential; 0 none) before its next request
    warmup     warm-up requests before the first stage; None: until times settle
    """

    workload: dict[str, object]
    stages: tuple[Stage, ...]
    arrivals: Arrivals = Arrivals()
    patience: Patience = Patience()
    stagger_s: float = 0.0
    think_s: float = 0.0
    seed: int = 0
    warmup: int | None = None
    sampling: Sampling = Sampling()
    tokenizer: str | None = None
    """The model's tokenizer, by its name or folder, where prompts must be text."""
    late_limit_ms: float = LATE_LIMIT_MS
    """A request sent later than this after its arrival counts as late; more than 1 % of them invalidate the run."""


class Workload(Protocol):
    """A source of items. Pure: the same seed and stage give the same items in every process."""

    def items(self, stage: Stage, number: int) -> Iterator[Item]:
        """The items of a stage, the `number`-th of the load from 0, in order of arrival; endless where the stage's
        `requests` and `duration_ns` bound it. Indices go on from stage to stage."""
        ...

"""From a workload's items to strands of requests ready to go, made ahead of their time.

A prompt of 64 tokens takes 0.03 ms to draw, one of 50,000 takes 5 ms: made just before its send that would be our
lateness. So a stage begins with a stock of strands, which is filled up again one by one right after a send, when the
next one is not due at once.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from phasemeter.measure.arrivals import offsets
from phasemeter.measure.drive import Strand
from phasemeter.measure.item import Item
from phasemeter.measure.load import Load, Patience, Share, Stage, Workload
from phasemeter.record.request import Request

STOCK_TOKENS = 2_000_000
"""About 80 MB of token ids."""
STOCK_STRANDS = 4096
_CALM_NS = 1_000_000
"""Nothing is made while a send is due within this, unless half of the stock is gone."""


class Outline(Struct, frozen=True):
    """What is sent one after another: a single item, or the turns of a conversation. `due_ns` counts from the stage's
    start; 0 in a closed loop."""

    items: tuple[Item, ...]
    due_ns: int = 0


def outlines(load: Load, workload: Workload, stage: Stage, number: int, share: Share) -> Iterator[Outline]:
    """This process's part of a stage, in order of time; every process draws the whole and takes its own. Ends with the
    stage's `requests` or, in an open loop, with its duration."""
    items = itertools.islice(workload.items(stage, number), stage.requests)
    seed = load.seed + 1_000_003 * number  # stages differ, processes do not
    due = offsets(load.arrivals, stage, seed) if stage.rate_per_s is not None else None
    for place, group in enumerate(_conversations(items)):
        due_ns = group[0].arrive_ns or 0 if due is None else next(due, None)
        if due_ns is None or (
            stage.concurrency is None and stage.duration_ns is not None and due_ns >= stage.duration_ns
        ):
            return
        if share.takes(place, stage.concurrency):
            yield Outline(group, due_ns)


def _conversations(items: Iterator[Item]) -> Iterator[tuple[Item, ...]]:
    """Turns of one conversation stand next to each other."""
    group: list[Item] = []
    for item in items:
        follows = item.turn is not None and item.turn.number > 0 and group and group[0].turn is not None
        if group and not (follows and item.turn and group[0].turn and _same(group[0], item)):
            yield tuple(group)
            group = []
        group.append(item)
    if group:
        yield tuple(group)


def _same(first: Item, later: Item) -> bool:
    return bool(first.turn and later.turn and first.turn.conversation == later.turn.conversation)


class Supply:
    """An iterator of strands with a stock of them. `calm_ns` says how long until the next send is due, None: never."""

    def __init__(
        self,
        plan: Iterator[Outline],
        make: Callable[[Outline], Strand],
        calm_ns: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._make = make
        self._calm_ns = calm_ns
        self._stock: deque[tuple[int, Strand]] = deque()
        self._tokens = 0
        self._full = 0
        self._asked = False

    def fill(self) -> None:
        """Make the stock, before anything is timed."""
        while self._tokens < STOCK_TOKENS and len(self._stock) < STOCK_STRANDS and self._add():
            pass
        self._full = len(self._stock)

    def __iter__(self) -> Supply:
        return self

    def __next__(self) -> Strand:
        if not self._stock and not self._add():
            raise StopIteration
        tokens, strand = self._stock.popleft()
        self._tokens -= tokens
        if not self._asked:
            self._asked = True
            asyncio.get_running_loop().call_soon(self._restock)
        return strand

    def _restock(self) -> None:
        self._asked = False
        calm_ns = self._calm_ns()
        if calm_ns is not None and calm_ns < _CALM_NS and 2 * len(self._stock) > self._full:
            return
        if len(self._stock) < self._full:
            self._add()

    def _add(self) -> bool:
        outline = next(self._plan, None)
        if outline is None:
            return False
        tokens = sum(item.input_tokens for item in outline.items)
        self._stock.append((tokens, self._make(outline)))
        self._tokens += tokens
        return True


def planned_cancel(request: Request, item: Item, patience: Patience, seed: int) -> Request:
    """`request`, to be given up on purpose if the seed says so; the same in every process. One of a single token cannot
    be."""
    if not patience.cancel_ratio:
        return request
    draw = random.Random(f"cancel/{seed}/{item.index}").random()
    if draw >= patience.cancel_ratio or request.max_tokens < 2:
        return request
    after = min(patience.cancel_after_tokens, request.max_tokens - 1)
    return replace(request, cancel_after_tokens=after, tags={**request.tags, "cancel": "planned"})


def think_ns(load: Load, item: Item) -> int:
    """A slot's pause before this item: exponential with the load's mean, the same in every process."""
    if load.think_s <= 0:
        return 0
    return round(random.Random(f"think/{load.seed}/{item.index}").expovariate(1 / load.think_s) * 1e9)

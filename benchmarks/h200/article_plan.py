"""What is measured of ERNIE-4.5-0.3B on one H200, in which order, and how long it should take.

Every block visits every cell once in a random order of its own. The expected times come from a first look at the
same model on such a machine (vLLM 0.26, in process, medians of five; a slow, shared host: take them as +-30 %).
"""

from __future__ import annotations

import random

from msgspec import Struct

from phasemeter.measure.plan import Visit
from phasemeter.record.request import Cell

ARTICLE = ((64, 128), (128, 256), (256, 512))
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 7000)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Plan(Struct, frozen=True):
    """One server start. `per_length` requests are made of each length a block."""

    article: tuple[tuple[int, int], ...] = ARTICLE
    lengths: tuple[int, ...] = LENGTHS
    length_output: int = 16
    batches: tuple[int, ...] = BATCHES
    batch_shape: tuple[int, int] = (128, 64)
    blocks: int = 12
    per_length: int = 2
    budget_s: float = 80.0
    """Measuring ends before the block that would not fit in."""

    def base(self) -> list[Visit]:
        """Every cell once, block 0."""
        found = [Visit(Cell(new, out), 1) for new, out in self.article]
        found += [Visit(Cell(new, self.length_output), self.per_length) for new in self.lengths]
        new, out = self.batch_shape
        found += [Visit(Cell(new, out, concurrency=batch), batch) for batch in self.batches]
        return found

    def block(self, number: int, seed: int) -> list[Visit]:
        """The visits of one block; the anchor, in which drift shows, comes first."""
        order = random.Random(f"order/{seed}/{number}")
        base = self.base()
        visits = [Visit(Cell(self.lengths[0], self.length_output, block=number, anchor=True), 1)]
        for visit in order.sample(base, k=len(base)):
            cell = visit.cell
            here = Cell(cell.input_tokens, cell.output_tokens, cell.concurrency, block=number)
            visits.append(Visit(here, visit.requests))
        return visits

    def warmups(self) -> list[Cell]:
        """One cell for every input length and concurrency, largest first."""
        seen = {(v.cell.input_tokens, v.cell.concurrency): v.cell for v in self.base()}
        return sorted(seen.values(), key=lambda c: (-c.concurrency, -c.input_tokens))

    @property
    def requests(self) -> int:
        """Measured requests of all blocks."""
        return self.blocks * (1 + sum(visit.requests for visit in self.base()))


DEFAULT = Plan()
EAGER = Plan(batches=(1, 4, 16, 64, 256), blocks=10, per_length=1, budget_s=165.0)
"""A step takes 9 ms eagerly: (256, 512) alone costs 4.6 s a request, so the cheap cells are not repeated more."""
TINY = Plan(
    article=((8, 6), (16, 8)),
    lengths=(4, 16, 64),
    length_output=4,
    batches=(1, 4),
    batch_shape=(16, 6),
    blocks=6,
    per_length=1,
    budget_s=60.0,
)

_TPOT_MS = {
    False: ((1, 1.92), (4, 2.24), (16, 2.33), (64, 3.41), (256, 5.27)),
    True: ((1, 8.8), (4, 8.8), (16, 8.8), (64, 9.5), (256, 20.5)),
}
_FIRST_MS = {False: 10.0, True: 18.0}
_PREFILL_US_PER_TOKEN = 1.5
_CLIENT_MS = 6.0
"""Front end and the client's own parsing, a request."""


def expected_s(plan: Plan, *, eager: bool) -> float:
    """Seconds that the measured blocks should take, by the first look."""
    return plan.blocks * sum(_visit_s(visit, eager=eager) for visit in plan.base())


def _visit_s(visit: Visit, *, eager: bool) -> float:
    cell = visit.cell
    steps = cell.output_tokens - 1
    prompt = cell.input_tokens * cell.concurrency * _PREFILL_US_PER_TOKEN / 1e3
    wave_ms = _FIRST_MS[eager] + prompt + steps * _tpot_ms(cell.concurrency, eager=eager)
    parse_ms = 0.02 * visit.requests * cell.output_tokens
    return (wave_ms * visit.requests / cell.concurrency + _CLIENT_MS + parse_ms) / 1e3


def _tpot_ms(batch: int, *, eager: bool) -> float:
    below = [ms for size, ms in _TPOT_MS[eager] if size <= batch]
    above = [ms for size, ms in _TPOT_MS[eager] if size >= batch]
    return (below[-1] + above[0]) / 2

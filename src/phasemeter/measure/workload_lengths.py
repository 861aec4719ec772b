"""Prompts of their own, with lengths drawn from two distributions; and what all kinds of workloads share."""

from __future__ import annotations

import random
from collections.abc import Iterator

from msgspec import Struct

from phasemeter.measure.item import Item
from phasemeter.measure.lengths import parse_lengths
from phasemeter.measure.load import Stage

STAGE_INDICES = 1_000_000
"""Indices of the n-th stage begin at n times this, which is more than a run holds: no two prompts of a run are alike,
however long a stage was."""


class LengthsSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """`input`, `output`: distributions of tokens, as `measure.lengths.parse_lengths` reads them."""

    input: str | int
    output: str | int


class ByLengths:
    """Independent requests."""

    def __init__(self, spec: LengthsSpec, seed: int) -> None:
        self._seed = seed
        self._input = parse_lengths(str(spec.input), "--workload lengths input")
        self._output = parse_lengths(str(spec.output), "--workload lengths output")

    def items(self, stage: Stage, number: int) -> Iterator[Item]:
        """Endless."""
        del stage
        draw = source("lengths", self._seed, number)
        index = number * STAGE_INDICES
        while True:
            yield Item(index, self._input.draw(draw), self._output.draw(draw))
            index += 1


def source(what: str, seed: int, number: int) -> random.Random:
    """Random numbers of one stage; the same in every process."""
    return random.Random(f"{what}/{seed}/{number}")

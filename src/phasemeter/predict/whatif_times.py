"""Step models for simulations: a linear one, and a table that asks a slow one seldom.

A simulation takes hundreds of thousands of decode steps. For one number of sequences their time is a curve over the
summed context; it is taken as straight between knots a quarter of an octave apart. A model that is affine in the
context is met exactly; one that bends (a roofline's corner) within a fraction of a per cent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from phasemeter.predict.steps import StepModel
from phasemeter.record.errors import InputError

_PER_OCTAVE = 4


class LinearSteps(Struct, frozen=True):
    """The plainest step model: host + per prompt token + per (query, key) pair + per sequence + per token of context,
    in seconds. For tests, and for what is known from a formula alone."""

    step: float = 0.0
    prompt_token: float = 0.0
    pair: float = 0.0
    sequence: float = 0.0
    context_token: float = 0.0
    front_end: float = 0.0
    front_end_token: float = 0.0

    def step_s(self, prefill: Sequence[tuple[int, int]], decode: tuple[int, int] = (0, 0)) -> float:
        """As `StepModel.step_s`."""
        sequences, context = decode
        total = self.step + self.sequence * sequences + self.context_token * context
        for new, behind in prefill:
            total += self.prompt_token * new + self.pair * (new * behind + new * (new + 1) / 2)
        return total

    def front_end_s(self, input_tokens: int) -> float:
        """As `StepModel.front_end_s`."""
        return self.front_end + self.front_end_token * input_tokens


class Line(NamedTuple):
    """Seconds of a decode step of one number of sequences: `at_low + slope * (context - low)` up to a context of
    `high`."""

    low: int
    high: int
    at_low: float
    slope: float


class DecodeTimes:
    """Decode steps of one model, as lines; asked once a knot."""

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self._lines: dict[tuple[int, int], Line] = {}

    def line(self, sequences: int, context: int) -> Line:
        """The line that holds `context`, the summed context of `sequences`."""
        place = int(_PER_OCTAVE * math.log2(context))
        found = self._lines.get((sequences, place))
        if found is None or not found.low <= context <= found.high:
            found = self._lines[sequences, place] = self._made(sequences, context, place)
        return found

    def _made(self, sequences: int, context: int, place: int) -> Line:
        low = min(context, max(sequences, math.floor(2 ** (place / _PER_OCTAVE))))
        high = max(context, low + 1, math.ceil(2 ** ((place + 1) / _PER_OCTAVE)))
        at_low, at_high = (
            checked_s(self._model.step_s((), (sequences, low))),
            checked_s(self._model.step_s((), (sequences, high))),
        )
        return Line(low, high, at_low, (at_high - at_low) / (high - low))


def checked_s(seconds: float) -> float:
    """A step's time as a simulation can use it. Raises InputError for one that is negative or not finite."""
    if not (math.isfinite(seconds) and seconds >= 0.0):
        raise InputError("step time", seconds, "the model gives no usable time here; fit it on more cells")
    return seconds


def steps_s(line: Line, sequences: int, context: int, steps: int) -> float:
    """Seconds of `steps` decode steps in a row, the first at `context`: an arithmetic series."""
    first = line.at_low + line.slope * (context - line.low)
    return steps * (first + line.slope * sequences * (steps - 1) / 2)


def steps_until(line: Line, sequences: int, context: int, seconds: float, most: int) -> int:
    """The fewest of 1 to `most` steps that last at least `seconds`."""
    first = line.at_low + line.slope * (context - line.low)
    half = line.slope * sequences / 2
    b = first - half
    if abs(half) * most * most < 1e-12 * max(abs(b) * most, 1e-300):
        guess = seconds / b if b > 0 else most
    else:
        root = b * b + 4 * half * seconds
        guess = most if root < 0 else (math.sqrt(root) - b) / (2 * half)
    found = min(most, max(1, math.ceil(guess)))
    while found > 1 and steps_s(line, sequences, context, found - 1) >= seconds:
        found -= 1
    while found < most and steps_s(line, sequences, context, found) < seconds:
        found += 1
    return found

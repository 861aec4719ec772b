"""The seam between whoever knows what one engine step costs and whoever plays many of them.

A continuous-batching engine works in steps. One step processes some new prompt tokens (whole prompts or chunks of them)
and one token for each sequence that decodes. What a step costs, and what the front end adds to a request outside of
any step, is all that a simulation of such an engine has to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Chunk(NamedTuple):
    """A piece of a prompt in one step: `new` tokens are processed behind `context` tokens already in the cache. A plain
    (new, context) tuple does as well."""

    new: int
    context: int = 0


class Decoding(NamedTuple):
    """The sequences that decode in one step: how many, and the sum of their contexts (tokens attended over, the new one
    included). A plain (sequences, context_tokens) tuple does as well."""

    sequences: int = 0
    context_tokens: int = 0


class StepModel(Protocol):
    """What an engine's steps cost, in seconds. Both methods are pure and quick: a simulation calls them once a step."""

    def step_s(self, prefill: Sequence[tuple[int, int]], decode: tuple[int, int] = (0, 0)) -> float:
        """Seconds of one step that processes the chunks `prefill`, each (new, context) as in `Chunk`, together with one
        token for each of the sequences `decode`, (sequences, summed context) as in `Decoding`. Host time of the step is
        included. Raises InputError for a step without work or a count below zero."""
        ...

    def front_end_s(self, input_tokens: int) -> float:
        """Seconds a request of `input_tokens` spends outside of queue and steps before its first token is seen by the
        client: HTTP, tokenising, hand-over, delivery. They delay the request, they do not occupy the engine."""
        ...


def prefill_s(model: StepModel, batch: Sequence[tuple[int, int]]) -> float:
    """Seconds of one step that prefills `batch`, a sequence of (new, context), alone."""
    return model.step_s(batch, Decoding())

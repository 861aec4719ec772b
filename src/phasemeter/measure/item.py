"""What a workload yields: one request in outline, cheap to draw and the same in every process for one seed.

An `Item` says how long, when and after what; the prompt itself is made from it later, ahead of its time and only by
the process that sends it.
"""

from __future__ import annotations

from msgspec import Struct


class Prefix(Struct, frozen=True, omit_defaults=True):
    """The opening that a prompt shares with others: the first `tokens` of the endless text named `name`. Two items
    with one name share min(tokens) tokens from their first on, and nothing else."""

    name: str
    tokens: int


class Turn(Struct, frozen=True, omit_defaults=True):
    """A turn of a conversation, counted from 0. Turn k > 0 is due `think_ns` after turn k - 1 has ended; its prompt
    opens with the whole prompt of turn k - 1: both are openings of the conversation's own text, which `Item.prefix` (or
    the last of `Item.chain`) names."""

    conversation: str
    number: int
    think_ns: int = 0


class Item(Struct, frozen=True, omit_defaults=True):
    """One request in outline.

    index           its place in the plan from 0; with the run's id it names the request
    input_tokens    of the whole prompt, shared prefix and earlier turns included
    output_tokens   asked for; None: the model's own end of text (needs a `prompt` that asks something)
    arrive_ns       due so long after the stage began; None in a closed loop, and for turns after the first
    chain           shared openings one after another, where one does not say it (a system prompt and a conversation,
                    the hashed blocks of a trace); then `prefix` is None
    prompt          the text itself, where the data set has one; else it is drawn to the exact length
    ignore_eos      False where a data set's question is answered at its own length
    """

    index: int
    input_tokens: int
    output_tokens: int | None
    arrive_ns: int | None = None
    prefix: Prefix | None = None
    chain: tuple[Prefix, ...] = ()
    turn: Turn | None = None
    prompt: str | None = None
    ignore_eos: bool = True
    tags: dict[str, str] = {}

    @property
    def openings(self) -> tuple[Prefix, ...]:
        """All shared openings in their order, none for a prompt of its own."""
        return self.chain if self.prefix is None else (self.prefix,)

"""Conversations: every turn's prompt holds all that was said before it, and is sent when its user has thought.

The prompt of turn k is the opening of one endless text, that of the conversation, so that it opens with the whole
prompt of turn k - 1. Where the answer of turn k - 1 stood, the text has a stand-in of the same length: what the server
really answered is not sent back. So a prefix cache finds the earlier prompt, and not the earlier answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from phasemeter.measure.item import Item, Prefix, Turn
from phasemeter.measure.lengths import MOST_TOKENS, parse_lengths, parse_seconds
from phasemeter.measure.load import Stage
from phasemeter.measure.workload_lengths import STAGE_INDICES, source
from phasemeter.record.errors import InputError

_FIELD = "--workload conversations"


class ConversationsSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """How conversations go; all but `system` and `longest` are distributions.

    turns     requests of a conversation
    input     tokens that the user adds in a turn
    output    tokens of an answer
    first     tokens of the first message, where it differs from `input`
    think     seconds from the end of an answer to the next turn
    system    tokens that open every prompt of the stage, the same for all conversations
    longest   a conversation ends before the turn whose prompt and answer would be longer than this
    """

    turns: str | int
    input: str | int
    output: str | int
    first: str | int | None = None
    think: str | float = "0"
    system: int = 0
    longest: int = MOST_TOKENS


class Conversations:
    """Conversations one after another, the turns of each next to each other."""

    def __init__(self, spec: ConversationsSpec, seed: int) -> None:
        self._seed = seed
        self._turns = parse_lengths(str(spec.turns), f"{_FIELD} turns")
        self._input = parse_lengths(str(spec.input), f"{_FIELD} input")
        self._first = self._input if spec.first is None else parse_lengths(str(spec.first), f"{_FIELD} first")
        self._output = parse_lengths(str(spec.output), f"{_FIELD} output")
        self._think = parse_seconds(str(spec.think), f"{_FIELD} think")
        self._system, self._longest = spec.system, spec.longest
        if not 0 <= spec.system <= MOST_TOKENS:
            raise InputError(f"{_FIELD} system", spec.system, f"give from 0 to {MOST_TOKENS} tokens")
        least = spec.system + self._first.at(0.0) + self._output.at(0.0)
        if spec.longest < least:
            raise InputError(f"{_FIELD} longest", spec.longest, f"the shortest first turn has {least} tokens")

    def items(self, stage: Stage, number: int) -> Iterator[Item]:
        """Endless."""
        del stage
        draw = source("conversations", self._seed, number)
        index, count = number * STAGE_INDICES, 0
        while True:
            name = f"{number}/conversation-{count}"
            said, count = self._system, count + 1
            for turn in range(self._turns.draw(draw)):
                prompt = said + (self._input if turn else self._first).draw(draw)
                output, think_ns = self._output.draw(draw), self._think.draw_ns(draw)
                if prompt + output > self._longest:
                    break
                yield self._item(index, prompt, output, Turn(name, turn, think_ns if turn else 0), number)
                index, said = index + 1, prompt + output

    def _item(self, index: int, prompt: int, output: int, turn: Turn, number: int) -> Item:
        own = Prefix(turn.conversation, prompt - self._system)
        if not self._system:
            return Item(index, prompt, output, prefix=own, turn=turn)
        return Item(index, prompt, output, chain=(Prefix(f"{number}/system", self._system), own), turn=turn)

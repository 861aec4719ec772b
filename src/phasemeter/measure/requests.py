"""From a cell of the plan, or an item of a workload, to the requests that go out, with prompts of the exact length."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from phasemeter.measure.item import Item
from phasemeter.measure.load import WHOLE, Share
from phasemeter.measure.prompts import Part, TextLengths, TextSize, text, token_ids
from phasemeter.measure.text_tokens import open_tokenizer
from phasemeter.record.engine import EngineInfo
from phasemeter.record.request import Cell, Request, Sampling


class RequestMaker:
    """Makes requests with consecutive serial numbers, so that no two prompts of a run are alike.

    Where the engine takes token ids the prompt has exactly `cell.input_tokens` of them. Else it is text of the size
    that `lengths` has learnt for that many tokens.
    """

    def __init__(
        self,
        info: EngineInfo,
        run_id: str,
        sampling: Sampling,
        extra: dict[str, object] | None = None,
        share: Share = WHOLE,
    ) -> None:
        self.by_ids = info.takes_token_ids
        self.lengths = TextLengths()
        self.share = share
        self._vocab_tokens = info.vocab_tokens
        self._run_id = run_id
        self._sampling = sampling
        self._extra = extra or {}
        self._serial = itertools.count(share.mine, share.of)

    def size(self, cell: Cell) -> TextSize:
        """The text size in use for the cell's input length."""
        return self.lengths.size(cell.input_tokens)

    def make(self, cell: Cell, max_tokens: int | None = None) -> Request:
        """The next request of `cell`; `max_tokens` shortens a warm-up."""
        serial = next(self._serial)
        ids = prompt = None
        if self.by_ids:
            ids = token_ids(cell.input_tokens, serial, self._run_id, self._vocab_tokens)
        else:
            size = self.size(cell)
            prompt = text(size.words, size.pad_characters, serial, self._run_id)
        return Request(
            id=f"{self._run_id}-{serial:06d}",
            cell=cell,
            max_tokens=max_tokens if max_tokens is not None else cell.output_tokens,
            prompt=prompt,
            token_ids=ids,
            sampling=self._sampling,
            extra=self._extra,
        )

    def several(self, cell: Cell, n: int, max_tokens: int | None = None) -> Iterator[Request]:
        """`n` requests of `cell`. They are made before the first is sent: drawing a prompt is no client lag."""
        return iter([self.make(cell, max_tokens) for _ in range(n)])


OWN_END_TOKENS = 1024
"""The most an answer may have that is to end by itself."""


class ItemMaker:
    """Makes the request of an item; an item's index is its prompt's serial number.

    Where the engine takes token ids a prompt has exactly `item.input_tokens` of them, and openings are shared to the
    token. Else it is text: exact by `tokenizer` where there is one, else of the size that `lengths` has learnt. An item
    with a text of its own is sent as it is.
    """

    def __init__(
        self,
        info: EngineInfo,
        run_id: str,
        sampling: Sampling,
        extra: dict[str, object] | None = None,
        tokenizer: str | None = None,
    ) -> None:
        self.by_ids = info.takes_token_ids
        self.lengths = TextLengths()
        self._vocab_tokens = info.vocab_tokens
        self._run_id = run_id
        self._sampling = sampling
        self._extra = extra or {}
        self._tokenizer = None if tokenizer is None or self.by_ids else open_tokenizer(tokenizer)
        self._template_tokens = 0

    def make(self, item: Item, cell: Cell) -> Request:
        """The request of `item` at its place in the plan; how many tokens to generate is the item's."""
        ids = prompt = None
        if item.prompt is not None:
            prompt = item.prompt
            cell = replace(cell, input_tokens=cell.input_tokens + self._template_tokens)
        elif self.by_ids:
            parts = [Part(opening.name, opening.tokens) for opening in item.openings]
            ids = token_ids(item.input_tokens, item.index, self._run_id, self._vocab_tokens, parts)
        else:
            prompt = self._text(item)
        sampling = self._sampling if item.ignore_eos else replace(self._sampling, ignore_eos=False)
        return Request(
            id=f"{self._run_id}-{item.index:06d}",
            cell=cell,
            max_tokens=item.output_tokens if item.output_tokens is not None else OWN_END_TOKENS,
            prompt=prompt,
            token_ids=ids,
            sampling=sampling,
            tags=_tags(item),
            extra=self._extra,
        )

    def learn(self, n_tokens: int, counted: int) -> None:
        """Note that the server counted `counted` tokens for a text that was to have `n_tokens`."""
        if self._tokenizer is not None:
            self._template_tokens += counted - n_tokens
        else:
            self.lengths.learn(self.lengths.size(n_tokens), counted)

    def _text(self, item: Item) -> str:
        tokenizer = self._tokenizer
        if tokenizer is None:
            size = self.lengths.size(item.input_tokens)
            parts = _in_words(item, lambda tokens: self.lengths.size(tokens).words)
            return text(size.words, size.pad_characters, item.index, self._run_id, parts)
        # What the server puts in front (a template, BOS) opens every prompt, and so the first opening.
        front, cost = tokenizer.extra_tokens + self._template_tokens, tokenizer.tokens_a_word
        n_words, pad = divmod(max(cost, item.input_tokens - front), cost)
        parts = _in_words(item, lambda tokens: max(0, tokens - front) // cost)
        return text(n_words, pad, item.index, self._run_id, parts, tokenizer.words)


def _in_words(item: Item, words: Callable[[int], int]) -> list[Part]:
    """An item's openings with their length in words; `words` tells how many the first so many tokens are."""
    parts: list[Part] = []
    tokens = before = 0
    for opening in item.openings:
        tokens += opening.tokens
        after = max(before, words(tokens))
        parts.append(Part(opening.name, after - before))
        before = after
    return parts


def _tags(item: Item) -> dict[str, str]:
    if item.turn is None:
        return item.tags
    return {**item.tags, "conversation": item.turn.conversation, "turn": str(item.turn.number)}

"""From a cell of the plan to the requests that go out, with prompts of the exact length."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from phasemeter.measure.load import WHOLE, Share
from phasemeter.measure.prompts import TextLengths, TextSize, text, token_ids
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

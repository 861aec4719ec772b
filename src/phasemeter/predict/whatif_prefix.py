"""Shared openings of prompts in a block cache: who holds them, and when they are forgotten.

As in vLLM's block pool (0.32, v1/core/block_pool.py): only whole blocks are shared, a block becomes usable as soon as
it is scheduled, blocks that nobody uses stay in a queue of free ones and are forgotten, the end of a prompt first, when
that queue has been worked through up to them. Kept per opening, not per block, so a request costs O(its openings).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

Openings = Sequence[tuple[str, int]]
"""Of one prompt, in order: (key, tokens). Prompts share an opening if all keys up to it are the same; with one key but
different tokens they share the shorter."""


class Pool(Struct):
    """Blocks of one replica. `handed_out` counts allocations from the queue of free blocks, ever."""

    blocks: int
    free: int
    handed_out: int = 0

    def allocate(self, blocks: int) -> None:
        """From the head of the queue."""
        self.free -= blocks
        self.handed_out += blocks


class _Opening(Struct, gc=False):
    """`blocks` are computed, `held` of them in use. The others lie in the queue behind `ahead` free blocks since
    `handed_out` was `since`."""

    blocks: int = 0
    held: int = 0
    users: int = 0
    since: int = 0
    ahead: int = 0


class PrefixCache:
    """The openings of one replica. An opening's blocks are held until the last of its users has gone, which is a little
    longer than in vLLM where the users of its end leave before those of its beginning."""

    def __init__(self, pool: Pool, block_tokens: int) -> None:
        self._pool, self._block = pool, block_tokens
        self._openings: dict[str, _Opening] = {}

    def hit(self, openings: Openings, most_tokens: int) -> tuple[int, int]:
        """(blocks of the prompt's beginning that are cached, how many of them nobody uses now). At most `most_tokens`:
        the last token of a prompt is always computed."""
        hit = unused = tokens = 0
        for key, length in openings:
            found = self._openings.get(key)
            mine = (tokens + length) // self._block - tokens // self._block
            tokens += length
            if found is None:
                break
            usable = min(self._alive(found), mine, most_tokens // self._block - hit)
            hit += usable
            unused += max(0, usable - found.held)
            if usable < mine:
                break
        return hit, unused

    def pin(self, openings: Openings, hit: int) -> None:
        """A request that uses `hit` blocks, and will compute the rest, is admitted."""
        tokens = 0
        for key, length in openings:
            mine = (tokens + length) // self._block - tokens // self._block
            tokens += length
            found = self._openings.setdefault(key, _Opening())
            found.blocks = self._alive(found)
            used = min(hit, mine)
            if used > found.held:
                self._pool.free -= used - found.held
                found.held = used
            found.users += 1
            hit -= used

    def computed(self, openings: Openings, tokens: int) -> int:
        """The first `tokens` of a prompt have been scheduled: blocks that have passed from the request to its openings
        by that."""
        passed = begin = 0
        for key, length in openings:
            first, last = begin // self._block, (begin + length) // self._block
            begin += length
            found = self._openings[key]
            more = min(last, tokens // self._block) - first - found.blocks
            if more > 0:
                passed += more
                found.blocks += more
                found.held += more
        return passed

    def release(self, openings: Openings) -> None:
        """A request that had them pinned has gone; call after its own blocks are freed, which lie behind them."""
        for key, _ in reversed(openings):
            found = self._openings[key]
            found.users -= 1
            if found.users == 0:
                found.since, found.ahead = self._pool.handed_out, self._pool.free
                self._pool.free += found.held
                found.held = 0

    def _alive(self, found: _Opening) -> int:
        lost = max(0, self._pool.handed_out - found.since - found.ahead)
        return max(found.held, found.blocks - lost)

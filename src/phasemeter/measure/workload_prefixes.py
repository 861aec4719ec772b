"""Prompts that open alike: groups of shared prefixes, some more popular than others, at a controlled hit rate.

Which share of the prompt tokens a prefix cache can serve follows by arithmetic. A cache works in whole blocks of B
tokens (16 in vLLM), so a request whose prefix of P tokens is known finds floor(P/B)*B tokens. Of n requests a share s
opens with a prefix; the first request of every prefix finds nothing, and E prefixes are met in the mean:

    hit ratio = (s*n - E) * floor(P/B)*B / (n * mean prompt)        E = sum over prefixes of 1 - (1 - s*p)^n

with p the prefix's popularity. This holds for a cache that evicts nothing and requests that follow on one another: two
that run at the same time may both miss.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from itertools import pairwise

from msgspec import Struct

from phasemeter.measure.item import Item, Prefix
from phasemeter.measure.lengths import parse_lengths, zipf_table
from phasemeter.measure.load import Stage
from phasemeter.measure.workload_lengths import STAGE_INDICES, source
from phasemeter.record.errors import InputError

BLOCK_TOKENS = 16
"""vLLM's default block size (vllm/config/cache.py, `DEFAULT_BLOCK_SIZE`)."""
_MOST_GROUPS = 100_000
_FIELD = "--workload prefixes"


class PrefixesSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Every prompt has `prefix` tokens and then `input` more; a `share` of them open with one of `groups` prefixes.

    input     distribution of the tokens after the prefix; a prompt without a shared one has its own instead
    output    distribution
    prefix    tokens of each prefix
    groups    number of prefixes; the k-th is drawn with a probability that falls as k**-zipf (0: all alike)
    share     of the requests that open with a shared prefix; default 1 unless `hit` is given
    hit       instead of `share`: the ratio of prompt tokens that a cache of 16-token blocks finds, once it knows all
              prefixes
    """

    input: str | int
    output: str | int
    prefix: int
    groups: int = 1
    share: float | None = None
    hit: float | None = None
    zipf: float = 0.0


class Prefixes:
    """Requests of which a share opens with a known prefix. Every stage has prefixes of its own, so that stages compare:
    none finds the cache warm from the one before."""

    def __init__(self, spec: PrefixesSpec, seed: int) -> None:
        self._seed = seed
        self._spec = spec
        self._input = parse_lengths(str(spec.input), f"{_FIELD} input")
        self._output = parse_lengths(str(spec.output), f"{_FIELD} output")
        _check(spec)
        self.share = self._share(spec)
        self._table = zipf_table(spec.zipf, spec.groups)

    def items(self, stage: Stage, number: int) -> Iterator[Item]:
        """Endless."""
        del stage
        spec, draw = self._spec, source("prefixes", self._seed, number)
        index = number * STAGE_INDICES
        while True:
            tokens = spec.prefix + self._input.draw(draw)
            output = self._output.draw(draw)
            shares, rank = draw.random() < self.share, bisect.bisect_right(self._table, draw.random())
            prefix = Prefix(f"{number}/prefix-{rank}", spec.prefix) if shares else None
            yield Item(index, tokens, output, prefix=prefix)
            index += 1

    def expected_hit_ratio(self, requests: int | None = None, block_tokens: int = BLOCK_TOKENS) -> float:
        """Prompt tokens found in a cache of whole blocks, of all prompt tokens, over the first `requests` of a stage;
        None: in the long run. The formula is at the top of this file."""
        found = self._spec.prefix // block_tokens * block_tokens
        mean = self._spec.prefix + self._input.mean
        if requests is None:
            return self.share * found / mean
        popular = [high - low for low, high in pairwise([0.0, *self._table])]
        met = math.fsum(1 - (1 - self.share * p) ** requests for p in popular)
        return (self.share * requests - met) * found / (requests * mean)

    def _share(self, spec: PrefixesSpec) -> float:
        if spec.hit is None:
            return 1.0 if spec.share is None else spec.share
        most = spec.prefix // BLOCK_TOKENS * BLOCK_TOKENS / (spec.prefix + self._input.mean)
        if spec.hit > most:
            raise InputError(
                f"{_FIELD} hit",
                spec.hit,
                f"with these lengths at most {most:.3f} of the tokens can be found; raise prefix or lower input",
            )
        return spec.hit / most if most else 0.0


def _check(spec: PrefixesSpec) -> None:
    if spec.hit is not None and spec.share is not None:
        raise InputError(f"{_FIELD} hit", spec.hit, "share follows from hit; give one of the two")
    for name, ratio in (("share", spec.share), ("hit", spec.hit)):
        if ratio is not None and not 0 <= ratio <= 1:
            raise InputError(f"{_FIELD} {name}", ratio, "a ratio from 0 to 1")
    if not 1 <= spec.prefix <= 10_000_000:
        raise InputError(f"{_FIELD} prefix", spec.prefix, "a prefix has from 1 to 10000000 tokens")
    if not 1 <= spec.groups <= _MOST_GROUPS:
        raise InputError(f"{_FIELD} groups", spec.groups, f"give from 1 to {_MOST_GROUPS}")
    if not 0 <= spec.zipf <= 20:
        raise InputError(f"{_FIELD} zipf", spec.zipf, "the exponent is from 0 (all alike) to 20")

"""Replay of a trace: its lengths, its arrivals, and the prompt blocks that its requests share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from msgspec import Struct

from phasemeter.measure.item import Item, Prefix
from phasemeter.measure.load import Stage
from phasemeter.measure.traces import MOONCAKE_BLOCK_TOKENS, MOST_ROWS, Row, read_trace
from phasemeter.measure.workload_lengths import STAGE_INDICES
from phasemeter.record.errors import InputError

_FIELD = "--workload trace"


class TraceSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Which file, and which part of it.

    file      path, or sample:azure, sample:burstgpt, sample:mooncake
    scale     2 replays twice as fast: the rate doubles, the gaps are half as long
    start_s, length_s   the window, in seconds of the trace's own time from its first row
    most      the first so many requests of the window
    """

    file: str
    scale: float = 1.0
    start_s: float = 0.0
    length_s: float | None = None
    most: int | None = None


class Trace:
    """A trace's requests in order of time. In a stage without rate and concurrency they arrive as they did, and the
    items end with the trace; else they arrive as the stage says and the trace begins anew at its end, with other
    prompts and the tag `round`."""

    def __init__(self, spec: TraceSpec, seed: int) -> None:
        del seed  # a trace is what it is
        _check(spec)
        length_ns = None if spec.length_s is None else round(spec.length_s * 1e9)
        self.file = read_trace(spec.file, (round(spec.start_s * 1e9), length_ns), spec.most)
        self._scale = spec.scale

    def items(self, stage: Stage, number: int) -> Iterator[Item]:
        """Endless unless the arrivals are the trace's own."""
        own = stage.rate_per_s is None and stage.concurrency is None
        index = number * STAGE_INDICES
        for again in itertools.count():
            tags = {"round": str(again)} if again else {}
            for row in self.file.rows:
                yield Item(
                    index,
                    row.input_tokens,
                    row.output_tokens,
                    arrive_ns=round(row.at_ns / self._scale) if own else None,
                    chain=_blocks(row, f"{number}/{again}"),
                    tags=tags,
                )
                index += 1
            if own:
                return


def _blocks(row: Row, scope: str) -> tuple[Prefix, ...]:
    """The prompt's blocks by their ids; the last may be cut."""
    last = len(row.blocks) - 1
    return tuple(
        Prefix(
            f"{scope}/block-{name}",
            row.input_tokens - last * MOONCAKE_BLOCK_TOKENS if place == last else MOONCAKE_BLOCK_TOKENS,
        )
        for place, name in enumerate(row.blocks)
    )


def _check(spec: TraceSpec) -> None:
    if not (math.isfinite(spec.scale) and 1e-4 <= spec.scale <= 1e4):
        raise InputError(
            "--trace-scale", spec.scale, "2 replays twice as fast, 0.5 half as fast; from 0.0001 to 10000"
        )
    if not 0 <= spec.start_s <= 1e10:
        raise InputError(
            "--trace-window", spec.start_s, "the start is in seconds of the trace's own time, 0 or more"
        )
    if spec.length_s is not None and not 0 < spec.length_s <= 1e10:
        raise InputError(
            "--trace-window", spec.length_s, "the length is in seconds of the trace's own time, above 0"
        )
    if spec.most is not None and not 1 <= spec.most <= MOST_ROWS:
        raise InputError(f"{_FIELD} most", spec.most, f"give from 1 to {MOST_ROWS}")

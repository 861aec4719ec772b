"""Warm-up: text lengths found, every shape run until its times settle. All of it stays in the record, marked."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Iterable

from msgspec.structs import replace

from phasemeter.explain.phases import tpot_ns, ttft_ns
from phasemeter.measure.requests import RequestMaker
from phasemeter.record.engine import Outcome
from phasemeter.record.request import Cell, Request
from phasemeter.record.timeline import Timeline

MOST_ROUNDS = 8
"""A shape that has not settled by then is measured all the same, and a check says so."""
MOST_OUTPUT_TOKENS = 32
SETTLED_RATIO = 0.10
SETTLED_NS = 500_000
"""Two rounds agree when their times differ by less than the larger of the two tolerances."""

Visit = Callable[[Cell, list[Request]], Awaitable[list[Timeline]]]


async def find_text_lengths(
    lengths: Iterable[int], ask: Callable[[int], Awaitable[int | None]], learn: Callable[[int, int], None]
) -> None:
    """Ask the server how it counts our text until every input length is met, four questions a length at the most.
    `ask(n)` sends a prompt of `n` tokens as we write them and returns how many the server counted. A server without
    usage leaves one word a token; the check on prompt tokens then says that nobody counted."""
    for n_tokens in sorted(set(lengths)):
        for _ in range(4):
            counted = await ask(n_tokens)
            if counted is None:
                return
            learn(n_tokens, counted)
            if counted == n_tokens:
                break


async def warm_up(maker: RequestMaker, cells: list[Cell], rounds: int | None, visit: Visit) -> None:
    """Run every cell `rounds` times, or (None) until its times settle."""
    for cell in cells:
        warm = replace(cell, warmup=True)
        tokens = min(cell.output_tokens, MOST_OUTPUT_TOKENS)
        requests = maker.share.part(cell.slots)

        async def play(warm: Cell = warm, requests: int = requests, tokens: int = tokens) -> list[Timeline]:
            return await visit(warm, list(maker.several(warm, requests, tokens)))

        await until_settled(rounds, play)


async def until_settled(rounds: int | None, play: Callable[[], Awaitable[list[Timeline]]]) -> None:
    """Play `rounds` rounds, or (None) until the median TTFT and TPOT of two rounds in a row agree."""
    before: tuple[float, float] | None = None
    for _ in range(MOST_ROUNDS if rounds is None else rounds):
        now = _times(await play())
        if rounds is None and before is not None and now is not None and _agree(before, now):
            break
        before = now


def _times(timelines: list[Timeline]) -> tuple[float, float] | None:
    ok = [t for t in timelines if t.outcome is Outcome.OK]
    firsts = [ns for t in ok if (ns := ttft_ns(t)) is not None]
    steps = [ns for t in ok if (ns := tpot_ns(t)) is not None]
    if not firsts:
        return None
    return statistics.median(firsts), statistics.median(steps) if steps else 0.0


def _agree(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return all(abs(x - y) <= max(SETTLED_NS, SETTLED_RATIO * max(x, y)) for x, y in zip(a, b, strict=True))

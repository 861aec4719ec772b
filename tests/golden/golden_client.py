"""Runs our client against the oracle and holds its stamps against the oracle's log."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import TypeVar

from golden.oracle import Oracle, Seen
from phasemeter.engines.openai_http import HttpOptions, HttpTimeouts, OpenAIHttp
from phasemeter.record.engine import GENERATED, Emission, Result
from phasemeter.record.request import Cell, Request, Sampling

T = TypeVar("T")

EACH_MS = 40.0
"""How far one stamp may be off on a busy machine."""
MEDIAN_MS = 5.0
MEDIAN_OF = 12
"""Of fewer values the median is one mood of the machine: three of five late by 10 ms say nothing of the client."""


def request(name: str = "r", **more: object) -> Request:
    fields: dict = {"prompt": "Say it.", "max_tokens": 8, "sampling": Sampling(temperature=0.0)} | more
    return Request(id=name, cell=Cell(input_tokens=5, output_tokens=8), **fields)


def new_loop(kind: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if kind == "asyncio":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop


def with_engine(
    oracle: Oracle,
    use: Callable[[OpenAIHttp], Awaitable[T]],
    *,
    loop: str = "asyncio",
    timeouts: HttpTimeouts | None = None,
    **options: object,
) -> T:
    """Start an engine on the oracle, use it, close it."""

    async def main() -> T:
        fields: dict = {
            "url": oracle.url,
            "api": "chat",
            "timeouts": timeouts or HttpTimeouts(total_s=30.0),
        } | options
        engine = OpenAIHttp(HttpOptions(**fields))
        try:
            await engine.start()
            return await use(engine)
        finally:
            await engine.close()

    with asyncio.Runner(loop_factory=new_loop(loop)) as runner:
        return runner.run(main())


def one(oracle: Oracle, *, ask: Request | None = None, **options: object) -> Result:
    """The result of one request."""

    async def use(engine: OpenAIHttp) -> Result:
        return (await engine.generate(ask or request())).settle()

    return with_engine(oracle, use, **options)


def kinds(result: Result) -> list[str]:
    return [emission.kind.value for emission in result.emissions]


def tokens(result: Result) -> list[Emission]:
    return [e for e in result.emissions if e.kind in GENERATED]


def text_of(result: Result) -> str:
    return "".join(e.text for e in result.emissions)


def gaps_ms(stamps_ns: Sequence[int]) -> list[float]:
    return [(b - a) / 1e6 for a, b in pairwise(stamps_ns)]


def assert_same_times(result: Result, seen: Seen, sent_pieces: Sequence[int]) -> None:
    """Emission i was sent in piece `sent_pieces[i]` of the oracle's log: first latency and every gap must
    agree with the log, and so must each stamp itself (both read the same monotonic clock of the system)."""
    stamps = [e.recv_ns for e in result.emissions]
    sent = [seen.sent[piece][0] for piece in sent_pieces]
    assert len(stamps) == len(sent), kinds(result)
    assert result.sent_ns is not None
    off = [(s - t) / 1e6 for s, t in zip(stamps, sent, strict=True)]
    off.append(((stamps[0] - result.sent_ns) - (sent[0] - seen.received_ns)) / 1e6)
    off += [ours - theirs for ours, theirs in zip(gaps_ms(stamps), gaps_ms(sent), strict=True)]
    assert max(abs(x) for x in off) < EACH_MS, off
    if len(off) >= MEDIAN_OF:
        assert abs(statistics.median(off)) < MEDIAN_MS, off

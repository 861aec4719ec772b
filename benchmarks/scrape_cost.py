"""What sampling a server's /metrics costs: our event loop's lateness with and without it, our CPU a sample, and how
long the server takes to answer for everything and for the few names that are sampled.

    python benchmarks/scrape_cost.py http://127.0.0.1:8000 --every-s 0.05 --seconds 20 --rounds 4

Stretches with and without sampling take turns. Within one, a ticker asks to be woken every millisecond and notes how
late it was; that is how late a token could be stamped. Sampling faster than by default makes the few events many.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time

import uvloop

from phasemeter.engines.http_request import HttpOptions
from phasemeter.engines.metrics_page import MetricsPage
from phasemeter.engines.openai_http import OpenAIHttp
from phasemeter.engines.server_gauges import names_on, query_of
from phasemeter.measure.scrape import Scraping
from phasemeter.record.clock import MonotonicClock


async def lateness_ms(seconds: float) -> list[float]:
    late, end = [], time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        await asyncio.sleep(0.001)
        late.append((time.monotonic() - now - 0.001) * 1e3)
    return late


def quantiles(values: list[float]) -> dict[str, float]:
    cut = statistics.quantiles(values, n=1000)
    return {"p50": cut[499], "p99": cut[989], "p99.9": cut[998], "most": max(values), "n": len(values)}


async def stretches(engine: OpenAIHttp, every_s: float, seconds: float, rounds: int) -> dict[str, object]:
    late: dict[bool, list[float]] = {True: [], False: []}
    cpu_s = {True: 0.0, False: 0.0}
    samples = 0

    def written(line: object) -> None:
        nonlocal samples
        samples += type(line).__name__ == "Sample"

    for _ in range(rounds):
        for on in (False, True):
            async with Scraping(engine, MonotonicClock(), written, every_s=every_s if on else 0):
                cpu = time.process_time()
                late[on] += await lateness_ms(seconds)
                cpu_s[on] += time.process_time() - cpu
    return {
        "off_ms": quantiles(late[False]),
        "on_ms": quantiles(late[True]),
        "samples": samples,
        "cpu_us_a_sample": (cpu_s[True] - cpu_s[False]) / max(1, samples) * 1e6,
    }


def answer_ms(page: MetricsPage, query: str) -> dict[str, float]:
    took, size = [], 0
    for _ in range(100):
        began = time.perf_counter()
        size = len(page.read(query) or b"")
        took.append((time.perf_counter() - began) * 1e3)
    return {"bytes": size, "p50_ms": statistics.median(took), "most_ms": max(took)}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("url")
    asked.add_argument("--every-s", type=float, default=1.0)
    asked.add_argument("--seconds", type=float, default=20.0)
    asked.add_argument("--rounds", type=int, default=4)
    given = asked.parse_args()
    engine = OpenAIHttp(HttpOptions(url=given.url))
    page = MetricsPage(engine.metrics_place())
    whole = page.read()
    assert whole is not None, "there is no /metrics"
    query = query_of(list(names_on(whole).values()))
    told: dict[str, object] = {"whole": answer_ms(page, ""), "named": answer_ms(page, query)}
    page.close()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        told |= runner.run(stretches(engine, given.every_s, given.seconds, given.rounds))
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()

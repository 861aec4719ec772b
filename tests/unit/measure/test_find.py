"""The search against an engine of known truth, in virtual time."""

from __future__ import annotations

from heapq import heappop, heappush
from pathlib import Path
from random import Random

import pytest

from phasemeter.engines.simulated.engine import SimulatedEngine
from phasemeter.engines.simulated.truth import Truth
from phasemeter.engines.simulated.virtual import run_virtual
from phasemeter.explain.slo import parse_slo
from phasemeter.explain.summary import summarise
from phasemeter.measure.find import Quest, find_level, found_in, stage_at
from phasemeter.measure.load import Load
from phasemeter.measure.search import Search
from phasemeter.record.clock import Anchor, ManualClock
from phasemeter.record.file import read_run
from phasemeter.record.run import SCHEMA, Header, Machine

S = 1_000_000_000
TRUTH = Truth(ttft_ms=50, itl_ms=10, slots=2)
"""A request of 4 tokens holds one of two slots for 80 ms: 25 requests a second at most."""


def search(quest: Quest, out: Path):
    first = stage_at(quest, quest.search.low, 0)
    load = Load(workload={"kind": "lengths", "input": "16", "output": "4"}, stages=(first,), warmup=0, seed=5)
    ends = []

    async def main(clock: ManualClock) -> None:
        engine = SimulatedEngine(TRUTH, clock)
        header = Header(SCHEMA, "r", "0", Anchor(0, 0), engine.info, Machine("h", "o", "c", 2), settings={})
        ends.append(await find_level(engine, load, quest, clock, out, header))

    run_virtual(main)
    return ends[0], summarise(read_run(out), slo=quest.slo)


def p90_ms(rate, n=15_000):
    """Two slots of 80 ms, first come first served; the first token 50 ms after a slot was got."""
    rng, t, free, spent = Random(1), 0.0, [0.0, 0.0], []
    for _ in range(n):
        t += rng.expovariate(rate)
        start = max(t, heappop(free))
        heappush(free, start + 0.08)
        spent.append(start + 0.05 - t)
    return sorted(spent)[int(0.9 * n)] * 1e3


def test_the_largest_rate_is_found(tmp_path):
    heard = []
    quest = Quest(
        Search("rate", 8.0, 64.0, most_stages=8),
        parse_slo("ttft_p90=120ms"),
        30 * S,
        lambda tried, judged: heard.append((tried.level, judged.met)),
    )
    end, whole = search(quest, tmp_path / "r.jsonl")
    low, high = end.met_at, end.not_met_at
    assert p90_ms(low) <= 120 * 1.1
    assert p90_ms(high) >= 120 * 0.9
    assert len(heard) == end.stages
    assert found_in(quest, whole.under_load.levels) == end
    [capacity] = whole.under_load.capacities
    assert low * 0.9 <= capacity.largest.level <= high * 1.1


def test_the_largest_concurrency_is_found(tmp_path):
    """Beyond two in flight a request waits for a slot: at three its first token comes 40 ms later on average."""
    quest = Quest(Search("concurrency", 1.0, 16.0), parse_slo("ttft_p90=60ms"), 12 * S)
    end, whole = search(quest, tmp_path / "r.jsonl")
    assert (end.reason, end.met_at, end.not_met_at) == ("found", 2.0, 3.0)
    assert whole.under_load.capacities[0].knee.level == pytest.approx(2.0, rel=0.05)

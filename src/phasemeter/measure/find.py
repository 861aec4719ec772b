"""Find the largest level of load that meets the objectives: measure a stage, judge its level, choose the next one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from phasemeter.explain.levels import LevelLoad
from phasemeter.explain.slo import LevelSlo, Slo
from phasemeter.explain.under_load import judge_timelines
from phasemeter.measure.load import Load, Stage
from phasemeter.measure.load_session import load_session
from phasemeter.measure.recording import Beside
from phasemeter.measure.search import Found, Search, Tried, found, next_level
from phasemeter.record.clock import Clock
from phasemeter.record.engine import Engine
from phasemeter.record.run import Header
from phasemeter.record.timeline import Timeline


class Quest(Struct, frozen=True):
    """A search with its objectives and the length of a stage; `tell` hears of every level judged."""

    search: Search
    slo: Slo
    duration_ns: int
    tell: Callable[[Tried, LevelSlo], None] | None = None


def stage_at(quest: Quest, level: float, block: int) -> Stage:
    """The stage that measures `level` for the `block`-th time."""
    if quest.search.axis == "concurrency":
        return Stage(concurrency=int(level), duration_ns=quest.duration_ns, block=block)
    return Stage(rate_per_s=level, duration_ns=quest.duration_ns, block=block)


def quest_settings(quest: Quest) -> dict[str, object]:
    """What a search was asked for, for the run's header."""
    search = quest.search
    return {"find": search.axis, "between": f"{search.low:g}:{search.high:g}", "slo": quest.slo.text}


def found_in(quest: Quest, levels: Sequence[LevelLoad]) -> Found:
    """What a search says, read from the levels of its run."""
    tried = [
        Tried(level.offered, level.slo.met, level.stages)
        for level in levels
        if level.offered is not None and level.slo is not None
    ]
    return found(quest.search, tried)


async def find_level(
    engine: Engine,
    load: Load,
    quest: Quest,
    clock: Clock,
    out: Path,
    header: Header,
    beside: Beside | None = None,
) -> Found:
    """Measure stages until the search ends; all of them are in the run at `out`. `load.stages` names the first level
    alone, whose lengths warm the engine up. Raises what `load_session` raises."""
    seen: defaultdict[float, list[Timeline]] = defaultdict(list)
    tried: dict[float, Tried] = {}
    async with load_session(engine, load, clock, out, header, beside) as session:
        while (level := next_level(quest.search, list(tried.values()))) is not None:
            block = tried[level].stages if level in tried else 0
            seen[level] += await session.stage(stage_at(quest, level, block))
            judged = judge_timelines(seen[level], quest.slo)
            tried[level] = Tried(level, judged.met, block + 1)
            if quest.tell is not None:
                quest.tell(tried[level], judged)
    return found(quest.search, list(tried.values()))

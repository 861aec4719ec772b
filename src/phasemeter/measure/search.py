"""Which level of load to try next, to find the largest one that meets the objectives. Pure: levels tried and their
answers in, the next level or the end out.

From the lowest level on the load is doubled until a level does not meet the objectives; then the bracket between the
largest level that met them and the smallest that did not is halved in ratio, until it is narrow enough. An undecided
level is measured again, and its stages are judged together; one that stays undecided bounds the search from above as if
it had not met them, but the answer's upper end stays at a level that surely did not. A level that met the objectives
above one that did not counts for nothing: more load makes nothing better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from phasemeter.explain.slo import Met
from phasemeter.record.errors import InputError

Axis = Literal["rate", "concurrency"]
Reason = Literal["found", "above", "below", "budget", "undecided"]


class Search(Struct, frozen=True):
    """What is searched: between `low` and `high`, until the bracket's ends differ by less than `resolution`, or
    `most_stages` were measured. `repeats`: stages of one level at most."""

    axis: Axis
    low: float
    high: float
    resolution: float = 0.05
    most_stages: int = 20
    repeats: int = 3


class Tried(Struct, frozen=True):
    """A level and what all of its stages together say."""

    level: float
    met: Met
    stages: int = 1


class Found(Struct, frozen=True):
    """The end of a search: the largest level lies from `met_at` on and below `not_met_at`. `reason`: "found" (the
    bracket is narrow), "above" (the highest level met), "below" (the lowest did not), "undecided" (what is left in the
    bracket stays undecided), "budget" (stages are used up)."""

    reason: Reason
    met_at: float | None
    not_met_at: float | None
    stages: int


def parse_between(text: str, axis: Axis) -> Search:
    """Read "LO:HI". Raises InputError for what is no positive, rising pair (of whole numbers for a concurrency)."""
    parts = text.split(":")
    try:
        low, high = (float(part) for part in parts)
    except ValueError:
        raise InputError(
            "--between", text, "write the lowest and the highest level as LO:HI, such as 1:64"
        ) from None
    if not 0 < low < high < 1e6:
        raise InputError("--between", text, "LO must be above 0 and below HI, HI below 1000000")
    if axis == "concurrency" and not (low.is_integer() and high.is_integer()):
        raise InputError("--between", text, "a concurrency is a whole number")
    return Search(axis, low, high)


def next_level(search: Search, tried: Sequence[Tried]) -> float | None:
    """The level to measure next (again, where it is undecided); None where the search has ended."""
    if sum(one.stages for one in tried) >= search.most_stages:
        return None
    if not tried:
        return search.low
    met_at, barrier = _bracket(tried)
    for one in sorted(tried, key=lambda one: one.level):
        inside = (met_at is None or one.level > met_at) and (barrier is None or one.level <= barrier)
        if inside and one.met is Met.UNDECIDED and one.stages < search.repeats:
            return one.level
    if met_at is None:
        return None
    if barrier is None:
        return None if met_at >= search.high else min(_rounded(search, 2 * met_at), search.high)
    if _narrow(search, met_at, barrier):
        return None
    middle = _rounded(search, (met_at * barrier) ** 0.5)
    return middle if met_at < middle < barrier else None


def found(search: Search, tried: Sequence[Tried]) -> Found:
    """What a search that has ended says."""
    met_at, barrier = _bracket(tried)
    not_met = [one.level for one in tried if one.met is Met.NOT_MET]
    not_met_at = min((level for level in not_met if met_at is None or level > met_at), default=None)
    stages = sum(one.stages for one in tried)
    return Found(_reason(search, tried, met_at, barrier, not_met_at), met_at, not_met_at, stages)


def _reason(
    search: Search,
    tried: Sequence[Tried],
    met_at: float | None,
    barrier: float | None,
    not_met_at: float | None,
) -> Reason:
    if next_level(_unbounded(search), tried) is not None:
        return "budget"
    if met_at is None:
        return "below" if not_met_at == search.low else "undecided"
    if barrier is None:
        return "above"
    return "found" if barrier == not_met_at else "undecided"


def _unbounded(search: Search) -> Search:
    return Search(search.axis, search.low, search.high, search.resolution, 2**31, search.repeats)


def _bracket(tried: Sequence[Tried]) -> tuple[float | None, float | None]:
    """(largest level that met with none below that did not, smallest level that did not or is undecided above it)."""
    first_not = min((one.level for one in tried if one.met is Met.NOT_MET), default=None)
    met = [one.level for one in tried if one.met is Met.MET and (first_not is None or one.level < first_not)]
    met_at = max(met, default=None)
    over = [one.level for one in tried if one.met is not Met.MET and (met_at is None or one.level > met_at)]
    return met_at, min(over, default=None)


def _narrow(search: Search, low: float, high: float) -> bool:
    if search.axis == "concurrency" and high - low <= 1:
        return True
    return high <= low * (1 + search.resolution)


def _rounded(search: Search, level: float) -> float:
    return float(round(level)) if search.axis == "concurrency" else float(f"{level:.4g}")

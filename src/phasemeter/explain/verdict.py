"""A check on a run: what was looked at, what was seen, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    """How far a run may be believed. `warn`: read the evidence first. `invalid`: do not use the numbers."""

    OK = "ok"
    WARN = "warn"
    INVALID = "invalid"


class Check(Struct, frozen=True):
    """One doubt and its answer. `evidence` is what was seen, in numbers; `mend` what would settle it (""
    when ok)."""

    name: str
    verdict: Verdict
    evidence: str
    mend: str = ""


_RANK = {Verdict.OK: 0, Verdict.WARN: 1, Verdict.INVALID: 2}


def worst(checks: Sequence[Check]) -> Verdict:
    """The verdict on the run: that of its worst check."""
    return max((check.verdict for check in checks), key=_RANK.__getitem__, default=Verdict.OK)

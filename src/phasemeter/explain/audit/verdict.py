"""A claim judged: verdict, reason and working as keys with numbers; `report/audit_words.py` says them in words."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from phasemeter.explain.audit.claims import Claim


class Verdict(StrEnum):
    """Numbers are impossible, implausible or plausible, sentences false, misleading or true; both may be
    undecidable."""

    IMPOSSIBLE = "impossible"
    IMPLAUSIBLE = "implausible"
    PLAUSIBLE = "plausible"
    UNDECIDABLE = "undecidable"
    FALSE = "false"
    MISLEADING = "misleading"
    TRUE = "true"


REFUTED = frozenset({Verdict.IMPOSSIBLE, Verdict.IMPLAUSIBLE, Verdict.FALSE})
"""What `--strict` fails on."""

Value = str | int | float


class Line(Struct, frozen=True):
    """One line of working: the key of a sentence and what it holds. Names end in their unit; `_share` is shown as per
    cent, `_ratio` as times."""

    key: str
    values: dict[str, Value]


class Judged(Struct, frozen=True):
    """A claim with its verdict. `bound` holds the numbers that decided, JSON-ready; ms unless a name says otherwise.
    `says` is what is claimed, where the claim has no statement of its own."""

    id: str
    claim: Claim
    verdict: Verdict
    reason: Line
    says: Line
    working: tuple[Line, ...] = ()
    bound: dict[str, object] = {}


class Finding(Struct, frozen=True):
    """What one rule found, before it is joined to its claim."""

    verdict: Verdict
    reason: Line
    working: tuple[Line, ...] = ()
    bound: dict[str, object] = {}


def line(key: str, /, **values: Value) -> Line:
    """A line."""
    return Line(key, values)


def undecidable(missing: Line, working: Sequence[Line] = ()) -> Finding:
    """Undecidable, with what is missing."""
    return Finding(Verdict.UNDECIDABLE, missing, tuple(working), {"missing": missing.key})


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict over several lengths: undecidable if one is, theirs if all agree, else misleading."""
    kinds = set(verdicts)
    if Verdict.UNDECIDABLE in kinds or not kinds:
        return Verdict.UNDECIDABLE
    return kinds.pop() if len(kinds) == 1 else Verdict.MISLEADING

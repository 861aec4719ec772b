"""An audit as texts and as JSON: what a terminal lays out and a script reads, English or Chinese."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from phasemeter.explain.audit.claims import Claims, Row
from phasemeter.explain.audit.verdict import Judged, Line, Value, Verdict
from phasemeter.report.audit_sentences import SENTENCES
from phasemeter.report.audit_words import ENGLISH
from phasemeter.report.audit_words_zh import CHINESE
from phasemeter.report.digits import percent, plain, power, times
from phasemeter.report.parts import Number

_TEXT: dict[str, dict[str, str]] = {
    "en": {**ENGLISH, **SENTENCES["en"]},
    "zh": {**CHINESE, **SENTENCES["zh"]},
}
_WORDED = frozenset({"metric", "resource"})


class AuditLine(Struct, frozen=True):
    """One claim: what is said, the verdict (its name and its word), why, and the working."""

    id: str
    statement: str
    verdict: Verdict
    word: str
    reason: str
    working: tuple[str, ...]
    bound: dict[str, object]


class AuditView(Struct, frozen=True):
    """Everything that is shown."""

    lang: str
    title: str
    counts: str
    heads: tuple[str, ...]
    lines: tuple[AuditLine, ...]


def audit_view(claims: Claims, judged: Sequence[Judged], lang: str) -> AuditView:
    """Write an audit down."""
    seen = [one.verdict for one in judged]
    counts = [f"{seen.count(verdict)} {word(lang, verdict.value)}" for verdict in Verdict if verdict in seen]
    return AuditView(
        lang=lang,
        title=_filled(lang, "title", title=claims.title),
        counts=_filled(lang, "counts", count=str(len(judged)), verdicts=", ".join(counts)),
        heads=tuple(word(lang, key) for key in ("id", "claim", "verdict", "reason")),
        lines=tuple(_line(one, lang) for one in judged),
    )


def audit_json(view: AuditView) -> dict[str, object]:
    """The contract of `audit --json`: `{"claims": [{id, statement, verdict, working, bound}]}`, and the reason."""
    return {
        "claims": [
            {
                "id": one.id,
                "statement": one.statement,
                "verdict": one.verdict.value,
                "reason": one.reason,
                "working": [*one.working, one.reason],
                "bound": one.bound,
            }
            for one in view.lines
        ]
    }


def word(lang: str, key: str) -> str:
    """One word of the table."""
    return _TEXT[lang][key]


def say_line(lang: str, one: Line) -> str:
    """A line of working or a reason in words."""
    return _filled(lang, one.key, **{key: _shown(lang, key, value) for key, value in one.values.items()})


def _filled(lang: str, key: str, **values: str) -> str:
    return _TEXT[lang][key].format_map(values)


def _line(one: Judged, lang: str) -> AuditLine:
    return AuditLine(
        id=one.id,
        statement=_statement(one, lang),
        verdict=one.verdict,
        word=word(lang, one.verdict.value),
        reason=say_line(lang, one.reason),
        working=tuple(say_line(lang, line) for line in one.working),
        bound=one.bound,
    )


def _statement(one: Judged, lang: str) -> str:
    claim = one.claim
    told = claim.statement_zh or claim.statement if lang == "zh" else claim.statement or claim.statement_zh
    says = say_line(lang, one.says)
    if not told:
        return says
    # a row's own sentence does not tell which of its numbers is judged
    return f"{told} ({says})" if isinstance(claim, Row) and one.id != claim.id else told


def _shown(lang: str, key: str, value: Value) -> str:
    if isinstance(value, str):
        if key not in _WORDED:
            return value
        return word(lang, "throughput_name" if value == "throughput" else value)
    if key.endswith("_share"):
        return percent(value)
    if key.endswith("_ratio"):
        return times(Number(float(value), unit=""))
    if key.endswith("exponent"):
        return power(value)
    return f"{value:,}" if isinstance(value, int) else plain(value)

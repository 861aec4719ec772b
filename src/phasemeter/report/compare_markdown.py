"""A comparison as Markdown for a pull request's comment: gates first, details folded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from phasemeter.record.visible import visible
from phasemeter.report.compare_view import CompareView
from phasemeter.report.compare_words import say_compared

_ACTING = re.compile(r"([\\`*_{}\[\]<>#|~@])")
"""What Markdown (and a hosting site: @names) would act on."""


def comparison_markdown(view: CompareView) -> str:
    """The view as one GitHub or GitLab comment."""
    return "\n".join(_lines(view)) + "\n"


def _lines(view: CompareView) -> Iterator[str]:
    yield f"### {_plain(view.title)}"
    yield ""
    if view.gates:
        yield f"**{view.gate_text}**"
        yield ""
        heads = [_say(view, "gate"), "", _say(view, "answer")]
        yield from _table(
            heads, [[_code(g.text), g.seen, _because(g.answer.text, g.why)] for g in view.gates]
        )
        yield ""
    for warning in view.warnings:
        yield f"> ✗ {_plain(warning)}"
        yield ""
    yield f"**{_say(view, 'differs')}**"
    yield ""
    yield from (f"- {_plain(line)}" for line in view.differs or (_say(view, "nothing_differs"),))
    yield ""
    yield f"{view.note}"
    yield ""
    heads = [_say(view, key) for key in ("metric", "base", "new", "effect", "difference", "answer")]
    yield from _table(
        heads,
        [[m.name, m.base, m.new, m.effect, m.difference, _because(m.answer.text, m.why)] for m in view.lines],
    )
    yield ""
    yield from (f"- {_plain(note)}" for note in view.notes)
    yield from _folded(view)


def _folded(view: CompareView) -> Iterator[str]:
    if view.shapes:
        yield ""
        yield f"<details><summary>{_say(view, 'shapes')}</summary>"
        yield ""
        heads = [_say(view, "shape"), _say(view, "requests"), *(f"{head} %" for head in view.shape_heads)]
        yield from _table(heads, [[s.name, s.n, *(cell.text for cell in s.cells)] for s in view.shapes])
        yield ""
        yield "</details>"
    yield ""
    yield from (f"- {role}: {_plain(name)}: {_plain(facts)}" for role, name, facts in view.sides)


def _say(view: CompareView, key: str) -> str:
    return say_compared(view.lang, key)


def _because(answer: str, why: str) -> str:
    return f"{answer} ({_plain(why)})" if why else answer


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'|'.join(['---', *['---:'] * (len(heads) - 2), '---'])}|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _plain(text: str) -> str:
    return _ACTING.sub(r"\\\1", " ".join(visible(text).split()))


def _code(text: str) -> str:
    return f"`{text}`"

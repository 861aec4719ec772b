"""A level of load and a shape (or a bucket of shapes) as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phasemeter.explain.shape_key import Asked, ShapeKey
from phasemeter.report.words import say, word


class _Levelled(Protocol):
    @property
    def asked(self) -> Asked: ...


def lowest(entries: Sequence[_Levelled]) -> Asked:
    """The lowest level among them."""
    return min((entry.asked for entry in entries), key=lambda asked: asked.order, default=Asked(1))


def level_text(asked: Asked, lang: str) -> str:
    """In a sentence: "concurrency 4", "rate 4/s", "the trace's own times"."""
    if asked.concurrency is not None:
        return say(lang, "level_concurrency", concurrency=asked.concurrency)
    if asked.rate_per_s is not None:
        return say(lang, "level_rate", rate=f"{asked.rate_per_s:g}")
    return word(lang, "level_trace")


def level_cell(asked: Asked, lang: str) -> str:
    """In a table's column: "4", "4/s", "trace"."""
    if asked.concurrency is not None:
        return str(asked.concurrency)
    return word(lang, "trace") if asked.rate_per_s is None else f"{asked.rate_per_s:g}/s"


def shape_text(key: ShapeKey, lang: str) -> str:
    """The whole name of a shape."""
    ins, outs = _plain_lengths(key)
    return say(lang, "shape", input=ins, output=outs, level=level_text(key.asked, lang))


def shape_short(key: ShapeKey, lang: str) -> str:
    """A name that fits a table's head: "64 → 16", "64 → 16 ×4", "64–127 → 8–31 @4/s"."""
    ins, outs = _plain_lengths(key)
    name = say(lang, "shape_short", input=ins, output=outs)
    if key.concurrency is None:
        return f"{name} @{level_cell(key.asked, lang)}"
    return name if key.concurrency == 1 else f"{name} ×{key.concurrency}"


def lengths(key: ShapeKey) -> tuple[str, str]:
    """Input and output tokens, a bucket's as ranges, thousands separated."""
    return _range(key.input_tokens, key.input_range), _range(key.output_tokens, key.output_range)


def _plain_lengths(key: ShapeKey) -> tuple[str, str]:
    ins, outs = lengths(key)
    return ins.replace(",", ""), outs.replace(",", "")


def _range(tokens: int, span: tuple[int, int] | None) -> str:
    return f"{tokens:,}" if span is None or span[0] == span[1] else f"{span[0]:,}–{span[1]:,}"

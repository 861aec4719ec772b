"""What is shown of an engine that told what it saw inside: tables of text, sentences, one request's life."""

from __future__ import annotations

from msgspec import Struct


class TextTable(Struct, frozen=True):
    """A small table, already written as text; the first column is words, the others numbers."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class LifeStep(Struct, frozen=True):
    """One step of a life as a stretch of a bar: its share of the whole and what the request did in it: "queue",
    "prefill", "decode" or "beside" (it decoded while another was prefilled)."""

    share: float
    part: str
    text: str


class LifeView(Struct, frozen=True):
    """One request over the steps that it shared."""

    title: str
    hint: str
    """How to look at another one."""
    steps: tuple[LifeStep, ...]


class LifeMark(Struct, frozen=True):
    """One step in the picture of a life: from when to when, what the request did in it ("queue", "prefill", "decode",
    "beside"), what it cost and what it would have without a prefill, prefill tokens, and its numbers as text."""

    start_ms: float
    end_ms: float
    kind: str
    cost_ms: float
    baseline_ms: float | None
    own_tokens: int | None
    other_tokens: int | None
    prefill_tokens: int | None
    running: int | None
    waiting: int | None
    text: tuple[str, ...]


class LifeChoice(Struct, frozen=True):
    """A request whose life can be looked at: why it is shown, what sharing cost it, its picture and its table."""

    request: str
    label: str
    title: str
    sentences: tuple[str, ...]
    marks: tuple[LifeMark, ...]
    table: TextTable
    steps: str


class InsideView(Struct, frozen=True):
    """Everything shown of the inside of one run's engine."""

    sentences: tuple[str, ...]
    tables: tuple[TextTable, ...]
    life: LifeView | None = None
    lives: tuple[LifeChoice, ...] = ()
    """Of the few requests that tell most, on a page."""

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
    steps: tuple[LifeStep, ...]
    table: TextTable


class InsideView(Struct, frozen=True):
    """Everything shown of the inside of one run's engine."""

    sentences: tuple[str, ...]
    tables: tuple[TextTable, ...]
    life: LifeView | None = None

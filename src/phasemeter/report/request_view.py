"""One request on a terminal: what came of it, its budget, and its life over the engine's steps."""

from __future__ import annotations

from collections.abc import Iterator

from phasemeter.explain.one_request import RequestExplained
from phasemeter.explain.phases import BUDGET, Basis, Phases, Reading, Span
from phasemeter.explain.pick_request import itl
from phasemeter.report.digits import INFERRED, percent, plain
from phasemeter.report.inside import TextTable
from phasemeter.report.life_view import folded, life_table, life_title
from phasemeter.report.life_words import life_word, missing_sentence, shared_sentences
from phasemeter.report.parts import Fact
from phasemeter.report.words import phase_name, word

_WITHIN = {"first": ("front_end", "queue", "prefill"), "decode": ("engine_decode",)}
"""Phases that are parts of another, or the same as the engine saw it."""


def request_facts(explained: RequestExplained, lang: str) -> tuple[Fact, ...]:
    """What came of it."""
    return tuple(_facts(explained, lang))


def request_budget(reading: Reading, lang: str) -> TextTable:
    """Its phases with their share of the end-to-end time and how each is known."""
    rows: list[tuple[str, ...]] = []
    for name in BUDGET:
        parts = _WITHIN.get(name, ())
        split = any(_span(reading.phases, part) is not None for part in parts)
        label = life_word(lang, "first") if split and name == "first" else phase_name(lang, name)
        rows.append(_phase_row(reading, name, label, lang))
        if split:
            rows += [
                _phase_row(reading, part, life_word(lang, "within", name=_part_name(part, lang)), lang)
                for part in parts
            ]
    rows.append((life_word(lang, "total"), plain(reading.e2e_ns / 1e6), percent(1.0), word(lang, "observed")))
    heads = tuple(life_word(lang, key) for key in ("phase", "ms", "share", "basis"))
    return TextTable(life_word(lang, "budget"), heads, tuple(rows))


def request_life(explained: RequestExplained, lang: str) -> tuple[tuple[str, ...], TextTable | None, str]:
    """(sentences, the steps as a table, the table's title); why there are none where there are none."""
    shared = explained.shared
    if shared is None:
        return (missing_sentence(explained.note, lang),), None, ""
    notes = (life_word(lang, "folded"),) if folded(shared.life) else ()
    sentences = (*shared_sentences(shared, lang), *notes, life_word(lang, "method"))
    return sentences, life_table(shared.life, lang), life_title(shared.life, lang)


def _facts(explained: RequestExplained, lang: str) -> Iterator[Fact]:
    reading, timeline = explained.reading, explained.reading.timeline
    report, reason = timeline.report, timeline.finish_reason
    text = timeline.outcome.value + (f" ({reason})" if reason else "")
    yield Fact(life_word(lang, "outcome"), text, loud=timeline.outcome.value != "ok")
    if timeline.error:
        yield Fact(life_word(lang, "error"), timeline.error)
    if timeline.cell.warmup:
        yield Fact(word(lang, "warmup"), life_word(lang, "warmup"))
    usage, cached = timeline.usage, None if report is None else report.cached_tokens
    prompt = (
        timeline.cell.input_tokens if usage is None or usage.prompt_tokens is None else usage.prompt_tokens
    )
    lengths = life_word(
        lang,
        "lengths_text",
        input=f"{prompt:,}",
        output=f"{reading.tokens:,}",
        asked=f"{timeline.max_tokens:,}",
    )
    lengths += life_word(lang, "cached", cached=f"{cached:,}") if cached else ""
    yield Fact(life_word(lang, "lengths"), lengths)
    yield Fact(
        life_word(lang, "latency"),
        life_word(
            lang,
            "latency_text",
            ttft=_ms(reading.ttft_ns),
            tpot=_ms(reading.tpot_ns),
            itl=_ms(itl(reading)),
            e2e=_ms(reading.e2e_ns),
        ),
    )
    if timeline.in_flight is not None:
        yield Fact(
            life_word(lang, "beside_it"), life_word(lang, "beside_it_text", n=f"{timeline.in_flight:,}")
        )
    yield Fact(life_word(lang, "told_by"), life_word(lang, "nobody") if report is None else report.source)
    if report is not None and report.preemptions:
        yield Fact(life_word(lang, "preemptions"), life_word(lang, "times", n=report.preemptions), loud=True)
    if explained.sequences > 1:
        yield Fact("n", life_word(lang, "sequences", n=explained.sequences))


def _part_name(name: str, lang: str) -> str:
    return word(lang, name) if name == "engine_decode" else phase_name(lang, name)


def _phase_row(reading: Reading, name: str, label: str, lang: str) -> tuple[str, ...]:
    span = _span(reading.phases, name)
    if span is None:
        return label, plain(None), plain(None), word(lang, "absent")
    mark = INFERRED if span.basis is Basis.INFERRED else ""
    share = span.ns / reading.e2e_ns if reading.e2e_ns > 0 else None
    return label, mark + plain(span.ns / 1e6), percent(share), word(lang, span.basis.value)


def _span(phases: Phases, name: str) -> Span | None:
    return getattr(phases, name)


def _ms(ns: float | None) -> str:
    return plain(None if ns is None else ns / 1e6)

"""The article's numbers for ERNIE-4.5-0.3B beside what this run measured, and both beside their floors.

The article ("ERNIE-4.5-0.3B-PT: prefill and decode", on an A100-40GB with vLLM 0.3.3) gives prefill twice,
as a list by length and in a table with TPOT. Its milliseconds belong to another machine: what may be
compared is how they grow and how far they are from the floor of the machine they are said to come from.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from phasemeter.explain.roof import Roof, roofs
from phasemeter.explain.shapes import ShapeSummary
from phasemeter.explain.summary import Summary
from phasemeter.report.budget import median, phase_median
from phasemeter.report.digits import plain, times
from phasemeter.report.parts import ABSENT, ArticleRow, ArticleView, Mark, Number
from phasemeter.report.words import say, word
from phasemeter.roofline.floor import decode_floor, floor, prefill_floor
from phasemeter.roofline.hardware import Hardware, find_hardware
from phasemeter.roofline.presets import load_shape
from phasemeter.roofline.shape import ModelShape
from phasemeter.roofline.work import decode, prefill, work

MODEL = "ernie-4.5-0.3b"
HARDWARE = "a100-40gb"

LIST_PREFILL_MS = ((64, 15.0), (128, 45.0), (256, 180.0), (512, 720.0))
"""The article's list: input tokens, prefill ms."""
TABLE_MS = ((64, 128, 18.0, 4.4), (128, 256, 46.0, 4.9), (256, 512, 185.0, 5.3))
"""The article's table: input tokens, output tokens, prefill ms, ms a token."""


class Place(Struct, frozen=True):
    """What the article's rows are held against: the model, the named machine, this machine (None if
    unknown)."""

    shape: ModelShape
    named: Hardware
    roof: Roof | None


def is_articles_model(summary: Summary) -> bool:
    """Whether the run is of the model that the article writes about (by name; its 21B sibling is another
    model)."""
    names = (summary.shape_name or "", summary.header.engine.model)
    return any(MODEL in name.lower() for name in names)


def article_of(summary: Summary, lang: str) -> ArticleView | None:
    """The article's table for this run; None when the run is of another model."""
    if not is_articles_model(summary):
        return None
    place = Place(load_shape(MODEL), find_hardware(HARDWARE), _roof_of(summary))
    rows = article_rows(summary, place, lang)
    return ArticleView(title=word(lang, "article"), rows=rows, notes=_notes(summary, place, rows, lang))


def article_rows(summary: Summary, place: Place, lang: str) -> tuple[ArticleRow, ...]:
    """One row a claim: the list's prefills, then the table's prefills and times per token."""
    shapes = [shape for shape in summary.shapes if shape.key.concurrency == 1 and shape.ok > 0]
    rows = [
        _prefill_row("article_prefill_list", n, None, ms, shapes, place, lang) for n, ms in LIST_PREFILL_MS
    ]
    rows += [_prefill_row("article_prefill", n, out, ms, shapes, place, lang) for n, out, ms, _ in TABLE_MS]
    rows += [_tpot_row(n, out, ms, shapes, place, lang) for n, out, _, ms in TABLE_MS]
    return tuple(rows)


def moved_tpot_ms(
    measured_ms: float, context: int, to_context: int, kv_bytes: float, bandwidth: float
) -> float:
    """TPOT at another context: measured + (to_context - context) x KV bytes of a token / bandwidth (bytes/s).

    Only the cache's traffic changes with context; the weights, the host and the launches stay. An inference.
    """
    return measured_ms + (to_context - context) * kv_bytes / bandwidth * 1e3


def _prefill_row(
    key: str,
    tokens: int,
    output: int | None,
    claimed_ms: float,
    shapes: Sequence[ShapeSummary],
    place: Place,
    lang: str,
) -> ArticleRow:
    same = [shape for shape in shapes if shape.key.input_tokens == tokens]
    best = max(same, key=lambda shape: (shape.key.output_tokens == output, shape.ok), default=None)
    measured = _prefill_seen(best)
    named = prefill_floor(place.shape, tokens, place.named).seconds * 1e3
    here = None if place.roof is None else _prefill_here_ms(place.roof, tokens)
    return _row(word(lang, key), (tokens, output), claimed_ms, measured, named, here)


def _prefill_seen(shape: ShapeSummary | None) -> Number:
    """Prefill where the engine told it, else time to first token as an inference (an upper bound of it)."""
    if shape is None:
        return ABSENT
    if shape.phases.prefill is not None:
        return phase_median(shape.phases.prefill)
    return median(shape.latency.ttft_ms, Mark.INFERRED)


def _tpot_row(
    tokens: int, output: int, claimed_ms: float, shapes: Sequence[ShapeSummary], place: Place, lang: str
) -> ArticleRow:
    context = tokens + output // 2
    named = decode_floor(place.shape, context, place.named).seconds * 1e3
    here = None if place.roof is None else _decode_here_ms(place.roof, context)
    measured = _tpot_seen(tokens, output, shapes, place.roof)
    return _row(word(lang, "article_tpot"), (tokens, output), claimed_ms, measured, named, here)


def _tpot_seen(tokens: int, output: int, shapes: Sequence[ShapeSummary], roof: Roof | None) -> Number:
    seen = [shape for shape in shapes if shape.latency.tpot_ms is not None]
    full = [s for s in seen if (s.key.input_tokens, s.key.output_tokens) == (tokens, output)]
    if full:
        return median(full[0].latency.tpot_ms)
    if not seen or roof is None:
        return ABSENT
    # the nearest length, and of its shapes the longest answers
    near = min(seen, key=lambda s: (abs(s.key.input_tokens - tokens), -s.key.output_tokens))
    at = median(near.latency.tpot_ms)
    move = _mover(roof, near.key.input_tokens + near.key.output_tokens // 2, tokens + output // 2)
    return Number(move(at.value), mark=Mark.INFERRED, lo=move(at.lo), hi=move(at.hi), n=at.n)


class _Move(Struct, frozen=True):
    context: int
    to_context: int
    kv_bytes: float
    bandwidth: float

    def __call__(self, ms: float | None) -> float | None:
        return (
            None
            if ms is None
            else moved_tpot_ms(ms, self.context, self.to_context, self.kv_bytes, self.bandwidth)
        )


def _mover(roof: Roof, context: int, to_context: int) -> _Move:
    kv_bytes = roof.shape.kv_bytes_per_token(roof.dtype)
    return _Move(context, to_context, kv_bytes, roof.hardware.memory_bandwidth_bytes_per_s)


def _prefill_here_ms(roof: Roof, tokens: int) -> float:
    return floor(work(roof.shape, prefill(tokens), roof.dtype), roof.hardware, roof.arithmetic).seconds * 1e3


def _decode_here_ms(roof: Roof, context: int) -> float:
    return floor(work(roof.shape, decode(context), roof.dtype), roof.hardware, roof.arithmetic).seconds * 1e3


def _roof_of(summary: Summary) -> Roof | None:
    """The ceilings that the summary's floors were computed for, measured ones first."""
    found = roofs(summary.header, hardware=summary.hardware_name, model_shape=MODEL)
    return found[0] if found else None


def _row(
    what: str,
    lengths: tuple[int, int | None],
    claimed_ms: float,
    measured: Number,
    named_ms: float,
    here_ms: float | None,
) -> ArticleRow:
    ratio = None if here_ms is None or measured.value is None else measured.value / here_ms
    return ArticleRow(
        what=what,
        lengths=str(lengths[0]) if lengths[1] is None else f"{lengths[0]} → {lengths[1]}",
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        claimed_ms=claimed_ms,
        measured=measured,
        floor_claimed=Number(named_ms, mark=Mark.CALCULATED),
        floor_here=ABSENT if here_ms is None else Number(here_ms, mark=Mark.CALCULATED),
        claimed_ratio=Number(claimed_ms / named_ms, unit=""),
        measured_ratio=ABSENT if ratio is None else Number(ratio, unit="", mark=measured.mark),
    )


def _notes(summary: Summary, place: Place, rows: Sequence[ArticleRow], lang: str) -> tuple[str, ...]:
    machine = summary.header.machine
    device = ", ".join(gpu.name for gpu in machine.gpus) or machine.cpu
    notes = [say(lang, "article_machine", machine=device), *_growth_note(rows, place, lang)]
    if any(shape.phases.prefill is None for shape in summary.shapes if shape.ok):
        notes.append(say(lang, "article_first"))
    tpot = [row.measured.mark for row in rows[-len(TABLE_MS) :] if row.measured.value is not None]
    if Mark.INFERRED in tpot and place.roof is not None:
        rate = place.roof.hardware.memory_bandwidth_bytes_per_s
        notes.append(say(lang, "article_inferred", bandwidth=f"{plain(rate / 1e9)} GB/s"))
    elif tpot:
        notes.append(say(lang, "article_measured"))
    return tuple(notes)


def _growth_note(rows: Sequence[ArticleRow], place: Place, lang: str) -> list[str]:
    seen = [row for row in rows[: len(LIST_PREFILL_MS)] if row.measured.value]
    if len(seen) < 2:
        return []
    first, last = seen[0], seen[-1]
    claimed = last.claimed_ms / first.claimed_ms
    named = [prefill_floor(place.shape, row.input_tokens, place.named).seconds for row in (first, last)]
    grown = (last.measured.value or 0.0) / (first.measured.value or 1.0)
    return [
        say(
            lang,
            "article_growth",
            low=first.input_tokens,
            high=last.input_tokens,
            claimed=times(Number(claimed, unit="")),
            measured=times(Number(grown, unit="", mark=last.measured.mark)),
            floor=times(Number(named[1] / named[0], unit="")),
        )
    ]

"""One request's life over the engine's steps as a table, and the few lives of a run that tell most."""

from __future__ import annotations

from collections.abc import Sequence

from phasemeter.explain.one_request import Shared, explain_request
from phasemeter.explain.phases import Reading, read
from phasemeter.explain.pick_request import SLOWEST, e2e
from phasemeter.explain.steps import StepsSummary
from phasemeter.explain.steps_life import (
    Life,
    StepGroup,
    StepRow,
    excess_ms,
    groups_of,
    kind_of_row,
    own_tokens,
)
from phasemeter.record.engine import Outcome
from phasemeter.record.run import Run
from phasemeter.report.digits import INFERRED, percent, plain
from phasemeter.report.inside import LifeChoice, LifeMark, TextTable
from phasemeter.report.life_words import life_word, shared_sentences

MOST_GROUPS = 24
_MOST_MARKS = 2_000
"""Steps that a picture draws; a longer life is drawn to there and says so."""


def life_title(life: Life, lang: str) -> str:
    """Its phases as the engine told them, and which engine core it was where the server tells."""
    title = life_word(
        lang,
        "life_title",
        queue=plain(life.queue_ms),
        prefill=plain(life.prefill_ms),
        decode=plain(life.decode_ms),
    )
    return title + (life_word(lang, "engine", engine=life.engine) if life.engine is not None else "")


def life_table(life: Life, lang: str) -> TextTable:
    """The steps, alike ones together."""
    names = ("at", "its_part", "steps", "took", "each", "own", "prefilled", "decoding")
    names += ("both", "kv", "beyond")
    rows = tuple(_group_row(group, lang) for group in groups_of(life, MOST_GROUPS))
    return TextTable("", tuple(life_word(lang, name) for name in names), rows)


def folded(life: Life) -> bool:
    """Whether the table puts unlike steps together."""
    return any(group.kind == "several" for group in groups_of(life, MOST_GROUPS))


def choices_of(run: Run, steps: StepsSummary | None, lang: str) -> tuple[LifeChoice, ...]:
    """The lives to choose from: what lost most to others' prefills, the slowest of each kind, and the median. Empty
    where no request could be laid over the steps."""
    if steps is None or not steps.placed:
        return ()
    chosen = _chosen(run, steps)
    ids = set(chosen)
    found: list[LifeChoice] = []
    timelines = {timeline.id: timeline for timeline in run.requests if timeline.id in ids}
    for request, why in chosen.items():
        shared = explain_request(run, timelines[request]).shared if request in timelines else None
        if shared is not None and shared.life.rows:
            found.append(_choice(request, why, shared, lang))
    return tuple(found)


def _chosen(run: Run, steps: StepsSummary) -> dict[str, list[str]]:
    """Request by id and why it is shown, in the order of the choice; one request may be several."""
    best: dict[str, tuple[float, str]] = {}
    totals: list[tuple[float, str]] = []
    for timeline in run.requests:
        if timeline.cell.warmup or timeline.outcome is not Outcome.OK:
            continue
        reading = read(timeline)
        totals.append((e2e(reading) or 0.0, timeline.id))
        _better(best, reading)
    found: dict[str, list[str]] = {}
    if steps.most:
        found[steps.most[0].request] = ["most-lost"]
    for why in SLOWEST:
        if why in best:
            found.setdefault(best[why][1], []).append(why)
    if totals:
        middle = sorted(totals)[(len(totals) - 1) // 2][1]
        found.setdefault(middle, []).append("median-e2e")
    return found


def _better(best: dict[str, tuple[float, str]], reading: Reading) -> None:
    for why, value in SLOWEST.items():
        number = value(reading)
        if number is not None and (why not in best or number > best[why][0]):
            best[why] = (number, reading.timeline.id)


def _choice(request: str, why: Sequence[str], shared: Shared, lang: str) -> LifeChoice:
    life, between = shared.life, "、" if lang == "zh" else ", "
    sentences = shared_sentences(shared, lang)
    return LifeChoice(
        request=request,
        label=f"{between.join(life_word(lang, key) for key in why)}: {request}",
        title=life_title(life, lang),
        sentences=(*sentences, life_word(lang, "folded")) if folded(life) else sentences,
        marks=tuple(_mark(row, lang) for row in life.rows[:_MOST_MARKS]),
        table=life_table(life, lang),
        steps=life_word(lang, "all_steps", n=f"{len(life.rows):,}"),
    )


def _mark(row: StepRow, lang: str) -> LifeMark:
    kind = kind_of_row(row)
    numbers = {
        "own_tokens": _count(own_tokens(row)),
        "prefilled": _count(row.other_prefill_tokens),
        "decoding": _count(row.other_decodes),
        "running": _count(row.running),
        "waiting": _count(row.waiting),
        "kv": percent(row.kv_usage_ratio),
    }
    words = [f"{life_word(lang, kind)}: {plain(row.cost_ms)} ms"]
    words += [f"{_one_line(key, lang)}: {text}" for key, text in numbers.items()]
    over = excess_ms(row) if kind == "beside" else None
    if over is not None:
        words.append(f"{_one_line('beyond', lang)}: {INFERRED}{plain(over)}")
    return LifeMark(
        start_ms=row.at_ms - (row.cost_ms or 0.0) if row.start_ms is None else row.start_ms,
        end_ms=row.at_ms,
        kind=kind,
        cost_ms=row.cost_ms or 0.0,
        baseline_ms=row.baseline_ms,
        own_tokens=row.own_prefill_tokens,
        other_tokens=row.other_prefill_tokens,
        prefill_tokens=row.prefill_tokens,
        running=row.running,
        waiting=row.waiting,
        text=tuple(words),
    )


def _one_line(key: str, lang: str) -> str:
    """A column's head, which breaks where a column is narrow."""
    return life_word(lang, key).replace("\n", " ")


def _group_row(group: StepGroup, lang: str) -> tuple[str, ...]:
    return (
        f"{plain(group.start_ms)}–{plain(group.end_ms)}",
        life_word(lang, group.kind, n=group.beside_steps)
        if group.kind == "several"
        else life_word(lang, group.kind),
        f"{group.steps:,}",
        plain(group.cost_ms),
        plain(group.each_ms),
        _count(group.own_tokens),
        _count(group.other_prefill_tokens),
        _pair(group.other_decodes),
        f"{_pair(group.running)}, {_pair(group.waiting)}",
        percent(group.kv_usage_ratio),
        plain(None)
        if group.excess_ms is None or not group.beside_steps
        else INFERRED + plain(group.excess_ms),
    )


def _count(n: int | None) -> str:
    return plain(None) if n is None else f"{n:,}"


def _pair(pair: tuple[int, int] | None) -> str:
    if pair is None:
        return plain(None)
    low, high = pair
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"

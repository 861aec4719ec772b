"""Where the time goes, in a few sentences computed from the numbers, saying no more than they show."""

from __future__ import annotations

from collections.abc import Sequence

from phasemeter.explain.cold import Cold as ColdStart
from phasemeter.explain.growth import Exponent
from phasemeter.explain.summary import Summary
from phasemeter.explain.verdict import Verdict
from phasemeter.report.digits import interval, percent, plain, power, times
from phasemeter.report.levels import level_text, lowest
from phasemeter.report.parts import ABSENT, Attributed, Cold, Growth, Mark, Number, ShapeView
from phasemeter.report.words import say, word

_WIDE = 0.8
"""An interval of exponents wider than this names no law."""


def growth_of(exponents: Sequence[Exponent], lang: str) -> tuple[Growth, ...]:
    """Every local exponent with the sentence that reads it."""
    loads = {entry.asked for entry in exponents}
    answers = {(entry.metric, entry.asked, entry.output_tokens) for entry in exponents}
    several = len({(metric, load) for metric, load, _ in answers}) < len(answers)
    return tuple(_growth(entry, lang, load=len(loads) > 1, answer=several) for entry in exponents)


def cold_of(cold: ColdStart, lang: str) -> Cold | None:
    """The cold start beside the steady state; None where there was nothing to tell it from."""
    first, steady, settle = cold.first_ttft_ms, cold.steady_ttft_ms, cold.requests_to_settle
    if first is None or steady is None or steady <= 0:
        return None
    sentence = say(
        lang,
        "cold_unsettled" if settle is None else "cold",
        input=plain_count(cold.input_tokens),
        first=plain(first),
        steady=plain(steady),
        ratio=times(Number(first / steady, unit="")),
        settle=settle,
    )
    return Cold(
        first_ttft=Number(first),
        steady_ttft=Number(steady),
        requests_to_settle=ABSENT if settle is None else Number(float(settle), unit=""),
        sentence=sentence,
    )


def closing_of(
    summary: Summary, shapes: Sequence[ShapeView], growth: Sequence[Growth], lang: str
) -> tuple[str, ...]:
    """Three to five sentences: where the time of the slowest single request goes, what binds prefill and
    decode, and how prefill grows."""
    seen = [shape for shape in shapes if shape.total.value is not None and shape.n > 0]
    if not seen:
        return (say(lang, "run_empty"),)
    low = lowest(seen)
    chosen = max((s for s in seen if s.asked == low), key=lambda s: (s.input_tokens, s.output_tokens))
    sentences: list[str] = []
    if summary.verdict is Verdict.INVALID:
        names = ", ".join(check.name for check in summary.checks if check.verdict is Verdict.INVALID)
        sentences.append(say(lang, "run_invalid", checks=names))
    sentences.append(_where(chosen, lang))
    sentences += _why(chosen, summary, lang)
    sentences += [entry.sentence for entry in _widest(growth)]
    sentences += _loaded(chosen, seen, lang)
    return tuple(sentences[:6])


def plain_count(count: int | None) -> str:
    """A whole number with thousands separated; a dash for None."""
    return plain(None) if count is None else f"{count:,}"


def _growth(entry: Exponent, lang: str, *, load: bool, answer: bool) -> Growth:
    """`load` and `answer` name the concurrency and the answer's length, where several were measured."""
    lo, hi = entry.ci95 if entry.ci95 is not None else (None, None)
    mark = Mark.OBSERVED if entry.metric != "first" else Mark.INFERRED
    number = Number(entry.exponent, unit="", mark=mark, lo=lo, hi=hi)
    metric = say(lang, f"metric_{entry.metric}")
    if answer:
        metric += say(lang, "of_answers", output=plain_count(entry.output_tokens))
    if load:
        metric += say(lang, "at_load", level=level_text(entry.asked, lang))
    sentence = say(
        lang,
        law_of(lo, hi, square=entry.metric != "tpot"),
        low=plain_count(entry.from_tokens),
        high=plain_count(entry.to_tokens),
        metric=metric,
        e=power(entry.exponent),
        ci="" if lo is None or hi is None else f"[{power(lo)}, {power(hi)}]",
    )
    return Growth(
        metric=entry.metric,
        low=entry.from_tokens,
        high=entry.to_tokens,
        output_tokens=entry.output_tokens,
        asked=entry.asked,
        exponent=number,
        sentence=sentence.replace("） ", "）"),  # a full-width bracket brings its own space
    )


def law_of(lo: float | None, hi: float | None, *, square: bool = True) -> str:
    """The sentence that an interval of exponents allows; the whole interval must agree with it. `square`:
    whether the square law is worth a word (nobody claims it of TPOT)."""
    if lo is None or hi is None:
        return "growth_none"
    if hi - lo > _WIDE:
        return "growth_wide_below" if square and hi < 2.0 else "growth_wide"
    if lo <= 0.0:
        return "growth_flat"
    if lo <= 2.0 <= hi:
        return "growth_square"
    if lo > 2.0:
        return "growth_above"
    if hi < 0.95:
        return "growth_sub"
    return "growth_below" if lo > 1.1 else "growth_linear"


def _where(shape: ShapeView, lang: str) -> str:
    shares = {segment.phase: segment.share for segment in shape.segments if segment.share is not None}
    main = "prefill" if shape.split else "first"
    rest = 1.0 - shares.get(main, 0.0) - shares.get("decode", 0.0)
    return say(
        lang,
        "where_split" if shape.split else "where_first",
        input=plain_count(shape.input_tokens) if shape.one_shape else shape.lengths[0],
        output=plain_count(shape.output_tokens) if shape.one_shape else shape.lengths[1],
        level=level_text(shape.asked, lang),
        total=plain(shape.total.value),
        decode=percent(shares.get("decode")),
        rest=percent(max(0.0, rest)),
        **{main: percent(shares.get(main))},
    )


def _why(shape: ShapeView, summary: Summary, lang: str) -> list[str]:
    if shape.prefill_floor.value is None:
        return [say(lang, "no_floor")]
    source = summary.ceilings[0].source if summary.ceilings else "datasheet"
    ceilings = word(lang, f"ceiling_{source}")
    found: list[str] = []
    for entry in shape.attributed:
        if entry.below_floor:
            found.append(say(lang, "below_floor", phase=entry.label))
        elif entry.phase == "prefill":
            found.append(
                _reason(
                    "prefill_why",
                    shape.prefill,
                    shape.prefill_ratio,
                    shape.prefill_floor,
                    entry,
                    ceilings,
                    lang,
                )
            )
        elif entry.phase == "decode":
            found.append(
                _reason("decode_why", shape.tpot, shape.tpot_ratio, shape.tpot_floor, entry, ceilings, lang)
            )
    return found


def _reason(
    key: str, seen: Number, ratio: Number, floor: Number, entry: Attributed, ceilings: str, lang: str
) -> str:
    shares = {part.name: percent(part.share) for part in entry.parts}
    return say(
        lang,
        key,
        ms=plain(seen.value),
        ratio=times(ratio),
        floor=plain(floor.value),
        ceilings=ceilings,
        arithmetic=shares.get("arithmetic", percent(None)),
        traffic=shares.get("memory traffic", percent(None)),
        host=shares.get("host and kernel inefficiency", percent(None)),
    )


def _widest(growth: Sequence[Growth]) -> list[Growth]:
    """The growth between the two largest lengths: there a square law would show first."""
    found = [entry for entry in growth if entry.metric != "tpot"]
    return found and [max(found, key=lambda entry: (*(-n for n in entry.asked.order), entry.high))]


def _loaded(chosen: ShapeView, shapes: Sequence[ShapeView], lang: str) -> list[str]:
    """The same shape under the highest load, where one was measured."""
    same = [s for s in shapes if s.lengths == chosen.lengths and s.asked.order > chosen.asked.order]
    if not same:
        return []
    most = max(same, key=lambda s: s.asked.order)
    return [
        say(
            lang,
            "e2e_conc",
            level=level_text(most.asked, lang),
            tpot=f"{plain(most.tpot.value)} {interval(most.tpot)}".strip(),
            ttft=f"{plain(most.ttft.value)} {interval(most.ttft)}".strip(),
        )
    ]

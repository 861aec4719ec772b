"""A run under load as tables, sentences and charts."""

from __future__ import annotations

from collections.abc import Sequence

from phasemeter.explain.batch_means import Estimate
from phasemeter.explain.capacity import Capacity, Largest
from phasemeter.explain.levels import LevelLoad, Tail
from phasemeter.explain.slo import Judged, LevelSlo, Met, Slo
from phasemeter.explain.steady import State
from phasemeter.explain.under_load import UnderLoad
from phasemeter.report.digits import plain
from phasemeter.report.inside import TextTable
from phasemeter.report.levels import level_cell
from phasemeter.report.load_parts import LoadChart, LoadView, Point

_WORDS: dict[str, dict[str, str]] = {
    "en": {
        "levels": "levels; whole run, steady numbers where the state says so",
        "windows": "steady windows, seconds from the first arrival; latencies in them, ms [95 % by batch means]",
        "level": "load",
        "n": "n",
        "failed": "failed",
        "arrived": "due/s",
        "sent": "sent/s",
        "done": "done/s",
        "tokens": "tokens/s",
        "flying": "in flight",
        "ttft50": "TTFT p50",
        "ttft99": "TTFT p99",
        "tpot50": "TPOT p50",
        "state": "state",
        "ramp": "ramp",
        "steady_s": "steady",
        "drain": "drain",
        "arrival50": "TTFT from arrival p50",
        "e2e50": "E2E p50",
        "steady": "steady",
        "growing": "queue grows",
        "drifting": "drifting",
        "unsettled": "too short",
        "none": "—",
        "slo": "objectives: {text}",
        "good": "good",
        "good_s": "good/s",
        "answer": "answer",
        "met": "met",
        "not met": "not met",
        "undecided": "undecided",
        "rate_per_s": "rate",
        "concurrency": "concurrency",
        "unit_rate_per_s": "/s",
        "unit_concurrency": "",
        "largest": "The largest {axis} that meets the objectives is {level}{unit}{ci}; tried: met at {met}, not met "
        "at {not_met}.",
        "largest_above": "Every {axis} up to {top}{unit} keeps the limits as far as was seen: the largest one lies "
        "above (met beyond doubt: {met}).",
        "largest_below": "No {axis} down to {bottom}{unit} keeps the limits: the largest one lies below.",
        "knee": "Saturation: completions stop following the load at {axis} {level}{unit}{ci} "
        "({plateau} requests/s at most).",
        "no_knee": "Saturation was not reached: at {axis} {top}{unit} completions still follow the load.",
        "starred": "* judged on all of its requests: it has no steady window; a queue that grows meets nothing.",
        "alt": "Completions, TTFT and TPOT against the load of each level; the same numbers are in the table.",
        "good_asked": "good requests asked: {share}; a failed request is never good",
    },
    "zh": {
        "levels": "各级负载；全程数据，状态为稳定时另有稳定窗口的数据",
        "windows": "稳定窗口（秒，自首个到达）；其中的延迟，毫秒 [批均值法 95 % 区间]",
        "level": "负载",
        "n": "n",
        "failed": "失败",
        "arrived": "应到/s",
        "sent": "发出/s",
        "done": "完成/s",
        "tokens": "token/s",
        "flying": "在途",
        "ttft50": "TTFT p50",
        "ttft99": "TTFT p99",
        "tpot50": "TPOT p50",
        "state": "状态",
        "ramp": "爬升",
        "steady_s": "稳定",
        "drain": "排空",
        "arrival50": "自到达的 TTFT p50",
        "e2e50": "E2E p50",
        "steady": "稳定",
        "growing": "队列增长",
        "drifting": "漂移",
        "unsettled": "太短",
        "none": "—",
        "slo": "目标：{text}",
        "good": "达标",
        "good_s": "达标/s",
        "answer": "结论",
        "met": "满足",
        "not met": "不满足",
        "undecided": "未定",
        "rate_per_s": "到达率",
        "concurrency": "并发",
        "unit_rate_per_s": "/s",
        "unit_concurrency": "",
        "largest": "满足目标的最大{axis}为 {level}{unit}{ci}；测过的：{met} 满足，{not_met} 不满足。",
        "largest_above": "直到 {top}{unit} 的各级{axis}在所见范围内都守住了限值：最大值在其上（确定满足：{met}）。",
        "largest_below": "低至 {bottom}{unit} 的各级{axis}都守不住限值：最大值在其下。",
        "knee": "饱和：{axis}到 {level}{unit}{ci} 时，完成率不再随负载增长（最多每秒 {plateau} 个请求）。",
        "no_knee": "未达饱和：{axis}为 {top}{unit} 时，完成率仍随负载增长。",
        "starred": "* 没有稳定窗口，按全部请求判断；队列不断增长即为不满足。",
        "alt": "各级负载的完成率、TTFT 与 TPOT；表格有同样的数字。",
        "good_asked": "要求的达标比例：{share}；失败的请求不算达标",
    },
}


def load_of(found: UnderLoad, lang: str) -> LoadView | None:
    """The view in "en" or "zh"; None for a plain grid, whose levels say nothing that its shapes do not."""
    levels, words = found.levels, _WORDS[lang]
    if found.slo is None and all(
        level.asked.concurrency is not None and level.steady is None for level in levels
    ):
        return None
    tables = [_levels(levels, words, lang)]
    windows = _windows(levels, words, lang)
    if windows is not None:
        tables.append(windows)
    if found.slo is not None:
        tables.append(_objectives(found.slo, levels, words, lang))
    said = [text for one in found.capacities for text in _said(one, words)]
    if any(level.slo is not None and level.slo.note for level in levels):
        said.append(words["starred"])
    charts = tuple(_chart(one, found, words, lang) for one in found.capacities)
    return LoadView(tuple(said), tuple(tables), charts, words["alt"])


def _levels(levels: Sequence[LevelLoad], words: dict[str, str], lang: str) -> TextTable:
    names = ["level", "n", "failed", "arrived", "done", "flying", "ttft50", "ttft99", "tpot50", "state"]
    is_open = any(level.arrived_per_s is not None for level in levels)
    if not is_open:
        names.remove("arrived")
    rows: list[tuple[str, ...]] = []
    for level in levels:
        flying = level.seen_mean if level.in_flight is None else level.in_flight.value
        due = [] if not is_open else [_due(level)]
        rows.append(
            (
                level_cell(level.asked, lang),
                f"{level.requests:,}",
                f"{level.failed:,}",
                *due,
                _estimate(level.completed_per_s),
                plain(flying),
                plain(None if level.ttft_ms is None else level.ttft_ms.p50),
                _tail(level.ttft_p99),
                plain(None if level.tpot_ms is None else level.tpot_ms.p50),
                words["none" if level.steady is None else level.steady.state.value],
            )
        )
    return TextTable(words["levels"], tuple(words[name] for name in names), tuple(rows))


def _due(level: LevelLoad) -> str:
    """The rate of intended arrivals; the rate of sends too where the client fell behind."""
    if level.arrived_per_s is None or level.sent_per_s is None:
        return plain(level.arrived_per_s)
    behind = abs(level.sent_per_s / level.arrived_per_s - 1) > 0.01
    return plain(level.arrived_per_s) + (f" → {plain(level.sent_per_s)}" if behind else "")


def _windows(levels: Sequence[LevelLoad], words: dict[str, str], lang: str) -> TextTable | None:
    names = ("level", "ramp", "steady_s", "drain", "n", "arrival50", "tpot50", "e2e50", "done", "tokens")
    rows: list[tuple[str, ...]] = []
    for level in levels:
        steady = level.steady
        if steady is None or steady.state is not State.STEADY:
            continue
        spans = steady.windows
        rows.append(
            (
                level_cell(level.asked, lang),
                plain(sum(w.from_s or 0.0 for w in spans)),
                plain(sum((w.to_s or 0.0) - (w.from_s or 0.0) for w in spans)),
                plain(sum(w.drain_s for w in spans)),
                f"{steady.requests:,}",
                *(
                    plain(None) if d is None else _span(d.p50, d.ci95_p50)
                    for d in (steady.ttft_from_arrival_ms, steady.tpot_ms, steady.e2e_ms)
                ),
                _estimate(steady.requests_per_s),
                _estimate(steady.output_tokens_per_s),
            )
        )
    heads = tuple(words[name] for name in names)
    return TextTable(words["windows"], heads, tuple(rows)) if rows else None


def _objectives(slo: Slo, levels: Sequence[LevelLoad], words: dict[str, str], lang: str) -> TextTable:
    conditions = [c for c in slo.conditions if c.percentile is not None]
    title = words["slo"].format(text=slo.text)
    if slo.good_share is not None:
        title += "; " + words["good_asked"].format(share=f"{slo.good_share:.4g}")
    rows = tuple(
        (
            level_cell(level.asked, lang),
            _percent(level.slo.goodput.share),
            _estimate(level.slo.goodput.per_s),
            *(_judged(one, words) for one in level.slo.conditions),
            _answer(level.slo, words),
        )
        for level in levels
        if level.slo is not None
    )
    heads = (words["level"], words["good"], words["good_s"], *(c.name for c in conditions), words["answer"])
    return TextTable(title, heads, rows)


def _judged(one: Judged, words: dict[str, str]) -> str:
    text = _tail(Tail(one.value_ms, one.ci95_ms))
    return text if one.met is Met.MET else f"{text} {words[one.met.value]}"


def _answer(slo: LevelSlo, words: dict[str, str]) -> str:
    text = words[slo.met.value]
    return text if slo.steady or not slo.note else f"{text} *"


def _said(one: Capacity, words: dict[str, str]) -> list[str]:
    names = {"axis": words[one.axis], "unit": words[f"unit_{one.axis}"]}
    top, bottom = one.levels[-1], one.levels[0]
    found: list[str] = []
    if one.largest is not None and one.largest.where != "unknown":
        key = "largest" if one.largest.where == "between" else f"largest_{one.largest.where}"
        found.append(
            words[key].format(
                **names,
                level=plain(one.largest.level),
                ci=_brackets(one.largest.lo, one.largest.hi),
                met=_number(one.largest.met_at),
                not_met=_number(one.largest.not_met_at),
                top=f"{top:g}",
                bottom=f"{bottom:g}",
            )
        )
    knee = one.knee
    if knee is not None:
        found.append(
            words["knee" if knee.saturated else "no_knee"].format(
                **names,
                level=plain(knee.level),
                ci=_brackets(knee.lo, knee.hi),
                plateau=_estimate(knee.plateau_per_s),
                top=f"{top:g}",
            )
        )
    return found


def _chart(one: Capacity, found: UnderLoad, words: dict[str, str], lang: str) -> LoadChart:
    mine = [level for level in found.levels if getattr(level.asked, one.axis) is not None]
    points = tuple(_point(level, lang) for level in mine)
    first = next((p for p in points if p.completed is not None), None)
    slope = 1.0 if one.axis == "rate_per_s" else None
    if slope is None and first is not None and first.completed is not None and first.load > 0:
        slope = first.completed[0] / first.load
    marks: list[tuple[float, str]] = []
    if one.knee is not None and one.knee.level is not None:
        marks.append((one.knee.level, f"knee {plain(one.knee.level)}"))
    if one.largest is not None and one.largest.level is not None:
        marks.append((one.largest.level, f"SLO {plain(one.largest.level)}{_brackets_of(one.largest)}"))
    limits = {} if found.slo is None else {c.metric: c.limit_ms for c in found.slo.conditions}
    unit = words[f"unit_{one.axis}"]
    return LoadChart(words[one.axis] + (f" ({unit})" if unit else ""), points, slope, tuple(marks), limits)


def _point(level: LevelLoad, lang: str) -> Point:
    done = level.completed_per_s
    return Point(
        load=level.offered or 0.0,
        label=level_cell(level.asked, lang),
        completed=None if done is None else (done.value, done.lo, done.hi),
        ttft_p50_ms=None if level.ttft_ms is None else level.ttft_ms.p50,
        ttft_p99=_triple(level.ttft_p99),
        tpot_p50_ms=None if level.tpot_ms is None else level.tpot_ms.p50,
        tpot_p99=_triple(level.tpot_p99),
        steady=level.steady is not None and level.steady.state is State.STEADY,
    )


def _triple(tail: Tail) -> tuple[float, float | None, float | None] | None:
    return None if tail.value_ms is None else (tail.value_ms, *tail.ci95_ms)


def _estimate(found: Estimate | None) -> str:
    return plain(None) if found is None else plain(found.value) + _brackets(found.lo, found.hi)


def _percent(found: Estimate | None) -> str:
    if found is None:
        return plain(None)
    text = f"{found.value * 100:.3g} %"
    if found.lo is None or found.hi is None:
        return text
    return f"{text} [{found.lo * 100:.3g}, {found.hi * 100:.3g}]"


def _tail(tail: Tail) -> str:
    return plain(tail.value_ms) + _brackets(*tail.ci95_ms)


def _span(value: float, ci95: tuple[float, float] | None) -> str:
    return plain(value) if ci95 is None else plain(value) + _brackets(*ci95)


def _brackets_of(largest: Largest) -> str:
    return _brackets(largest.lo, largest.hi)


def _brackets(lo: float | None, hi: float | None) -> str:
    """An interval; a bound that the data do not give is a dash."""
    return "" if lo is None and hi is None else f" [{plain(lo)}, {plain(hi)}]"


def _number(value: float | None) -> str:
    return plain(None) if value is None else f"{value:g}"

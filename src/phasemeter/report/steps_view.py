"""The engine's inside on a page and on a terminal: its steps, who disturbed whom, and the front end's two parts."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from phasemeter.explain.steps import UNPLACED, UNTOLD, StepsSummary
from phasemeter.explain.steps_life import Life, StepRow
from phasemeter.explain.summary import Summary
from phasemeter.record.run import Run
from phasemeter.report.digits import INFERRED, percent, plain
from phasemeter.report.inside import InsideView, LifeStep, LifeView, TextTable
from phasemeter.report.levels import shape_short
from phasemeter.report.life_view import choices_of
from phasemeter.report.life_words import life_word
from phasemeter.report.server_view import server_part

_MOST_LINES = 8
_LETTERS = {"queue": "·", "prefill": "█", "decode": "─", "beside": "▓"}

_WORDS: dict[str, dict[str, str]] = {
    "en": {
        "kinds": "Steps by what they did",
        "step": "step",
        "steps": "steps",
        "tokens_in": "prefill tokens",
        "tokens_out": "decode tokens",
        "cost": "cost p50, ms",
        "cost90": "p90",
        "running": "running",
        "waiting": "waiting at most",
        "kv": "KV cache at most",
        "prefill": "prefill",
        "decode": "decode",
        "mixed": "both",
        "most": "Answers that lost most to the prefill of others",
        "request": "request",
        "decode_ms": "decode, ms",
        "beside": "steps beside a prefill",
        "others": "tokens of others",
        "lost": "lost, ms",
        "share": "of decode",
        "life": "A request step by step: {request} (queue {queue}, prefill {prefill}, decode {decode} ms)",
        "life_cut": "; only its first steps are shown",
        "hint": "one request alone: phasemeter explain RUN --request slowest-itl",
        "part_queue": "queue",
        "part_prefill": "prefill",
        "part_decode": "decode",
        "part_beside": "decode beside a prefill",
        "front_end": "The front end in two parts, means in ms; together front end + decode - the engine's decode",
        "shape": "input → output, load",
        "whole": "front end",
        "api": "API process",
        "outside": "outside it",
        "before": "before engine",
        "after": "after engine",
        "some": "Of {placed} answers laid over {told} steps, {disturbed} decoded beside the prefill of another "
        "request. That took {p50} of the decode time at the median and {p90} at the 90th percentile.",
        "none": "Of {placed} answers laid over {told} steps, none decoded beside the prefill of another request.",
        "no_base": "Of {placed} answers laid over {told} steps, {disturbed} decoded beside the prefill of another "
        "request; what that took is not known, as no step decoded alone.",
        "untold": "The engine told its steps without tokens; start vLLM with --enable-logging-iteration-details.",
        "unplaced": "No measured request finished on the clock of the steps, so none can be laid over them.",
    },
    "zh": {
        "kinds": "按内容划分的引擎步",
        "step": "步",
        "steps": "步数",
        "tokens_in": "prefill token",
        "tokens_out": "decode token",
        "cost": "耗时 p50，毫秒",
        "cost90": "p90",
        "running": "运行中",
        "waiting": "最多等待",
        "kv": "KV 缓存最高",
        "prefill": "prefill",
        "decode": "decode",
        "mixed": "两者",
        "most": "受他人 prefill 影响最大的回答",
        "request": "请求",
        "decode_ms": "decode，毫秒",
        "beside": "与 prefill 同步的步",
        "others": "他人的 token",
        "lost": "损失，毫秒",
        "share": "占 decode",
        "life": "逐步看一个请求：{request}（排队 {queue}，prefill {prefill}，decode {decode} 毫秒）",
        "life_cut": "；只显示最初的步",
        "hint": "单独看一个请求：phasemeter explain RUN --request slowest-itl",
        "part_queue": "排队",
        "part_prefill": "prefill",
        "part_decode": "decode",
        "part_beside": "decode，旁有 prefill",
        "front_end": "前端的两部分，均值，毫秒；两者之和等于前端 + decode - 引擎时钟的 decode",
        "shape": "输入 → 输出，并发",
        "whole": "前端",
        "api": "API 进程",
        "outside": "进程之外",
        "before": "进引擎之前",
        "after": "出引擎之后",
        "some": "{placed} 个回答对应到 {told} 个引擎步，其中 {disturbed} 个在 decode 时旁边有别的请求在 prefill；"
        "这占去其 decode 时间的中位 {p50}，第 90 百分位 {p90}。",
        "none": "{placed} 个回答对应到 {told} 个引擎步，没有一个在 decode 时遇到别的请求的 prefill。",
        "no_base": "{placed} 个回答对应到 {told} 个引擎步，其中 {disturbed} 个在 decode 时旁边有别的请求在 prefill；"
        "没有只做 decode 的步可比，损失未知。",
        "untold": "引擎报告的步没有 token 数；请用 --enable-logging-iteration-details 启动 vLLM。",
        "unplaced": "没有被测请求在引擎步的时钟上结束，无法对应。",
    },
}
_NOTES = {UNTOLD: "untold", UNPLACED: "unplaced"}


def inside_of(summary: Summary, lang: str, run: Run | None = None) -> InsideView | None:
    """What the engine's inside shows in "en" or "zh"; None where it told nothing of it. With the `run`, the lives of
    the few requests that tell most are there to choose from."""
    words = _WORDS[lang]
    said, sums = server_part(summary.server_metrics, lang)
    tables = [table for table in (_front_end(summary, words, lang), sums) if table is not None]
    steps = summary.steps
    if steps is None:
        return InsideView(said, tuple(tables)) if tables or said else None
    if steps.kinds:
        tables.append(_kinds(steps, words))
    if steps.most:
        tables.append(_most(steps, words))
    life = _life(steps.life, words) if steps.life is not None and steps.life.rows else None
    lives = () if run is None else choices_of(run, steps, lang)
    return InsideView((*said, _sentence(steps, words)), tuple(tables), life, lives)


def inside_html(inside: InsideView, index: int, lang: str) -> str:
    """The body of the page's section for the run of that index."""
    return "".join(_html(inside, index, lang))


def inside_lines(inside: InsideView, width: int) -> tuple[tuple[TextTable, ...], str]:
    """For a terminal: the tables, and the life as one bar with its legend ("" where there is none)."""
    if inside.life is None:
        return inside.tables, ""
    bar = _bar(inside.life.steps, max(20, width - 4))
    parts = dict.fromkeys(step.part for step in inside.life.steps)
    names = {step.part: step.text for step in inside.life.steps}
    legend = "  ".join(f"{_LETTERS[part]} {names[part].partition(':')[0]}" for part in parts)
    return inside.tables, f"{inside.life.title}\n{bar}\n{legend}\n{inside.life.hint}"


def _sentence(steps: StepsSummary, words: dict[str, str]) -> str:
    if steps.note:
        return words[_NOTES[steps.note]]
    key = "none" if not steps.disturbed else "no_base" if steps.share is None else "some"
    share = steps.share
    return words[key].format(
        placed=steps.placed,
        told=steps.told,
        disturbed=steps.disturbed,
        p50="" if share is None else INFERRED + percent(share.p50),
        p90="" if share is None else INFERRED + percent(share.p90),
    )


def _front_end(summary: Summary, words: dict[str, str], lang: str) -> TextTable | None:
    found = [(shape, split) for shape in summary.shapes if (split := shape.front_end_split) is not None]
    names = ["shape", "whole", "api", "outside"]
    around = any(split.before_engine is not None for _, split in found)
    if around:
        names += ["before", "after"]
    rows: list[tuple[str, ...]] = []
    for shape, split in found:
        parts = [shape.phases.front_end, split.api_process, split.outside]
        if around:
            parts += [split.before_engine, split.after_engine]
        rows.append(
            (
                shape_short(shape.key, lang),
                *(plain(None) if part is None else INFERRED + plain(part.dist.mean) for part in parts),
            )
        )
    return TextTable(words["front_end"], tuple(words[name] for name in names), tuple(rows)) if rows else None


def _kinds(steps: StepsSummary, words: dict[str, str]) -> TextTable:
    names = ("step", "steps", "tokens_in", "tokens_out", "cost", "cost90", "running", "waiting", "kv")
    rows = tuple(
        (
            words[kind.kind],
            f"{kind.steps:,}",
            f"{kind.prefill_tokens:,}",
            f"{kind.decode_tokens:,}",
            plain(None if kind.cost_ms is None else kind.cost_ms.p50),
            plain(None if kind.cost_ms is None else kind.cost_ms.p90),
            plain(kind.running_mean),
            plain(kind.waiting_max),
            percent(kind.kv_usage_max),
        )
        for kind in steps.kinds
    )
    return TextTable(words["kinds"], tuple(words[name] for name in names), rows)


def _most(steps: StepsSummary, words: dict[str, str]) -> TextTable:
    names = ("request", "decode_ms", "steps", "beside", "others", "lost", "share")
    rows = tuple(
        (
            one.request + (f" #{one.index}" if one.index else ""),
            plain(one.decode_ms),
            f"{one.decode_steps:,}",
            f"{one.prefill_steps:,}",
            f"{one.prefill_tokens:,}",
            plain(None) if one.interference_ms is None else INFERRED + plain(one.interference_ms),
            plain(None) if one.share is None else INFERRED + percent(one.share),
        )
        for one in steps.most[:_MOST_LINES]
    )
    return TextTable(words["most"], tuple(words[name] for name in names), rows)


def _life(life: Life, words: dict[str, str]) -> LifeView:
    whole = sum(row.cost_ms or 0.0 for row in life.rows) or 1.0
    title = words["life"].format(
        request=life.request,
        queue=plain(life.queue_ms),
        prefill=plain(life.prefill_ms),
        decode=plain(life.decode_ms),
    )
    return LifeView(
        title=title + (words["life_cut"] if life.cut else ""),
        hint=words["hint"],
        steps=tuple(
            LifeStep(
                (row.cost_ms or 0.0) / whole,
                _part(row),
                f"{words['part_' + _part(row)]}: {plain(row.cost_ms)} ms",
            )
            for row in life.rows
        ),
    )


def _part(row: StepRow) -> str:
    return "beside" if row.part == "decode" and row.prefill_tokens else row.part


def _bar(steps: tuple[LifeStep, ...], room: int) -> str:
    """One letter for every `room`-th part of the time: what the request did in most of it."""
    found: list[str] = []
    ends: list[float] = []
    at = 0.0
    for step in steps:
        at += step.share
        ends.append(at)
    index = 0
    for i in range(room):
        while index < len(ends) - 1 and ends[index] < (i + 0.5) / room:
            index += 1
        found.append(_LETTERS[steps[index].part])
    return "".join(found)


def _html(inside: InsideView, index: int, lang: str) -> Iterator[str]:
    for sentence in inside.sentences:
        yield f"<p>{escape(sentence)}</p>"
    for table in inside.tables:
        yield text_table(table)
    if not inside.lives:
        return
    options = "".join(
        f'<option value="{i}">{escape(life.label)}</option>' for i, life in enumerate(inside.lives)
    )
    yield f"<h3>{escape(life_word(lang, 'life_choose'))}</h3>"
    yield f'<div class="pick"><label>{escape(life_word(lang, "choose"))} '
    yield f'<select class="life" data-run="{index}" autocomplete="off">{options}</select></label></div>'
    for i, life in enumerate(inside.lives):
        yield f'<div data-life-of-run="{index}" data-life="{i}"><p>{escape(" ".join(life.sentences))}</p></div>'
    alt = escape(life_word(lang, "alt"))
    yield f'<div class="chart" data-chart="life-{index}" data-run="{index}" role="img" aria-label="{alt}"></div>'
    for i, life in enumerate(inside.lives):
        yield f'<div data-life-of-run="{index}" data-life="{i}"><p class="lead">{escape(life.title)}</p>'
        yield f"<details><summary>{escape(life.steps)}</summary>{text_table(life.table)}</details></div>"


def text_table(table: TextTable) -> str:
    """A table as HTML."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    above = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    return (
        f'<div class="scroll"><table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )

# ruff: noqa: E501 - whole sentences
"""The page's sentences, English and Chinese. Every number in them comes from a run, a floor or the article."""

from __future__ import annotations

import math
from collections.abc import Callable

from article_data import Runs, exponents_of, lengths_of, start_of

from phasemeter.explain.shapes import ShapeSummary
from phasemeter.explain.summary import Summary
from phasemeter.report.article import HARDWARE, LIST_PREFILL_MS, MODEL, TABLE_MS
from phasemeter.report.digits import plain, power
from phasemeter.roofline.floor import decode_floor, prefill_floor
from phasemeter.roofline.hardware import find_hardware
from phasemeter.roofline.presets import load_shape

TEXT: dict[str, tuple[str, str]] = {
    "title": ("The article's table, re-measured", "文章的表格，重新测量"),
    "generated": (
        "This page is generated from the run files listed at its end (`make validation`). Times are milliseconds: "
        "the median, and in brackets its 95 % interval; ~ marks what was inferred, not observed.",
        "本页由文末所列的运行文件生成（`make validation`）。时间单位为毫秒：中位数，方括号内为其 95 % 区间；~ 表示推断值而非观测值。",
    ),
    "claims": ("The article's numbers", "文章的数字"),
    "claim": ("claim", "项目"),
    "lengths_head": ("input → output tokens", "输入 → 输出 token"),
    "claimed": ("article (A100-40GB)", "文章（A100-40GB）"),
    "floor_a100": ("floor on the A100", "A100 的物理下限"),
    "measured_by": ("measured: {start}", "实测：{start}"),
    "predicted": ("predicted for the A100", "对 A100 的预测"),
    "too_little": ("too little measured for a fit", "测点太少，无法拟合"),
    "predicted_how": (
        "Predicted for the A100: a [fit](commands/fit.md) to our first run, with its 90 % interval. The chip's part goes by the "
        "ratio of ceilings; the host's part is that of our H200's host, widened by a factor of 1.6 (one standard deviation), since "
        "nobody knows the article's host. Nearly all of the interval is the host's. It is for the vLLM that we ran, not for the article's.",
        "对 A100 的预测：由第一组测量[拟合](commands/fit.md)得出，附 90 % 区间。芯片部分按上限之比换算；主机部分沿用 H200 所在的主机，并放宽 1.6 倍（一个标准差），"
        "因为文章的主机未知。区间几乎全部来自主机。预测针对我们所用的 vLLM 版本，而非文章所称的版本。",
    ),
    "verdict": ("verdict", "判断"),
    "verdict_impossible": ("impossible", "不可能"),
    "verdict_implausible": ("implausible", "不可信"),
    "verdict_plausible": ("plausible", "可信"),
    "verdict_undecidable": ("undecidable", "无法判断"),
    "verdicts": (
        "Verdicts are those of [`phasemeter audit`](commands/audit.md) on the claim alone, by arithmetic; of these "
        "runs it knows only the slowest medians, doubled, as a bound of the host: *impossible* is below the floor, *implausible* above what kernels, the host and the article's own other rows "
        "can explain, *plausible* lies between.",
        "判断出自 [`phasemeter audit`](commands/audit.md)，只看该说法本身、只凭计算；这些测量只以最慢中位数的两倍作为主机的上限：*不可能*指低于物理下限，"
        "*不可信*指高于核函数、主机与文章自身其他数据所能解释的时间，*可信*介于两者之间。",
    ),
    "audited": ("Every claim, audited", "逐条审核"),
    "right_wrong": ("What the article gets right and wrong", "文章对在哪里，错在哪里"),
    "growth": ("How prefill grows with length", "prefill 随长度如何增长"),
    "lengths": ("By input length, batch 1", "按输入长度，批大小 1"),
    "batches": ("By batch", "按批大小"),
    "batches_note": (
        "All requests of a batch arrive together; prefill is what one of them saw, from scheduled to its first token.",
        "同一批请求同时到达；prefill 为单个请求从被调度到首个 token 的时间。",
    ),
    "front": ("The front end: through HTTP and in process", "前端开销：经 HTTP 与进程内"),
    "runs": ("The runs", "运行文件"),
    "input": ("input tokens", "输入 token"),
    "floor_here": ("prefill floor here", "本机 prefill 下限"),
    "floor_tpot": ("TPOT floor here", "本机 TPOT 下限"),
    "prefill": ("prefill", "prefill"),
    "batch": ("batch", "批大小"),
    "tokens_s": ("tokens/s", "token/秒"),
    "front_end": ("front end", "前端"),
    "file": ("file", "文件"),
    "start": ("start", "启动方式"),
    "requests": ("requests", "请求数"),
    "checks": ("checks that are not ok", "未通过的检查"),
    "failed": ("{n} failed", "{n} 个失败"),
    "all_ok": ("all ok", "全部通过"),
    "nothing": ("Not measured.", "未测量。"),
    "way_http": ("HTTP", "HTTP"),
    "way_local": ("in process", "进程内"),
    "mode_default": ("default", "默认"),
    "mode_eager": ("eager", "eager"),
    "intro": (
        "{model} ({weights}, {dtype}) on {device} with vLLM {version}, {date}. Up to {blocks} interleaved repeats of every "
        "shape, greedy, prefix caching off. The article names an A100-40GB, so levels may not be compared one to one; "
        "growth, and distance from each machine's own floor, may.",
        "{model}（{weights}，{dtype}），{device}，vLLM {version}，{date}。每种形状至多交错重复 {blocks} 次，贪心解码，关闭前缀缓存。"
        "文章所用为 A100-40GB，故数值不可逐一比较；可比较的是增长规律，以及与各自机器下限的距离。",
    ),
    "square_wrong": (
        "Wrong: prefill does not follow a square law here. The article lets it grow {claimed} times from {low} to {high} "
        "tokens (exponent {claimed_e}); we measured {measured} times (exponent {measured_e}), and the floor on the A100 "
        "grows {floor} times.",
        "错误：此处 prefill 并不服从平方律。文章称从 {low} 到 {high} 个 token 增长 {claimed} 倍（指数 {claimed_e}）；"
        "我们测得 {measured} 倍（指数 {measured_e}），A100 上的下限增长 {floor} 倍。",
    ),
    "square_right": (
        "Prefill grew {measured} times from {low} to {high} tokens (exponent {measured_e}); the article says {claimed} "
        "times (exponent {claimed_e}), and the floor on the A100 grows {floor} times.",
        "从 {low} 到 {high} 个 token，prefill 增长 {measured} 倍（指数 {measured_e}）；文章称 {claimed} 倍（指数 {claimed_e}），"
        "A100 上的下限增长 {floor} 倍。",
    ),
    "level": (
        "Its {claimed} ms for {high} tokens are {over_floor} times the A100's floor of {floor} ms and {over} times our "
        "{measured} ms.",
        "其 {high} 个 token 的 {claimed} 毫秒是 A100 下限 {floor} 毫秒的 {over_floor} 倍，是我们实测 {measured} 毫秒的 {over} 倍。",
    ),
    "tpot_between": (
        "Right in size: its {low_ms} to {high_ms} ms a token lie between our {fast} ms ({fast_start}) and {slow} ms "
        "({slow_start}), and well above the A100's floor of {floor} ms: at batch 1 this small model waits for the host, "
        "not for the memory.",
        "量级正确：其每 token {low_ms} 至 {high_ms} 毫秒介于我们的 {fast} 毫秒（{fast_start}）与 {slow} 毫秒（{slow_start}）之间，"
        "远高于 A100 的下限 {floor} 毫秒：批大小为 1 时，这个小模型等待的是主机而不是显存。",
    ),
    "tpot_outside": (
        "Its {low_ms} to {high_ms} ms a token lie outside what we measured, {fast} ms ({fast_start}) to {slow} ms "
        "({slow_start}); the A100's floor is {floor} ms.",
        "其每 token {low_ms} 至 {high_ms} 毫秒在我们的实测范围之外：{fast} 毫秒（{fast_start}）至 {slow} 毫秒（{slow_start}）；"
        "A100 的下限为 {floor} 毫秒。",
    ),
    "tpot_growth": (
        "TPOT with context: the article lets it grow {claimed} times from ({a}) to ({b}); we measured {measured} times, "
        "the floor on the A100 grows {floor} times.",
        "TPOT 随上下文：文章称从（{a}）到（{b}）增长 {claimed} 倍；我们测得 {measured} 倍，A100 上的下限增长 {floor} 倍。",
    ),
    "share": (
        "Decode takes {share} % of a request of {input} + {output} tokens here.",
        "在此，{input} + {output} token 的请求中 decode 占 {share} %。",
    ),
    "graphs": (
        "CUDA graphs and compilation ({way}): TPOT at {input} + {output} tokens is {eager} ms eagerly and {default} ms by "
        "default, {times} times less; prefill {eager_p} and {default_p} ms.",
        "CUDA graph 与编译（{way}）：{input} + {output} token 的 TPOT 在 eager 下为 {eager} 毫秒，默认为 {default} 毫秒，"
        "相差 {times} 倍；prefill 分别为 {eager_p} 与 {default_p} 毫秒。",
    ),
    "front_http": (
        "HTTP ({mode}): of {ttft} ms to the first token at {input} tokens, {front} ms are front end; in process {front_local} "
        "of {ttft_local} ms.",
        "HTTP（{mode}）：{input} 个 token 时首 token 用时 {ttft} 毫秒，其中前端 {front} 毫秒；进程内为 {ttft_local} 毫秒中的 "
        "{front_local} 毫秒。",
    ),
    "batch_gain": (
        "Batching: from batch {low} to {high} tokens per second grow {rate} times while TPOT grows {tpot} times.",
        "批处理：批大小从 {low} 到 {high}，每秒 token 数增长 {rate} 倍，而 TPOT 增长 {tpot} 倍。",
    ),
    "exponent": ("{a} → {b}: {e}{interval}{square}", "{a} → {b}：{e}{interval}{square}"),
    "no_square": (", a square law is excluded", "，排除平方律"),
    "exponents_of": ("{start} (exponent of {metric}): ", "{start}（{metric} 的指数）："),
}  # fmt: skip


def say(lang: str, key: str, **values: object) -> str:
    """The text of `key` in "en" or "zh"."""
    text = TEXT[key][0 if lang == "en" else 1]
    return text.format(**values) if values else text


def intro(runs: Runs, lang: str) -> list[str]:
    """Where and how, once for every distinct set-up (the starts differ in nothing else)."""
    summary = runs.main
    header = summary.header
    devices = [gpu.name for gpu in header.machine.gpus] or [header.machine.cpu]
    blocks = max((shape.blocks for s in runs.by_name.values() for shape in s.shapes), default=0)
    return [
        say(
            lang, "intro", model=summary.shape_name or header.engine.model, weights=header.engine.weights or "?",
            dtype=header.engine.dtype or "?", device=", ".join(devices), version=header.engine.version or "?",
            date=summary.started[:10], blocks=blocks,
        )
    ]  # fmt: skip


def closing(runs: Runs, lang: str) -> list[str]:
    """The plain paragraph, sentence by sentence; what cannot be computed is not said."""
    makers: list[Callable[[Runs, str], list[str]]] = [
        _square, _level, _tpot_size, _tpot_growth, _share, _graphs, _front, _batch,
    ]  # fmt: skip
    found = [sentence for make in makers for sentence in make(runs, lang)]
    return ["\n".join(f"- {sentence}" for sentence in found)] if found else [say(lang, "nothing")]


def growth_lines(runs: Runs, lang: str) -> list[str]:
    """Local exponents of prefill between neighbouring lengths, run by run."""
    lines: list[str] = []
    for name, summary in runs.by_name.items():
        for metric in ("prefill", "first"):
            shown: list[str] = []
            for e in exponents_of(summary, metric):
                interval = "" if e.ci95 is None else f" [{power(e.ci95[0])}, {power(e.ci95[1])}]"
                square = say(lang, "no_square") if e.excludes_square else ""
                a, b = f"{e.from_tokens:,}", f"{e.to_tokens:,}"
                shown.append(
                    say(lang, "exponent", a=a, b=b, e=power(e.exponent), interval=interval, square=square)
                )
            if shown:
                head = say(lang, "exponents_of", start=label(name, lang), metric=metric)
                lines.append(f"- {head}{'; '.join(shown) if lang == 'en' else '；'.join(shown)}")
    return ["\n".join(lines)] if lines else [say(lang, "nothing")]


def label(name: str, lang: str) -> str:
    """A start in words."""
    way, _, mode = name.partition("-")
    if f"way_{way}" not in TEXT or f"mode_{mode}" not in TEXT:
        return name
    return f"{say(lang, f'way_{way}')}, {say(lang, f'mode_{mode}')}"


def _square(runs: Runs, lang: str) -> list[str]:
    ends = _prefill_ends(runs.main)
    if ends is None:
        return []
    (low, low_ms), (high, high_ms) = ends
    claimed = dict(LIST_PREFILL_MS)
    shape, named = load_shape(MODEL), find_hardware(HARDWARE)
    floors = [prefill_floor(shape, n, named).seconds for n in (low, high)]
    span = math.log(high / low)
    measured = high_ms / low_ms
    wrong = math.log(measured) / span < 1.5
    return [
        say(
            lang, "square_wrong" if wrong else "square_right", low=low, high=high,
            claimed=plain(claimed[high] / claimed[low]), claimed_e=power(math.log(claimed[high] / claimed[low]) / span),
            measured=plain(measured), measured_e=power(math.log(measured) / span), floor=plain(floors[1] / floors[0]),
        )
    ]  # fmt: skip


def _level(runs: Runs, lang: str) -> list[str]:
    ends = _prefill_ends(runs.main)
    if ends is None:
        return []
    high, measured = ends[1]
    claimed = dict(LIST_PREFILL_MS)[high]
    floor_ms = prefill_floor(load_shape(MODEL), high, find_hardware(HARDWARE)).seconds * 1e3
    return [
        say(
            lang, "level", claimed=plain(claimed), high=high, floor=plain(floor_ms), over_floor=plain(claimed / floor_ms),
            measured=plain(measured), over=plain(claimed / measured),
        )
    ]  # fmt: skip


def _tpot_size(runs: Runs, lang: str) -> list[str]:
    seen = [
        (ms, name)
        for name, summary in runs.by_name.items()
        for new, out, _, _ in TABLE_MS
        if (ms := _tpot_ms(_shape(summary, new, out))) is not None
    ]
    if not seen:
        return []
    (fast, fast_start), (slow, slow_start) = min(seen), max(seen)
    claims = [ms for _, _, _, ms in TABLE_MS]
    inside = fast <= min(claims) and max(claims) <= slow
    floor_ms = decode_floor(load_shape(MODEL), 128, find_hardware(HARDWARE)).seconds * 1e3
    return [
        say(
            lang, "tpot_between" if inside else "tpot_outside", low_ms=plain(min(claims)), high_ms=plain(max(claims)),
            fast=plain(fast), fast_start=label(fast_start, lang), slow=plain(slow), slow_start=label(slow_start, lang),
            floor=plain(floor_ms),
        )
    ]  # fmt: skip


def _tpot_growth(runs: Runs, lang: str) -> list[str]:
    (a_in, a_out, _, a_ms), (b_in, b_out, _, b_ms) = TABLE_MS[0], TABLE_MS[-1]
    near, far = (_tpot_ms(_shape(runs.main, new, out)) for new, out in ((a_in, a_out), (b_in, b_out)))
    if near is None or far is None:
        return []
    shape, named = load_shape(MODEL), find_hardware(HARDWARE)
    floors = [decode_floor(shape, n + out // 2, named).seconds for n, out in ((a_in, a_out), (b_in, b_out))]
    return [
        say(
            lang, "tpot_growth", a=f"{a_in}, {a_out}", b=f"{b_in}, {b_out}", claimed=plain(b_ms / a_ms),
            measured=plain(far / near), floor=plain(floors[1] / floors[0]),
        )
    ]  # fmt: skip


def _share(runs: Runs, lang: str) -> list[str]:
    new, out, _, _ = TABLE_MS[-1]
    shape = _shape(runs.main, new, out)
    if shape is None or shape.phases.decode is None or shape.latency.e2e_ms is None:
        return []
    share = 100 * shape.phases.decode.dist.mean / shape.latency.e2e_ms.mean
    return [say(lang, "share", share=plain(share), input=new, output=out)]


def _graphs(runs: Runs, lang: str) -> list[str]:
    found: list[str] = []
    for summary, eager in runs.pairs("default", "eager"):
        for new, out, _, _ in TABLE_MS[-1:]:
            pair = [_shape(s, new, out) for s in (summary, eager)]
            tpot = [_tpot_ms(shape) for shape in pair]
            first = [_prefill_ms(shape) for shape in pair]
            if tpot[0] is None or tpot[1] is None:
                continue
            way = say(lang, f"way_{start_of(summary).partition('-')[0]}")
            found.append(
                say(
                    lang, "graphs", way=way, input=new, output=out, default=plain(tpot[0]), eager=plain(tpot[1]),
                    times=plain(tpot[1] / tpot[0]), default_p=plain(first[0]), eager_p=plain(first[1]),
                )
            )  # fmt: skip
    return found


def _front(runs: Runs, lang: str) -> list[str]:
    found: list[str] = []
    for http, local in runs.pairs("http", "local"):
        shapes = {s.key.input_tokens: s for s in lengths_of(local)}
        for shape in lengths_of(http):
            other = shapes.get(shape.key.input_tokens)
            values = [_first_and_front(s) for s in (shape, other)]
            if shape.key.input_tokens not in (64, 2048) or values[0] is None or values[1] is None:
                continue
            mode = say(lang, f"mode_{start_of(http).partition('-')[2]}")
            found.append(
                say(
                    lang, "front_http", mode=mode, input=f"{shape.key.input_tokens:,}", ttft=plain(values[0][0]),
                    front=plain(values[0][1]), ttft_local=plain(values[1][0]), front_local=plain(values[1][1]),
                )
            )  # fmt: skip
    return found


def _batch(runs: Runs, lang: str) -> list[str]:
    shapes = sorted(runs.batches(next(iter(runs.by_name))), key=lambda s: s.key.concurrency)
    if len(shapes) < 2:
        return []
    low, high = shapes[0], shapes[-1]
    rates = [s.throughput.output_tokens_per_s for s in (low, high)]
    steps = [_tpot_ms(s) for s in (low, high)]
    if rates[0] is None or rates[1] is None or steps[0] is None or steps[1] is None:
        return []
    return [
        say(
            lang, "batch_gain", low=low.key.concurrency, high=high.key.concurrency, rate=plain(rates[1] / rates[0]),
            tpot=plain(steps[1] / steps[0]),
        )
    ]  # fmt: skip


def _prefill_ends(summary: Summary) -> tuple[tuple[int, float], tuple[int, float]] | None:
    """Prefill at the shortest and the longest length of the article's list that was measured."""
    wanted = {n for n, _ in LIST_PREFILL_MS}
    seen = [
        (s.key.input_tokens, ms)
        for s in lengths_of(summary)
        if s.key.input_tokens in wanted and (ms := _prefill_ms(s)) is not None
    ]
    return (seen[0], seen[-1]) if len(seen) > 1 else None


def _shape(summary: Summary, new: int, out: int) -> ShapeSummary | None:
    keys = (new, out, 1)
    return next(
        (
            s
            for s in summary.shapes
            if s.ok and (s.key.input_tokens, s.key.output_tokens, s.key.concurrency) == keys
        ),
        None,
    )


def _tpot_ms(shape: ShapeSummary | None) -> float | None:
    """The median; None where it is 0, as when a starved client reads a whole stream at once."""
    return None if shape is None or shape.latency.tpot_ms is None else shape.latency.tpot_ms.p50 or None


def _prefill_ms(shape: ShapeSummary | None) -> float | None:
    return None if shape is None or shape.phases.prefill is None else shape.phases.prefill.dist.p50


def _first_and_front(shape: ShapeSummary | None) -> tuple[float, float] | None:
    if shape is None or shape.latency.ttft_ms is None or shape.phases.front_end is None:
        return None
    return shape.latency.ttft_ms.p50, shape.phases.front_end.dist.p50

"""What the server's own sums show of its inside, where no single request has a report: one table and what it means."""

from __future__ import annotations

from phasemeter.explain.server_metrics import BUCKETS_FLAG, PhaseTotal, ServerMetrics
from phasemeter.report.digits import plain
from phasemeter.report.inside import TextTable

_PREEMPTIONS = "vllm:num_preemptions"

_WORDS: dict[str, dict[str, str]] = {
    "en": {
        "title": "The server's own sums over all measured requests (/metrics), ms",
        "phase": "phase",
        "n": "requests",
        "mean": "mean",
        "queue": "queue",
        "prefill": "prefill",
        "decode": "decode",
        "inference": "prefill + decode",
        "ttft": "TTFT, from the API process on",
        "e2e": "e2e, from the API process on",
        "ours": "No request has an engine's report of its own; this is what the server's /metrics says of all of them "
        "together. It finished {finished} requests between two scrapes, as many as were ours. Sums and means are "
        "exact; a quantile is told as the bucket that it lies in.",
        "refused": "The server's /metrics was read, but its sums are not shown: {why}.",
        "coarse": "No quantile of {names}: it lies {reach}, and that bucket says too little.",
        "partly": "Not every quantile of {names}: one lies {reach}, and that bucket says too little.",
        "between": "between {lower:g} and {upper:g} s",
        "above": "above {lower:g} s",
        "flag": "Start the server with finer buckets ({flag}).",
        "plugin": "No flag for finer buckets is known of this version; the plugin phasemeter-vllm tells every request.",
        "preempted": "The server preempted {n} times.",
        "join": ", ",
        "few": "the server finished {finished} requests, and {ours} of ours were answered",
        "many": "the server finished {finished} requests and at most {at_most} of them were ours: others use it",
        "unknown": "it does not tell how many requests finished, or was started anew",
    },
    "zh": {
        "title": "服务器对全部被测请求的汇总（/metrics），毫秒",
        "phase": "阶段",
        "n": "请求数",
        "mean": "均值",
        "queue": "排队",
        "prefill": "prefill",
        "decode": "decode",
        "inference": "prefill + decode",
        "ttft": "TTFT，自 API 进程起",
        "e2e": "e2e，自 API 进程起",
        "ours": "没有请求带引擎自己的报告；下表是服务器 /metrics 对全部请求的汇总。"
        "两次抓取之间它完成了 {finished} 个请求，与我们的数目一致。总和与均值精确；分位数只说出它所在的区间。",
        "refused": "读取了服务器的 /metrics，但不显示其总和：{why}。",
        "coarse": "{names} 的分位数不给出：它位于 {reach}，该区间过宽。",
        "partly": "{names} 的分位数没有全部给出：其中有位于 {reach} 的，该区间过宽。",
        "between": "{lower:g} 到 {upper:g} 秒之间",
        "above": "{lower:g} 秒以上",
        "flag": "请用更细的区间启动服务器（{flag}）。",
        "plugin": "未知此版本有设置更细区间的参数；插件 phasemeter-vllm 能告知每个请求。",
        "preempted": "服务器抢占了 {n} 次。",
        "join": "、",
        "few": "服务器完成了 {finished} 个请求，而我们有 {ours} 个得到回答",
        "many": "服务器完成了 {finished} 个请求，其中至多 {at_most} 个是我们的：另有他人在用",
        "unknown": "它没有告知完成的请求数，或者中途重新启动过",
    },
}


def server_part(told: ServerMetrics | None, lang: str) -> tuple[tuple[str, ...], TextTable | None]:
    """Sentences and the table, in "en" or "zh"; nothing where single requests tell more, or nobody was asked."""
    if told is None or not told.shown:
        return (), None
    words = _WORDS[lang]
    if told.refused:
        return (words["refused"].format(why=_why(told, words)),), None
    sentences = [words["ours"].format(finished=told.finished), *_coarse(told, words)]
    if preempted := told.counters.get(_PREEMPTIONS):
        sentences.append(words["preempted"].format(n=f"{preempted:,.0f}"))
    heads = (words["phase"], words["n"], words["mean"], "p50", "p90", "p99")
    rows = tuple(_row(phase, words) for phase in told.phases)
    return tuple(sentences), TextTable(words["title"], heads, rows)


def _row(phase: PhaseTotal, words: dict[str, str]) -> tuple[str, ...]:
    places = (phase.p50_ms, phase.p90_ms, phase.p99_ms)
    return (words[phase.name], f"{phase.n:,}", plain(phase.mean_ms), *map(_place, places))


def _place(bounds: tuple[float, float] | None) -> str:
    return plain(None) if bounds is None else f"{plain(bounds[0])}–{plain(bounds[1])}"


def _coarse(told: ServerMetrics, words: dict[str, str]) -> list[str]:
    """One sentence for every bucket that was too coarse, and one on how to get finer ones."""
    by_bucket: dict[tuple[str, tuple[float, float | None]], list[str]] = {}
    for phase in told.phases:
        if phase.coarse_s is not None:
            key = "partly" if phase.p50_ms or phase.p90_ms or phase.p99_ms else "coarse"
            by_bucket.setdefault((key, phase.coarse_s), []).append(words[phase.name])
    found = [
        words[key].format(names=words["join"].join(names), reach=_reach(bounds, words))
        for (key, bounds), names in by_bucket.items()
    ]
    if found:
        found.append(words["flag"].format(flag=BUCKETS_FLAG) if told.takes_buckets else words["plugin"])
    return found


def _reach(bounds: tuple[float, float | None], words: dict[str, str]) -> str:
    lower, upper = bounds
    return words["between" if upper is not None else "above"].format(lower=lower, upper=upper)


def _why(told: ServerMetrics, words: dict[str, str]) -> str:
    if told.finished is None:
        return words["unknown"]
    key = "many" if told.finished > told.at_most else "few"
    return words[key].format(finished=told.finished, ours=told.ours, at_most=told.at_most)

"""Every word of a comparison, in English and Chinese; both tables have the same keys and placeholders."""

from __future__ import annotations

WORDS: dict[str, dict[str, str]] = {
    "en": {
        "title": "{base} → {new}",
        "side": "{ok} requests, {failed} failed, {runs} run(s), {blocks} block(s), drawn by {unit}; checks: {verdict}",
        "base": "base",
        "new": "new",
        "unit_run": "run",
        "unit_block": "block",
        "unit_batch": "batch of consecutive requests",
        "differs": "What differs",
        "nothing_differs": "nothing that the records tell",
        "absent": "absent",
        "metrics": "Effects",
        "metrics_note": (
            "new against base within each shape, pooled with equal weights; 95 % intervals; margin ±{margin}"
        ),
        "metrics_note_grouped": (
            "new against base within groups of lengths, weighted by requests; 95 % intervals; margin ±{margin}"
        ),
        "metric": "metric",
        "effect": "effect %",
        "difference": "difference",
        "answer": "answer",
        "shapes": "Shape by shape",
        "shape": "shape",
        "requests": "n",
        "better": "better",
        "worse": "worse",
        "same": "same",
        "undecided": "undecided",
        "gates": "Gates",
        "gate": "gate",
        "worsening": "worse by",
        "level": "value",
        "pass": "pass",
        "fail": "fail",
        "gate_pass": "Every gate is passed.",
        "gate_fail": "A gate failed.",
        "gate_undecided": "A gate is undecided: the data cannot tell.",
        "invalid": "{name} is called invalid by its checks: {evidence}",
        "count": (
            "{n} comparisons were made; where nothing changed about one interval in twenty leaves out zero by chance. "
            "Only the gates' own metrics decide a gate."
        ),
        "count_plain": (
            "{n} comparisons were made; where nothing changed about one interval in twenty leaves out zero by chance."
        ),
        "disagree": "{metric} is {answer} in {n} of {all} shapes: {shapes}",
        "few_units": "fewer than 5 independent repeats",
        "few_values": "too few values for this quantile",
        "not_positive": "values at or below zero",
        "wide": "interval too wide",
        "small": "changed, perhaps by less than the margin",
        "runs_differ": "the runs of one side lie too far apart",
        "between": "the interval holds the limit",
        "part_of": "over {n} of {all} shapes",
        "one_block": (
            "One side has a single block: its interval holds what changed from request to request, not what drifts "
            "from minute to minute. Drift between the sides cannot be told from the change."
        ),
        "one_run": (
            "One side is a single run: what changes from one start of the server to the next is part of the effect. "
            "Several runs a side (base1,base2 new1,new2), taken in turn, tell it apart."
        ),
        "run_spread": (
            "Runs of one side lie up to {ttft} (TTFT p50) and {tpot} (TPOT p50) apart; each metric's interval is "
            "widened to hold its own spread."
        ),
        "grouped": "Lengths come from a distribution: they are grouped by factors of two.",
        "left_out": "Left out, because the other side has no such shape: {base} requests of base, {new} of new.",
        "failures": "Failed requests differ: {base} of base, {new} of new. Latencies are of the survivors.",
        "itl_token": "Gaps (ITL) are per token: the server told each piece's count.",
        "itl_chunk": "Gaps (ITL) are per chunk: the server does not tell how many tokens a chunk holds.",
        "itl_mixed": "Gaps (ITL) are not compared: one side counts tokens, the other chunks.",
    },
    "zh": {
        "title": "{base} → {new}",
        "side": "{ok} 个请求，{failed} 个失败，{runs} 次运行，{blocks} 个区组，按{unit}重抽样；检查：{verdict}",
        "base": "基准",
        "new": "新",
        "unit_run": "运行",
        "unit_block": "区组",
        "unit_batch": "连续请求的批",
        "differs": "有何不同",
        "nothing_differs": "记录中没有不同",
        "absent": "缺失",
        "metrics": "效应",
        "metrics_note": "在每个形状内以新比基准，再等权合并；95 % 区间；等价边界 ±{margin}",
        "metrics_note_grouped": "在各长度组内以新比基准，按请求数加权；95 % 区间；等价边界 ±{margin}",
        "metric": "指标",
        "effect": "效应 %",
        "difference": "差值",
        "answer": "结论",
        "shapes": "逐个形状",
        "shape": "形状",
        "requests": "n",
        "better": "更好",
        "worse": "更差",
        "same": "相同",
        "undecided": "无法判定",
        "gates": "门限",
        "gate": "门限",
        "worsening": "变差",
        "level": "数值",
        "pass": "通过",
        "fail": "未通过",
        "gate_pass": "所有门限均通过。",
        "gate_fail": "有门限未通过。",
        "gate_undecided": "有门限无法判定：数据不足以回答。",
        "invalid": "{name} 被自身检查判为无效：{evidence}",
        "count": (
            "共作了 {n} 次比较；若毫无变化，约二十个区间中会有一个偶然不含零。门限只由其自身的指标决定。"
        ),
        "count_plain": "共作了 {n} 次比较；若毫无变化，约二十个区间中会有一个偶然不含零。",
        "disagree": "{metric} 在 {all} 个形状中的 {n} 个{answer}：{shapes}",
        "few_units": "独立重复少于 5 次",
        "few_values": "数值太少，不足以给出该分位数",
        "not_positive": "数值为零或以下",
        "wide": "区间太宽",
        "small": "有变化，但可能小于边界",
        "runs_differ": "同一侧各次运行之间相差太大",
        "between": "区间包含限值",
        "part_of": "{all} 个形状中的 {n} 个",
        "one_block": "有一侧只有一个区组：区间包含请求之间的变化，不含随时间的漂移。两侧之间的漂移与改动无法分辨。",
        "one_run": (
            "有一侧只有一次运行：服务器两次启动之间的变化也在效应之内。"
            "每侧交替做几次运行（base1,base2 new1,new2）即可分辨。"
        ),
        "run_spread": (
            "同一侧各次运行最多相差 {ttft}（TTFT p50）与 {tpot}（TPOT p50）；"
            "各指标的区间已放宽到包含其自身的相差。"
        ),
        "grouped": "长度来自分布：按二的倍数分组。",
        "left_out": "因另一侧没有该形状而略去：基准 {base} 个请求，新 {new} 个请求。",
        "failures": "失败比例不同：基准 {base}，新 {new}。延迟只计成功的请求。",
        "itl_token": "间隔（ITL）按 token 计：服务器给出了每块的 token 数。",
        "itl_chunk": "间隔（ITL）按分块计：服务器没有说明一块有几个 token。",
        "itl_mixed": "间隔（ITL）不作比较：一侧按 token，另一侧按分块。",
    },
}

_STATS = {"en": {"mean": "mean"}, "zh": {"mean": "均值"}}

_QUANTITIES: dict[str, dict[str, str]] = {
    "en": {
        "ttft": "TTFT",
        "ttft_from_arrival": "TTFT from arrival",
        "prefill": "prefill",
        "queue": "queue",
        "front_end": "front end",
        "tpot": "TPOT",
        "itl": "ITL",
        "e2e": "E2E",
        "output_tokens_per_s": "output tokens/s",
        "requests_per_s": "requests/s",
        "goodput_per_s": "goodput, requests/s",
    },
    "zh": {
        "ttft": "TTFT",
        "ttft_from_arrival": "TTFT（自到达）",
        "prefill": "prefill",
        "queue": "排队",
        "front_end": "前端",
        "tpot": "TPOT",
        "itl": "ITL",
        "e2e": "E2E",
        "output_tokens_per_s": "输出 token/秒",
        "requests_per_s": "请求/秒",
        "goodput_per_s": "有效请求/秒",
    },
}


def say_compared(lang: str, key: str, /, **numbers: object) -> str:
    """One word or sentence with its numbers, already written as text, put in."""
    return WORDS[lang][key].format(**numbers)


def metric_name(lang: str, name: str) -> str:
    """A metric as a reader calls it: `ttft_p50` is "TTFT p50"."""
    names = _QUANTITIES[lang]
    if name in names:
        return names[name]
    quantity, stat = name.rsplit("_", 1)
    return f"{names[quantity]} {_STATS[lang].get(stat, stat)}"

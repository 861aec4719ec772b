"""Every word of a simulated load and of a capacity plan, in English and Chinese; both tables have the same keys."""

from __future__ import annotations

WORDS: dict[str, dict[str, str]] = {
    "en": {
        "what": "Simulated: {requests} requests on {replicas} × {machine}",
        "settings": "max_num_seqs {seqs}, max_num_batched_tokens {budget}, {blocks}",
        "blocks": "{blocks} KV blocks of {size} tokens",
        "blocks_assumed": "{blocks} KV blocks of {size} tokens (assumed: 0.92 of the memory less weights and 1.5 GB)",
        "no_blocks": "KV cache without limit",
        "metric": "metric, ms",
        "load": "{rate} requests/s, {tokens} output tokens/s; running {running}, waiting {waiting}, busy {busy}",
        "preempted": "{n} preemptions",
        "cached": "{share} of the prompt tokens came from the prefix cache",
        "kv_used": "KV cache at most {share} full",
        "growing": (
            "Requests pile up: this load is more than the engine serves, and the latencies depend on how long it lasts."
        ),
        "intervals": "In brackets: the same load with the model as fast and as slow as its 90 % intervals allow.",
        "outside": "Outside of what was fitted: {why}",
        "changed": (
            "Carried over to another machine by the ratio of ceilings; the host's part is the fitted one's, widened."
        ),
        "simulated": "Simulated, not measured.",
        "plan": "Capacity for {rate} requests/s, plus {headroom} headroom, within {slo}",
        "machine": "machine",
        "replicas": "replicas",
        "answer": "answer",
        "flags": "flags worth setting",
        "without": "without them: {n} replicas",
        "carries": "carries",
        "busy": "busy",
        "used": "of the limit",
        "condition": "condition",
        "value": "value",
        "limit": "limit",
        "per_hour": "USD/h",
        "per_output": "USD/M output",
        "per_token": "USD/M tokens",
        "met": "met",
        "undecided": "undecided",
        "not met": "not met",
        "too_many": "more than {n}",
        "none": "none",
        "range": (
            "Replicas in brackets: with the model as fast and as slow as its 90 % intervals allow. `met` holds for the"
            " slow end too."
        ),
        "carries_note": (
            "`carries`: so many times the asked traffic stays within the objectives, at the middle of the model's"
            " intervals."
        ),
        "at": "{machine}, {n} replicas",
        "overload": "requests pile up",
        "frontier": "Fullest limit against replicas",
        "frontier_axis": "share of the fullest limit that is used",
        "limit_line": "limit",
        "cost_axis": "USD per hour",
    },
    "zh": {
        "what": "模拟：{requests} 个请求，{replicas} × {machine}",
        "settings": "max_num_seqs {seqs}，max_num_batched_tokens {budget}，{blocks}",
        "blocks": "{blocks} 个 KV 块，每块 {size} 个 token",
        "blocks_assumed": "{blocks} 个 KV 块，每块 {size} 个 token（假设：显存的 0.92 减去权重和 1.5 GB）",
        "no_blocks": "KV 缓存不受限",
        "metric": "指标，毫秒",
        "load": "{rate} 请求/秒，{tokens} 输出 token/秒；运行中 {running}，排队 {waiting}，忙碌 {busy}",
        "preempted": "{n} 次抢占",
        "cached": "{share} 的提示 token 来自前缀缓存",
        "kv_used": "KV 缓存最多占用 {share}",
        "growing": "请求不断积压：负载超过引擎的服务能力，时延取决于负载持续多久。",
        "intervals": "方括号内：模型取其 90 % 区间的最快端和最慢端时，同一负载的结果。",
        "outside": "超出拟合范围：{why}",
        "changed": "按性能上限之比换算到另一台机器；主机部分取自拟合的机器，区间已放宽。",
        "simulated": "这是模拟，不是测量。",
        "plan": "容量：{rate} 请求/秒，另加 {headroom} 余量，目标 {slo}",
        "machine": "机器",
        "replicas": "副本数",
        "answer": "结论",
        "flags": "值得设置的参数",
        "without": "不设置则需 {n} 个副本",
        "carries": "可承载",
        "busy": "忙碌",
        "used": "占限值",
        "condition": "条件",
        "value": "数值",
        "limit": "限值",
        "per_hour": "美元/小时",
        "per_output": "美元/百万输出 token",
        "per_token": "美元/百万 token",
        "met": "满足",
        "undecided": "未定",
        "not met": "不满足",
        "too_many": "多于 {n}",
        "none": "无",
        "range": "方括号内的副本数：模型取其 90 % 区间的最快端和最慢端。“满足”对最慢端也成立。",
        "carries_note": "“可承载”：在模型区间的中点，所问流量的多少倍仍在目标之内。",
        "at": "{machine}，{n} 个副本",
        "overload": "请求积压",
        "frontier": "最紧的限值与副本数",
        "frontier_axis": "最紧限值的占用比例",
        "limit_line": "限值",
        "cost_axis": "美元/小时",
    },
}


def say(lang: str, key: str, **values: object) -> str:
    """One sentence; an unknown language reads English."""
    return WORDS.get(lang, WORDS["en"])[key].format(**values)

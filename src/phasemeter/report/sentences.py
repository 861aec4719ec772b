"""The sentences of a report, in English and Chinese; both tables have the same keys and placeholders."""

from __future__ import annotations

SENTENCES: dict[str, dict[str, str]] = {
    "en": {
        "shape": "{input} in, {output} out, {level}",
        "shape_short": "{input} → {output}",
        "level_concurrency": "concurrency {concurrency}",
        "level_rate": "rate {rate}/s",
        "planned": "{ok} ok, {failed} failed, {planned} planned, {warmup} warm-up (left out of the numbers)",
        "unplanned": "{ok} ok, {failed} failed, {warmup} warm-up (left out of the numbers)",
        "throughput": "{tokens} tokens/s, {requests} requests/s",
        "throughput_all": "{tokens} tokens/s, {requests} requests/s, all shapes together",
        "concurrency": "{asked} asked, at most {seen} seen",
        "ceiling": "{source}: {peak}, {bandwidth}, {hardware}",
        "ceiling_launch": ", {launch} µs a kernel launch",
        "first_answer": "{ms} ms in the median; TTFT counts the reasoning before it",
        "run_invalid": (
            "The checks call this run invalid ({checks}): what follows describes it, do not rely on it."
        ),
        "run_empty": "No request of this run succeeded, so there is nothing to explain: see the checks.",
        "where_split": (
            "A request of {input} tokens in and {output} out at {level} takes {total} "
            "ms on average: prefill {prefill}, decode {decode}, everything around them {rest}."
        ),
        "where_first": (
            "A request of {input} tokens in and {output} out at {level} takes {total} "
            "ms on average: {first} until the first token, {decode} in decode, the rest {rest}; the "
            "engine does not say how much of the first part was prefill."
        ),
        "prefill_why": (
            "Its prefill takes {ms} ms in the median, {ratio} its floor of {floor} ms (ceilings: {ceilings}). Of "
            "the mean {arithmetic} is arithmetic at the ceiling's rate, {traffic} memory traffic, and "
            "{host} neither: host work and kernels below the ceilings."
        ),
        "decode_why": (
            "A decode step takes {ms} ms in the median, {ratio} its floor of {floor} ms (ceilings: {ceilings}). "
            "Of the mean {traffic} is memory traffic at the ceiling's rate (weights and cache), {arithmetic} "
            "arithmetic, {host} host work and kernels below the ceilings."
        ),
        "below_floor": (
            "The {phase} was measured below its floor, which is impossible: the ceilings, the model's "
            "shape or the dtype given for the floor are not those of this run."
        ),
        "no_floor": "There is no floor to compare with: the model's shape or the hardware is not known.",
        "growth_none": (
            "From {low} to {high} tokens {metric} has exponent {e}: too few requests for an interval, "
            "undecided."
        ),
        "growth_wide": (
            "From {low} to {high} tokens {metric} has exponent {e} {ci}: the interval is too wide to "
            "name a law."
        ),
        "growth_wide_below": (
            "From {low} to {high} tokens {metric} has exponent {e} {ci}: the interval is too wide to "
            "name a law, but it excludes the square law."
        ),
        "growth_flat": "From {low} to {high} tokens {metric} has exponent {e} {ci}: no growth shown.",
        "growth_sub": (
            "From {low} to {high} tokens {metric} grows with exponent {e} {ci}: less than linear, no "
            "square law."
        ),
        "growth_linear": "From {low} to {high} tokens {metric} grows with exponent {e} {ci}: no square law.",
        "growth_below": (
            "From {low} to {high} tokens {metric} grows with exponent {e} {ci}: more than linear, below "
            "a square law."
        ),
        "growth_square": (
            "From {low} to {high} tokens {metric} grows with exponent {e} {ci}: compatible with a square law."
        ),
        "growth_above": (
            "From {low} to {high} tokens {metric} grows with exponent {e} {ci}: faster than a square law."
        ),
        "metric_prefill": "prefill",
        "metric_first": "time to first token (prefill not told apart)",
        "metric_tpot": "TPOT (over the mean context)",
        "of_answers": " ({output} out)",
        "at_load": " at {level}",
        "cold": (
            "The first request ({input} tokens in) waited {first} ms for its first token, a steady one "
            "{steady} ms: {ratio}. Requests until it had settled: {settle}."
        ),
        "cold_unsettled": (
            "The first request ({input} tokens in) waited {first} ms for its first token, a steady one "
            "{steady} ms: {ratio}."
        ),
        "e2e_conc": "At {level} the same shape has TPOT {tpot} ms and TTFT {ttft} ms.",
        "article_machine": (
            "The article names an A100-40GB with vLLM 0.3.3; this run is on {machine}. Milliseconds of "
            "the two are not comparable; the shape of the growth and the ratio to each machine's own "
            "floor are."
        ),
        "article_growth": (
            "From {low} to {high} tokens the article's prefill grows {claimed}, the one measured here "
            "{measured}, the floor of the A100 {floor}."
        ),
        "article_inferred": (
            "TPOT marked ~ is inferred: this run's answers were shorter than the article's, so the "
            "measured TPOT was moved to the article's context by the cache bytes read more a step over "
            "the bandwidth ({bandwidth})."
        ),
        "article_measured": "TPOT was measured with the article's full output lengths.",
        "article_first": (
            "The engine did not tell prefill apart; the prefill column is time to first token and is "
            "marked ~."
        ),
        "left_out": (
            "{count} more requests are in the run file and not drawn: drawn are the slowest, and of the others an even "
            "choice by arrival."
        ),
        "alt_waterfall": "Waterfall of the mean budget of {shape}: {parts}.",
        "alt_overview": "Stacked bars of the mean budget of each shape; the same numbers are in the table.",
        "alt_prefill": (
            "Prefill time against input length on logarithmic axes with floors; the table has the numbers."
        ),
        "alt_tpot": "Time per output token against mean context with its floors; the table has the numbers.",
        "alt_itl": "Histogram of the gaps between tokens of the chosen shape.",
        "alt_timeline": "Each request of the chosen shape as a row of phases in time.",
        "picture_title": "Where the time of a request goes: {model}",
        "picture_sub": "{machine} · {engine}",
    },
    "zh": {
        "shape": "输入 {input}，输出 {output}，{level}",
        "shape_short": "{input} → {output}",
        "level_concurrency": "并发 {concurrency}",
        "level_rate": "到达率 {rate}/s",
        "planned": "成功 {ok}，失败 {failed}，计划 {planned}，预热 {warmup}（不计入数字）",
        "unplanned": "成功 {ok}，失败 {failed}，预热 {warmup}（不计入数字）",
        "throughput": "{tokens} token/s，{requests} 请求/s",
        "throughput_all": "{tokens} token/s，{requests} 请求/s（各形状合计）",
        "concurrency": "要求 {asked}，最多见到 {seen}",
        "ceiling": "{source}：{peak}，{bandwidth}，{hardware}",
        "ceiling_launch": "，每次核函数启动 {launch} µs",
        "first_answer": "中位数 {ms} ms；TTFT 从此前的思考内容算起",
        "run_invalid": "检查判定本次运行无效（{checks}）：以下只是描述，不可依赖。",
        "run_empty": "本次运行没有成功的请求，无从解释：请看检查。",
        "where_split": (
            "输入 {input}、输出 {output} 个 token、{level} 的请求平均用时 {total} ms：prefill "
            "{prefill}，decode {decode}，其余 {rest}。"
        ),
        "where_first": (
            "输入 {input}、输出 {output} 个 token、{level} 的请求平均用时 {total} ms：到第一个"
            " token {first}，decode {decode}，其余 {rest}；引擎没有说明前一段中 prefill 占多少。"
        ),
        "prefill_why": (
            "其 prefill 用时中位数为 {ms} ms，与下限 {floor} ms（上限：{ceilings}）之比为 {ratio}。平均用时中，"
            "{arithmetic} 是按上限计的算术，{traffic} 是访存，{host} 两者都不是：主机工作与未达上限的核函"
            "数。"
        ),
        "decode_why": (
            "每个 decode 步用时中位数为 {ms} ms，与下限 {floor} ms（上限：{ceilings}）之比为 {ratio}。平均用时中，"
            "{traffic} 是按上限计的访存（权重与缓存），{arithmetic} 是算术，{host} 是主机工作与未达上限的"
            "核函数。"
        ),
        "below_floor": "{phase} 的测量值低于下限，这不可能：用于下限的上限、模型形状或精度与本次运行不符。",
        "no_floor": "没有可比的下限：模型形状或硬件未知。",
        "growth_none": "从 {low} 到 {high} 个 token，{metric} 的指数为 {e}：请求太少，没有区间，无法判定。",
        "growth_wide": "从 {low} 到 {high} 个 token，{metric} 的指数为 {e} {ci}：区间太宽，说不出规律。",
        "growth_wide_below": (
            "从 {low} 到 {high} 个 token，{metric} 的指数为 {e} {ci}：区间太宽，说不出规律，但排除了平方律。"
        ),
        "growth_flat": "从 {low} 到 {high} 个 token，{metric} 的指数为 {e} {ci}：未见增长。",
        "growth_sub": "从 {low} 到 {high} 个 token，{metric} 以指数 {e} {ci} 增长：低于线性，不是平方律。",
        "growth_linear": "从 {low} 到 {high} 个 token，{metric} 以指数 {e} {ci} 增长：不是平方律。",
        "growth_below": "从 {low} 到 {high} 个 token，{metric} 以指数 {e} {ci} 增长：高于线性，低于平方律。",
        "growth_square": "从 {low} 到 {high} 个 token，{metric} 以指数 {e} {ci} 增长：与平方律相容。",
        "growth_above": "从 {low} 到 {high} 个 token，{metric} 以指数 {e} {ci} 增长：快于平方律。",
        "metric_prefill": "prefill",
        "metric_first": "首 token 时间（prefill 未能区分）",
        "metric_tpot": "TPOT（按平均上下文）",
        "of_answers": "（输出 {output}）",
        "at_load": "（{level}）",
        "cold": (
            "第一个请求（输入 {input} 个 token）等首 token {first} ms，稳定后 {steady} ms：{ratio}。稳定"
            "所用请求数：{settle}。"
        ),
        "cold_unsettled": (
            "第一个请求（输入 {input} 个 token）等首 token {first} ms，稳定后 {steady} ms：{ratio}。"
        ),
        "e2e_conc": "{level} 时，同一形状的 TPOT 为 {tpot} ms，TTFT 为 {ttft} ms。",
        "article_machine": (
            "文章写的是 A100-40GB 与 vLLM 0.3.3；本次运行在 {machine}。两者的毫秒数不可比；可比的是增长的"
            "形状，以及与各自机器下限的倍数。"
        ),
        "article_growth": (
            "从 {low} 到 {high} 个 token，文章的 prefill 增长 {claimed}，本机实测增长 {measured}，A100 的"
            "下限增长 {floor}。"
        ),
        "article_inferred": (
            "标 ~ 的 TPOT 为推断值：本次运行的回答比文章短，故按每步多读的缓存字节除以带宽（{bandwidth}）"
            "，把实测 TPOT 移到文章的上下文长度。"
        ),
        "article_measured": "TPOT 以文章的完整输出长度实测。",
        "article_first": "引擎没有单独报告 prefill；prefill 一列是首 token 时间，标 ~。",
        "left_out": "运行文件中另有 {count} 个请求未画出：画出的是最慢的请求，以及其余请求按到达顺序均匀选取的一部分。",
        "alt_waterfall": "{shape} 的平均预算瀑布图：{parts}。",
        "alt_overview": "各形状平均预算的堆叠条；表格有同样的数字。",
        "alt_prefill": "对数坐标下 prefill 时间与输入长度及下限；数字见表格。",
        "alt_tpot": "每个输出 token 的时间与平均上下文及下限；数字见表格。",
        "alt_itl": "所选形状的 token 间隔直方图。",
        "alt_timeline": "所选形状的每个请求一行，按时间显示各阶段。",
        "picture_title": "一个请求的时间花在哪里：{model}",
        "picture_sub": "{machine} · {engine}",
    },
}

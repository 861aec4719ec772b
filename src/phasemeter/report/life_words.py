"""Words and sentences of one request's life over the engine's steps, in English and Chinese."""

from __future__ import annotations

from phasemeter.explain.one_request import MERGED, NO_STEPS, UNREACHED, UNSEEN, Shared
from phasemeter.explain.steps import UNTOLD, RequestSteps
from phasemeter.explain.steps_gaps import BY_CHUNK, CUT, MANY, UNEVEN, Gap, Gaps
from phasemeter.explain.steps_life import Life
from phasemeter.report.digits import INFERRED, percent, plain

_WORDS: dict[str, dict[str, str]] = {
    "en": {
        "request": "Request {id}",
        "slowest-ttft": "slowest TTFT",
        "slowest-itl": "longest gap between tokens",
        "slowest-e2e": "slowest end to end",
        "median-e2e": "median end to end",
        "most-lost": "lost most to others' prefills",
        "outcome": "outcome",
        "warmup": "of the warm-up, measured by no statistic",
        "error": "error",
        "lengths": "tokens",
        "lengths_text": "{input} in, {output} out of {asked} asked",
        "cached": ", {cached} of the prompt from the cache",
        "latency": "latency",
        "latency_text": "TTFT {ttft} ms, TPOT {tpot} ms, longest gap {itl} ms, end to end {e2e} ms",
        "beside_it": "in flight",
        "beside_it_text": "{n} requests of this client when it started, itself included",
        "told_by": "engine told by",
        "nobody": "nobody",
        "preemptions": "preempted",
        "times": "{n} times, and computed again",
        "sequences": "{n} answers to one prompt; the steps are those of the first",
        "budget": "Its budget",
        "phase": "phase",
        "ms": "ms",
        "share": "share",
        "basis": "basis",
        "total": "end to end",
        "within": "  {name}",
        "life": "Its life over the engine's steps",
        "life_title": "From the moment the engine accepted it: queue {queue}, prefill {prefill}, decode {decode} ms",
        "engine": " on engine core {engine}",
        "at": "from–to, ms",
        "its_part": "its part",
        "steps": "steps",
        "took": "took\nms",
        "each": "each\np50",
        "own": "own",
        "own_tokens": "own tokens",
        "prefilled": "others\nprefill",
        "decoding": "others\ndecode",
        "running": "running",
        "waiting": "waiting",
        "kv": "KV\ncache",
        "beyond": "over\nms",
        "both": "runs,\nwaits",
        "queue": "queue",
        "prefill": "prefill",
        "decode": "decode",
        "beside": "beside prefill",
        "several": "{n} beside prefill",
        "first": "sent to first token",
        "waited": "It waited {queue} ms in the queue, while {steps} of the engine's steps went by that prefilled "
        "{tokens} tokens of others.",
        "disturbed": "It decoded for {decode} ms over {steps} steps; in {shared} of them others decoded as "
        "well. {beside} "
        "of the steps also prefilled {tokens} tokens of other requests. They took {cost} ms, {excess} ms more "
        "than steps "
        "that decode as many requests and prefill nothing: {share} of its decode time.",
        "no_base": "It decoded for {decode} ms over {steps} steps; in {shared} of them others decoded as well. "
        "{beside} "
        "of the steps also prefilled {tokens} tokens of other requests and took {cost} ms. How much of that is "
        "theirs is "
        "not known: no batch decoded often enough without a prefill beside it.",
        "calm": "It decoded for {decode} ms over {steps} steps; in {shared} of them others decoded as well. "
        "None of the "
        "steps prefilled another request.",
        "single": "Its answer has one token, so it shared no decode step.",
        "borrowed": "{n} of these steps decoded a batch that never decoded without a prefill; they are compared "
        "with the "
        "batches nearest in size.",
        "preempted": "It was preempted and computed again, so some of that prefill may be its own.",
        "gaps": "{beside} of its {n} gaps between tokens, as the client saw them, held such a step: {beside_ms} ms in "
        "all, {share} of its decode time, {p50_beside} ms at the median beside {p50_alone} ms for the other gaps.",
        "gaps_all": "All of its {n} gaps between tokens held such a step; {p50_beside} ms at the median, as the client "
        "saw them.",
        "longest_beside": "The longest gap, {gap} ms before token {token}, spans {steps} that prefilled "
        "{tokens} tokens of others; the engine took {engine} ms for it.",
        "longest_alone": "The longest gap, {gap} ms before token {token}, spans {steps} that prefilled nobody; the "
        "engine took {engine} ms for it.",
        "one_step": "a step",
        "some_steps": "{n} steps",
        "folded": "Between the steps that stand out, others are put together; --json holds every one.",
        "method": "Inferred (~): a step costs what its decoding requests waited, from the end of the step "
        "before to its "
        "own; a gap is matched with a step by the number of its token, never by its time.",
        "why_"
        + NO_STEPS: "The record holds no engine steps, so nobody knows whom this request shared the engine with. "
        "Measure with --engine vllm --engine-steps to have them.",
        "why_"
        + MERGED: "Steps of several runs lie on several clocks. Explain the one file that holds this request.",
        "why_"
        + UNSEEN: "The engine told nothing of this request on the clock of its steps, so it cannot be laid over "
        "them.",
        "why_" + UNREACHED: "The steps that were told do not reach as far back as this request.",
        "why_"
        + UNTOLD: "The engine told its steps without tokens; start vLLM with --enable-logging-iteration-details.",
        "gaps_" + MANY: "Several answers share one stream, so its gaps are not matched with steps.",
        "gaps_" + UNEVEN: "It did not get one token a step, so its gaps are not matched with steps.",
        "gaps_"
        + BY_CHUNK: "The server does not tell how many tokens a piece holds, so its gaps are not matched with "
        "steps.",
        "gaps_" + CUT: "Not all of its steps are kept, so its gaps are not matched with them.",
        "life_choose": "A request's life over the engine's steps",
        "choose": "Request",
        "axis": "ms since the engine accepted it",
        "axis_cost": "ms a step",
        "axis_tokens": "prefill tokens",
        "axis_requests": "requests",
        "baseline": "same batch, no prefill",
        "trace_prefill": "own prefill",
        "trace_beside": "decode beside others' prefill",
        "trace_own": "own prompt",
        "trace_others": "others' prompts",
        "trace_unknown": "prompts not told apart",
        "trace_running": "running",
        "trace_waiting": "waiting",
        "all_steps": "its {n} steps, alike ones together",
        "alt": "A request's life over the engine's steps: what each step cost, what it prefilled, and who waited.",
    },
    "zh": {
        "request": "请求 {id}",
        "slowest-ttft": "TTFT 最慢",
        "slowest-itl": "token 间隔最长",
        "slowest-e2e": "端到端最慢",
        "median-e2e": "端到端居中",
        "most-lost": "受他人 prefill 影响最大",
        "outcome": "结果",
        "warmup": "属于预热，不计入任何统计",
        "error": "错误",
        "lengths": "token",
        "lengths_text": "输入 {input}，输出 {output}（要求 {asked}）",
        "cached": "，其中 {cached} 来自前缀缓存",
        "latency": "延迟",
        "latency_text": "TTFT {ttft} 毫秒，TPOT {tpot} 毫秒，最长间隔 {itl} 毫秒，端到端 {e2e} 毫秒",
        "beside_it": "并发",
        "beside_it_text": "开始时本客户端共有 {n} 个请求在途（含自身）",
        "told_by": "引擎数据来源",
        "nobody": "无",
        "preemptions": "被抢占",
        "times": "{n} 次，之后重新计算",
        "sequences": "同一提示有 {n} 个回答；所示为第一个的引擎步",
        "budget": "它的时间预算",
        "phase": "阶段",
        "ms": "毫秒",
        "share": "占比",
        "basis": "依据",
        "total": "端到端",
        "within": "  {name}",
        "life": "它经历的引擎步",
        "life_title": "从引擎接收它算起：排队 {queue}，prefill {prefill}，decode {decode} 毫秒",
        "engine": "（引擎核心 {engine}）",
        "at": "起–止，毫秒",
        "its_part": "所处阶段",
        "steps": "步数",
        "took": "耗时\n毫秒",
        "each": "每步\np50",
        "own": "自身",
        "own_tokens": "自身 token",
        "prefilled": "他人\nprefill",
        "decoding": "他人\ndecode",
        "running": "运行中",
        "waiting": "等待",
        "kv": "KV\n缓存",
        "beyond": "多出\n毫秒",
        "both": "运行\n等待",
        "queue": "排队",
        "prefill": "prefill",
        "decode": "decode",
        "beside": "旁有 prefill",
        "several": "{n} 步旁有 prefill",
        "first": "发出到首 token",
        "waited": "它排队 {queue} 毫秒，其间过了 {steps} 个引擎步，为别的请求 prefill 了 {tokens} 个 token。",
        "disturbed": "它 decode 了 {decode} 毫秒，共 {steps} 步；其中 {shared} 步有别的请求同时 decode。"
        "{beside} 步还为别的请求 "
        "prefill 了 {tokens} 个 token，共耗时 {cost} 毫秒，比同样批量而没有 prefill 的步多 {excess} 毫秒，占其 "
        "decode 时间的 "
        "{share}。",
        "no_base": "它 decode 了 {decode} 毫秒，共 {steps} 步；其中 {shared} 步有别的请求同时 decode。{beside} "
        "步还为别的请求 "
        "prefill 了 {tokens} 个 token，共耗时 {cost} 毫秒。没有足够多只做 decode 的步可比，多出多少未知。",
        "calm": "它 decode 了 {decode} 毫秒，共 {steps} 步；其中 {shared} 步有别的请求同时 decode。"
        "没有一步为别的请求做 prefill。",
        "single": "它的回答只有一个 token，没有与别的请求共享 decode 步。",
        "borrowed": "其中 {n} 步的批量从未单独 decode 过，与大小最接近的批量相比。",
        "preempted": "它曾被抢占并重新计算，所以部分 prefill 可能是它自己的。",
        "gaps": "在客户端看来，{n} 个 token 间隔中有 {beside} 个包含这样的步：共 {beside_ms} 毫秒，占其 decode "
        "时间的 {share}；"
        "中位 {p50_beside} 毫秒，其余间隔中位 {p50_alone} 毫秒。",
        "gaps_all": "它的 {n} 个 token 间隔全都包含这样的步；在客户端看来，中位 {p50_beside} 毫秒。",
        "longest_beside": "最长的间隔在第 {token} 个 token 之前，{gap} 毫秒，跨 {steps}，其中为别的请求 prefill "
        "了 {tokens} 个 token；引擎为此用了 {engine} 毫秒。",
        "longest_alone": "最长的间隔在第 {token} 个 token 之前，{gap} 毫秒，跨 {steps}，其中没有 prefill；"
        "引擎为此用了 {engine} 毫秒。",
        "one_step": "1 个引擎步",
        "some_steps": "{n} 个引擎步",
        "folded": "突出的步之间，其余的步合在一起；--json 给出每一步。",
        "method": "推断（~）：一步的耗时是其中 decode 的请求所等的时间，从上一步结束到这一步结束；间隔按 token "
        "的序号与步对应，不按时间。",
        "why_"
        + NO_STEPS: "记录中没有引擎步，无法知道它与谁共享引擎。请用 --engine vllm --engine-steps 测量。",
        "why_" + MERGED: "几次运行的引擎步在不同的时钟上。请只解释包含这个请求的那个文件。",
        "why_" + UNSEEN: "引擎没有在引擎步的时钟上报告这个请求，无法对应。",
        "why_" + UNREACHED: "所报告的引擎步没有回溯到这个请求。",
        "why_" + UNTOLD: "引擎报告的步没有 token 数；请用 --enable-logging-iteration-details 启动 vLLM。",
        "gaps_" + MANY: "几个回答共用一条流，间隔无法与引擎步对应。",
        "gaps_" + UNEVEN: "它不是每步一个 token，间隔无法与引擎步对应。",
        "gaps_" + BY_CHUNK: "服务器没有说明每个片段含几个 token，间隔无法与引擎步对应。",
        "gaps_" + CUT: "没有保留它的全部引擎步，间隔无法与之对应。",
        "life_choose": "一个请求经历的引擎步",
        "choose": "请求",
        "axis": "自引擎接收它起的毫秒",
        "axis_cost": "每步毫秒",
        "axis_tokens": "prefill token",
        "axis_requests": "请求数",
        "baseline": "同样批量，无 prefill",
        "trace_prefill": "自身 prefill",
        "trace_beside": "decode，旁有他人 prefill",
        "trace_own": "自己的提示",
        "trace_others": "他人的提示",
        "trace_unknown": "无法区分的提示",
        "trace_running": "运行中",
        "trace_waiting": "等待",
        "all_steps": "它的 {n} 个引擎步，相似的合并",
        "alt": "一个请求经历的引擎步：每步耗时、prefill 的 token、运行与等待的请求。",
    },
}


def life_word(lang: str, key: str, /, **numbers: object) -> str:
    """A text of this page in "en" or "zh", with its numbers filled in."""
    return _WORDS[lang][key].format(**numbers) if numbers else _WORDS[lang][key]


def missing_sentence(note: str, lang: str) -> str:
    """Why a request could not be laid over the steps, and how to mend it."""
    return _WORDS[lang]["why_" + note]


def shared_sentences(shared: Shared, lang: str) -> tuple[str, ...]:
    """What sharing the engine's steps cost one request."""
    found = [*_waited_sentence(shared.life, lang), _steps_sentence(shared.steps, lang)]
    steps = shared.steps
    if steps is not None and steps.prefill_steps:
        if steps.borrowed_steps and steps.interference_ms is not None:
            found.append(life_word(lang, "borrowed", n=steps.borrowed_steps))
        if steps.preempted:
            found.append(life_word(lang, "preempted"))
    if shared.gaps_note and steps is not None:
        found.append(_WORDS[lang]["gaps_" + shared.gaps_note])
    if shared.gaps is not None and shared.gaps.gaps:
        if shared.gaps.beside:
            found.append(_gaps_sentence(shared.gaps, lang))
        found.append(_longest_sentence(shared.gaps, lang))
    return tuple(found)


def _waited_sentence(life: Life, lang: str) -> tuple[str, ...]:
    rows = [row for row in life.rows if row.part == "queue"]
    if not rows:
        return ()
    tokens = sum(row.prefill_tokens or 0 for row in rows)
    queue, steps = plain(life.queue_ms), f"{len(rows):,}"
    return (life_word(lang, "waited", queue=queue, steps=steps, tokens=f"{tokens:,}"),)


def _steps_sentence(steps: RequestSteps | None, lang: str) -> str:
    if steps is None:
        return life_word(lang, "single")
    key = "calm" if not steps.prefill_steps else "no_base" if steps.interference_ms is None else "disturbed"
    return life_word(
        lang,
        key,
        decode=plain(steps.decode_ms),
        steps=f"{steps.decode_steps:,}",
        shared=f"{steps.shared_steps:,}",
        beside=f"{steps.prefill_steps:,}",
        tokens=f"{steps.prefill_tokens:,}",
        cost=plain(steps.prefill_steps_ms),
        excess=INFERRED + plain(steps.interference_ms),
        share=INFERRED + percent(steps.share),
    )


def _gaps_sentence(gaps: Gaps, lang: str) -> str:
    return life_word(
        lang,
        "gaps" if gaps.median_alone_ms is not None else "gaps_all",
        beside=f"{gaps.beside:,}",
        n=f"{len(gaps.gaps):,}",
        beside_ms=plain(gaps.beside_ms),
        share=percent(gaps.beside_share),
        p50_beside=plain(gaps.median_beside_ms),
        p50_alone=plain(gaps.median_alone_ms),
    )


def _longest_sentence(gaps: Gaps, lang: str) -> str:
    longest = max(gaps.gaps, key=lambda gap: gap.gap_ms)
    return life_word(
        lang,
        "longest_beside" if longest.prefill_steps else "longest_alone",
        gap=plain(longest.gap_ms),
        token=f"{longest.token:,}",
        steps=_count(longest, lang),
        tokens=f"{longest.prefill_tokens:,}",
        engine=plain(longest.engine_ms),
    )


def _count(gap: Gap, lang: str) -> str:
    return life_word(lang, "one_step") if gap.steps == 1 else life_word(lang, "some_steps", n=gap.steps)

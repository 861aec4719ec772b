"""The words of a report, defined: name, formula and boundary, in English and Chinese (same keys in both).

Each entry is (term, definition, section of the page where it is shown).
"""

from __future__ import annotations

Entry = tuple[str, str, str]

GLOSSARY: dict[str, dict[str, Entry]] = {
    "en": {
        "ttft": (
            "TTFT",
            "Time to first token: from the request's last byte handed to the socket to the first "
            "generated token. A chunk that only opens the message (a role) is no token.",
            "shapes",
        ),
        "tpot": (
            "TPOT",
            "Time per output token: (last token − first token) / (tokens − 1), one value a request. "
            "Absent for answers of one token.",
            "shapes",
        ),
        "itl": (
            "ITL",
            "Inter-token latency: every gap between tokens, pooled. A chunk is not a token.",
            "gaps",
        ),
        "e2e": (
            "E2E",
            "From the intended arrival of a request to the end of its stream.",
            "budget",
        ),
        "late": (
            "Late",
            "Intended arrival to start: the client's own delay, never the server's fault.",
            "budget",
        ),
        "connect": (
            "Connect",
            "Start to sent: a connection got ready and the request was written.",
            "budget",
        ),
        "first": (
            "First",
            "Sent to first generated token, where nobody saw the engine start: queue, prefill and front "
            "end cannot be told apart and it is not called prefill.",
            "budget",
        ),
        "front_end": (
            "Front end",
            "What is left of TTFT after queue and prefill: HTTP, tokenising, messages between processes, "
            "detokenising. A remainder of two clocks' durations, hence inferred.",
            "budget",
        ),
        "queue": (
            "Queue",
            "Accepted by the engine to first scheduled, in the engine's own clock.",
            "budget",
        ),
        "prefill": (
            "Prefill",
            "First scheduled to first token, in the engine's own clock: the model reads the whole prompt.",
            "prefill",
        ),
        "decode": (
            "Decode",
            "First token to last token, seen by the client.",
            "decode",
        ),
        "tail": (
            "Tail",
            "Last token to the end of the stream.",
            "budget",
        ),
        "floor": (
            "Floor",
            "The shortest time that arithmetic and memory traffic allow: the longer of FLOPs / rate and "
            "bytes / bandwidth of the whole pass. Measured ceilings where the run has them, else the "
            "datasheet. Attribution takes the longer of the two operator by operator, which is a little more.",
            "prefill",
        ),
        "bound": (
            "Bound",
            "What holds the time: arithmetic, memory traffic, or the host (launches, Python, scheduling: "
            "all that the floor does not contain). Not told where queue, network and front end are in the "
            "same time.",
            "attribution",
        ),
        "exponent": (
            "Local exponent",
            "ln(time ratio) / ln(length ratio) between two neighbouring lengths: 0 is constant, 1 "
            "linear, 2 quadratic.",
            "prefill",
        ),
        "ci": (
            "95 % interval",
            "Of the median, by bootstrap: whole repeats are drawn where there are five or more, else "
            "requests. Two numbers whose intervals overlap are not shown to differ.",
            "numbers",
        ),
        "observed": (
            "Observed",
            "Read from stamps of one clock, or reported by the engine itself.",
            "numbers",
        ),
        "inferred": (
            "Inferred (~)",
            "Computed from other numbers and a stated assumption.",
            "numbers",
        ),
        "absent": (
            "Absent (—)",
            "Not known. Never shown as 0 and never filled in.",
            "numbers",
        ),
    },
    "zh": {
        "ttft": (
            "TTFT",
            "首 token 时间：从请求的最后一个字节交给套接字，到第一个生成的 token。只打开消息（role）的分"
            "块不算 token。",
            "shapes",
        ),
        "tpot": (
            "TPOT",
            "每个输出 token 的时间：（最后一个 token − 第一个 token）/（token 数 − 1），每个请求一个值。"
            "只有一个 token 的回答没有此值。",
            "shapes",
        ),
        "itl": (
            "ITL",
            "token 间隔：所有相邻 token 的间隔，合并统计。一个分块不等于一个 token。",
            "gaps",
        ),
        "e2e": (
            "E2E",
            "从请求的计划到达时刻到其流结束。",
            "budget",
        ),
        "late": (
            "迟发",
            "从计划到达到开始：客户端自身的延误，不算服务器的。",
            "budget",
        ),
        "connect": (
            "连接",
            "从开始到发出：建立连接并写出请求。",
            "budget",
        ),
        "first": (
            "首段",
            "从发出到第一个 token；没有人看到引擎何时开始，因此排队、prefill 与前端无法区分，也不称作 "
            "prefill。",
            "budget",
        ),
        "front_end": (
            "前端",
            "TTFT 减去排队和 prefill 的剩余：HTTP、分词、进程间通信、反分词。由两个时钟的时长相减，故为推"
            "断值。",
            "budget",
        ),
        "queue": (
            "排队",
            "从引擎接受到首次被调度，用引擎自己的时钟。",
            "budget",
        ),
        "prefill": (
            "Prefill",
            "从首次被调度到第一个 token，用引擎自己的时钟：模型读入整个提示。",
            "prefill",
        ),
        "decode": (
            "Decode",
            "从第一个 token 到最后一个 token，由客户端观察：每步一个 token。",
            "decode",
        ),
        "tail": (
            "收尾",
            "从最后一个 token 到流结束。",
            "budget",
        ),
        "floor": (
            "下限",
            "算术与访存所允许的最短时间：整趟计算的 FLOPs/算力 与 字节/带宽 中较长者。有实测上限时用实测值，"
            "否则用规格书。归因时逐个算子取较长者，因此略大一些。",
            "prefill",
        ),
        "bound": (
            "瓶颈",
            "时间受什么约束：算术、访存，或主机（启动核函数、Python、调度：下限之外的一切）。排队、网络与前端"
            "混在同一段时间里时，无从分辨。",
            "attribution",
        ),
        "exponent": (
            "局部指数",
            "相邻两个长度之间 ln（时间比）/ln（长度比）：0 为不变，1 为线性，2 为平方。",
            "prefill",
        ),
        "ci": (
            "95 % 区间",
            "中位数的自助抽样区间：重复不少于五轮时按轮抽样，否则按请求抽样。区间重叠的两个数不能说不同。",
            "numbers",
        ),
        "observed": (
            "观测",
            "由同一时钟的时间戳读出，或由引擎自己报告。",
            "numbers",
        ),
        "inferred": (
            "推断（~）",
            "由其他数字和写明的假设计算得出。",
            "numbers",
        ),
        "absent": (
            "缺失（—）",
            "不知道。从不显示为 0，也不填补。",
            "numbers",
        ),
    },
}

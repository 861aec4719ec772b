"""What an audit says about sentences, English and Chinese; both tables have the same keys and placeholders."""

from __future__ import annotations

SENTENCES: dict[str, dict[str, str]] = {
    "en": {
        "ridge": "prefill is bound by arithmetic from {tokens} tokens on",
        "no_ridge": "prefill is bound by memory up to a million tokens",
        "binds": (
            "{tokens} tokens: arithmetic {compute_ms} ms, memory {memory_ms} ms, host {low_ms} to {high_ms} "
            "ms"
        ),
        "binds_two": "{tokens} tokens: arithmetic {compute_ms} ms, memory {memory_ms} ms, host not known",
        "prefill_compute_true": "arithmetic is the longest part from {low} to {high} tokens",
        "prefill_compute_false": (
            "memory traffic takes longer than arithmetic from {low} to {high} tokens (ridge: {ridge} tokens)"
        ),
        "prefill_compute_misleading": (
            "on the chip only from {ridge} tokens on, and from {low} to {high} tokens the host may take "
            "longer than either"
        ),
        "prefill_compute_undecidable": "not decidable: the host's part is not known (ridge: {ridge} tokens)",
        "decode_binds": (
            "context {context}, batch {batch}: arithmetic {compute_ms} ms, memory {memory_ms} ms, host "
            "{low_ms} to {high_ms} ms"
        ),
        "decode_binds_two": (
            "context {context}, batch {batch}: arithmetic {compute_ms} ms, memory {memory_ms} ms, host not "
            "known"
        ),
        "decode_memory_true": "memory traffic is the longest part at batch {batch}",
        "decode_memory_false": "arithmetic takes longer than memory traffic at batch {batch}",
        "decode_memory_misleading": (
            "true of the chip's part at batch {batch}; for a model this small the host may take longer than "
            "the memory"
        ),
        "decode_memory_undecidable": "not decidable: the host's part at batch {batch} is not known",
        "speeds_up": (
            "{tokens} tokens: floor {before_ms} → {after_ms} ms beside {low_ms} to {high_ms} ms of host: "
            "{least_share} to {most_share} less"
        ),
        "speeds_true": (
            "{factor} × the {resource} saves up to {most_share}, at least {felt_share} beside any host"
        ),
        "speeds_false": (
            "{factor} × the {resource} saves at most {most_share} from {low} to {high} tokens, less than "
            "{felt_share}: the host takes the time, or the other resource binds"
        ),
        "speeds_misleading": (
            "{factor} × the {resource} saves up to {most_share}, but not at every length from {low} to "
            "{high} tokens or beside every host"
        ),
        "batched": (
            "{tokens} tokens: alone {alone_ms} ms, in a batch of {batch} {batched_ms} ms on the chip; with "
            "the host {least_share} to {most_share} more"
        ),
        "batch_prefill_true": "a batch of {batch} adds up to {most_share} from {low} to {high} tokens",
        "batch_prefill_false": (
            "a batch of {batch} adds at most {most_share} from {low} to {high} tokens: below the ridge more "
            "tokens cost nothing"
        ),
        "batch_prefill_misleading": (
            "a batch of {batch} adds up to {most_share}, but only where all its tokens together pass the "
            "ridge and the host is quick ({low} to {high} tokens)"
        ),
        "own_decode_share": "own row {row}: decode is {decode_share}",
        "decode_share": "{tokens} in, {output} out, by floors and host bounds: {low_share} to {high_share}",
        "dominates_true": "decode is more than half in every case",
        "dominates_false": "decode is at most half in every case",
        "dominates_misleading": "decode is more than half in some cases only, or with some hosts only",
        "no_cache": "the set-up keeps no cache, so every step computes the whole sequence",
        "recompute": (
            "context {context}: computing all anew takes {whole_gflop} GFLOP, a step with a cache "
            "{step_gflop} ({flops_ratio} less); it reads {kv_bytes} bytes a token, {kv_mbytes} MB"
        ),
        "own_prefill": (
            "own row {row}: {tpot_ms} ms a token at context {context}; its own prefill of {tokens} tokens "
            "takes {prefill_ms} ms, {time_ratio} as long"
        ),
        "recompute_refuted": (
            "half true: the new query attends to all cached keys and values, but nothing is computed anew: "
            "at context {context} that would take at least {need_ms} ms, and {row} says {tpot_ms} ms"
        ),
        "half_true": (
            "half true: one new query attends to all cached keys and values (linear in the context), "
            "nothing past is computed anew"
        ),
        "hit_spares": (
            "{tokens} tokens: a full hit spares {spared_ms} ms of prefill; the decode step's floor stays "
            "{step_ms} ms"
        ),
        "capacity": "the cache holds {capacity_tokens} tokens; needed {needs_tokens}",
        "hits_false": (
            "a hit spares prefill, not decode: each step reads the same bytes with or without it, and the "
            "cache is far from full at batch {batch}"
        ),
        "hits_misleading": (
            "at batch {batch} only by way of other prompts: hits shorten the prefills and evictions that "
            "delay steps, not the steps themselves"
        ),
        "late": (
            "context {first} to {last}: floor {first_ms} → {last_ms} ms (+{more_us} µs), with the host +"
            "{least_share} to +{most_share}"
        ),
        "late_true": "the step grows by up to {most_share}, at least {slight_share} beside any host",
        "late_misleading": (
            "the direction is right, the size is not: at most +{most_share} beside the quickest host; less "
            "than {slight_share} beside a slow one"
        ),
        "late_false": "the step does not grow (at most {most_share}, {slight_share} would be slight)",
        "throughput": (
            "context {context}: a step takes {alone_ms} ms alone, {batched_ms} ms in a batch of {batch}: "
            "{gain_ratio} the tokens per second beside the quickest host"
        ),
        "throughput_true": "a batch of {batch} shares the weights and the host's step",
        "throughput_false": "a batch of {batch} gains less than 10 %",
        "throughput_misleading": "a batch of {batch} gains at some lengths only",
        "settings_of": "{object} of {version} takes {count} names",
        "setting_true": "{object} takes {setting}",
        "setting_misleading": "{object} does not take {setting}; {taker} does",
        "setting_false": "none of {objects} takes {setting}: a variable of this name does nothing",
    },
    "zh": {
        "ridge": "从 {tokens} 个 token 起 prefill 才受算力限制",
        "no_ridge": "直到一百万个 token，prefill 都受内存限制",
        "binds": (
            "{tokens} 个 token：计算 {compute_ms} ms，访存 {memory_ms} ms，主机 {low_ms} 到 {high_ms} ms"
        ),
        "binds_two": "{tokens} 个 token：计算 {compute_ms} ms，访存 {memory_ms} ms，主机部分未知",
        "prefill_compute_true": "从 {low} 到 {high} 个 token，计算是最长的部分",
        "prefill_compute_false": "从 {low} 到 {high} 个 token，访存比计算更久（转折点：{ridge} 个 token）",
        "prefill_compute_misleading": (
            "就芯片而言只从 {ridge} 个 token 起成立；而从 {low} 到 {high} 个 token，主机可能比两者都久"
        ),
        "prefill_compute_undecidable": "无法判断：主机部分未知（转折点：{ridge} 个 token）",
        "decode_binds": (
            "上下文 {context}、批次 {batch}：计算 {compute_ms} ms，访存 {memory_ms} ms，主机 {low_ms} 到 "
            "{high_ms} ms"
        ),
        "decode_binds_two": (
            "上下文 {context}、批次 {batch}：计算 {compute_ms} ms，访存 {memory_ms} ms，主机部分未知"
        ),
        "decode_memory_true": "批次 {batch} 时访存是最长的部分",
        "decode_memory_false": "批次 {batch} 时计算比访存更久",
        "decode_memory_misleading": "批次 {batch} 时就芯片部分而言正确；但模型这么小，主机可能比访存更久",
        "decode_memory_undecidable": "无法判断：批次 {batch} 时主机部分未知",
        "speeds_up": (
            "{tokens} 个 token：下限 {before_ms} → {after_ms} ms，另有主机 {low_ms} 到 {high_ms} ms：减少 "
            "{least_share} 到 {most_share}"
        ),
        "speeds_true": "{resource}提高到 {factor} 倍最多省 {most_share}，无论主机快慢至少省 {felt_share}",
        "speeds_false": (
            "{resource}提高到 {factor} 倍，从 {low} 到 {high} 个 token 最多省 {most_share}，不到 "
            "{felt_share}：时间花在主机上，或受另一种资源限制"
        ),
        "speeds_misleading": (
            "{resource}提高到 {factor} 倍最多省 {most_share}，但并非从 {low} 到 {high} 个 token 的每个长度、"
            "每种主机都如此"
        ),
        "batched": (
            "{tokens} 个 token：单独 {alone_ms} ms，批次 {batch} 时芯片上 {batched_ms} ms；算上主机多 "
            "{least_share} 到 {most_share}"
        ),
        "batch_prefill_true": "批次 {batch} 从 {low} 到 {high} 个 token 最多增加 {most_share}",
        "batch_prefill_false": (
            "批次 {batch} 从 {low} 到 {high} 个 token 最多增加 {most_share}：未到转折点时，多几个 token 不花"
            "时间"
        ),
        "batch_prefill_misleading": (
            "批次 {batch} 最多增加 {most_share}，但只在全批 token 总数超过转折点且主机快时如此（{low} 到 "
            "{high} 个 token）"
        ),
        "own_decode_share": "其自身数据 {row}：decode 占 {decode_share}",
        "decode_share": "输入 {tokens}、输出 {output}，按下限与主机范围：{low_share} 到 {high_share}",
        "dominates_true": "每种情形下 decode 都超过一半",
        "dominates_false": "每种情形下 decode 都不超过一半",
        "dominates_misleading": "只在部分情形或部分主机上 decode 超过一半",
        "no_cache": "该配置不保留缓存，因此每一步都计算整个序列",
        "recompute": (
            "上下文 {context}：全部重算需 {whole_gflop} GFLOP，有缓存的一步 {step_gflop}（少 {flops_ratio}）"
            "；每个 token 读 {kv_bytes} 字节，共 {kv_mbytes} MB"
        ),
        "own_prefill": (
            "其自身数据 {row}：上下文 {context} 时每个 token {tpot_ms} ms；而它自己 {tokens} 个 token 的 "
            "prefill 要 {prefill_ms} ms，为其 {time_ratio}"
        ),
        "recompute_refuted": (
            "只对一半：新的 query 要关注全部缓存的 K 和 V，但什么都不重算：上下文 {context} 时重算至少要 "
            "{need_ms} ms，而 {row} 说 {tpot_ms} ms"
        ),
        "half_true": "只对一半：一个新的 query 关注全部缓存的 K 和 V（与上下文成线性），过去的都不重算",
        "hit_spares": (
            "{tokens} 个 token：全部命中省下 {spared_ms} ms 的 prefill；decode 一步的下限仍是 {step_ms} ms"
        ),
        "capacity": "缓存可容纳 {capacity_tokens} 个 token；需要 {needs_tokens}",
        "hits_false": (
            "命中省的是 prefill 而非 decode：命中与否，每一步读的字节相同，且批次 {batch} 时缓存远未用满"
        ),
        "hits_misleading": (
            "批次 {batch} 时只通过其他请求起作用：命中缩短会拖慢各步的 prefill 与换出，而不是步骤本身"
        ),
        "late": (
            "上下文 {first} 到 {last}：下限 {first_ms} → {last_ms} ms（+{more_us} µs），算上主机 +"
            "{least_share} 到 +{most_share}"
        ),
        "late_true": "每步最多增加 {most_share}，无论主机快慢至少 {slight_share}",
        "late_misleading": "方向对，大小不对：主机最快时最多 +{most_share}；主机慢时不到 {slight_share}",
        "late_false": "每步不增加（最多 {most_share}，{slight_share} 才算轻微）",
        "throughput": (
            "上下文 {context}：单独一步 {alone_ms} ms，批次 {batch} 时 {batched_ms} ms：主机最快时每秒 "
            "token 数为 {gain_ratio}"
        ),
        "throughput_true": "批次 {batch} 共用权重与主机的一步",
        "throughput_false": "批次 {batch} 的收益不到 10 %",
        "throughput_misleading": "批次 {batch} 只在部分长度上有收益",
        "settings_of": "{version} 的 {object} 接受 {count} 个名称",
        "setting_true": "{object} 接受 {setting}",
        "setting_misleading": "{object} 不接受 {setting}；{taker} 接受",
        "setting_false": "{objects} 都不接受 {setting}：这个名字的变量不起任何作用",
    },
}

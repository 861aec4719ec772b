"""What an audit says, in Chinese; keys and placeholders are those of `audit_words.py`."""

from __future__ import annotations

CHINESE: dict[str, str] = {
    "title": "审核：{title}",
    "counts": "{count} 条说法：{verdicts}",
    "id": "编号",
    "claim": "说法",
    "verdict": "判断",
    "reason": "理由",
    "impossible": "不可能",
    "implausible": "不可信",
    "plausible": "可信",
    "undecidable": "无法判断",
    "false": "错误",
    "misleading": "误导",
    "true": "正确",
    "prefill": "prefill",
    "ttft": "TTFT",
    "tpot": "TPOT",
    "decode_total": "整个 decode",
    "e2e": "端到端",
    "throughput_name": "吞吐量",
    "bandwidth": "带宽",
    "compute": "算力",
    "says_prefill": "{input} 个 token 的 prefill 用时 {value} ms",
    "says_ttft": "输入 {input} 个 token，{value} ms 后出现第一个 token",
    "says_tpot": "输入 {input}、输出 {output}：每个 token {value} ms",
    "says_decode_total": "输入 {input}、输出 {output}：decode 共 {value} ms",
    "says_e2e": "输入 {input}、输出 {output}：端到端 {value} ms",
    "says_throughput": "输入 {input}、输出 {output}：{value} token/s",
    "says_total": "decode 总时间 = token 数 × 每个 token 的时间",
    "says_whole": "端到端 = 首 token + decode",
    "says_growth": "{metric} 从 {low} 到 {high} 个 token 的增长",
    "says_agreement": "两张表的 {metric} 一致（{count} 对）",
    "says_set_up": "{model} 能在 {engine} {version}、{hardware} 上运行",
    "says_set_up_claim": "该配置能够运行",
    "says_prefill_compute_bound": "prefill 受算力限制",
    "says_decode_memory_bound": "decode 受内存带宽限制",
    "says_decode_dominates": "decode 占用大部分时间",
    "says_decode_recomputes_attention": "decode 的每一步都重新计算整个序列的注意力",
    "says_cache_hit_rate_decides_decode": "缓存命中率决定 decode 速度",
    "says_bandwidth_speeds_prefill": "更高的内存带宽加快 prefill",
    "says_compute_speeds_prefill": "更高的算力加快 prefill",
    "says_batch_raises_prefill_of_one": "更大的批次延长每个请求的 prefill",
    "says_batch_raises_throughput": "更大的批次提高每秒 token 数",
    "says_late_slowdown": "长回答后期的 token 更慢",
    "says_setting_has_effect": "该设置有作用",
    "missing_model_name": "无法判断：没有给出模型",
    "missing_model": "无法判断：不知道 {model} 的形状；请给出预设名或 config.json 的路径",
    "missing_shape": "无法判断：{model}：{why}",
    "missing_hardware_name": "无法判断：没有给出硬件",
    "missing_hardware": "无法判断：硬件表中没有 {hardware}；请用 `phasemeter hardware` 列出的名称",
    "missing_dtype": "无法判断：表中 {hardware} 没有 {dtype} 的速率",
    "missing_engine_name": "高于下限，无法判断：没有给出引擎，主机部分没有界限",
    "missing_engine_version": "无法判断：没有给出引擎及其版本",
    "missing_version": "无法判断：{version} 不是版本号",
    "missing_support": "无法判断：发布表中没有 {engine} 的 {model_type}",
    "missing_host": "高于下限，无法判断：主机界限表中没有 {engine} 在此类硬件上的数据",
    "missing_input_tokens": "无法判断：缺少 input_tokens",
    "missing_output_tokens": "无法判断：缺少 output_tokens",
    "missing_second_token": "无法判断：只输出一个 token 时没有 decode",
    "missing_batch": "无法判断：吞吐量需要 batch",
    "missing_pair": "无法判断：{row} 与 {other} 没有都给出它",
    "missing_settings": "无法判断：设置表中没有 {engine} 这个版本的清单",
    "missing_object": "无法判断：设置表中没有 {engine} 的 {object} 的清单",
    "unlike_pair": "无法判断：各对的长度或批次不同",
    "prefill_flops": (
        "{tokens} 个 token：线性层 {linear_gflop} + 注意力 {attention_gflop}（{attention_share}）+ 输出头 "
        "{head_gflop} = {gflop} GFLOP"
    ),
    "decode_work": "一步，上下文 {context}，批次 {batch}：{gflop} GFLOP；缓存每个 token {kv_bytes} 字节",
    "whole_work": "共 {gflop} GFLOP，{steps} 个 decode 步",
    "compute_time": "按 {tflops} TFLOP/s（{dtype}）：{ms} ms",
    "memory_time": "{mbytes} MB，按 {gbytes} GB/s：{ms} ms",
    "in_cache": "权重放得进末级缓存：内存不构成下限",
    "floor_compute": "{gpus} × {hardware} 上的下限 {floor_ms} ms，由计算决定",
    "floor_memory": "{gpus} × {hardware} 上的下限 {floor_ms} ms，由访存决定",
    "floor_parts": "{gpus} × {hardware} 上的下限 {floor_ms} ms：每次前向取两者中较长者之和",
    "batch_waits": "{batch} 个序列中内存同时只放得下 {fits} 个，其余等待",
    "missing_queue": "无法判断：内存放不下整个批次，请求要等其他请求用完",
    "beyond_positions": "{tokens} 个 token 超过模型的 {most_tokens} 个位置",
    "throughput_ms": "{tokens} token/s 即每个序列每个 token {ms} ms",
    "implied": (
        "声称的 {claimed_ms} ms 为下限的 {floor_ratio}：{tflops} TFLOP/s（峰值的 {peak_share}），{gbytes} "
        "GB/s（峰值的 {bandwidth_share}）"
    ),
    "host_range": (
        "{engine} 的主机：{low_ms} 到 {high_ms} ms（所见最慢中位数的 {multiple} 倍）；核函数最慢取下限的 "
        "{kernel_ratio}（{chip_ms} ms），合计至多 {most_ms} ms"
    ),
    "own_rows": (
        "其自身数据 {row} 只留给主机 {host_ms} ms；它的 {ratio} 倍加上慢的核函数，这里至多 {most_ms} ms"
    ),
    "below_floor": "{claimed_ms} ms 低于下限 {floor_ms} ms，超出容差 {tolerance_share}",
    "below_floor_cached": (
        "计算 {tokens} 个 token 的下限是 {floor_ms} ms，{claimed_ms} ms 低于它；除非其中至少 "
        "{cached_tokens} 个来自前缀缓存"
    ),
    "above_host": "{claimed_ms} ms 为下限的 {floor_ratio}，超过核函数与主机所能解释的 {most_ms} ms",
    "against_own_rows": (
        "{claimed_ms} ms，而按其自身数据 {row} 的机器至多 {most_ms} ms：芯片只需 {floor_ms} ms"
    ),
    "between": "高于下限 {floor_ms} ms，且主机可以解释（占其中 {host_share}）",
    "growth_claimed": "声称的 {metric}，从 {low} 到 {high} 个 token：指数 {exponent}",
    "crossover": "到 N* = {tokens} 个 token，注意力的 FLOPs 才与线性层相等",
    "attention_shares": "{low} 个 token 时注意力占 FLOPs 的 {low_share}，{high} 个时占 {high_share}",
    "flops_exponent": "FLOPs 的增长指数为 {exponent}；注意力按 {ratio} 倍成本计为 {high_exponent}",
    "floor_growth": "下限：{low} 个 token 时 {low_ms} ms，{high} 个时 {high_ms} ms：指数 {exponent}",
    "tpot_growth": (
        "下限增长 {floor_share}；慢的核函数加 {more_ms} ms，注意力拆分加 {step_ms} ms：在 {start_ms} ms 上至"
        "多 +{most_share}"
    ),
    "host_grows": "其余只可能是随长度增长的主机工作（惩罚项、反分词、日志）、发热或噪声",
    "constant_step": "每步不增长时：指数 {exponent}",
    "growth_possible": "这里可能的指数：{low_exponent} 到 {high_exponent}",
    "own_step": "其自身数据 {low} → {high}：{low_ms} → {high_ms} ms，{factor} 倍，指数 {exponent}",
    "own_fit": "对其自身数据拟合：指数 {exponent}",
    "growth_inside": (
        "指数 {exponent} 在 {low} 到 {high} 个 token 可能的 {low_exponent} 到 {high_exponent} 之内"
    ),
    "growth_outside": (
        "指数 {exponent} 在 {low} 到 {high} 个 token 可能的 {low_exponent} 到 {high_exponent} 之外"
    ),
    "growth_outside_own": (
        "指数 {exponent} 在 {low} 到 {high} 个 token 可能的 {low_exponent} 到 {high_exponent} 之外；其自身数"
        "据也不是这样"
    ),
    "growth_law": (
        "{law} 只在远超这些长度时成立；从 {low} 到 {high} 个 token，指数是 {low_exponent} 到 {high_exponent}"
    ),
    "total_by": "{total_ms} ms / {count} = {each_ms} ms；声称 {told_ms} ms（差 {off_share}）",
    "total_both": (
        "总时间等于 token 数 × 每个 token 的时间：按 n（差 {n_share}）与按 n - 1（差 {n_less_one_share}）都"
        "在舍入之内；最接近 {closest}"
    ),
    "total_one": (
        "总时间按 {by} 等于 token 数 × 每个 token 的时间（按 n 差 {n_share}，按 n - 1 差 {n_less_one_share}"
        "；最接近 {closest}）"
    ),
    "total_not_as_said": "并非如所说按 {by}：差 {off_share}",
    "total_wrong": "无论按 n 还是 n - 1，总时间与 token 数 × 每个 token 的时间差 {off_share}",
    "e2e_parts": "{first_ms} + {decode_ms} = {parts_ms} ms；声称 {e2e_ms} ms",
    "e2e_fits": "各部分之和相符（差 {off_share}）",
    "e2e_differs": "各部分之和不符：差 {off_share}",
    "pair": "{row} {one}，{other} {two}：相差 {off_share}",
    "tables_agree": "各对最多相差 {off_share}（允许 {within_share}）：如同出自同一来源；两表一致并不证明更多",
    "tables_differ": "各对最多相差 {off_share}（允许 {within_share}）",
    "weights_fit": "权重 {weights_gb} GB，内存 {memory_gb} GB",
    "weights_too_large": "{weights_gb} GB 的权重放不进 {memory_gb} GB",
    "source_of": "来源：{source}",
    "note_of": "{note_zh}",
    "model_later": "模型于 {came} 发布，晚于来源的 {told}",
    "release_later": "该版本于 {came} 发布，晚于来源的 {told}",
    "first_release": "{engine} 从 {since} 起支持 {model_type}；所见最新的不支持版本：{absent}",
    "released": "{engine} {version}：{date}",
    "not_looked_at": "无法判断：所见最新的不支持版本与 {since} 之间的版本没有查过",
    "only_fallback": "无法判断：{since} 起原生支持；此前只可能运行检查点自带的代码",
    "too_old": "{engine} {version} 不支持 {model_type}：{since} 起才支持",
    "set_up_known": "该版本支持此架构，且权重放得下",
}

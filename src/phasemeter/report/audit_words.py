"""What an audit says, in English: verdicts, claims without a sentence of their own, and table heads.

`audit_words_zh.py` holds the same keys and placeholders in Chinese. Values come as text: numbers with three digits,
shares as per cent.
"""

from __future__ import annotations

ENGLISH: dict[str, str] = {
    "title": "Audit: {title}",
    "counts": "{count} claims: {verdicts}",
    "id": "id",
    "claim": "claim",
    "verdict": "verdict",
    "reason": "why",
    "impossible": "impossible",
    "implausible": "implausible",
    "plausible": "plausible",
    "undecidable": "undecidable",
    "false": "false",
    "misleading": "misleading",
    "true": "true",
    "prefill": "prefill",
    "ttft": "TTFT",
    "tpot": "TPOT",
    "decode_total": "the whole decode",
    "e2e": "end to end",
    "throughput_name": "throughput",
    "bandwidth": "bandwidth",
    "compute": "arithmetic",
    "says_prefill": "prefill of {input} tokens takes {value} ms",
    "says_ttft": "the first token of {input} input tokens comes after {value} ms",
    "says_tpot": "{input} in, {output} out: {value} ms a token",
    "says_decode_total": "{input} in, {output} out: decode takes {value} ms in all",
    "says_e2e": "{input} in, {output} out: {value} ms end to end",
    "says_throughput": "{input} in, {output} out: {value} tokens/s",
    "says_total": "decode total = tokens × time per token",
    "says_whole": "end to end = first + decode",
    "says_growth": "growth of {metric} from {low} to {high} tokens",
    "says_agreement": "two tables agree on {metric} ({count} pairs)",
    "says_set_up": "{model} runs on {engine} {version}, {hardware}",
    "says_set_up_claim": "the set-up can run",
    "says_prefill_compute_bound": "prefill is bound by arithmetic",
    "says_decode_memory_bound": "decode is bound by memory bandwidth",
    "says_decode_dominates": "decode takes most of the time",
    "says_decode_recomputes_attention": "every decode step computes the attention of the whole sequence anew",
    "says_cache_hit_rate_decides_decode": "the cache's hit rate decides decode speed",
    "says_bandwidth_speeds_prefill": "more memory bandwidth speeds prefill up",
    "says_compute_speeds_prefill": "more arithmetic speeds prefill up",
    "says_batch_raises_prefill_of_one": "a larger batch lengthens the prefill of each request",
    "says_batch_raises_throughput": "a larger batch gives more tokens per second",
    "says_late_slowdown": "late tokens of a long answer come more slowly",
    "says_setting_has_effect": "the setting has an effect",
    "missing_model_name": "not decidable: the claim names no model",
    "missing_model": (
        "not decidable: the shape of {model} is not known; give a preset or the path of its config.json"
    ),
    "missing_shape": "not decidable: {model}: {why}",
    "missing_hardware_name": "not decidable: the claim names no hardware",
    "missing_hardware": (
        "not decidable: no row of the hardware table goes by {hardware}; name one of `phasemeter hardware`"
    ),
    "missing_dtype": "not decidable: {hardware} has no rate for {dtype} in the table",
    "missing_engine_name": (
        "not decidable above the floor: the claim names no engine, so nothing bounds its host"
    ),
    "missing_engine_version": "not decidable: the claim names no engine with a version",
    "missing_version": "not decidable: {version} is no version number",
    "missing_support": "not decidable: the table of releases has no row for {model_type} on {engine}",
    "missing_host": (
        "not decidable above the floor: the table of host bounds has no row for {engine} on this hardware"
    ),
    "missing_input_tokens": "not decidable: input_tokens is missing",
    "missing_output_tokens": "not decidable: output_tokens is missing",
    "missing_second_token": "not decidable: one output token has no decode",
    "missing_batch": "not decidable: throughput needs batch",
    "missing_pair": "not decidable: {row} and {other} do not both give it",
    "missing_settings": "not decidable: the table of settings has no list for {engine} of this version",
    "missing_object": "not decidable: the table of settings has no list for {object} of {engine}",
    "unlike_pair": "not decidable: the pairs are not of the same lengths and batch",
    "prefill_flops": (
        "{tokens} tokens: linears {linear_gflop} + attention {attention_gflop} ({attention_share}) + head "
        "{head_gflop} = {gflop} GFLOP"
    ),
    "decode_work": (
        "one step, context {context}, batch {batch}: {gflop} GFLOP; the cache holds {kv_bytes} bytes a token"
    ),
    "whole_work": "{gflop} GFLOP in all, {steps} decode steps",
    "compute_time": "at {tflops} TFLOP/s ({dtype}): {ms} ms",
    "memory_time": "{mbytes} MB at {gbytes} GB/s: {ms} ms",
    "in_cache": "the weights fit the last-level cache: memory sets no floor",
    "floor_compute": "floor {floor_ms} ms on {gpus} × {hardware}, set by arithmetic",
    "floor_memory": "floor {floor_ms} ms on {gpus} × {hardware}, set by memory",
    "floor_parts": "floor {floor_ms} ms on {gpus} × {hardware}: each pass by the longer of the two",
    "batch_waits": "of {batch} sequences the memory holds {fits} at a time; the others wait",
    "missing_queue": (
        "not decidable: the memory does not hold the batch, so requests wait for as long as others take"
    ),
    "beyond_positions": "{tokens} tokens are more than the model's {most_tokens} positions",
    "throughput_ms": "{tokens} tokens/s are {ms} ms a token of each sequence",
    "implied": (
        "claimed {claimed_ms} ms = {floor_ratio} the floor: {tflops} TFLOP/s ({peak_share} of peak), "
        "{gbytes} GB/s ({bandwidth_share} of peak)"
    ),
    "host_range": (
        "host of {engine}: {low_ms} to {high_ms} ms ({multiple} × the slowest median seen); with kernels at "
        "up to {kernel_ratio} the floor ({chip_ms} ms) at most {most_ms} ms"
    ),
    "own_rows": (
        "own row {row} leaves {host_ms} ms to the host; {ratio} × that and slow kernels allow {most_ms} ms "
        "here"
    ),
    "below_floor": (
        "{claimed_ms} ms is below the floor of {floor_ms} ms by more than the tolerance of {tolerance_share}"
    ),
    "below_floor_cached": (
        "{claimed_ms} ms is below the floor of {floor_ms} ms for computing {tokens} tokens; possible only "
        "if at least {cached_tokens} of them came from a prefix cache"
    ),
    "above_host": (
        "{claimed_ms} ms is {floor_ratio} the floor and above the {most_ms} ms that kernels and host can "
        "explain"
    ),
    "against_own_rows": (
        "{claimed_ms} ms against at most {most_ms} ms on the machine of own row {row}: the chip needs "
        "{floor_ms} ms"
    ),
    "between": "above the floor of {floor_ms} ms and within what the host explains ({host_share} of it)",
    "growth_claimed": "claimed for {metric}, {low} to {high} tokens: exponent {exponent}",
    "crossover": "attention needs as many FLOPs as the linears at N* = {tokens} tokens",
    "attention_shares": "attention is {low_share} of the FLOPs at {low} tokens, {high_share} at {high}",
    "flops_exponent": (
        "FLOPs grow with exponent {exponent}; with attention {ratio} × as costly {high_exponent}"
    ),
    "floor_growth": "floor {low_ms} ms at {low}, {high_ms} ms at {high} tokens: exponent {exponent}",
    "tpot_growth": (
        "the floor grows by {floor_share}; slow kernels add {more_ms} ms, an attention split {step_ms} ms: "
        "on {start_ms} ms at most +{most_share}"
    ),
    "host_grows": (
        "what is left could only be host work that grows with length (penalties, detokenising, logging), "
        "heat or noise"
    ),
    "constant_step": "steps that do not grow: exponent {exponent}",
    "growth_possible": "possible here: exponent {low_exponent} to {high_exponent}",
    "own_step": "own rows {low} → {high}: {low_ms} → {high_ms} ms, factor {factor}, exponent {exponent}",
    "own_fit": "own rows fitted: exponent {exponent}",
    "growth_inside": (
        "exponent {exponent} lies within {low_exponent} to {high_exponent} for {low} to {high} tokens"
    ),
    "growth_outside": (
        "exponent {exponent} is outside {low_exponent} to {high_exponent}, all that is possible from {low} "
        "to {high} tokens"
    ),
    "growth_outside_own": (
        "exponent {exponent} is outside {low_exponent} to {high_exponent}, all that is possible from {low} "
        "to {high} tokens; the source's own rows do not show it either"
    ),
    "growth_law": (
        "{law} holds far beyond these lengths; from {low} to {high} tokens the exponent is {low_exponent} "
        "to {high_exponent}"
    ),
    "total_by": "{total_ms} ms / {count} = {each_ms} ms; told {told_ms} ms ({off_share} off)",
    "total_both": (
        "the total is tokens × time per token, by n ({n_share} off) and by n - 1 ({n_less_one_share}) "
        "within rounding; closest by {closest}"
    ),
    "total_one": (
        "the total is tokens × time per token by {by} ({n_share} off by n, {n_less_one_share} by n - 1; "
        "closest {closest})"
    ),
    "total_not_as_said": "not by {by} as said: {off_share} off",
    "total_wrong": "the total is {off_share} off tokens × time per token, by n and by n - 1",
    "e2e_parts": "{first_ms} + {decode_ms} = {parts_ms} ms; told {e2e_ms} ms",
    "e2e_fits": "the parts add up ({off_share} off)",
    "e2e_differs": "the parts do not add up: {off_share} off",
    "pair": "{row} {one}, {other} {two}: {off_share} apart",
    "tables_agree": (
        "pairs differ by at most {off_share} (allowed {within_share}): as from one generator; two tables "
        "that agree prove no more"
    ),
    "tables_differ": "pairs differ by up to {off_share} (allowed {within_share})",
    "weights_fit": "weights {weights_gb} GB, memory {memory_gb} GB",
    "weights_too_large": "weights of {weights_gb} GB do not fit {memory_gb} GB",
    "source_of": "source: {source}",
    "note_of": "{note}",
    "model_later": "the model came out on {came}, after the source's {told}",
    "release_later": "the release came out on {came}, after the source's {told}",
    "first_release": "{engine} has {model_type} since {since}; newest seen without it: {absent}",
    "released": "{engine} {version}: {date}",
    "not_looked_at": (
        "not decidable: releases between the newest seen without it and {since} were not looked at"
    ),
    "only_fallback": (
        "not decidable: natively since {since}; before, only the checkpoint's own code might have run"
    ),
    "too_old": "{engine} {version} has no {model_type}: first in {since}",
    "set_up_known": "the release has the architecture and the weights fit",
}

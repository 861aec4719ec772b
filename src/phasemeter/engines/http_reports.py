"""What different servers tell of their own times inside an answer, as an `EngineReport`. Pure: bytes in, a report out.

    vLLM        `metrics` of the last chunk (`--enable-per-request-metrics`); `time_to_first_token_ms` there runs from
                first scheduled to first token, so it is prefill and no client's TTFT
    llama.cpp   `timings` of the last chunk, or of every chunk (`timings_per_token`): `prompt_ms` ends with the first
                token, `predicted_ms` runs from there; no queue
    SGLang      `meta_info`, with `--enable-metrics`: `queue_time`, and prefill between two stamps of the scheduler's
                clock; decode is not told (its last stamp is on another clock)
    Ollama      nanoseconds in the last object of its own API: `prompt_eval_duration` is the work on the tokens that no
                cache answered (0.33.3 and later say so), `load_duration` comes before it and is no prefill
    TGI         response headers of a request that is not streamed, whole milliseconds cut off, so that a small model's
                queue may read 0; prefill and decode together only

Mapped from the servers' documentation and source (docs/other-engines.md); only vLLM and llama.cpp were run here.
What a server does not tell is None. None of these is a stamp on our clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from phasemeter.record.engine import EngineReport

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError)
"""What reading a chunk raises when it is not the JSON that it should be, brackets without end and numbers without
measure among it."""
Count = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number of a server, of a size that can be computed with."""
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


class _Vllm(Struct):
    queue_time_ms: float | None = None
    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None


class _Llama(Struct):
    cache_n: Count | None = None
    prompt_ms: float | None = None
    predicted_n: Count | None = None
    predicted_ms: float | None = None


class _Sglang(Struct):
    queue_time: float | None = None
    forward_entry_time: float | None = None
    prefill_finished_time: float | None = None
    e2e_latency: float | None = None
    cached_tokens: Count | None = None
    completion_tokens: Count | None = None
    num_retractions: Count | None = None


class _Ollama(Struct):
    done: bool = False
    total_duration: Count | None = None
    prompt_eval_duration: Count | None = None
    prompt_eval_cached_count: Count | None = None
    eval_count: Count | None = None
    eval_duration: Count | None = None


_vllm = msgspec.json.Decoder(_Vllm)
_llama = msgspec.json.Decoder(_Llama)
_sglang = msgspec.json.Decoder(_Sglang)
_ollama = msgspec.json.Decoder(_Ollama)


def vllm_report(metrics: bytes) -> EngineReport | None:
    """From vLLM's `metrics`. Raises one of `UNREADABLE` for another shape, as all of these do."""
    told = _vllm.decode(metrics)
    times = (told.queue_time_ms, told.time_to_first_token_ms, told.generation_time_ms)
    if all(time is None for time in times):
        return None
    queue_ns, prefill_ns, decode_ns = (_of_ms(time) for time in times)
    return EngineReport(
        "vllm response metrics", queue_ns=queue_ns, prefill_ns=prefill_ns, decode_ns=decode_ns
    )


def llama_report(timings: bytes) -> EngineReport | None:
    """From llama.cpp's `timings`."""
    told = _llama.decode(timings)
    if told.prompt_ms is None and told.predicted_ms is None:
        return None
    return EngineReport(
        "llama.cpp timings",
        prefill_ns=_of_ms(told.prompt_ms),
        decode_ns=_of_ms(told.predicted_ms),
        cached_tokens=told.cache_n,
        n_tokens=told.predicted_n,
    )


def sglang_report(meta_info: bytes) -> EngineReport | None:
    """From SGLang's `meta_info`; without `--enable-metrics` it holds the end-to-end time and counts alone."""
    told = _sglang.decode(meta_info)
    if told.e2e_latency is None and told.queue_time is None:
        return None  # not the last chunk
    return EngineReport(
        "sglang meta_info",
        queue_ns=_of_s(told.queue_time),
        prefill_ns=_between_s(told.forward_entry_time, told.prefill_finished_time),
        e2e_ns=_of_s(told.e2e_latency),
        cached_tokens=told.cached_tokens,
        preemptions=told.num_retractions,
        n_tokens=told.completion_tokens,
    )


def ollama_report(line: bytes) -> EngineReport | None:
    """From one object of Ollama's own API; only the last one (`done`) tells times."""
    told = _ollama.decode(line)
    if not told.done or (told.prompt_eval_duration is None and told.eval_duration is None):
        return None
    return EngineReport(
        "ollama",
        prefill_ns=told.prompt_eval_duration,
        decode_ns=told.eval_duration,
        e2e_ns=told.total_duration,
        cached_tokens=told.prompt_eval_cached_count,
        n_tokens=told.eval_count,
    )


def tgi_report(headers: Mapping[str, str]) -> EngineReport | None:
    """From TGI's response headers (names in lower case)."""
    queue, total = _whole(headers.get("x-queue-time")), _whole(headers.get("x-total-time"))
    if queue is None and total is None:
        return None
    return EngineReport(
        "tgi headers",
        queue_ns=_of_ms(queue),
        e2e_ns=_of_ms(total),
        n_tokens=_whole(headers.get("x-generated-tokens")),
    )


def _of_ms(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else _whole_ns(milliseconds * _NS_PER_MS)


def _of_s(seconds: float | None) -> int | None:
    return None if seconds is None else _whole_ns(seconds * _NS_PER_S)


def _whole_ns(ns: float) -> int:
    if abs(ns) >= 2**63:
        raise OverflowError("no duration that a server can have seen")
    return round(ns)


def _between_s(early: float | None, late: float | None) -> int | None:
    """Unset stamps are 0 in SGLang."""
    return _of_s(late - early) if early and late and late >= early else None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None

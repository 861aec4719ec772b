"""What of a server's /metrics is sampled while a run goes on: few gauges and counters, by our names with units.

Names by server, and where they were looked up:

    vLLM        `vllm/v1/metrics/loggers.py` of 0.26.0 and 0.32.0; a page of 0.32.0 is kept under test
    SGLang      its page "Production Metrics" and `srt/observability` (`--enable-metrics`); since 0.5.4 some builds have
                `sglang_` for `sglang:`
    llama.cpp   `tools/server/README.md` (`--metrics`); builds of 2025 and later have no KV gauge

SGLang and llama.cpp are mapped from their documentation and tested against text written after it, not against a server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from phasemeter.engines.exposition import picked

Together = Callable[[Iterable[float]], float]

GAUGES: dict[str, tuple[Together, tuple[str, ...]]] = {
    "server_running_requests": (
        sum,
        (
            "vllm:num_requests_running",
            "sglang:num_running_reqs",
            "sglang_num_running_reqs",
            "llamacpp:requests_processing",
        ),
    ),
    "server_waiting_requests": (
        sum,
        (
            "vllm:num_requests_waiting",
            "sglang:num_queue_reqs",
            "sglang_num_queue_reqs",
            "llamacpp:requests_deferred",
        ),
    ),
    "server_kv_usage_ratio": (
        max,
        (
            "vllm:kv_cache_usage_perc",
            "sglang:token_usage",
            "sglang_token_usage",
            "llamacpp:kv_cache_usage_ratio",
        ),
    ),
    "server_preemptions": (
        sum,
        (
            "vllm:num_preemptions_total",
            "sglang:num_retracted_requests_total",
            "sglang_num_retracted_requests_total",
        ),
    ),
    "server_generated_tokens": (
        sum,
        (
            "vllm:generation_tokens_total",
            "sglang:generation_tokens_total",
            "sglang_generation_tokens_total",
            "llamacpp:tokens_predicted_total",
        ),
    ),
}
"""Our name -> how several engines' values are put together, and the servers' names. `vllm:kv_cache_usage_perc` is a
ratio from 0 to 1 whatever its name says. The last two count since the server began."""


def names_on(page: bytes) -> dict[str, str]:
    """Our name -> the server's, of those that the page has. Empty for a page of another kind of server."""
    found: dict[str, str] = {}
    for ours, (_, theirs) in GAUGES.items():
        here = [name for name in theirs if picked(page, name.encode())]
        if here:
            found[ours] = here[0]
    return found


def readings(page: bytes, names: dict[str, str]) -> dict[str, float]:
    """The values of `names` (see `names_on`) on a page; what it does not have is left out."""
    found: dict[str, float] = {}
    for ours, theirs in names.items():
        values = picked(page, theirs.encode())
        if values:
            found[ours] = float(GAUGES[ours][0](values))
    return found


def query_of(names: Sequence[str]) -> str:
    """The query that has a Prometheus client library answer with these names alone (`prometheus_client` and its ports;
    others ignore it and send the whole page)."""
    return "&".join(f"name[]={name}" for name in names)

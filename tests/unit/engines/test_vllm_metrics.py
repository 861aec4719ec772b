"""vLLM's /metrics page as a scrape."""

from __future__ import annotations

from pathlib import Path

import pytest

from phasemeter.engines.vllm_metrics import PHASES, scrape_of
from phasemeter.record.scrape import Histogram

BODIES = Path(__file__).parent / "bodies"

PAGE = """\
# HELP vllm:request_prefill_time_seconds Histogram of time spent in PREFILL phase for request.
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_bucket{engine="0",le="0.3",model_name="tiny"} 3.0
vllm:request_prefill_time_seconds_bucket{engine="0",le="0.5",model_name="tiny"} 5.0
vllm:request_prefill_time_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 5.0
vllm:request_prefill_time_seconds_bucket{engine="0",le="what",model_name="tiny"} 5.0
vllm:request_prefill_time_seconds_count{engine="0",model_name="tiny"} 5.0
vllm:request_prefill_time_seconds_sum{engine="0",model_name="tiny"} 1.5
vllm:request_prefill_time_seconds_created{engine="0",model_name="tiny"} 1.79e+09
vllm:request_prefill_time_seconds_bucket{engine="1",le="+Inf",model_name="tiny"} 1.0
vllm:request_prefill_time_seconds_count{engine="1",model_name="tiny"} 1.0
vllm:request_prefill_time_seconds_sum{engine="1",model_name="tiny"} 0.25
vllm:request_decode_time_seconds_sum{engine="1",model_name="tiny"} NaN
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 5.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"} 0.0
vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"} 2.0
vllm:mm_cache_queries_total{model_name="tiny"} 2.0
process_cpu_seconds_total 12.5
"""


def test_a_scrape_adds_up_engines_and_reads_reasons_and_the_counters_that_are_kept():
    scrape = scrape_of(PAGE)
    assert scrape.histograms == {"prefill": Histogram(1.75, 6, ((0.3, 3), (0.5, 5)))}
    assert scrape.finished == {"length": 5.0, "abort": 0.0}
    assert scrape.counters == {"vllm:admission_rejections": 2.0}


@pytest.mark.parametrize(("version", "rejections"), [("0.26", False), ("0.32", True)])
def test_a_whole_page_of_vllm(version, rejections):
    """0.32's was recorded from a server on a CPU after seven requests; 0.26's is the same without what its
    `loggers.py` does not have."""
    scrape = scrape_of((BODIES / f"vllm_{version}_metrics.txt").read_text())
    assert set(scrape.histograms) == set(PHASES)
    assert {histogram.count for histogram in scrape.histograms.values()} == {7}
    assert all(histogram.total > 0 for histogram in scrape.histograms.values())
    assert scrape.histograms["prefill"].buckets[0] == (0.3, 7)
    assert scrape.histograms["ttft"].buckets[0][0] == 0.001
    assert scrape.finished["length"] == 7.0
    assert scrape.counters["vllm:generation_tokens"] == 73.0
    assert ("vllm:admission_rejections" in scrape.counters) is rejections


def test_no_page_of_another_server_is_taken_for_vllms():
    for body in ("sglang_metrics.txt", "llamacpp_metrics.txt"):
        assert scrape_of((BODIES / body).read_text()).histograms == {}

"""vLLM's /metrics: what two scrapes say, and what they cannot say."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from phasemeter.engines.vllm_metrics import Histogram, agreements, between, parse, quantile, scrape_of
from phasemeter.record.engine import EngineReport, SeenRequest
from phasemeter.record.errors import UndecidedError

PAGE = """\
# HELP vllm:request_prefill_time_seconds Histogram of time spent in PREFILL phase for request.
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_bucket{{engine="0",le="0.3",model_name="tiny"}} {low}
vllm:request_prefill_time_seconds_bucket{{engine="0",le="0.5",model_name="tiny"}} {all}
vllm:request_prefill_time_seconds_bucket{{engine="0",le="+Inf",model_name="tiny"}} {all}
vllm:request_prefill_time_seconds_count{{engine="0",model_name="tiny"}} {all}
vllm:request_prefill_time_seconds_sum{{engine="0",model_name="tiny"}} {sum}
vllm:request_prefill_time_seconds_created{{engine="0",model_name="tiny"}} 1.79e+09
vllm:request_prefill_time_seconds_bucket{{engine="1",le="+Inf",model_name="tiny"}} 1.0
vllm:request_prefill_time_seconds_count{{engine="1",model_name="tiny"}} 1.0
vllm:request_prefill_time_seconds_sum{{engine="1",model_name="tiny"}} 0.25
vllm:request_success_total{{engine="0",finished_reason="length",model_name="tiny"}} {all}
vllm:request_success_total{{engine="0",finished_reason="abort",model_name="tiny"}} 0.0
vllm:admission_rejections_total{{model_name="tiny",reason="max_num_queued_reqs"}} 2.0
process_cpu_seconds_total 12.5
"""


def page(low, whole, total):
    return PAGE.format(low=float(low), all=float(whole), sum=total)


def test_the_format_is_read_with_escapes_stamps_and_odd_lines():
    text = 'a{x="1,2",y="say \\"hi\\" \\\\ \\n"} 3 1700000000\nb NaN\nc +Inf\nbroken{\n# a comment 1\n d  4\n'
    a, b, c, d = parse(text)
    assert (a.name, a.labels, a.value) == ("a", {"x": "1,2", "y": 'say "hi" \\ \n'}, 3.0)
    assert (b.value != b.value, c.value, d.name) == (True, float("inf"), "d")


def test_a_scrape_adds_up_engines_and_reads_reasons_and_counters():
    scrape = scrape_of(page(3, 5, 1.5))
    assert scrape.histograms["prefill"] == Histogram(1.75, 6, ((0.3, 3), (0.5, 5), (float("inf"), 6)))
    assert scrape.finished == {"length": 5.0, "abort": 0.0}
    assert scrape.counters == {"vllm:admission_rejections": 2.0}
    assert "decode" not in scrape.histograms


def test_the_difference_of_two_scrapes_is_what_happened_between_them():
    found = between(scrape_of(page(3, 5, 1.5)), scrape_of(page(4, 9, 3.5)))
    assert found.histograms["prefill"] == Histogram(2.0, 4, ((0.3, 1), (0.5, 4), (float("inf"), 4)))
    assert found.histograms["prefill"].mean == 0.5
    assert found.finished["length"] == 4.0
    assert between(scrape_of(""), scrape_of(page(1, 1, 1.0))).histograms["prefill"].count == 2


def test_a_server_started_anew_between_two_scrapes_is_noticed():
    with pytest.raises(UndecidedError, match="started anew"):
        between(scrape_of(page(3, 5, 1.5)), scrape_of(page(1, 1, 0.1)))


def test_a_quantile_in_a_bucket_that_says_nothing_is_refused():
    fast = Histogram(0.1, 10, ((0.3, 10), (0.5, 10), (float("inf"), 10)))
    with pytest.raises(UndecidedError, match="between 0 and 0.3 s.*--custom-histogram-buckets"):
        quantile(fast, 0.5, takes_buckets=True)
    with pytest.raises(UndecidedError, match="plugin") as told:
        quantile(fast, 0.5)
    assert "--custom" not in str(told.value)
    with pytest.raises(UndecidedError, match=r"above 0\.5 s"):
        quantile(Histogram(9.0, 10, ((0.3, 0), (0.5, 1), (float("inf"), 10))), 0.5)
    with pytest.raises(UndecidedError, match="between 1 and 2.5 s"):
        quantile(Histogram(9.0, 10, ((1.0, 0), (2.5, 10))), 0.5)
    with pytest.raises(UndecidedError, match="empty"):
        quantile(Histogram(0.0, 0), 0.5)


def test_a_quantile_in_a_narrow_bucket_is_that_bucket():
    slow = Histogram(4.0, 10, ((0.3, 1), (0.5, 9), (0.8, 10), (float("inf"), 10)))
    assert quantile(slow, 0.5) == (0.3, 0.5)
    assert quantile(slow, 0.9) == (0.3, 0.5)
    assert quantile(slow, 0.95) == (0.5, 0.8)


def seen(n=5, prefill_ms=300.0):
    report = EngineReport("vllm plugin", prefill_ns=round(prefill_ms * 1e6))
    return [SeenRequest(f"r{i}", report) for i in range(n)]


def test_sums_agree_within_a_millisecond_or_two_percent_and_on_the_count():
    told = scrape_of(page(3, 5, 1.5))
    told = replace(told, histograms={"prefill": Histogram(1.5, 5)})
    [found] = agreements(seen(), told)
    assert (found.name, found.ours_ms, found.theirs_ms, found.agrees) == ("prefill", 1500.0, 1500.0, True)
    assert agreements(seen(prefill_ms=305.9), told)[0].agrees
    assert not agreements(seen(prefill_ms=306.1), told)[0].agrees
    assert not agreements(seen(n=4, prefill_ms=375.0), told)[0].agrees
    small = replace(told, histograms={"prefill": Histogram(0.005, 5)})
    assert agreements(seen(prefill_ms=1.19), small)[0].agrees
    assert not agreements(seen(prefill_ms=1.21), small)[0].agrees

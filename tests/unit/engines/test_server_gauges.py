"""The gauges that are sampled beside a run, by the names of several servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from phasemeter.engines.server_gauges import names_on, query_of, readings

BODIES = Path(__file__).parent / "bodies"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "vllm_0.32_metrics.txt",
            {
                "server_running_requests": 0.0,
                "server_waiting_requests": 0.0,
                "server_kv_usage_ratio": 0.0,
                "server_preemptions": 0.0,
                "server_generated_tokens": 73.0,
            },
        ),
        (
            "vllm_0.26_metrics.txt",
            {
                "server_running_requests": 0.0,
                "server_waiting_requests": 0.0,
                "server_kv_usage_ratio": 0.0,
                "server_preemptions": 0.0,
                "server_generated_tokens": 73.0,
            },
        ),
        (
            "sglang_metrics.txt",
            {
                "server_running_requests": 162.0,
                "server_waiting_requests": 2826.0,
                "server_kv_usage_ratio": 0.28,
                "server_generated_tokens": 7557572.0,
            },
        ),
        (
            "llamacpp_metrics.txt",
            {
                "server_running_requests": 4.0,
                "server_waiting_requests": 46.0,
                "server_generated_tokens": 39080.0,
            },
        ),
    ],
)
def test_every_server_is_read_by_its_own_names(body, expected):
    page = (BODIES / body).read_bytes()
    assert readings(page, names_on(page)) == expected


def test_several_engines_are_added_up_and_the_fullest_cache_counts():
    page = b"".join(
        b'vllm:num_requests_running{engine="%d"} %d\nvllm:kv_cache_usage_perc{engine="%d"} 0.%d\n'
        % (i, n, i, n)
        for i, n in enumerate((3, 5))
    )
    assert readings(page, names_on(page)) == {"server_running_requests": 8.0, "server_kv_usage_ratio": 0.5}


def test_another_kind_of_server_has_none():
    page = b"# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 12.5\n"
    assert names_on(page) == {}
    assert names_on(b"<html>") == {}


def test_a_name_that_went_away_is_left_out():
    assert readings(b"a 1\n", {"server_running_requests": "vllm:num_requests_running"}) == {}


def test_the_query_names_each():
    assert query_of(["vllm:a", "vllm:b"]) == "name[]=vllm:a&name[]=vllm:b"

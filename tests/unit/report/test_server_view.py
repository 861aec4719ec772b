"""The server's own sums on a page and a terminal, where no single request has a report."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from phasemeter.explain.summary import summarise
from phasemeter.report.html import html_page
from phasemeter.report.terminal import render_terminal
from phasemeter.report.view import view_of
from unit.explain.builders import report, sequence
from unit.explain.test_server_metrics import framed


def shown(whole, lang="en"):
    view = view_of([(whole, summarise(whole))], lang)
    printed = io.StringIO()
    render_terminal(view, Console(file=printed, width=100, highlight=False))
    return " ".join(printed.getvalue().split()), html_page(view)


def test_the_split_is_shown_with_its_means_and_the_bucket_that_is_too_coarse():
    text, page = shown(framed(*sequence(10)))
    for told in (text, page):
        assert "It finished 10 requests between two scrapes, as many as were ours" in told
        assert "it lies between 0 and 0.3 s, and that bucket says too little" in told
        assert "--custom-histogram-buckets" in told
        assert "(/metrics), ms" in told
    assert "prefill 10 40.0 — — —" in text


def test_a_version_without_the_flag_is_not_told_to_use_it():
    text, _ = shown(framed(*sequence(10), version="0.26.0"))
    assert "--custom-histogram-buckets" not in text
    assert "the plugin phasemeter-vllm tells every request" in text


def test_quantiles_are_shown_as_their_buckets():
    text, _ = shown(framed(*sequence(10), histograms=slow(13)))
    assert "prefill 10 400 300–500 300–500 300–500" in text


def test_a_quantile_that_is_missing_beside_others_is_said():
    text, _ = shown(framed(*sequence(10), histograms=slow(13, upto=11)))
    assert "prefill 10 400 300–500 — —" in text
    assert "Not every quantile of prefill: one lies above 0.5 s" in text


def slow(n, upto=None):
    from phasemeter.record.scrape import Histogram

    return {
        "prefill": Histogram((n - 3) * 0.4 + 3 * 0.04, n, ((0.3, 3), (0.5, upto or n))),
        "e2e": Histogram(n * 0.1, n, ()),
    }


@pytest.mark.parametrize(
    ("lang", "told"), [("en", "at most 10 of them were ours: others use it"), ("zh", "另有他人在用")]
)
def test_other_peoples_traffic_is_said_and_nothing_is_shown(lang, told):
    text, page = shown(framed(*sequence(10), finished=30), lang)
    assert told in text.replace(" ", "") if lang == "zh" else told in text
    assert told in page
    assert "(/metrics)" not in text


def test_where_requests_tell_of_themselves_the_sums_are_only_a_check():
    text, _ = shown(framed(*sequence(10, report=report())))
    assert "It finished 10 requests" not in text
    assert "server_metrics" in text

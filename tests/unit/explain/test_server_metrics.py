"""What two scrapes of a server say of a run, what they cannot say, and when they are not ours."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from phasemeter.engines.vllm_metrics import scrape_of
from phasemeter.explain.server_metrics import (
    CoarseError,
    agreements,
    between,
    phase_total,
    quantile,
    server_metrics,
)
from phasemeter.explain.summary import summarise, summary_json
from phasemeter.explain.verdict import Verdict
from phasemeter.record.engine import EngineInfo, EngineReport, Outcome
from phasemeter.record.errors import UndecidedError
from phasemeter.record.scrape import Histogram, Moment, Scrape
from unit.explain.builders import header, report, run, sequence, timeline

BODIES = Path(__file__).parents[1] / "engines" / "bodies"


def histogram(n, each_s, *, upper=(0.3, 0.5)):
    return Histogram(n * each_s, n, tuple((at, n if each_s <= at else 0) for at in upper))


def scrape(n, moment=None, *, queue=0.005, prefill=0.04, decode=0.04, **changes):
    """A server that finished `n` requests of the shape that `report()` tells."""
    phases = {"queue": queue, "prefill": prefill, "decode": decode, "e2e": 0.1}
    made = Scrape(
        moment=moment,
        histograms={name: histogram(n, each) for name, each in phases.items()},
        finished={"length": float(n), "abort": 0.0},
        counters={"vllm:num_preemptions": 0.0},
    )
    return replace(made, **changes)


def framed(*timelines, finished=10, before=3, version="0.32.0+cpu", **changes):
    engine = EngineInfo("vllm", "m", version=version)
    frames = (scrape(before, Moment.BEFORE), scrape(before + finished, Moment.AFTER, **changes))
    return run(*timelines, header=header(engine=engine), scrapes=frames)


def told(whole):
    return server_metrics(whole)


def check(whole):
    [found] = [c for c in summarise(whole).checks if c.name == "server_metrics"]
    return found


def test_the_difference_of_two_scrapes_is_what_happened_between_them():
    found = between(scrape(3), scrape(7))
    assert found.histograms["prefill"].count == 4
    assert found.histograms["prefill"].mean == pytest.approx(0.04)
    assert found.histograms["prefill"].buckets == ((0.3, 4), (0.5, 4))
    assert found.finished == {"length": 4.0, "abort": 0.0}
    assert between(Scrape(), scrape(2)).histograms["prefill"].count == 2


def test_a_server_started_anew_between_two_scrapes_is_noticed():
    with pytest.raises(UndecidedError, match="started anew"):
        between(scrape(5), scrape(1))
    whole = framed(*sequence(10), finished=-2)
    found = told(whole)
    assert found is not None
    assert "started anew" in found.refused
    assert found.phases == ()
    assert check(whole).verdict is Verdict.WARN


def test_a_quantile_in_a_bucket_that_says_nothing_is_refused():
    fast = Histogram(0.1, 10, ((0.3, 10), (0.5, 10)))
    with pytest.raises(CoarseError, match="between 0 and 0.3 s.*--custom-histogram-buckets"):
        quantile(fast, 0.5, takes_buckets=True)
    with pytest.raises(CoarseError, match="plugin") as refused:
        quantile(fast, 0.5)
    assert "--custom" not in str(refused.value)
    with pytest.raises(CoarseError, match=r"above 0\.5 s"):
        quantile(Histogram(9.0, 10, ((0.3, 0), (0.5, 1))), 0.5)
    with pytest.raises(CoarseError, match="between 1 and 2.5 s"):
        quantile(Histogram(9.0, 10, ((1.0, 0), (2.5, 10))), 0.5)
    with pytest.raises(UndecidedError, match="empty"):
        quantile(Histogram(0.0, 0), 0.5)


def test_a_quantile_in_a_narrow_bucket_is_that_bucket():
    slow = Histogram(4.0, 10, ((0.3, 1), (0.5, 9), (0.8, 10)))
    assert quantile(slow, 0.5) == (0.3, 0.5)
    assert quantile(slow, 0.9) == (0.3, 0.5)
    assert quantile(slow, 0.95) == (0.5, 0.8)


def test_a_phase_tells_its_mean_and_only_the_quantiles_that_its_buckets_allow():
    slow = phase_total("prefill", Histogram(4.0, 10, ((0.3, 1), (0.5, 9), (2.0, 10))))
    assert (slow.n, slow.sum_ms, slow.mean_ms) == (10, 4000.0, 400.0)
    assert (slow.p50_ms, slow.p90_ms, slow.p99_ms) == ((300.0, 500.0), (300.0, 500.0), None)
    assert slow.coarse_s == (0.5, 2.0)
    assert "between 0.5 and 2 s" in slow.note
    above = phase_total("prefill", Histogram(9.0, 10, ((0.3, 0),)))
    assert above.coarse_s == (0.3, None)
    nothing = phase_total("prefill", Histogram(0.0, 0, ((0.3, 0),)))
    assert (nothing.mean_ms, nothing.p50_ms, nothing.coarse_s, nothing.note) == (None, None, None, "")


def test_the_sums_are_shown_where_no_request_has_a_report():
    whole = framed(*sequence(10))
    found = told(whole)
    assert found is not None
    assert (found.finished, found.ours, found.at_most, found.reported) == (10, 10, 10, 0)
    assert found.shown
    assert [phase.name for phase in found.phases] == ["queue", "prefill", "decode", "e2e"]
    means = {phase.name: phase.mean_ms for phase in found.phases}
    assert means["prefill"] == pytest.approx(40.0)
    assert check(whole).verdict is Verdict.OK
    json = msgspec.json.decode(msgspec.json.encode(summary_json(summarise(whole))["server_metrics"]))
    assert json["phases"]["prefill"]["coarse_s"] == [0.0, 0.3]
    assert json["shown"] is True


@pytest.mark.parametrize(
    ("version", "named"),
    [("0.32.0+cpu", True), ("1.0.0", True), ("0.26.0", False), (None, False), ("x", False)],
)
def test_the_flag_is_named_only_where_the_version_has_it(version, named):
    found = told(framed(*sequence(10), version=version))
    assert found is not None
    assert all(("--custom-histogram-buckets" in phase.note) is named for phase in found.phases)


def test_somebody_elses_requests_make_the_sums_not_ours():
    whole = framed(*sequence(10), finished=13)
    found = told(whole)
    assert found is not None
    assert "13 requests" in found.refused
    assert "at most 10 of them were ours" in found.refused
    assert (found.phases, found.counters) == ((), {})
    assert check(whole).verdict is Verdict.WARN
    fewer = told(framed(*sequence(10), finished=4))
    assert fewer is not None
    assert "one of several processes" in fewer.refused


def test_a_failed_request_may_or_may_not_have_finished_there():
    cut = [replace(t, outcome=Outcome.TIMEOUT_TOTAL) if i < 2 else t for i, t in enumerate(sequence(10))]
    for finished, ours in ((8, True), (10, True), (11, False), (7, False)):
        found = told(framed(*cut, finished=finished))
        assert found is not None
        assert (found.refused == "") is ours, finished
    refused = [replace(t, outcome=Outcome.REFUSED) if i < 2 else t for i, t in enumerate(sequence(10))]
    found = told(framed(*refused, finished=10))
    assert found is not None
    assert found.refused


def test_warm_up_is_no_part_of_it():
    warm = [replace(t, id=f"w{i}", cell=replace(t.cell, warmup=True)) for i, t in enumerate(sequence(4))]
    found = told(framed(*warm, *sequence(10, report=report())))
    assert found is not None
    assert (found.ours, found.reported, found.refused) == (10, 10, "")


def test_reports_are_checked_against_the_sums():
    good = check(framed(*sequence(10, report=report())))
    assert good.verdict is Verdict.OK
    assert "sums agree: queue 50 and 50 ms, prefill 400 and 400 ms, decode 400 and 400 ms" in good.evidence
    bad = check(framed(*sequence(10, report=report(prefill=41.0))))
    assert bad.verdict is Verdict.WARN
    assert "sums differ: prefill 410 and 400 ms" in bad.evidence
    assert "decode" not in bad.evidence


def test_a_report_that_is_missing_is_told_by_the_counts():
    half = [replace(t, report=report() if i < 5 else None) for i, t in enumerate(sequence(10))]
    found = check(framed(*half))
    assert found.verdict is Verdict.WARN
    assert "over 5 and 10" in found.evidence


def test_without_both_scrapes_nothing_is_said():
    for frames in ((), (scrape(3, Moment.BEFORE),), (scrape(3, Moment.AFTER),)):
        whole = run(timeline(), scrapes=frames)
        assert told(whole) is None
        assert check(whole).verdict is Verdict.OK
        assert summary_json(summarise(whole))["server_metrics"] is None


def test_a_server_without_counts_is_refused():
    bare = (Scrape(moment=Moment.BEFORE), Scrape(moment=Moment.AFTER))
    found = told(run(timeline(), scrapes=bare))
    assert found is not None
    assert "does not tell how many" in found.refused


def test_two_pages_of_a_real_server():
    """Six requests of 40 tokens in and 12 out, on vLLM 0.32 on a CPU."""
    before = scrape_of((BODIES / "vllm_0.32_metrics_before.txt").read_text())
    after = scrape_of((BODIES / "vllm_0.32_metrics.txt").read_text())
    told = between(before, after)
    assert {histogram.count for histogram in told.histograms.values()} == {6}
    assert told.counters["vllm:prompt_tokens"] == 240.0
    assert told.counters["vllm:generation_tokens"] == 72.0
    means = {name: histogram.mean or 0.0 for name, histogram in told.histograms.items()}
    assert means["inference"] == pytest.approx(means["prefill"] + means["decode"], rel=1e-6)
    assert means["e2e"] > means["queue"] + means["inference"]
    ttft = phase_total("ttft", told.histograms["ttft"], takes_buckets=True)
    assert ttft.p50_ms == (10.0, 20.0)
    assert phase_total("prefill", told.histograms["prefill"]).p50_ms is None


def reports(n=5, prefill_ms=300.0):
    return [EngineReport("vllm plugin", prefill_ns=round(prefill_ms * 1e6))] * n


def test_sums_agree_within_a_millisecond_or_two_percent_and_on_the_count():
    told = Scrape(histograms={"prefill": Histogram(1.5, 5)})
    [found] = agreements(reports(), told)
    assert (found.name, found.ours_ms, found.theirs_ms, found.agrees) == ("prefill", 1500.0, 1500.0, True)
    assert agreements(reports(prefill_ms=305.9), told)[0].agrees
    assert not agreements(reports(prefill_ms=306.1), told)[0].agrees
    assert not agreements(reports(n=4, prefill_ms=375.0), told)[0].agrees
    small = Scrape(histograms={"prefill": Histogram(0.005, 5)})
    assert agreements(reports(prefill_ms=1.19), small)[0].agrees
    assert not agreements(reports(prefill_ms=1.21), small)[0].agrees

"""Beside the run: samples of server, GPU and client on the time axis of the requests."""

from __future__ import annotations

import io
from itertools import pairwise

import pytest
from msgspec.structs import replace
from rich.console import Console

from phasemeter.explain.summary import summarise
from phasemeter.record.run import Sample, merge
from phasemeter.report.beside_plot import beside_chart
from phasemeter.report.beside_view import beside_of
from phasemeter.report.html import html_page
from phasemeter.report.terminal import render_terminal
from phasemeter.report.view import view_of
from unit.explain.builders import MS, header, run, timeline

SECOND = 1_000 * MS


def sampled(n=4, **values):
    """A run of two requests that overlap by 20 ms, and a sample a second from 10 ms on."""
    samples = tuple(
        Sample(10 * MS + i * SECOND, {name: float(of(i)) for name, of in values.items()}) for i in range(n)
    )
    first = timeline("r0", at=0.0, late=0.0, connect=0.0)
    return run(first, timeline("r1", at=73.0, late=0.0, connect=0.0), samples=samples)


def lines(view):
    return {made.label: made for panel in view.panels for made in panel.series}


def test_samples_lie_on_the_axis_of_the_requests():
    view = beside_of(sampled(server_running_requests=lambda i: i), "en")
    assert view is not None
    running = lines(view)["running, server"]
    assert running.t_s == pytest.approx((0.01, 1.01, 2.01, 3.01))
    assert running.values == (0.0, 1.0, 2.0, 3.0)


def test_requests_in_flight_are_steps_of_the_requests_themselves():
    view = beside_of(sampled(server_running_requests=lambda i: i), "en")
    assert view is not None
    flight = lines(view)["in flight, client"]
    assert flight.steps
    assert flight.t_s == pytest.approx((0.0, 0.073, 0.093, 0.166))
    assert flight.values == (1.0, 2.0, 1.0, 0.0)


def test_counters_are_shown_by_their_growth_and_a_new_server_is_no_fall():
    counts = (100, 150, 10, 40)
    view = beside_of(sampled(server_generated_tokens=lambda i: counts[i]), "en")
    assert view is not None
    tokens = lines(view)["generated tokens, server"]
    assert tokens.values == pytest.approx((50.0, 30.0))
    assert tokens.t_s == pytest.approx((1.01, 3.01))


def test_units_are_those_of_the_panels():
    view = beside_of(
        sampled(server_kv_usage_ratio=lambda i: 0.25, loop_lag_ns=lambda i: 2e6, gpu_power_w=lambda i: 300),
        "en",
    )
    assert view is not None
    found = lines(view)
    assert found["KV cache in use, server"].values[0] == 25.0
    assert found["event loop's lag"].values[0] == 2.0
    assert [panel.axis for panel in view.panels] == ["requests", "KV cache, %", "power, W", "lag, ms"]
    assert ("KV cache in use, server, %", "4", "25.0", "25.0", "25.0") in view.table.rows


def test_preemptions_have_a_panel_only_where_there_were_any():
    none = beside_of(sampled(server_preemptions=lambda i: 7), "en")
    some = beside_of(sampled(server_preemptions=lambda i: 7 + i), "en")
    assert none is not None
    assert some is not None
    assert [panel.axis for panel in none.panels] == ["requests"]
    assert lines(some)["preemptions, server"].values == pytest.approx((1.0, 1.0, 1.0))


def test_too_few_samples_or_several_clocks_show_nothing():
    assert beside_of(sampled(n=1, gpu_power_w=lambda i: 300), "en") is None
    one, other = (
        replace(sampled(gpu_power_w=lambda i: 300), header=header(run_id=name)) for name in ("a", "b")
    )
    assert beside_of(merge([one, other]), "en") is None


def test_a_long_line_keeps_its_peaks():
    peaks = {777: 50.0, 4_200: 90.0}
    view = beside_of(sampled(n=9_000, server_running_requests=lambda i: peaks.get(i, 1.0)), "en")
    assert view is not None
    running = lines(view)["running, server"]
    assert len(running.t_s) <= 800
    assert sorted(set(running.values)) == [1.0, 50.0, 90.0]


def test_the_chart_has_one_axis_a_panel_and_they_do_not_overlap():
    view = beside_of(sampled(gpu_power_w=lambda i: 300 + i, server_kv_usage_ratio=lambda i: 0.5), "en")
    assert view is not None
    figure = beside_chart(view, "en")
    assert figure is not None
    layout = figure["layout"]
    assert isinstance(layout, dict)
    domains = [layout[key]["domain"] for key in ("yaxis", "yaxis2", "yaxis3")]
    assert all(low < high for low, high in domains)
    assert all(below[1] <= above[0] for above, below in pairwise(domains))
    assert layout["xaxis"]["anchor"] == "y3"


@pytest.mark.parametrize(("lang", "head"), [("en", "Beside the run"), ("zh", "运行期间")])
def test_page_and_terminal_show_it(lang, head):
    whole = sampled(gpu_power_w=lambda i: 300 + i, server_running_requests=lambda i: i)
    view = view_of([(whole, summarise(whole))], lang)
    page = html_page(view)
    assert f">{head}</h2>" in page
    assert 'data-chart="beside-0"' in page
    assert '"beside-0":{"one":{"data":[' in page
    printed = io.StringIO()
    render_terminal(view, Console(file=printed, width=100, highlight=False))
    assert head in printed.getvalue()
    assert "301.5" in printed.getvalue() or "302" in printed.getvalue()

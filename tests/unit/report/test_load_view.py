from __future__ import annotations

import io
import json
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from phasemeter.explain.slo import parse_slo
from phasemeter.explain.summary import summarise
from phasemeter.report.page import page_body
from phasemeter.report.picture import picture_svg
from phasemeter.report.plots import charts_of
from phasemeter.report.terminal import render_terminal
from phasemeter.report.view import view_of
from unit.explain.builders import run, sequence
from unit.explain.queues import md1, sweep
from unit.explain.test_levels_of_load import many_lengths, sweep_late


def view(whole, slo=None, lang="en"):
    return view_of([(whole, summarise(whole, slo=None if slo is None else parse_slo(slo)))], lang)


@pytest.fixture(scope="module")
def swept():
    return sweep(*[md1(r, 500, seed=int(r), decode_s=0.05) for r in (2, 5, 8, 14)])


def test_a_plain_grid_shows_nothing_of_it():
    assert view(run(*sequence(10))).runs[0].load is None


def test_objectives_show_it_for_a_grid_too():
    load = view(run(*sequence(10)), "ttft=200ms").runs[0].load
    assert load is not None
    assert "objectives: ttft=200ms" in load.tables[-1].title


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_tells_levels_windows_objectives_and_capacity(swept, lang, width):
    out = io.StringIO()
    render_terminal(view(swept, "ttft_p90=300ms,tpot_p90=20ms", lang), Console(file=out, width=width))
    text = out.getvalue()
    assert max(cell_len(line) for line in text.splitlines()) <= width
    for rate in ("2/s", "5/s", "8/s", "14/s"):
        assert rate in text
    if width == 80:
        return  # words of a narrow column are folded
    wanted = {
        "en": ("steady", "queue grows", "not met", "largest rate", "Saturation"),
        "zh": ("稳定", "队列增长", "不满足", "最大到达率", "饱和"),
    }
    assert [words for words in wanted[lang] if words not in text] == []


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_buckets_and_rates_are_named_wherever_shapes_are(lang):
    made = view(sweep_late(many_lengths()), lang=lang)
    shapes = made.runs[0].shapes
    assert any(re.search(r"\d–\d+ → .*@20/s", shape.short) for shape in shapes)
    out = io.StringIO()
    render_terminal(made, Console(file=out, width=100))
    assert "20/s" in out.getvalue()
    picture_svg(made)
    json.dumps(charts_of(made.runs[0], 0, lang), allow_nan=False)
    page_body(made)

"""The engine's inside on a page and on a terminal."""

from __future__ import annotations

import io
import re

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console

from phasemeter.explain.steps import UNTOLD
from phasemeter.explain.summary import summarise
from phasemeter.record.engine import EngineStep
from phasemeter.report import steps_view
from phasemeter.report.page import page_body
from phasemeter.report.steps_view import inside_html, inside_lines, inside_of
from phasemeter.report.terminal import render_terminal
from phasemeter.report.view import view_of
from unit.explain.builders import MS, report, run, sequence, timeline
from unit.explain.test_steps import two_requests


def inside(made, lang="en"):
    found = inside_of(summarise(made), lang)
    assert found is not None
    return found


def test_a_run_that_told_nothing_of_its_inside_shows_nothing():
    assert inside_of(summarise(run(timeline())), "en") is None
    assert "inside-0" not in page_body(view_of([(run(timeline()), summarise(run(timeline())))]))


def test_both_languages_have_the_same_words():
    assert steps_view._WORDS["en"].keys() == steps_view._WORDS["zh"].keys()
    for name, text in steps_view._WORDS["en"].items():
        assert set(re.findall(r"{\w+}", text)) == set(re.findall(r"{\w+}", steps_view._WORDS["zh"][name])), (
            name
        )


def test_who_was_disturbed_and_by_how_much():
    found = inside(two_requests())
    assert "Of 2 answers laid over 15 steps, 1 decoded beside" in found.sentences[0]
    kinds, most = found.tables
    assert [row[:2] for row in kinds.rows] == [("prefill", "1"), ("decode", "12"), ("both", "2")]
    assert most.rows == (("a", "90.0", "11", "2", "256", "~30.0", "~33 %"),)
    assert found.life is not None
    assert sum(step.share for step in found.life.steps) == pytest.approx(1)
    assert {step.part for step in found.life.steps} == {"prefill", "decode", "beside"}


def test_what_cannot_be_said_is_said_in_a_sentence():
    base = two_requests()
    bare = tuple(EngineStep(s.engine_ns, running=1) for s in base.steps)
    found = inside(replace(base, steps=bare))
    assert found.sentences == (UNTOLD[0].upper() + UNTOLD[1:] + ".",)
    assert (found.tables, found.life) == ((), None)
    calm = replace(base, seen=base.seen[1:])
    assert "none decoded beside" in inside(calm).sentences[0]
    assert "没有被测请求" in inside(replace(base, seen=()), "zh").sentences[0]


def test_the_front_ends_parts_are_shown_without_any_steps():
    found = inside(run(*sequence(report=report(e2e_ns=88 * MS))))
    [table] = found.tables
    assert table.rows == (("64 → 5", "~5.00", "~3.00", "~2.00"),)
    assert found.sentences == ()


def test_before_and_after_the_engine_have_columns_where_they_are_told():
    around = report(e2e_ns=88 * MS, before_ns=3 * MS // 2, after_ns=5 * MS // 2)
    [table] = inside(run(*sequence(report=around))).tables
    assert table.rows == (("64 → 5", "~5.00", "~3.00", "~2.00", "~1.50", "~2.50"),)
    assert len(table.heads) == 6


def test_the_page_escapes_and_offers_the_requests_that_tell_most():
    base = two_requests()
    evil = "<b>&a"
    requests = (replace(base.requests[0], id=evil), timeline("b", first=99.0))
    made = replace(base, requests=requests, seen=(replace(base.seen[0], request=evil), base.seen[1]))
    view = view_of([(made, summarise(made))])
    found = view.runs[0].inside
    assert found is not None
    page = inside_html(found, 0, "en")
    assert evil not in page
    assert "&lt;b&gt;&amp;a" in page
    assert page.count("<option") == len(found.lives) == 2
    assert page.count('data-life="1"') == 2
    whole = page_body(view)
    assert page in whole
    assert 'href="#inside-0"' in whole


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_terminal_shows_it_in_its_width(lang, width):
    made = two_requests()
    out = io.StringIO()
    render_terminal(view_of([(made, summarise(made))], lang), Console(file=out, width=width))
    text = out.getvalue()
    assert {"en": "Inside the engine", "zh": "引擎内部"}[lang] in text
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "▓" in text


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_all_of_the_front_ends_columns_fit_a_narrow_terminal(lang):
    around = report(e2e_ns=88 * MS, before_ns=3 * MS // 2, after_ns=5 * MS // 2)
    made = run(*sequence(report=around))
    out = io.StringIO()
    render_terminal(view_of([(made, summarise(made))], lang), Console(file=out, width=80))
    text = out.getvalue()
    assert max(cell_len(line) for line in text.splitlines()) <= 80
    assert "~1.50" in text
    assert "~2.50" in text


def test_the_bar_gives_each_part_its_time():
    """10 ms of prefill, then 20 alone, 40 beside a prefill and 30 decoding, over 100 letters."""
    _, life = inside_lines(inside(two_requests()), 104)
    bar = life.splitlines()[1]
    assert len(bar) == 100
    assert abs(bar.count("▓") - 100 * 40 / 98) <= 1
    assert abs(bar.count("█") - 100 * 8 / 98) <= 1

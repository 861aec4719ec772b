"""The lives that a page offers, their sentences and their picture."""

from __future__ import annotations

import json
import re

import pytest
from msgspec.structs import replace

from phasemeter.explain.one_request import explain_request
from phasemeter.explain.summary import summarise
from phasemeter.report import life_words
from phasemeter.report.life_plot import life_chart
from phasemeter.report.life_view import MOST_GROUPS, choices_of, life_table
from phasemeter.report.life_words import shared_sentences
from phasemeter.report.plots import charts_of
from phasemeter.report.view import view_of
from unit.explain.builders import run
from unit.explain.test_one_request import two_answers


def choices(made, lang="en"):
    return choices_of(made, summarise(made).steps, lang)


def test_both_languages_have_the_same_texts():
    english, chinese = life_words._WORDS["en"], life_words._WORDS["zh"]
    assert english.keys() == chinese.keys()
    for name, text in english.items():
        assert set(re.findall(r"{\w+}", text)) >= set(re.findall(r"{\w+}", chinese[name])), name


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_choice_says_why_it_is_there(lang):
    found = choices(two_answers(), lang)
    assert [one.request for one in found] == ["a", "b"]
    assert found[0].label.startswith({"en": "lost most", "zh": "受他人"}[lang])
    assert len({one.request for one in found}) == len(found)


def test_the_sentences_of_a_disturbed_request_hold_its_numbers():
    made = two_answers()
    shared = explain_request(made, made.requests[0]).shared
    assert shared is not None
    steps, gaps, longest = shared_sentences(shared, "en")
    assert "2 of the steps also prefilled 256 tokens of other requests" in steps
    assert "They took 40.0 ms, ~30.0 ms more" in steps
    assert "2 of its 11 gaps" in gaps
    assert "44 %" in gaps
    assert "prefilled 128 tokens of others; the engine took " in longest  # what of the gap is the engine's


def test_the_picture_draws_every_step_once_as_wide_as_it_took():
    [life, _] = choices(two_answers())
    figure = life_chart(life, "en")
    assert figure is not None
    json.dumps(figure, allow_nan=False)
    bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
    costs = [trace for trace in bars if trace["yaxis"] == "y"]
    assert sum(len(trace["x"]) for trace in costs) == len(life.marks) == 12
    assert {trace["name"]: sum(trace["width"]) for trace in costs} == pytest.approx(
        {"own prefill": 8, "decode": 50, "decode beside others' prefill": 40}
    )
    others = [trace for trace in bars if trace["name"] == "others' prompts"]
    assert [sum(trace["y"]) for trace in others] == [256]


def test_prompts_that_cannot_be_told_apart_are_drawn_as_such():
    """Of b's prompt of 64 tokens nobody knows how it lies in two steps of 128."""
    figure = life_chart(choices(two_answers())[1], "en")
    assert figure is not None
    [bars] = [trace for trace in figure["data"] if trace["type"] == "bar" and trace["yaxis"] == "y2"]
    assert (bars["name"], bars["y"], bars["showlegend"]) == ("prompts not told apart", [128, 128], True)


def test_the_picture_escapes_nothing_of_the_runs_text_into_it():
    made = two_answers()
    chart = charts_of(view_of([(made, summarise(made))]).runs[0], 0, "en")["life-0"]
    assert len(chart["by_life"]) == 2


def test_a_run_without_steps_has_no_choice():
    made = two_answers()
    assert choices(replace(made, steps=())) == ()
    assert "life-0" not in charts_of(view_of([(run(), summarise(run()))]).runs[0], 0, "en")


def test_a_table_never_has_more_lines_than_are_read():
    made = two_answers(rounds=60)
    shared = explain_request(made, made.requests[0]).shared
    assert shared is not None
    table = life_table(shared.life, "en")
    assert len(table.rows) <= MOST_GROUPS
    assert sum(int(row[2].replace(",", "")) for row in table.rows) == len(shared.life.rows) > 200

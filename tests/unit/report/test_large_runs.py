"""A run of many requests: what is drawn of it, and how large its page is."""

from __future__ import annotations

import numpy as np
import pytest

from phasemeter.explain.readings import readings_of
from phasemeter.explain.summary import summarise
from phasemeter.report.html import html_page
from phasemeter.report.shape_view import drawn_of, histogram
from phasemeter.report.view import view_of
from unit.explain.builders import run, timeline

SLOW = (17, 41, 402)


def _many(n: int):
    return [timeline(f"r{i}", at=i * 10.0, tail=900.0 if i in SLOW else 3.0) for i in range(n)]


def test_the_slowest_are_drawn_and_an_even_choice_of_the_others() -> None:
    made = _many(1000)
    drawn = drawn_of(readings_of(made[::-1]), 50)  # in whatever order they were written
    places = [int(name[1:]) for name in drawn.ids()]
    assert len(places) == 50
    assert places == sorted(places)
    assert set(SLOW) < set(places)
    assert (places[0], places[-1]) == (0, 999)
    assert max(np.diff(places)) <= 30


@pytest.mark.parametrize("n", [0, 1, 20])
def test_few_requests_are_all_drawn(n: int) -> None:
    assert len(drawn_of(readings_of(_many(n)), 20)) == n


def test_a_page_does_not_grow_with_the_requests() -> None:
    pages = []
    for n in (1000, 4000):
        made = run(*_many(n))
        view = view_of([(made, summarise(made))])
        shape = view.runs[0].shapes[0]
        assert (len(shape.rows), shape.rows_left_out) == (500, n - 500)
        assert sum(shape.itl.counts) == 4 * n
        pages.append(len(html_page(view)))
    assert pages[1] < pages[0] + 20_000


def test_a_histogram_taken_in_parts_is_the_same(monkeypatch) -> None:
    values = np.random.default_rng(3).lognormal(2.0, 1.0, 999)
    values[::50] = 0.0
    whole = histogram(values)
    monkeypatch.setattr("phasemeter.report.shape_view._AT_ONCE", 10)
    assert histogram(values) == whole
    assert whole.counts[0] >= 20

from __future__ import annotations

import pytest

from phasemeter.explain.summary import summarise
from phasemeter.record.run import Run
from phasemeter.report.article import article_of, moved_tpot_ms
from phasemeter.report.parts import ArticleView, Mark
from phasemeter.report.view import view_of
from unit.report.made_runs import header, run


def article(made: Run) -> ArticleView:
    found = article_of(summarise(made), "en")
    assert found is not None
    return found


def test_floors_on_the_named_hardware_are_those_of_the_physics() -> None:
    rows = article(run(repeats=5)).rows
    floors = {row.input_tokens: row.floor_claimed.value for row in rows if row.output_tokens is None}
    assert {n: round(ms or 0.0, 3) for n, ms in floors.items()} == {
        64: 0.465,
        128: 0.466,
        256: 0.467,
        512: 0.899,
    }
    ratios = {
        row.input_tokens: round(row.claimed_ratio.value or 0.0) for row in rows if row.output_tokens is None
    }
    assert ratios == {64: 32, 128: 97, 256: 385, 512: 801}


def test_tpot_of_short_answers_is_moved_by_the_bytes_and_marked() -> None:
    made = run(repeats=5)
    rows = [row for row in article(made).rows if row.what == "TPOT"]
    assert [row.measured.mark for row in rows] == [Mark.INFERRED] * 3
    seen = view_of([(made, summarise(made))], "en").runs[0].shapes[0].tpot.value
    # fp32 cache: 2 x 18 layers x 2 heads x 128 x 4 bytes; context 64 + 8 to 64 + 64; 15 GB/s
    more_ms = (128 - 72) * 36_864 / 15e9 * 1e3
    assert seen is not None
    assert rows[0].measured.value == pytest.approx(seen + more_ms)
    assert moved_tpot_ms(10.0, 100, 50, 1e6, 1e9) == pytest.approx(-40.0)


def test_tpot_of_full_answers_is_measured() -> None:
    made = run(lengths=(64,), output=128, repeats=5)
    view = article(made)
    rows = {row.input_tokens: row.measured for row in view.rows if row.what == "TPOT"}
    assert rows[64].mark is Mark.OBSERVED
    assert rows[128].mark is Mark.INFERRED


def test_lengths_that_were_not_measured_stay_absent() -> None:
    rows = article(run(lengths=(64,), repeats=5)).rows
    prefill = {row.input_tokens: row.measured for row in rows if row.output_tokens is None}
    assert prefill[64].mark is Mark.OBSERVED
    assert prefill[512].value is None
    assert prefill[512].mark is Mark.ABSENT


def test_without_ceilings_nothing_is_extrapolated() -> None:
    rows = article(run(repeats=5, head=header(ceilings=False))).rows
    for row in rows:
        assert row.floor_here.value is None
        if row.what == "TPOT":
            assert row.measured.value is None


def test_concurrent_requests_are_not_compared_with_the_article() -> None:
    rows = article(run(repeats=5, concurrency=(4,))).rows
    assert all(row.measured.value is None for row in rows)


def test_notes_say_what_may_be_compared() -> None:
    notes = " ".join(article(run(repeats=5)).notes)
    assert "Made processor" in notes
    assert "not comparable" in notes
    assert "48.0×" in notes
    assert "1.93×" in notes


def test_another_model_has_no_article() -> None:
    made = run(repeats=5, head=header(model="qwen3-0.6b", shape="qwen3-0.6b"))
    assert article_of(summarise(made), "en") is None

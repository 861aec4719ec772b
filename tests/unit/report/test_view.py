from __future__ import annotations

import msgspec
import pytest

from phasemeter.explain.stats import Dist
from phasemeter.explain.summary import Summary, summarise
from phasemeter.record.errors import InputError
from phasemeter.record.run import Run
from phasemeter.report.budget import median
from phasemeter.report.parts import Mark, View
from phasemeter.report.prose import law_of
from phasemeter.report.shape_view import histogram, rows_each
from phasemeter.report.view import view_of
from unit.report.made_runs import header, run


def viewed(made: Run, lang: str = "en") -> View:
    return view_of([(made, summarise(made))], lang)


def pair(made: Run) -> tuple[Run, Summary]:
    return made, summarise(made)


def test_budget_adds_up_and_is_the_mean_end_to_end() -> None:
    made = run(repeats=5)
    view = viewed(made).runs[0]
    for shape in view.shapes:
        e2e_ms = [
            (t.end_ns - t.arrived_ns) / 1e6
            for t in made.requests
            if t.cell.input_tokens == shape.input_tokens and not t.cell.warmup
        ]
        assert shape.total.value == pytest.approx(sum(e2e_ms) / len(e2e_ms), rel=1e-9)
        parts = [s.number.value for s in shape.segments if s.number.value is not None]
        assert sum(parts) == pytest.approx(shape.total.value, rel=1e-9)
        assert sum(s.share or 0.0 for s in shape.segments) == pytest.approx(1.0)
        at = 0.0
        for segment in shape.segments:
            assert segment.start_ms == pytest.approx(at)
            at += segment.number.value or 0.0


def test_phases_carry_their_basis() -> None:
    shape = viewed(run(repeats=5)).runs[0].shapes[0]
    marks = {segment.phase: segment.number.mark for segment in shape.segments}
    assert marks == {
        "late": Mark.OBSERVED,
        "connect": Mark.OBSERVED,
        "front_end": Mark.INFERRED,
        "queue": Mark.OBSERVED,
        "prefill": Mark.OBSERVED,
        "decode": Mark.OBSERVED,
        "tail": Mark.OBSERVED,
    }
    values = {segment.phase: segment.number.value for segment in shape.segments}
    assert values["queue"] == pytest.approx(0.5)
    assert values["late"] == pytest.approx(0.05)


def test_without_a_report_first_is_never_called_prefill() -> None:
    view = viewed(run(repeats=5, report=False)).runs[0]
    for shape in view.shapes:
        assert not shape.split
        assert shape.prefill.value is None
        assert shape.prefill.mark is Mark.ABSENT
        assert [s.phase for s in shape.segments] == ["late", "connect", "first", "decode", "tail"]
        assert shape.prefill_ratio.mark is Mark.INFERRED
    assert view.article is not None
    prefills = [row for row in view.article.rows if row.what.startswith("prefill")]
    assert {row.measured.mark for row in prefills} == {Mark.INFERRED}
    assert "does not say how much" in " ".join(view.closing)


def test_an_engine_without_a_queue_shows_it_as_absent_not_as_zero() -> None:
    shape = viewed(run(repeats=5, queue=None)).runs[0].shapes[0]
    queue = next(segment for segment in shape.segments if segment.phase == "queue")
    assert queue.number.value is None
    assert queue.number.mark is Mark.ABSENT
    assert queue.share is None


def test_reports_of_some_requests_alone_do_not_split_the_budget() -> None:
    made = run(repeats=6)
    mixed = tuple(
        msgspec.structs.replace(t, report=None) if i % 3 == 0 else t for i, t in enumerate(made.requests)
    )
    shapes = viewed(msgspec.structs.replace(made, requests=mixed)).runs[0].shapes
    for shape in shapes:
        assert not shape.split
        total = sum(s.number.value or 0.0 for s in shape.segments)
        assert total == pytest.approx(shape.total.value)


def test_without_floors_everything_that_needs_them_is_absent() -> None:
    made = run(head=header(model="somebody/other", shape=None, ceilings=False), repeats=5)
    view = viewed(made).runs[0]
    assert view.article is None
    shape = view.shapes[0]
    for number in (shape.prefill_floor, shape.prefill_ratio, shape.tpot_floor, shape.tpot_ratio):
        assert number.value is None
        assert number.mark is Mark.ABSENT
    assert shape.attributed == ()
    assert "no floor" in " ".join(view.closing)


def test_random_weights_are_loud() -> None:
    view = viewed(run(repeats=5)).runs[0]
    assert [fact.text for fact in view.facts if fact.loud] == ["random, seed 0"]
    checkpoint = viewed(run(repeats=5, head=header(weights="checkpoint"))).runs[0]
    assert not [fact for fact in checkpoint.facts if fact.loud]


def test_growth_sentences_follow_the_interval() -> None:
    view = viewed(run(repeats=8)).runs[0]
    prefill = [entry for entry in view.growth if entry.metric == "prefill"]
    assert [(entry.low, entry.high) for entry in prefill] == [(64, 128), (128, 256), (256, 512)]
    for entry in prefill:
        assert "no square law" in entry.sentence
        assert f"{entry.exponent.value:.2f}" in entry.sentence


@pytest.mark.parametrize(
    ("lo", "hi", "key"),
    [
        (None, None, "growth_none"),
        (0.3, 2.4, "growth_wide"),
        (0.1, 1.6, "growth_wide_below"),
        (-0.1, 0.2, "growth_flat"),
        (0.4, 0.8, "growth_sub"),
        (0.9, 1.1, "growth_linear"),
        (1.3, 1.7, "growth_below"),
        (1.8, 2.1, "growth_square"),
        (2.2, 2.4, "growth_above"),
    ],
)
def test_a_law_is_named_only_where_the_whole_interval_agrees(
    lo: float | None, hi: float | None, key: str
) -> None:
    assert law_of(lo, hi) == key


def test_failed_requests_are_counted_and_drawn_but_in_no_number() -> None:
    clean, broken = viewed(run(repeats=5)).runs[0], viewed(run(repeats=5, failed=3)).runs[0]
    assert broken.shapes[0].failed == 3
    assert broken.shapes[0].tpot == clean.shapes[0].tpot
    assert len(broken.shapes[0].rows) == len(clean.shapes[0].rows) + 3
    assert any(row.outcome == "http_error" for row in broken.shapes[0].rows)


def test_a_run_without_one_success_says_so() -> None:
    made = run(repeats=0, failed=4)
    view = viewed(made).runs[0]
    assert view.verdict == "invalid"
    assert view.closing == (
        "No request of this run succeeded, so there is nothing to explain: see the checks.",
    )
    assert view.cold is None


def test_an_invalid_run_opens_its_prose_with_the_warning() -> None:
    view = viewed(run(repeats=5, failed=12)).runs[0]
    assert view.verdict == "invalid"
    assert "invalid" in view.closing[0]
    assert "failures" in view.closing[0]


def test_several_runs_stay_apart_and_their_differences_are_named() -> None:
    one = run(repeats=5)
    other = run(repeats=5, head=header(run_id="made-2", cpu="Another processor"))
    view = view_of([pair(one), pair(other)], "en")
    assert len(view.runs) == 2
    assert view.runs[0].shapes == view.runs[1].shapes
    assert len(view.warnings) == 1
    assert "machine.cpu" in view.warnings[0]
    same = view_of([pair(one), pair(run(repeats=5, head=header(run_id="made-3")))], "en")
    assert same.warnings == ()


def test_unknown_language_and_no_run_are_bad_input() -> None:
    with pytest.raises(InputError, match="--lang"):
        view_of([pair(run(repeats=1))], "fr")
    with pytest.raises(InputError, match="runs"):
        view_of([], "en")


def test_rows_are_cut_where_there_are_many_and_the_rest_is_counted() -> None:
    made = run(lengths=(64,), repeats=520, output=2, report=False)
    shape = viewed(made).runs[0].shapes[0]
    assert len(shape.rows) == 500
    assert shape.rows_left_out == 21
    assert rows_each(60) == 50


def test_histogram_counts_every_gap_once() -> None:
    values = [5.0, 5.2, 7.5, 200.0, 0.0]
    found = histogram(values)
    assert found is not None
    assert sum(found.counts) == len(values)
    assert found.edges_ms[0] == pytest.approx(5.0)
    assert found.edges_ms[-1] == pytest.approx(200.0)
    assert found.counts[-1] == 1
    assert len(found.edges_ms) == len(found.counts) + 1
    assert histogram([]) is None
    same = histogram([4.0] * 9)
    assert same is not None
    assert same.counts == (9,)


def test_median_of_few_values_has_no_interval() -> None:
    number = median(Dist(n=3, mean=2.0, p50=2.0, p90=3.0, p99=3.0))
    assert (number.lo, number.hi, number.n) == (None, None, 3)

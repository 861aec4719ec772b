"""Fits of known truth: recovered, covered by their intervals, never below the floor."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.predict.cells import believable
from phasemeter.predict.features import Cell, Query, checked, features, floor_s
from phasemeter.predict.fit import KernelPrior, fit_form
from phasemeter.predict.foresee import foresee_phase
from phasemeter.predict.forms import Form, Term, prefill_forms
from phasemeter.predict.judge import groups_of, judge
from phasemeter.predict.model import fit_cells
from phasemeter.predict.phase import conformal, fit_phase, forms_for, split_half
from phasemeter.predict.transfer import Target
from phasemeter.predict.units import coefficients
from phasemeter.record.errors import InputError, UndecidedError
from unit.predict.made_cells import (
    BATCHES,
    DECODE_TRUTH,
    LENGTHS,
    PREFILL,
    PREFILL_TRUTH,
    ROOF,
    decode_cells,
    prefill_cells,
    truth,
)


def test_a_known_prefill_is_found_again():
    cells = prefill_cells()
    fit = fit_form(PREFILL, [features("prefill", c.query, ROOF) for c in cells], [c.median_s for c in cells])
    assert fit is not None
    # Host and weights are one constant to the cells, and the prior parts them; their sum is told, as is the rest.
    assert fit.coefficients[2:] == pytest.approx(PREFILL_TRUTH[2:], rel=0.10)
    for c in cells:
        assert fit.seconds(features("prefill", c.query, ROOF)) == pytest.approx(c.median_s, rel=0.01)


def test_a_known_decode_step_is_found_again_in_units_a_person_reads():
    fit = fit_phase("decode", decode_cells(noise=0.01), ROOF)
    assert fit is not None
    told = {c.term: c for c in coefficients(fit, ROOF)}
    kv = told["cache read"]
    assert kv.unit == "TB/s"
    assert kv.lo * 0.95 <= ROOF.hardware.memory_bandwidth_bytes_per_s / 1e12 / DECODE_TRUTH[3] <= kv.hi * 1.05
    assert told["each sequence"].unit == "µs a sequence"
    assert told["each sequence"].value == pytest.approx(DECODE_TRUTH[1] * 1e6, rel=0.3)


def test_no_coefficient_is_negative_and_no_kernel_beats_its_ceiling():
    cells = prefill_cells(noise=0.2)
    for form in forms_for("prefill", [features("prefill", c.query, ROOF) for c in cells], scaled=True):
        rows = [features("prefill", c.query, ROOF) for c in cells]
        fit = fit_form(form, rows, [c.median_s for c in cells])
        if fit is not None:
            assert all(c >= least for c, least in zip(fit.coefficients, form.least(), strict=True))


def test_a_length_far_outside_is_predicted_within_its_interval_where_a_parabola_is_not():
    """The published trap: N^2 fitted below 512 tokens."""
    short = prefill_cells(noise=0.02, lengths=(16, 32, 64, 128, 256, 384, 512))
    fit = fit_phase("prefill", short, ROOF)
    assert fit is not None
    query = Query(8192, 16)
    real_ms = truth(PREFILL, PREFILL_TRUTH, "prefill", query, ROOF) * 1e3
    told = foresee_phase(fit, query, Target(ROOF))
    assert not told.ms.inside_domain
    assert told.ms.lo <= real_ms <= told.ms.hi


def test_intervals_cover_what_they_promise():
    """90 % intervals of lengths that were not measured, over machines with other noise: no less than 80 %."""
    hits = total = 0
    for seed in range(5):
        fit = fit_phase("prefill", prefill_cells(noise=0.03, seed=seed), ROOF, draws=5)
        assert fit is not None
        for n in (96, 384, 768, 3000, 6000):
            query = Query(n, 16)
            told = foresee_phase(fit, query, Target(ROOF)).ms
            assert told.inside_domain
            hits += told.lo <= truth(PREFILL, PREFILL_TRUTH, "prefill", query, ROOF) * 1e3 <= told.hi
            total += 1
    assert hits / total >= 0.8


@settings(max_examples=60, deadline=None)
@given(tokens=st.integers(1, 131_072), batch=st.integers(1, 4096))
def test_no_prediction_is_below_the_floor(tokens, batch):
    fit = _FIT
    query = Query(tokens, 32, batch)
    told = foresee_phase(fit, query, Target(ROOF))
    assert floor_s("prefill", query, ROOF) * 1e3 <= told.ms.lo <= told.ms.mid <= told.ms.hi
    assert math.isfinite(told.ms.hi)


_FIT = fit_phase("prefill", prefill_cells(noise=0.03), ROOF, draws=5)


def test_a_step_where_captured_graphs_end_is_seen():
    step = Form("t", (Term("one"), Term("one", gate="tokens", above=512.0), *PREFILL.terms[1:]), p=1.5)
    made = [
        Cell(
            "prefill",
            q,
            (step.seconds((0.004, 0.02, *PREFILL_TRUTH[1:]), step.rows(features("prefill", q, ROOF))),) * 3,
        )
        for q in (Query(n, 16) for n in (*LENGTHS, 700, 900))
    ]
    fit = fit_phase("prefill", made, ROOF, draws=0)
    assert fit is not None
    jump = [c for t, c in zip(fit.form.terms, fit.fitted.coefficients, strict=True) if t.gate == "tokens"]
    assert jump == [pytest.approx(0.02, rel=0.15)]
    assert "above 512 tokens" in fit.form.name


def test_the_simplest_of_equals_is_chosen():
    """Host only, and nothing else to see: the form that wins has no more terms than any that could be fitted."""
    cells = [
        Cell("front_end", Query(n, 8, b), (0.003, 0.0031, 0.0029))
        for n in (16, 64, 256, 1024)
        for b in (1, 2, 4)
    ]
    fit = fit_phase("front_end", cells, None)
    assert fit is not None
    assert fit.form.name == "constant"


def test_whole_lengths_and_batches_are_left_out_but_never_most_of_the_cells():
    cells = [Cell("decode", Query(n, 8), (1.0,)) for n in (1, 2, 4, 8, 16)]
    cells += [Cell("decode", Query(2, 8, b), (1.0,)) for b in (2, 4)]
    groups = groups_of(cells)
    assert set(groups) == {"input 1", "input 4", "input 8", "input 16", "batch 2", "batch 4"}
    assert all(
        len({cells[i].query.input_tokens for i in m}) == 1 for n, m in groups.items() if n.startswith("input")
    )


def test_conformal_half_width_counts_as_its_definition_says():
    assert conformal([0.1 * i for i in range(1, 10)]) == pytest.approx(0.9)  # ceil(10 x 0.9) = 9th of 9
    assert conformal([0.05 * i for i in range(1, 20)]) == pytest.approx(0.9)  # 18th of 19
    assert conformal([0.3]) == 0.3


def test_split_half_repeatability():
    assert split_half([Cell("x", Query(1, 1), (1.0, 2.0, 1.0, 2.0))]) == pytest.approx(math.log(2))
    assert split_half([Cell("x", Query(1, 1), (1.0,))]) is None


def test_a_kernel_prior_decides_what_the_cells_leave_open():
    """One length: weights and host are one constant; what profiles say of the weights parts them."""
    cells = prefill_cells(lengths=(16, 17, 18, 19))
    rows, seconds = [features("prefill", c.query, ROOF) for c in cells], [c.median_s for c in cells]
    without = fit_form(PREFILL, rows, seconds)
    told = fit_form(PREFILL, rows, seconds, None, [KernelPrior("memory", 3.0, 0.01)])
    assert without is not None
    assert told is not None
    assert told.coefficients[1] == pytest.approx(3.0, rel=0.1)
    assert without.coefficients[1] < 2.5


def test_forms_are_refused_where_cells_cannot_tell_their_terms_apart():
    rows = [{"one": 1.0, "sequences": 3.0} for _ in range(5)]
    assert fit_form(Form("f", (Term("one"), Term("sequences")), scaled=False), rows, [1.0] * 5) is None
    assert judge([Form("f", (Term("one"), Term("sequences")), scaled=False)], rows[:1], [1.0], {}) is None


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_cannot_be_is_refused(value):
    with pytest.raises(InputError, match="must be positive and finite"):
        checked(Cell("prefill", Query(16, 16), (0.1, value)))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-2, 4096), st.integers(-2, 64), st.integers(-2, 64), st.floats(-1.0, 10.0)),
        max_size=6,
    )
)
def test_bad_cells_end_in_a_clear_error_or_in_a_fit(rows):
    try:
        cells = [checked(Cell("prefill", Query(n, out, b), (s, s))) for n, out, b, s in rows]
        phases, _ = fit_cells(cells, ROOF)
    except (InputError, UndecidedError):
        return
    for fit in phases.values():
        assert all(math.isfinite(c) and c >= 0 for c in fit.fitted.coefficients)


def test_too_little_is_undecided_and_says_what_to_measure():
    two = prefill_cells(lengths=(64, 128))
    with pytest.raises(UndecidedError, match=r"2 cells measured.*--input-tokens"):
        believable("prefill", two)
    once = [Cell(c.phase, c.query, c.seconds[:1]) for c in prefill_cells()]
    with pytest.raises(UndecidedError, match="one repeat"):
        believable("prefill", once)
    same = [Cell("prefill", Query(64, out), (0.1, 0.1)) for out in (8, 16, 32)]
    with pytest.raises(UndecidedError, match="same input length and batch"):
        believable("prefill", same)


def test_candidates_are_only_what_the_cells_could_show():
    short = [features("prefill", Query(n, 16), ROOF) for n in (16, 64, 128)]
    assert not any("above" in form.name for form in forms_for("prefill", short, scaled=True))
    assert all(form.terms for form in prefill_forms(scaled=False, batched=True))
    assert len(BATCHES) > 3

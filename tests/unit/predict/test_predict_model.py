"""Models fitted to the committed H200 record and to known truth: saved, asked, carried over, played step by step."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from phasemeter.predict.design import next_cells
from phasemeter.predict.features import Query, features, floor_s
from phasemeter.predict.foresee import foresee
from phasemeter.predict.model import SCHEMA, FittedModel, fit_cells, fit_runs, load, save
from phasemeter.predict.steps import StepModel, prefill_s
from phasemeter.predict.transfer import OTHER_HOST_LOG_SD, target
from phasemeter.record.errors import InputError, UndecidedError
from phasemeter.record.file import read_run
from unit.predict.made_cells import (
    DECODE,
    DECODE_TRUTH,
    PREFILL,
    PREFILL_TRUTH,
    ROOF,
    cell,
    decode_cells,
    prefill_cells,
    truth,
)

H200 = Path(__file__).parents[3] / "benchmarks" / "h200"


def made(roof=ROOF) -> FittedModel:
    front = [cell("front_end", Query(n, 16), 0.003 + 1e-6 * n) for n in (16, 64, 256, 1024, 4096)]
    phases, notes = fit_cells([*prefill_cells(), *decode_cells(), *front], roof)
    return FittedModel(
        schema=SCHEMA,
        phasemeter="0",
        machine="made",
        engine="vllm",
        engine_version="0",
        model="llama-3.1-8b",
        dtype="bfloat16",
        settings={},
        runs=("a",),
        budget_tokens=8192,
        phases=phases,
        roof=roof,
        notes=notes,
    )


@pytest.fixture(scope="module")
def model() -> FittedModel:
    return made()


@pytest.fixture(scope="module")
def h200() -> FittedModel:
    return fit_runs([read_run(H200 / "h200-http-default.jsonl.gz")])


def test_the_committed_record_is_fitted_to_what_is_known_of_it(h200):
    """Host-bound at batch 1 (physics: the floor is 0.15 ms), a step above 512 tokens where its graphs end, and 7,000
    tokens that the chip is busy with."""
    assert (h200.engine, h200.engine_version, h200.machine) == ("vllm", "0.26.0", "NVIDIA H200")
    alone = foresee(h200, Query(256, 512))
    assert alone.inside_domain
    assert alone.tpot is not None
    assert alone.tpot.ms.lo <= 1.59 <= alone.tpot.ms.hi
    assert alone.prefill is not None
    assert alone.prefill.ms.lo <= 7.36 <= alone.prefill.ms.hi
    assert alone.ttft is not None
    assert alone.ttft.ms.mid > alone.prefill.ms.mid
    assert "above 512 tokens" in h200.phase("prefill").form.name
    long = foresee(h200, Query(7000, 16))
    assert long.prefill is not None
    assert long.prefill.ms.mid == pytest.approx(16.8, rel=0.1)


def test_a_model_survives_its_file(model, tmp_path):
    save(model, tmp_path / "deep" / "MODEL.json")
    again = load(tmp_path / "deep" / "MODEL.json")
    assert again == model
    assert foresee(again, Query(300, 20)) == foresee(model, Query(300, 20))


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b"\xff\xfe", b'{"schema": "x"}', b"[" * 5000, b'{"type":"header"}']
)
def test_a_file_that_is_no_model_is_one_clear_line(tmp_path, content):
    (tmp_path / "m.json").write_bytes(content)
    with pytest.raises(InputError, match="phasemeter fit"):
        load(tmp_path / "m.json")


def test_a_model_of_another_version_or_with_a_negative_coefficient_is_refused(model, tmp_path):
    save(msgspec.structs.replace(model, schema=SCHEMA + 1), tmp_path / "new.json")
    with pytest.raises(InputError, match="fit it again"):
        load(tmp_path / "new.json")
    fit = model.phase("prefill")
    bad = msgspec.structs.replace(
        fit, fitted=msgspec.structs.replace(fit.fitted, coefficients=(-1.0, *fit.fitted.coefficients[1:]))
    )
    save(msgspec.structs.replace(model, phases={"prefill": bad}), tmp_path / "bad.json")
    with pytest.raises(InputError, match="negative or not a number"):
        load(tmp_path / "bad.json")


def test_another_chip_changes_the_chips_part_by_the_ratio_of_ceilings_and_keeps_the_host(model):
    here, there = (foresee(model, Query(8192, 4096, 1), hardware=h) for h in (None, "a100-80gb-sxm"))
    assert here.prefill is not None
    assert there.prefill is not None
    parts = [{p.name: p.ms for p in f.prefill.parts} for f in (here, there) if f.prefill is not None]
    # 8,192 tokens are bound by arithmetic: the ratio of peaks, 989 to 312.
    assert parts[1]["chip"] / parts[0]["chip"] == pytest.approx(989 / 312, rel=0.03)
    assert parts[1]["host"] == pytest.approx(parts[0]["host"], rel=0.01)
    assert not there.inside_domain
    width = math.log(there.prefill.ms.hi / there.prefill.ms.mid)
    assert width > math.log(here.prefill.ms.hi / here.prefill.ms.mid)
    assert sum(p.share_of_uncertainty for p in there.prefill.parts) == pytest.approx(1.0)


def test_a_decode_step_of_large_weights_follows_the_bandwidth(model):
    here, there = (foresee(model, Query(512, 4096), hardware=h) for h in (None, "h100-sxm"))
    assert here.tpot is not None
    assert there.tpot is not None
    chips = [p.ms for f in (here.tpot, there.tpot) for p in f.parts if p.name == "chip"]
    assert chips[1] / chips[0] == pytest.approx(4800 / 3350, rel=0.02)


def test_quantised_weights_are_read_faster_and_never_below_their_floor(model):
    plain, small = foresee(model, Query(512, 4096)), foresee(model, Query(512, 4096), dtype="int4")
    assert plain.tpot is not None
    assert small.tpot is not None
    assert small.target.changed == ("dtype",)
    assert small.tpot.floor_ms <= small.tpot.ms.lo <= small.tpot.ms.mid < plain.tpot.ms.mid


def test_carrying_over_needs_known_names_and_a_roof(model):
    with pytest.raises(InputError, match="hardware"):
        foresee(model, Query(16, 16), hardware="gtx-9999")
    with pytest.raises(InputError, match="model"):
        foresee(model, Query(16, 16), model_shape="no-such-model")
    with pytest.raises(UndecidedError, match="--model-shape"):
        target(None, hardware="h100-sxm")
    assert target(ROOF, hardware="a100-80gb-sxm").host_log_sd == pytest.approx(OTHER_HOST_LOG_SD)
    assert target(ROOF, hardware="h200").changed == ()


@pytest.mark.parametrize("query", [Query(0, 1), Query(1, 0), Query(1, 1, 0), Query(1, 1, 1, -1)])
def test_counts_below_their_least_are_refused(model, query):
    with pytest.raises(InputError, match="or more"):
        foresee(model, query)


def test_more_tokens_than_the_model_has_positions_is_undecided(model):
    with pytest.raises(UndecidedError, match="positions"):
        foresee(model, Query(10**7, 1))


def test_one_token_out_has_no_tpot_and_ends_with_the_first(model):
    told = foresee(model, Query(512, 1))
    assert told.tpot is None
    assert told.ttft is not None
    assert told.e2e_ms == told.ttft.ms


def test_the_model_plays_steps_as_its_fits_say(model):
    steps: StepModel = model
    prompt, sequences = Query(512, 64), Query(512, 4096, 8)
    assert prefill_s(steps, [(512, 0)]) == pytest.approx(
        model.phase("prefill").fitted.seconds(features("prefill", prompt, ROOF)), rel=1e-6
    )
    context = sequences.batch * sequences.context_tokens
    fit = model.phase("decode").fitted
    row = features("decode", sequences, ROOF) | {"foreign": 0.0, "foreign_pairs": 0.0}
    assert steps.step_s([], (8, context)) == pytest.approx(fit.seconds(row), rel=1e-6)
    assert steps.front_end_s(1000) == pytest.approx(0.004, rel=0.05)


def test_a_mixed_step_costs_more_than_either_and_less_than_both(model):
    prompt, decode = model.step_s([(2048, 0)]), model.step_s([], (32, 32 * 4096))
    mixed = model.step_s([(2048, 0)], (32, 32 * 4096))
    assert max(prompt, decode) <= mixed < prompt + decode


def test_steps_without_work_or_with_counts_below_zero_are_refused(model):
    for prefill, decode in (([], (0, 0)), ([(0, 5)], (0, 0)), ([(1, -1)], (0, 0)), ([], (-1, 5))):
        with pytest.raises(InputError, match="step"):
            model.step_s(prefill, decode)


def test_the_cells_to_measure_next_are_those_of_the_question(model):
    ask = Query(60_000, 64)
    cells = next_cells([model.phase("prefill")], ROOF, ask)
    assert len({(c.input_tokens, c.batch) for c in cells}) == 3
    assert cells[0].input_tokens > 8192  # beyond what was measured, where attention outweighs the rest
    assert 0.0 <= cells[0].narrows <= 1.0
    assert cells[0].narrows >= cells[1].narrows
    assert len(next_cells([model.phase("prefill"), model.phase("decode")], ROOF, None)) == 3


def test_a_phase_that_was_not_told_says_why(model):
    with pytest.raises(UndecidedError, match="step: 0 cells measured"):
        model.phase("step")


def test_unlike_runs_are_not_fitted_together():
    runs = [read_run(H200 / name) for name in ("h200-local-default.jsonl.gz", "h200-local-eager.jsonl.gz")]
    with pytest.raises(InputError, match="fit one machine at a time"):
        fit_runs(runs)
    with pytest.raises(InputError, match="name at least one run"):
        fit_runs([])


def test_without_shape_and_machine_tokens_are_counted():
    cells = [
        cell("prefill", Query(n, 16), truth(PREFILL, PREFILL_TRUTH, "prefill", Query(n, 16), ROOF))
        for n in (512, 1024, 2048, 4096, 8192)
    ]
    phases, _ = fit_cells(cells, None)
    form = phases["prefill"].form
    assert not form.scaled
    assert any(term.feature == "compute" for term in form.terms)


def test_floors_are_those_of_the_roofline():
    assert floor_s("decode", Query(512, 1), None) == 0.0
    assert floor_s("decode", Query(512, 2), ROOF) < truth(DECODE, DECODE_TRUTH, "decode", Query(512, 2), ROOF)

"""Floors, ratios and attribution against the numbers of the roofline and against hand arithmetic."""

from __future__ import annotations

import msgspec
import pytest

from phasemeter.explain.attribute import Cause
from phasemeter.explain.phases import Basis
from phasemeter.explain.summary import summarise
from phasemeter.record.engine import EngineInfo
from phasemeter.record.errors import InputError
from phasemeter.record.request import Cell, Usage
from phasemeter.roofline.floor import decode_floor, prefill_floor
from phasemeter.roofline.hardware import find_hardware
from phasemeter.roofline.presets import load_shape
from unit.explain.builders import CELL, header, report, run, sequence, timeline

ERNIE = load_shape("ERNIE-4.5-0.3B")
A100 = find_hardware("a100-40gb-sxm")
CEILINGS = {
    "device": "x",
    "method": "test",
    "read_bandwidth_bytes_per_s": 1.0e12,
    "gemm_flops_per_s": {"bfloat16": 2.0e14},
    "launch_ns": 5000.0,
}
BIG = Cell(input_tokens=512, output_tokens=5)


def known(**changes):
    return header(shape=msgspec.to_builtins(ERNIE), hardware="a100-40gb-sxm", **changes)


def only(summary):
    [shape] = summary.shapes
    return shape


def test_floors_and_ratios_of_the_datasheet():
    shape = only(summarise(run(*sequence(cell=BIG, report=report(5, 40, 40)), header=known())))
    check = shape.floor
    assert check is shape.floor_datasheet
    assert shape.floor_measured is None
    assert check.prefill_floor_ms == pytest.approx(0.899, abs=0.001)
    assert check.prefill_floor_ms == pytest.approx(prefill_floor(ERNIE, 512, A100).seconds * 1e3)
    assert check.prefill_bound == "compute"
    assert check.prefill_ratio == pytest.approx(40 / check.prefill_floor_ms)
    assert check.prefill_from == "prefill"
    assert check.tpot_floor_ms == pytest.approx(decode_floor(ERNIE, 514, A100).seconds * 1e3)
    assert check.tpot_ratio == pytest.approx(10 / check.tpot_floor_ms)
    assert check.mfu_prefill == pytest.approx(280.5e9 / (0.040 * 312e12), rel=0.001)
    assert check.mbu_decode == pytest.approx(check.tpot_floor_ms / 10, rel=0.001)


def test_measured_ceilings_come_first():
    shape = only(summarise(run(*sequence(cell=BIG), header=known(ceilings=CEILINGS))))
    assert shape.floor is shape.floor_measured
    assert shape.floor_measured.tpot_floor_ms == pytest.approx(shape.floor_datasheet.tpot_floor_ms * 1.555)
    assert shape.floor_measured.prefill_from == "first"
    assert shape.floor_measured.prefill_ratio == pytest.approx(50 / shape.floor_measured.prefill_floor_ms)


def test_another_machine_named_by_the_caller_drops_the_measured_ceilings():
    summary = summarise(run(*sequence(), header=known(ceilings=CEILINGS)), hardware="h100-sxm")
    assert [c.source for c in summary.ceilings] == ["datasheet"]
    assert only(summary).floor.hardware == "h100-sxm"


def test_model_and_machine_named_by_the_caller():
    summary = summarise(run(*sequence()), hardware="a100-40gb-sxm", model_shape="ERNIE-4.5-0.3B")
    assert only(summary).floor is not None
    with pytest.raises(InputError):
        summarise(run(*sequence()), hardware="no-such-chip", model_shape="ERNIE-4.5-0.3B")


def test_no_floor_without_model_or_machine():
    for head in (header(), header(shape=msgspec.to_builtins(ERNIE)), header(hardware="a100-40gb-sxm")):
        shape = only(summarise(run(*sequence(), header=head)))
        assert shape.floor is None
        assert {a.phase for a in shape.attribution} == {"late", "connect", "tail"}


def test_unknown_dtype_has_no_floor_and_breaks_nothing():
    head = known(engine=EngineInfo("openai", "m", dtype="q5_k_m"))
    assert only(summarise(run(*sequence(), header=head))).floor is None


def test_unreadable_shape_in_the_header_is_one_line():
    with pytest.raises(InputError, match="--model-shape"):
        summarise(run(*sequence(), header=header(shape={"layers": 3}, hardware="t4")))


def test_decode_batch_is_what_was_seen():
    together = [timeline(f"r{i}", at=0.0, cell=Cell(64, 5, concurrency=8)) for i in range(3)]
    check = only(summarise(run(*together, header=known()))).floor
    assert check.decode_batch == 3
    assert check.tpot_floor_ms == pytest.approx(decode_floor(ERNIE, 66, A100, batch=3).seconds * 1e3)
    assert check.tpot_alone_floor_ms == pytest.approx(decode_floor(ERNIE, 66, A100).seconds * 1e3)


def test_an_engine_that_serves_one_request_at_a_time_shares_no_step():
    together = [timeline(f"r{i}", at=0.0, cell=Cell(64, 5, concurrency=8)) for i in range(8)]
    head = known(engine=EngineInfo("local", "m", dtype="bfloat16"))
    shape = only(summarise(run(*together, header=head)))
    assert shape.seen_max == 8
    assert shape.floor.decode_batch == 1
    assert shape.floor.tpot_floor_ms == shape.floor.tpot_alone_floor_ms


def test_cached_prompt_lowers_the_floor():
    usage = Usage(prompt_tokens=512, completion_tokens=5, cached_tokens=448)
    check = only(summarise(run(*sequence(cell=BIG, usage=usage), header=known()))).floor
    assert check.prefill_floor_ms == pytest.approx(prefill_floor(ERNIE, 64, A100, cached=448).seconds * 1e3)


def test_attribution_adds_up_to_every_phase():
    shape = only(
        summarise(run(*sequence(cell=BIG, report=report(5, 40, 40)), header=known(ceilings=CEILINGS)))
    )
    by_phase = {a.phase: a for a in shape.attribution}
    assert list(by_phase) == ["late", "connect", "front_end", "queue", "prefill", "decode", "tail"]
    for name, found in by_phase.items():
        mean = getattr(shape.phases, name).dist.mean
        assert sum(share.ms for share in found.shares) == pytest.approx(mean)
    total = sum(share.ms for a in shape.attribution for share in a.shares)
    assert total == pytest.approx(shape.latency.e2e_ms.mean)
    assert [s.cause for s in by_phase["queue"].shares] == [Cause.QUEUE]
    assert [s.cause for s in by_phase["late"].shares] == [Cause.CLIENT]
    assert [s.cause for s in by_phase["front_end"].shares] == [Cause.HOST]
    assert [s.cause for s in by_phase["prefill"].shares] == [Cause.ARITHMETIC, Cause.TRAFFIC, Cause.HOST]


def test_decode_is_attributed_by_its_steps():
    shape = only(summarise(run(*sequence(cell=BIG), header=known())))
    decode = next(a for a in shape.attribution if a.phase == "decode")
    step = decode_floor(ERNIE, 514, A100)
    assert [s.ms for s in decode.shares[:2]] == pytest.approx(
        [4 * step.arithmetic_s * 1e3, 4 * step.traffic_s * 1e3]
    )
    assert not decode.below_floor


def test_unsplit_first_is_a_bound():
    shape = only(summarise(run(*sequence(cell=BIG), header=known())))
    first = next(a for a in shape.attribution if a.phase == "first")
    assert first.basis is Basis.INFERRED
    assert "upper bound" in first.note


def test_faster_than_the_floor_is_shown_as_it_is():
    shape = only(summarise(run(*sequence(cell=BIG, first=0.5, gaps=(0.1,) * 4), header=known())))
    decode = next(a for a in shape.attribution if a.phase == "decode")
    assert decode.below_floor
    assert decode.shares[2].ms < 0
    assert sum(s.ms for s in decode.shares) == pytest.approx(0.4)


def test_launch_cost_is_told_for_eager_engines_alone():
    for kind, there in (("local", True), ("vllm", False)):
        head = known(ceilings=CEILINGS, engine=EngineInfo(kind, "m", dtype="bfloat16"))
        shape = only(summarise(run(*sequence(cell=BIG), header=head)))
        launches = {a.phase: a.launch_ms for a in shape.attribution if a.phase in ("first", "decode")}
        assert all((ms is not None) == there for ms in launches.values())
        if there:
            # qkv, KV write, attention, o and MLP in 18 layers, 37 norms, the head: 128 launches of 5 us
            assert launches["first"] == pytest.approx(128 * 0.005)
            assert launches["decode"] == pytest.approx(4 * launches["first"], rel=0.01)


def test_decode_context_is_half_way():
    assert (
        only(summarise(run(*sequence(), header=known()))).floor.decode_context_tokens == CELL.input_tokens + 2
    )

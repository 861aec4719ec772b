"""Two runs of known effect: the effect is found, per shape, whatever the mix; what cannot be told is not said."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phasemeter.explain.compare import METRICS, compare
from phasemeter.explain.compare_effect import Answer
from phasemeter.explain.compare_rows import Reason
from phasemeter.explain.compare_slo import service_level
from phasemeter.record.engine import EngineReport, Outcome
from phasemeter.record.errors import InputError
from unit.explain.paired_runs import made_run


def notes_of(comparison):
    return {note.key for note in comparison.notes}


def test_a_known_effect_is_found_in_every_latency_and_rate():
    found = compare([made_run("a", 1)], [made_run("b", 2, scale=1.2)])
    for name in ("ttft_p50", "ttft_mean", "tpot_p50", "itl_p50", "itl_p90", "e2e_p50", "e2e_mean"):
        row = found.row(name)
        assert row.effect.lo < 0.2 < row.effect.hi, name
        assert row.answer is Answer.WORSE, name
        assert row.new / row.base - 1 == pytest.approx(row.effect.mid)
    rate = found.row("output_tokens_per_s")
    assert rate.effect.mid == pytest.approx(1 / 1.2 - 1, abs=0.05)
    assert (rate.answer, rate.lower_is_better, rate.unit) == (Answer.WORSE, False, "1/s")
    assert found.row("prefill_p50") is None  # no engine told it
    assert {row.name for row in found.rows} <= set(METRICS)


def test_faster_is_better_and_throughput_with_it():
    found = compare([made_run("a", 1)], [made_run("b", 2, scale=0.8)])
    assert found.row("tpot_p50").answer is Answer.BETTER
    assert found.row("requests_per_s").answer is Answer.BETTER


def test_runs_of_the_same_thing_are_the_same_when_there_is_enough_data():
    found = compare(
        [made_run("a", 1, per_block=40, noise=0.05)], [made_run("b", 2, per_block=40, noise=0.05)]
    )
    assert found.row("ttft_p50").answer is Answer.SAME
    assert found.row("tpot_mean").answer is Answer.SAME
    narrow = compare([made_run("a", 1)], [made_run("b", 2)], margin_ratio=0.001)
    assert narrow.row("ttft_p50").answer is Answer.UNDECIDED
    assert narrow.row("ttft_p50").reason is Reason.WIDE


def test_a_change_within_the_margin_is_shown_as_small():
    quiet = {"per_block": 60, "noise": 0.05}
    found = compare([made_run("a", 1, **quiet)], [made_run("b", 2, scale=1.029, **quiet)])
    row = found.row("ttft_p50")
    assert 0 < row.effect.lo < 0.03 < row.effect.hi
    assert (row.answer, row.reason) in {(Answer.UNDECIDED, Reason.SMALL), (Answer.WORSE, None)}


def test_another_mix_of_shapes_is_no_change():
    """Base has three times as many long requests: pooled medians would differ by a factor."""
    short, long = (64, 5), (640, 5)
    base = made_run("a", 1, shapes=(short, long, long, long))
    new = made_run("b", 2, shapes=(short, short, short, long))
    found = compare([base], [new])
    row = found.row("ttft_p50")
    assert abs(row.effect.mid) < 0.05
    assert row.answer is not Answer.WORSE
    assert row.answer is not Answer.BETTER
    assert [shape.stratum.input_low for shape in found.shapes] == [64, 640]
    assert row.strata == 2


def test_shapes_weigh_the_same_however_long_and_many():
    base = made_run("a", 1, shapes=((64, 5), (6400, 5)), noise=0.01)
    new = made_run("b", 2, shapes=((64, 5), (6400, 5)), noise=0.01)
    only_short = [
        t if t.cell.input_tokens == 6400 else _slower(t, 2.0) for t in new.requests
    ]  # TTFT of the short shape doubles
    changed = type(new)(header=new.header, requests=tuple(only_short), footer=new.footer, name="b")
    found = compare([base], [changed])
    assert found.row("ttft_p50").effect.mid == pytest.approx(math.sqrt(2) - 1, abs=0.03)
    assert [s.rows[0].answer for s in found.shapes] == [Answer.WORSE, Answer.SAME]


def _slower(timeline, factor):
    import msgspec

    first, *rest = timeline.deltas_ns
    return msgspec.structs.replace(timeline, deltas_ns=(round(first * factor), *rest))


def test_blocks_are_the_unit_where_there_are_five():
    moody = {"mood": 0.2, "per_block": 30, "noise": 0.02}
    found = compare([made_run("a", 1, **moody)], [made_run("b", 2, **moody)])
    assert found.base.unit == "block"
    row = found.row("ttft_p50")
    assert row.effect.hi - row.effect.lo > 0.15  # 180 requests, but six moods


def test_one_block_is_said_to_hide_drift():
    found = compare([made_run("a", 1, blocks=1, per_block=40)], [made_run("b", 2, blocks=1, per_block=40)])
    assert found.base.unit == "batch"
    assert {"one_block", "one_run"} <= notes_of(found)
    assert found.row("ttft_p50").effect.lo is not None


def test_waves_of_requests_are_not_taken_as_independent():
    """Forty requests at concurrency 16 are two waves and a half: no interval, whatever they say."""
    wave = {"blocks": 1, "per_block": 40, "concurrency": 16}
    row = compare([made_run("a", 1, **wave)], [made_run("b", 2, scale=3.0, **wave)]).row("ttft_p50")
    assert (row.effect.lo, row.answer, row.reason) == (None, Answer.UNDECIDED, Reason.FEW_UNITS)
    assert row.effect.mid == pytest.approx(2.0, abs=0.3)


def test_a_tail_needs_values_beyond_it():
    found = compare([made_run("a", 1)], [made_run("b", 2, scale=2.0)])
    assert found.row("ttft_p99").reason is Reason.FEW_VALUES
    many = compare([made_run("a", 1, per_block=20)], [made_run("b", 2, per_block=20, scale=2.0)])
    assert many.row("ttft_p99").answer is Answer.WORSE


def test_several_runs_a_side_are_its_units():
    base = [made_run(f"a{i}", i, drift=0.1, blocks=2) for i in range(6)]
    new = [made_run(f"b{i}", 100 + i, drift=0.1, blocks=2) for i in range(6)]
    found = compare(base, new)
    assert (found.base.unit, found.base.runs, found.new.blocks) == ("run", 6, 12)
    assert "one_run" not in notes_of(found)
    assert found.row("ttft_p50").answer is Answer.UNDECIDED


def test_two_runs_a_side_that_lie_apart_decide_nothing_smaller():
    base = [made_run("a1", 1, noise=0.02), made_run("a2", 2, noise=0.02, scale=1.3)]
    new = [made_run("b1", 3, noise=0.02, scale=1.35), made_run("b2", 4, noise=0.02, scale=1.35)]
    found = compare(base, new)
    row = found.row("ttft_p50")
    assert row.answer is Answer.UNDECIDED
    assert row.effect.lo < 0 < row.effect.hi
    assert math.log1p(row.effect.hi) - math.log1p(row.effect.mid) == pytest.approx(math.log(1.3), abs=0.02)
    assert "run_spread" in notes_of(found)
    far = compare(base, [made_run("b1", 3, scale=2.5), made_run("b2", 4, scale=2.5)])
    assert far.row("ttft_p50").answer is Answer.WORSE


@given(st.floats(0.5, 2.0), st.integers(0, 1000), st.integers(1, 6))
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_sides_exchanged_give_the_reciprocal(scale, seed, blocks):
    shapes = ((64, 3), (128, 4))
    a = made_run("a", seed, blocks=blocks, shapes=shapes)
    b = made_run("b", seed + 1, scale=scale, blocks=blocks, shapes=shapes)
    mirrored = {Answer.BETTER: Answer.WORSE, Answer.WORSE: Answer.BETTER}
    there, back = compare([a], [b]), compare([b], [a])
    for one, other in zip(there.rows, back.rows, strict=True):
        assert one.answer is mirrored.get(other.answer, other.answer), one.name
        assert (1 + one.effect.mid) * (1 + other.effect.mid) == pytest.approx(1.0)
        assert one.absolute.mid == pytest.approx(-other.absolute.mid)
        if one.effect.lo is not None:
            assert (1 + one.effect.lo) * (1 + other.effect.hi) == pytest.approx(1.0)
            assert one.effect.lo <= one.effect.mid <= one.effect.hi


def test_parts_near_zero_are_judged_against_the_whole():
    """The queue grows from 20 to 40 microseconds in 50 ms: twice as long, and nothing."""

    def seen(queue_ns):
        return EngineReport("test", queue_ns=queue_ns, prefill_ns=40_000_000)

    found = compare([made_run("a", 1, report=seen(20_000))], [made_run("b", 2, report=seen(40_000))])
    row = found.row("queue_p50")
    assert row.effect.mid == pytest.approx(1.0)
    assert row.absolute.mid == pytest.approx(0.02)
    assert row.answer is Answer.SAME
    assert found.row("prefill_p50").answer is Answer.SAME
    slow = compare([made_run("a", 1, report=seen(0))], [made_run("b", 2, report=seen(9_000_000))])
    assert slow.row("queue_p50").effect.mid is None  # from zero there is no ratio
    assert slow.row("queue_p50").answer is Answer.WORSE


def test_gaps_per_token_are_not_compared_with_gaps_per_chunk():
    found = compare([made_run("a", 1)], [made_run("b", 2, counts=None)])
    assert found.row("itl_p50") is None
    assert found.row("tpot_p50") is not None
    assert "itl_mixed" in notes_of(found)
    both = compare([made_run("a", 1, counts=None)], [made_run("b", 2, counts=None)])
    assert both.row("itl_p50") is not None
    assert "itl_chunk" in notes_of(both)


def test_failures_on_one_side_are_said():
    base, new = made_run("a", 1, per_block=10), made_run("b", 2, per_block=10)
    import msgspec

    broken = tuple(
        msgspec.structs.replace(t, outcome=Outcome.RESET) if i % 20 == 0 else t
        for i, t in enumerate(new.requests)
    )
    found = compare([base], [msgspec.structs.replace(new, requests=broken)])
    assert "failures" in notes_of(found)
    assert (found.new.ok, found.new.failed) == (57, 3)


def test_goodput_counts_requests_that_keep_the_service_level():
    base, new = made_run("a", 1, per_block=10), made_run("b", 2, per_block=10, scale=1.1)
    found = compare([base], [new], good=service_level("ttft=55ms,itl_p50=30ms"))
    row = found.row("goodput_per_s")
    assert row.answer is Answer.WORSE
    assert row.new < 0.7 * found.row("requests_per_s").new
    with pytest.raises(InputError, match="--slo"):
        service_level("tttft=1ms")


def test_lengths_from_a_distribution_are_grouped():
    """Sixty lengths once each a block: in groups by factors of two."""
    shapes = tuple((64 + 3 * i, 4) for i in range(60))
    found = compare(
        [made_run("a", 1, shapes=shapes, per_block=1, blocks=4)],
        [made_run("b", 2, shapes=shapes, per_block=1, blocks=4, scale=1.3)],
    )
    assert found.grouped
    assert [(s.stratum.input_low, s.stratum.input_high) for s in found.shapes] == [(64, 127), (128, 255)]
    assert found.row("ttft_p50").effect.mid == pytest.approx(0.3, abs=0.08)
    assert found.row("output_tokens_per_s").strata_told == 1
    assert "grouped" in notes_of(found)


def test_an_open_loop_is_compared_at_its_rate():
    """Requests that arrive by themselves: batches of consecutive ones, throughput by level."""
    import msgspec

    def opened(made, rate):
        return msgspec.structs.replace(
            made,
            requests=tuple(
                msgspec.structs.replace(
                    t, cell=msgspec.structs.replace(t.cell, concurrency=None, rate_per_s=rate)
                )
                for t in made.requests
            ),
        )

    shapes = ((64, 5), (128, 5))
    base, new = (
        made_run(n, i, scale=1 + i / 5, shapes=shapes, blocks=1, per_block=60) for i, n in enumerate("ab")
    )
    found = compare([opened(base, 4.0)], [opened(new, 4.0)])
    assert found.base.unit == "batch"
    assert found.row("ttft_p50").answer is Answer.WORSE
    assert found.row("requests_per_s").strata_told == 1  # shapes are served side by side
    assert found.row("requests_per_s").answer is Answer.WORSE
    with pytest.raises(InputError, match="no shape in common"):
        compare([opened(base, 4.0)], [opened(new, 8.0)])


@pytest.mark.parametrize("outcome", [Outcome.RESET, Outcome.OK])
def test_a_side_without_a_usable_request_decides_nothing(outcome):
    import msgspec

    base = made_run("a", 1)
    new = made_run("b", 2, blocks=1, per_block=1)
    new = msgspec.structs.replace(
        new, requests=tuple(msgspec.structs.replace(t, outcome=outcome) for t in new.requests)
    )
    for found in (compare([base], [new]), compare([new], [base])):
        assert {row.answer for row in found.rows} <= {Answer.UNDECIDED}
        assert all(row.reason is not None for row in found.rows)


def test_stamps_of_a_broken_clock_spoil_no_arithmetic():
    import msgspec

    base, new = made_run("a", 1), made_run("b", 2)
    broken = tuple(
        msgspec.structs.replace(t, sent_ns=t.end_ns + 10**9) if i % 2 else t
        for i, t in enumerate(new.requests)
    )
    found = compare([base], [msgspec.structs.replace(new, requests=broken)])
    assert found.new.verdict == "invalid"
    assert found.row("ttft_mean").effect.lo is None
    assert found.row("ttft_mean").reason is Reason.NOT_POSITIVE


# unlike runs


def refused(base, new, **options):
    with pytest.raises(InputError) as told:
        compare([base], [new], **options)
    return str(told.value)


def test_unlike_runs_are_refused_by_name_and_allowed_by_name():
    base = made_run("a", 1)
    new = made_run("b", 2, header_changes={"settings": {"repeats": 5, "load": {"rate": 3, "seed": 1}}})
    line = refused(base, new)
    assert "settings.load.rate (absent is not 3)" in line
    assert "--allow settings.load" in line
    assert "seed" not in line
    for name in ("settings", "settings.load", "settings.load.rate"):
        assert compare([base], [new], allow=[name]).row("ttft_p50") is not None
    assert "--allow" in refused(base, new, allow=["sittings"])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": "vllm"}, "engine.kind"),
        ({"model": "other"}, "engine.model"),
        ({"api": "chat"}, "engine.api"),
        ({"device": "cuda"}, "engine.device"),
    ],
)
def test_what_makes_numbers_mean_something_else_is_refused(changes, field):
    import msgspec

    base, new = made_run("a", 1), made_run("b", 2)
    engine = msgspec.structs.replace(new.header.engine, **changes)
    new = msgspec.structs.replace(new, header=msgspec.structs.replace(new.header, engine=engine))
    assert field in refused(base, new)


def test_the_change_under_test_is_told():
    import msgspec

    base, new = made_run("a", 1), made_run("b", 2)
    engine = msgspec.structs.replace(
        new.header.engine, version="2", dtype="float16", details={"flags": "--fast"}
    )
    new = msgspec.structs.replace(new, header=msgspec.structs.replace(new.header, engine=engine))
    found = compare([base], [new])
    assert [(d.field, d.base, d.new) for d in found.differs] == [
        ("engine.version", None, "2"),
        ("engine.dtype", "bfloat16", "float16"),
        ("engine.flags", None, "--fast"),
    ]


def test_shapes_of_one_side_are_refused_or_left_out():
    base, new = made_run("a", 1, shapes=((64, 5), (128, 5))), made_run("b", 2)
    assert "--allow shapes" in refused(base, new)
    found = compare([base], [new], allow=["shapes"])
    assert len(found.shapes) == 1
    assert "left_out" in notes_of(found)
    assert "no shape in common" in refused(base, made_run("b", 2, shapes=((32, 5),)), allow=["shapes"])


def test_a_run_is_not_compared_with_itself():
    assert "both sides" in refused(made_run("a", 1), made_run("a", 1))

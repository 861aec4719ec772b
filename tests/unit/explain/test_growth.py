from __future__ import annotations

import msgspec
import numpy as np
import pytest

from phasemeter.explain.growth import Point, decode_slope, exponents
from phasemeter.explain.shape_key import Asked
from phasemeter.explain.summary import summarise
from phasemeter.record.request import Cell
from phasemeter.roofline.presets import load_shape
from unit.explain.builders import header, report, run, timeline


def grid(law, *, n=6, noise=0.0, **changes):
    rng = np.random.default_rng(0)
    return [
        timeline(
            f"{tokens}-{block}",
            at=1e4 * block + tokens,
            cell=Cell(tokens, 5, block=block),
            first=law(tokens) * (1 + noise * rng.normal()) + 1,
            report=report(0, law(tokens) * (1 + noise * rng.normal()), 40),
            **changes,
        )
        for block in range(n)
        for tokens in (64, 128, 256)
    ]


def of(summary, metric):
    return [e for e in summary.growth if e.metric == metric]


@pytest.mark.parametrize(("power", "excluded"), [(1.0, True), (2.0, False), (0.0, True)])
def test_power_laws_are_found(power, excluded):
    found = of(summarise(run(*grid(lambda n: 0.01 * n**power + 1e-9, noise=0.01))), "prefill")
    assert [(e.from_tokens, e.to_tokens) for e in found] == [(64, 128), (128, 256)]
    for e in found:
        assert e.exponent == pytest.approx(power, abs=0.1)
        assert e.ci95[0] <= e.exponent <= e.ci95[1]
        assert e.excludes_square is excluded


def test_unsplit_first_is_called_first():
    made = [msgspec.structs.replace(t, report=None) for t in grid(lambda n: n)]
    summary = summarise(run(*made))
    assert of(summary, "prefill") == []
    assert len(of(summary, "first")) == 2


def test_tpot_grows_by_context():
    found = of(summarise(run(*grid(lambda n: n))), "tpot")
    assert [(e.from_tokens, e.to_tokens) for e in found] == [(66, 130), (130, 258)]
    assert all(e.exponent == pytest.approx(0.0) for e in found)


def test_paired_lengths_are_one_line():
    """As `make demo FULL=1` measures: 64 in 128 out, 128 in 256 out, 256 in 512 out."""
    made = [
        msgspec.structs.replace(
            t, cell=msgspec.structs.replace(t.cell, output_tokens=2 * t.cell.input_tokens)
        )
        for t in grid(lambda n: 0.5 * n)
    ]
    summary = summarise(run(*made))
    found = [e for e in summary.growth if e.metric == "prefill"]
    assert [(e.from_tokens, e.to_tokens, e.output_tokens) for e in found] == [
        (64, 128, None),
        (128, 256, None),
    ]
    assert [e.exponent for e in found] == pytest.approx([1.0, 1.0])
    steps = [(e.from_tokens, e.to_tokens) for e in summary.growth if e.metric == "tpot"]
    assert steps == [(128, 256), (256, 512)]


def test_crossed_lengths_keep_a_line_for_each_output():
    made = [
        msgspec.structs.replace(
            t, id=f"{t.id}-{output}", cell=msgspec.structs.replace(t.cell, output_tokens=output)
        )
        for t in grid(lambda n: 0.5 * n)
        for output in (5, 9)
    ]
    found = [e for e in summarise(run(*made)).growth if e.metric == "prefill"]
    assert [e.output_tokens for e in found] == [5, 5, 9, 9]


def test_few_samples_have_no_interval():
    [first, _] = of(summarise(run(*grid(lambda n: n, n=3))), "prefill")
    assert first.ci95 is None
    assert first.excludes_square is None


def test_same_blocks_are_drawn_together():
    """A machine that slows down by blocks moves both lengths alike; paired draws see through it."""
    mood = [1.0, 1.1, 1.3, 1.5, 1.8, 2.0]
    blocks = tuple(range(6))
    near, far = (Point(n, tuple(n * m for m in mood), blocks) for n in (64, 128))
    [paired] = exponents("prefill", [near, far], output_tokens=5, asked=Asked(1))
    assert paired.ci95 == pytest.approx((1.0, 1.0))
    apart = Point(128, far.values_ms, tuple(b + 10 for b in blocks))
    [unpaired] = exponents("prefill", [near, apart], output_tokens=5, asked=Asked(1))
    assert unpaired.ci95[1] - unpaired.ci95[0] > 0.3


def test_lengths_without_time_are_left_out():
    zero = Point(64, (0.0,) * 5, tuple(range(5)))
    full = Point(128, (1.0,) * 5, tuple(range(5)))
    assert exponents("prefill", [zero, full], output_tokens=5, asked=Asked(1)) == []
    assert exponents("prefill", [full, full], output_tokens=5, asked=Asked(1)) == []


def test_slope_within_a_request():
    gaps = [np.array([1e6 + 2000 * i for i in range(50)]) for _ in range(6)]
    found = decode_slope(gaps, range(6), None)
    assert (found.n, found.floor_us_per_token) == (6, None)
    assert found.us_per_token == pytest.approx(2.0)
    assert decode_slope([np.ones(3)], [0], None) is None


def test_slope_has_the_floor_of_one_kv_row():
    head = header(shape=msgspec.to_builtins(load_shape("ERNIE-4.5-0.3B")), hardware="a100-40gb-sxm")
    shape = summarise(run(*grid(lambda n: n), header=head)).shapes[0]
    # 18,432 bytes a token at 1.555 TB/s: 11.9 ns
    assert shape.decode_slope.floor_us_per_token == pytest.approx(0.01185, rel=0.01)
    assert shape.decode_slope.us_per_token == pytest.approx(0.0, abs=1e-6)

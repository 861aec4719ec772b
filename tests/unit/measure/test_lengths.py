"""Distributions of lengths against their theory, by their quantile functions and by seeded draws."""

from __future__ import annotations

import math
import random
from collections import Counter
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.measure.lengths import parse_lengths, parse_seconds
from phasemeter.record.errors import InputError


def drawn(text: str, n: int = 40_000) -> list[int]:
    lengths, source = parse_lengths(text, "--x"), random.Random("a seed")
    return [lengths.draw(source) for _ in range(n)]


def chi_square(values: list[int], probability: dict[int, float]) -> float:
    """(chi-square - df) / sqrt(2 df): above 4.5 about once in 10,000. Values that fewer than 8 of the sample are
    expected to have are pooled."""
    counts, n = Counter(values), len(values)
    assert set(counts) <= set(probability)
    cells: list[tuple[float, float]] = []
    rest_seen = rest_due = 0.0
    for value, p in probability.items():
        if p * n >= 8:
            cells.append((counts[value], p * n))
        else:
            rest_seen, rest_due = rest_seen + counts[value], rest_due + p * n
    if rest_due >= 8:
        cells.append((rest_seen, rest_due))
    free = len(cells) - 1
    return (sum((seen - due) ** 2 / due for seen, due in cells) - free) / math.sqrt(2 * free)


def test_a_list_is_drawn_evenly():
    assert set(drawn("128", 50)) == {128}
    assert chi_square(drawn("64,128,512"), dict.fromkeys((64, 128, 512), 1 / 3)) < 4.5


def test_uniform_is_even_with_both_ends_in_it():
    assert chi_square(drawn("uniform:10:29"), dict.fromkeys(range(10, 30), 1 / 20)) < 4.5


def test_a_bounded_normal_is_what_redrawing_gives():
    """No pile-up at the bounds: each whole number has its share of the density inside them."""
    spread, lo, hi = NormalDist(100, 40), 90, 130
    inside = spread.cdf(hi + 0.5) - spread.cdf(lo - 0.5)
    expected = {k: (spread.cdf(k + 0.5) - spread.cdf(k - 0.5)) / inside for k in range(lo, hi + 1)}
    values = drawn("normal:100:40:90:130")
    assert chi_square(values, expected) < 4.5
    clamped = [min(hi, max(lo, round(random.Random(i).gauss(100, 40)))) for i in range(4000)]
    assert chi_square(clamped, expected) > 4.5  # the test can fail


def test_lognormal_has_its_median_and_its_spread():
    values = sorted(drawn("lognormal:512:0.8"))
    assert values[len(values) // 2] == pytest.approx(512, rel=0.02)
    logs = [math.log(v) for v in values]
    mean = math.fsum(logs) / len(logs)
    assert math.sqrt(math.fsum((x - mean) ** 2 for x in logs) / len(logs)) == pytest.approx(0.8, rel=0.02)


def test_bounded_lognormal_follows_its_density():
    spread, lo, hi = NormalDist(math.log(20), 0.5), 10, 60
    inside = spread.cdf(math.log(hi + 0.5)) - spread.cdf(math.log(lo - 0.5))
    expected = {
        k: (spread.cdf(math.log(k + 0.5)) - spread.cdf(math.log(k - 0.5))) / inside for k in range(lo, hi + 1)
    }
    assert chi_square(drawn("lognormal:20:0.5:10:60"), expected) < 4.5


def test_zipf_falls_by_its_exponent():
    weights = {100 + k - 1: k**-1.2 for k in range(1, 51)}
    total = sum(weights.values())
    assert chi_square(drawn("zipf:1.2:100:149"), {k: w / total for k, w in weights.items()}) < 4.5


def test_a_file_gives_its_own_values(tmp_path):
    path = tmp_path / "a:b.csv"
    path.write_text("when,prompt tokens\n1,10\n2,20\n3,20\n4,40.0\n")
    expected = {10: 0.25, 20: 0.5, 40: 0.25}
    assert chi_square(drawn(f"csv:{path}:prompt tokens"), expected) < 4.5
    bare = tmp_path / "bare.csv"
    bare.write_text("7\n9\n")
    assert set(drawn(f"csv:{bare}", 100)) == {7, 9}


@pytest.mark.parametrize("cell", ["", "x", "-3", "0", "1.5", "1e9", "99999999"])
def test_a_bad_cell_is_named_with_file_line_and_column(tmp_path, cell):
    path = tmp_path / "t.csv"
    path.write_text(f"a,b\n1,2\n3,{cell}\n")
    with pytest.raises(InputError, match=r"t\.csv, line 3, column b") as error:
        parse_lengths(f"csv:{path}:b", "--x")
    assert error.value.value == cell


@given(
    st.sampled_from(
        [
            "uniform:3:90",
            "normal:50:20:3:90",
            "lognormal:20:2:3:90",
            "zipf:1:3:90",
            "normal:1000:1:3:999",
            "normal:1:9:3:90",
        ]
    ),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
)
def test_quantiles_rise_and_stay_within_bounds(text, a, b):
    lengths = parse_lengths(text, "--x")
    low, high = lengths.at(min(a, b)), lengths.at(max(a, b))
    assert 3 <= low <= high <= 999


@pytest.mark.parametrize(
    ("text", "mean"),
    [
        ("64,128", 96),
        ("uniform:1:256", 128.5),
        ("normal:500:50", 500),
        ("lognormal:100:0.5", 100 * math.exp(0.125)),
    ],
)
def test_the_mean_is_the_distributions(text, mean):
    assert parse_lengths(text, "--x").mean == pytest.approx(mean, rel=0.002)


@pytest.mark.parametrize(
    "text",
    ["", "x", "0", "-4", "1.5", "uniform", "uniform:5", "uniform:9:3", "uniform:0:3", "normal:5", "normal:5:0",
     "normal:5:x", "normal:5:1:2", "normal:nan:1", "normal:10:1:500:600", "lognormal:0:1", "lognormal:5:-1", "zipf:1:2",
     "zipf:-1:1:5", "zipf:1:1:9000000", "csv:", "csv:/nowhere.csv", "gauss:1:2", "12:3", "1" * 5000],
)  # fmt: skip
def test_other_texts_are_refused_with_the_options_name(text):
    with pytest.raises(InputError, match="^--x: "):
        parse_lengths(text, "--x")


@given(st.text(max_size=30))
def test_no_text_breaks_the_reader(text):
    try:
        lengths = parse_lengths(text, "--x")
    except InputError:
        return
    assert lengths.at(0.5) >= 1


def test_times_have_their_means():
    source = random.Random("t")
    for text, mean in (
        ("2.5", 2.5),
        ("uniform:1:3", 2),
        ("exp:4", 4),
        ("lognormal:2:0.5", 2 * math.exp(0.125)),
    ):
        times = [parse_seconds(text, "--x").draw_ns(source) / 1e9 for _ in range(20_000)]
        assert math.fsum(times) / len(times) == pytest.approx(mean, rel=0.04)
        assert min(times) >= 0


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "exp", "exp:-1", "uniform:3:1", "lognormal:0:1", "exp:nan", "1..2"]
)
def test_other_times_are_refused(text):
    with pytest.raises(InputError, match="^--x: "):
        parse_seconds(text, "--x")

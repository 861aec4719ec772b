"""Arrivals against their theory, with seeded draws: each bound is one that a right process passes with p > 1e-4."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.measure.arrivals import arrivals_text, offsets, parse_arrivals
from phasemeter.measure.load import Arrivals, Stage
from phasemeter.record.errors import InputError


def drawn(text: str, n: int = 20_000, rate: float = 50.0, seed: int = 1, **stage: int) -> list[float]:
    """The first `n` moments of a stage, in seconds."""
    made = offsets(parse_arrivals(text), Stage(rate_per_s=rate, **stage), seed)
    return [ns / 1e9 for ns in itertools.islice(made, n)]


def gaps(moments: list[float]) -> list[float]:
    return [b - a for a, b in pairwise([0.0, *moments])]


def ks_against(values: list[float], cumulative) -> float:
    """sqrt(n) times the Kolmogorov-Smirnov distance; above 2.2 once in 10,000 (Kolmogorov's limit law)."""
    ordered, n = sorted(values), len(values)
    worst = max(max((i + 1) / n - cumulative(x), cumulative(x) - i / n) for i, x in enumerate(ordered))
    return worst * math.sqrt(n)


def mean_and_cv(values: list[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values)) / mean


def dispersion(moments: list[float], window_s: float) -> float:
    """Variance of the counts in windows over their mean: 1 for Poisson."""
    counts = [0] * int(moments[-1] / window_s)
    for moment in moments:
        if moment < len(counts) * window_s:
            counts[min(len(counts) - 1, int(moment / window_s))] += 1
    mean = sum(counts) / len(counts)
    return sum((c - mean) ** 2 for c in counts) / (len(counts) - 1) / mean


def test_constant_arrivals_are_where_the_rate_puts_them():
    moments = list(offsets(Arrivals("constant"), Stage(rate_per_s=3.0, duration_ns=10**12), 0))
    assert moments == [round(k * 1e9 / 3) for k in range(3000)]


def test_poisson_gaps_are_exponential_and_independent():
    found = gaps(drawn("poisson"))
    assert ks_against(found, lambda x: 1 - math.exp(-50 * x)) < 2.2
    mean, _ = mean_and_cv(found)
    n = len(found) - 1
    lag = sum((a - mean) * (b - mean) for a, b in pairwise(found)) / n * 50**2  # autocorrelation at lag 1
    assert abs(lag) < 4 / math.sqrt(n)


@pytest.mark.parametrize("window_s", [0.1, 1.0, 5.0])
def test_poisson_counts_scatter_as_poisson_does(window_s):
    moments = drawn("poisson")
    windows = int(moments[-1] / window_s)
    assert abs(dispersion(moments, window_s) - 1) < 4 * math.sqrt(2 / windows)
    assert dispersion(drawn("constant"), window_s) < 0.2  # the test can fail


@pytest.mark.parametrize("cv", [0.3, 0.7, 1.0, 2.0, 4.0])
def test_gamma_gaps_have_the_asked_coefficient_of_variation(cv):
    mean, found = mean_and_cv(gaps(drawn(f"gamma:{cv}", n=60_000)))
    assert mean == pytest.approx(1 / 50, rel=4 * cv / math.sqrt(60_000))
    assert found == pytest.approx(cv, rel=0.05)


def test_bursts_pause_and_keep_the_mean_rate():
    moments = drawn("bursts:2:8", n=40_000)
    assert all(moment % 10 <= 2 + 1e-9 for moment in moments)
    assert len(moments) / (moments[-1] // 10 * 10 + 10) == pytest.approx(50, rel=0.03)
    spent = [moment // 10 * 2 + moment % 10 for moment in moments]  # time on: Poisson at 250 a second
    assert ks_against(gaps(spent), lambda x: 1 - math.exp(-250 * x)) < 2.2


@pytest.mark.parametrize("first", [0.0, 10.0, 50.0, 120.0])
def test_a_ramp_rises_evenly(first):
    """Time rescaled by the rate's integral is a unit Poisson process, and only then (Brown et al. 2002)."""
    seconds = 200.0
    moments = drawn(f"ramp:{first}", n=10**6, duration_ns=round(seconds * 1e9))

    def integral(t: float) -> float:
        return first * t + (50 - first) * t * t / (2 * seconds)

    whole = integral(seconds)
    assert abs(len(moments) - whole) < 4 * math.sqrt(whole)
    assert ks_against(gaps([integral(t) for t in moments]), lambda x: 1 - math.exp(-x)) < 2.2
    half = sum(moment < seconds / 2 for moment in moments)
    assert abs(half - integral(seconds / 2)) < 4 * math.sqrt(integral(seconds / 2))


def test_a_ramp_of_so_many_requests_ends_at_the_rate():
    moments = drawn("ramp:0", n=10**6, requests=5000)
    assert len(moments) == 5000
    assert moments[-1] == pytest.approx(2 * 5000 / 50, rel=0.05)
    with pytest.raises(InputError, match="needs --duration"):
        drawn("ramp:0")


def test_moments_do_not_drift():
    """Half a million gaps summed exactly differ from the plan by its rounding alone."""
    source, gap_s = random.Random("arrivals/3"), []
    for offset in itertools.islice(offsets(Arrivals("poisson"), Stage(rate_per_s=7.0), 3), 500_000):
        gap_s.append(-math.log(1.0 - source.random()) / 7.0)
        last = offset
    assert abs(last - math.fsum(gap_s) * 1e9) <= 1


@given(
    st.sampled_from(["constant", "poisson", "gamma:0.5", "gamma:3", "bursts:1:2", "ramp:1"]),
    st.integers(0, 40),
    st.integers(1, 5 * 10**9),
    st.integers(0, 10**9),
)
def test_a_stage_bounds_its_arrivals(text, requests, duration_ns, seed):
    stage = Stage(rate_per_s=20.0, requests=requests, duration_ns=duration_ns)
    found = list(offsets(parse_arrivals(text), stage, seed))
    assert len(found) <= requests
    assert all(0 <= moment < duration_ns for moment in found)
    assert found == sorted(found)


def test_every_process_draws_the_same_plan():
    code = (
        "from itertools import islice; from phasemeter.measure.load import *\n"
        "from phasemeter.measure.arrivals import *\n"
        "print([list(islice(offsets(parse_arrivals(t), Stage(rate_per_s=9.0, requests=50), 5), 50)) "
        "for t in ('poisson', 'gamma:2', 'bursts:1:1', 'ramp:1')])"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    here = [
        list(offsets(parse_arrivals(t), Stage(rate_per_s=9.0, requests=50), 5))
        for t in ("poisson", "gamma:2", "bursts:1:1", "ramp:1")
    ]
    assert runs == {f"{here}\n"}
    assert list(offsets(Arrivals(), Stage(rate_per_s=9.0, requests=50), 6)) != here[0]


@pytest.mark.parametrize("text", ["constant", "poisson", "gamma:2.5", "bursts:2.0:8.0", "ramp:0.5"])
def test_arrivals_are_shown_as_they_are_written(text):
    assert arrivals_text(parse_arrivals(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "exp", "poisson:1", "gamma", "gamma:x", "gamma:0", "gamma:-1", "gamma:nan", "gamma:1e9", "bursts:1",
     "bursts:0:1", "bursts:1:-1", "bursts:inf:1", "ramp:-1", "ramp", "ramp:1:2"],
)  # fmt: skip
def test_other_texts_are_refused(text):
    with pytest.raises(InputError, match="--arrivals"):
        parse_arrivals(text)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, 1e9])
def test_rates_that_are_none_are_refused(rate):
    with pytest.raises(InputError, match="--rate"):
        offsets(Arrivals(), Stage(rate_per_s=rate), 0)

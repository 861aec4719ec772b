"""A few hundred small comparisons of known effect: the interval covers it about 95 times of 100, and where nothing
changed it is seldom said that something did. Seeded: the same every time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from phasemeter.explain.batch_means import t_quantile
from phasemeter.explain.compare_draws import STATS, Drawn, drawn_rate, drawn_stats, weights_of
from phasemeter.explain.compare_effect import Pair, Shared, relative_effect
from phasemeter.explain.compare_rows import Answer, metric_row
from phasemeter.explain.compare_samples import Flow, Sample

TIMES = 200


def drawn(rng, name, *, shapes, blocks, per_block, mood, scale):
    """One side: a mood for each block that all shapes share, lognormal requests."""
    moods = np.exp(rng.normal(0.0, mood, blocks))
    units = np.repeat(np.arange(blocks), per_block)
    weights = weights_of(name, blocks)
    return [
        drawn_stats(
            Sample((k + 1) * scale * moods[units] * np.exp(rng.normal(0.0, 0.25, units.size)), units), weights
        )
        for k in range(shapes)
    ]


def comparisons(seed, scale, **plan):
    rng = np.random.default_rng(seed)
    for i in range(TIMES):
        base = drawn(rng, f"base {i}", scale=1.0, **plan)
        new = drawn(rng, f"new {i}", scale=scale, **plan)
        yield {s: [Pair(b[s], n[s], 1.0 / len(base)) for b, n in zip(base, new, strict=True)] for s in STATS}


PLANS = [
    {"shapes": 1, "blocks": 5, "per_block": 4, "mood": 0.05},
    {"shapes": 3, "blocks": 6, "per_block": 3, "mood": 0.05},
    {"shapes": 1, "blocks": 12, "per_block": 5, "mood": 0.02},
    {"shapes": 1, "blocks": 30, "per_block": 1, "mood": 0.0},
]


@pytest.mark.parametrize("plan", PLANS)
def test_the_interval_covers_the_true_effect_and_no_effect_is_seldom_called_one(plan):
    hits, called = {"p50": 0, "mean": 0}, 0
    both = Shared(base=True, new=True)
    for pairs in comparisons(1, 1.1, **plan):
        for stat in hits:
            effect = relative_effect(pairs[stat], both)
            hits[stat] += effect.lo <= 0.1 <= effect.hi
        nothing = [Pair(p.base, _divided(p.new, 1.1), p.weight) for p in pairs["p50"]]
        answer = metric_row("ttft_p50", nothing, both, 0.03).answer
        called += answer in (Answer.BETTER, Answer.WORSE)
    assert 0.90 * TIMES <= hits["mean"] <= 0.99 * TIMES
    assert 0.90 * TIMES <= hits["p50"] <= 0.99 * TIMES
    assert called <= 0.07 * TIMES


def _divided(drawn, by):
    return Drawn(drawn.value / by, drawn.draws / by, drawn.units, drawn.n)


def test_tails_are_covered_too():
    hits = {"p90": 0, "p99": 0}
    for pairs in comparisons(2, 1.1, shapes=1, blocks=20, per_block=8, mood=0.02):
        for stat in hits:
            effect = relative_effect(pairs[stat], Shared(base=True, new=True))
            hits[stat] += effect.lo <= 0.1 <= effect.hi
    assert all(n >= 0.90 * TIMES for n in hits.values()), hits


def test_requests_taken_for_independent_would_not_cover():
    """The check above can fail: with every request as a unit of its own, moods make it miss most of the time."""
    rng = np.random.default_rng(4)
    hits = 0
    for i in range(100):
        sides = []
        for name in ("base", "new"):
            moods = np.exp(rng.normal(0.0, 0.1, 6))
            values = np.repeat(moods, 30) * np.exp(rng.normal(0.0, 0.1, 180))
            units = np.arange(180)
            sides.append(drawn_stats(Sample(values, units), weights_of(f"{name} {i}", 180))["p50"])
        effect = relative_effect([Pair(*sides, 1.0)], Shared(base=True, new=True))
        hits += effect.lo <= 0.0 <= effect.hi
    assert hits < 70


def test_draws_of_quantiles_are_those_of_the_drawn_values():
    rng = np.random.default_rng(5)
    values, units = rng.normal(10.0, 2.0, 60), np.arange(60) % 6
    weights = weights_of("x", 6)
    found = drawn_stats(Sample(values, units), weights)
    for i in range(0, 1000, 97):
        pooled = np.concatenate([np.tile(values[units == u], int(n)) for u, n in enumerate(weights[i]) if n])
        assert found["p50"].draws[i] == pytest.approx(np.percentile(pooled, 50))
        assert found["p90"].draws[i] == pytest.approx(np.percentile(pooled, 90))
        assert found["p99"].draws[i] == pytest.approx(np.percentile(pooled, 99))
        assert found["mean"].draws[i] == pytest.approx(pooled.mean())


def test_bins_of_large_samples_are_close():
    rng = np.random.default_rng(6)
    values, units = rng.lognormal(3.0, 0.5, 30_000), rng.integers(0, 8, 30_000)
    weights = weights_of("y", 8)
    found = drawn_stats(Sample(values, units), weights)
    pooled = np.concatenate([np.tile(values[units == u], int(n)) for u, n in enumerate(weights[0]) if n])
    for stat, q in (("p50", 50), ("p90", 90), ("p99", 99)):
        assert found[stat].draws[0] == pytest.approx(np.percentile(pooled, q), rel=0.004)


def test_a_rate_is_drawn_with_its_windows():
    """Blocks that took longer weigh more: tokens of the drawn blocks over their seconds, not a mean of rates."""
    tokens, seconds = np.array([10.0, 40.0, 10.0, 10.0, 10.0]), np.array([1.0, 2.0, 1.0, 1.0, 1.0])
    weights = weights_of("z", 5)
    flow = Flow(seconds=seconds, tokens=tokens, requests=np.ones(5), good=None, units=np.arange(5))
    found = drawn_rate(flow, tokens, weights)
    assert found.value == pytest.approx(80 / 6)
    assert found.draws == pytest.approx((weights @ tokens) / (weights @ seconds))


def test_students_quantile_against_scipy():
    stats = pytest.importorskip("scipy.stats")
    for df in (4, 5, 8.5, 20, 400):
        assert t_quantile(0.975, df) == pytest.approx(stats.t.ppf(0.975, df), rel=0.004)


def test_a_unit_missing_from_a_stratum_does_not_spoil_the_interval():
    """An interrupted run: the last block lacks one shape, and some draw holds none of its blocks."""
    rng = np.random.default_rng(7)
    weights = weights_of("w", 5)
    weights[:3] = [0, 0, 0, 0, 5]
    partial = drawn_stats(Sample(rng.lognormal(0, 0.1, 40), np.arange(40) % 4), weights)["p50"]
    assert np.isnan(partial.draws[:3]).all()
    whole = drawn_stats(Sample(rng.lognormal(0, 0.1, 40), np.arange(40) % 5), weights_of("v", 5))["p50"]
    effect = relative_effect([Pair(partial, whole, 1.0)], Shared(base=True, new=True))
    assert all(math.isfinite(v) for v in (effect.lo, effect.mid, effect.hi))

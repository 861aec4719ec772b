"""Millions of values in groups: the same numbers as value by value, and latencies as they were computed one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.explain import stats
from phasemeter.explain.latency import gaps_ns, latency, phase_dists
from phasemeter.explain.phases import PHASE_NAMES, Basis, read
from phasemeter.explain.stats import MIN_FOR_INTERVAL, distribution, grouped_distribution
from unit.explain.test_readings import runs

groups = st.lists(
    st.tuples(st.integers(0, 8), st.lists(st.integers(-50, 50), max_size=40)), min_size=0, max_size=12
)


@settings(max_examples=150, deadline=None)
@given(groups, st.booleans(), st.booleans(), st.sampled_from([1.0, 1e6]))
def test_grouped_values_are_described_like_single_ones(found, in_order, whole, scale) -> None:
    found = sorted(found, key=lambda group: group[0]) if in_order else found
    names = np.array([name for name, _ in found], dtype=np.int64)
    sizes = np.array([len(values) for _, values in found], dtype=np.int64)
    values = np.array([v for _, vs in found for v in vs], dtype=np.int64 if whole else np.float64)
    expected = distribution(values / scale, np.repeat(names, sizes))
    assert grouped_distribution(values, names, sizes, scale) == expected


@pytest.mark.parametrize("shuffled", [False, True])
def test_bins_taken_a_few_at_a_time_are_the_same(shuffled, monkeypatch) -> None:
    rng = np.random.default_rng(1)
    names = rng.permutation(30) if shuffled else np.arange(30)
    sizes = rng.integers(0, 500, 30)
    values = rng.gamma(2.0, 1e6, int(sizes.sum())).astype(np.int64)
    whole = grouped_distribution(values, names, sizes, 1e6)
    monkeypatch.setattr(stats, "_AT_ONCE", 10)
    assert grouped_distribution(values, names, sizes, 1e6) == whole
    assert distribution(values / 1e6, np.repeat(names, sizes)) == whole


@settings(max_examples=60, deadline=None)
@given(runs, st.lists(st.integers(0, 6), min_size=8, max_size=8))
def test_latencies_are_those_of_the_requests_one_by_one(found, blocks) -> None:
    readings = [read(t) for t in found]
    blocks = blocks[: len(readings)]

    def dist(pick):
        pairs = [(ns / 1e6, b) for r, b in zip(readings, blocks, strict=True) if (ns := pick(r)) is not None]
        return distribution([v for v, _ in pairs], [b for _, b in pairs])

    seen = latency(readings, blocks)
    assert seen.ttft_ms == dist(lambda r: r.ttft_ns)
    assert seen.ttft_from_arrival_ms == dist(lambda r: r.ttft_from_arrival_ns)
    assert seen.tpot_ms == dist(lambda r: r.tpot_ns)
    assert seen.e2e_ms == dist(lambda r: r.e2e_ns)
    thought = any("g" in t.kinds for t in found)
    assert seen.ttfa_ms == (dist(lambda r: r.ttfa_ns) if thought else None)

    def gaps(pick):
        each = [np.asarray(pick(r), dtype=np.float64) for r in readings]
        owners = blocks if len(set(blocks)) >= MIN_FOR_INTERVAL else list(range(len(readings)))
        return distribution(
            np.concatenate([np.empty(0), *each]) / 1e6,
            np.repeat(np.array(owners, dtype=np.int64), [g.size for g in each]),
        )

    assert seen.itl_chunk_ms == gaps(lambda r: r.gaps_ns)
    assert seen.itl_ms == gaps(gaps_ns)
    told = any(r.gap_tokens is not None for r in readings)
    token = gaps(lambda r: () if r.gap_tokens is None else gaps_ns(r))
    assert seen.itl_token_ms == (token if told else None)

    whole = phase_dists(readings, blocks)
    for name in PHASE_NAMES:
        spans = [getattr(r.phases, name) for r in readings]
        expected = dist(lambda r, name=name: None if (s := getattr(r.phases, name)) is None else s.ns)
        inferred = any(s is not None and s.basis is Basis.INFERRED for s in spans)
        made = getattr(whole, name)
        assert (None if made is None else made.dist) == expected, name
        assert made is None or (made.basis is Basis.INFERRED) == inferred

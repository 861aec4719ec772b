"""Clocks of two machines, joined by exchanges."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.measure.ray_workers import Offset, Ping, hire_on, joined_offset, offset_of
from phasemeter.record.clock import MonotonicClock
from phasemeter.record.errors import InputError


@given(
    ahead_ns=st.integers(-(10**15), 10**15),
    ways=st.lists(st.tuples(st.integers(0, 10**8), st.integers(0, 10**8)), min_size=1, max_size=30),
)
def test_the_true_offset_lies_within_the_uncertainty(ahead_ns: int, ways: list[tuple[int, int]]) -> None:
    t_ns, pings = 10**9, []
    for there_ns, back_ns in ways:
        pings.append(Ping(t_ns, t_ns + there_ns + ahead_ns, t_ns + there_ns + back_ns))
        t_ns += 10**9
    found = offset_of(pings)
    assert abs(found.ahead_ns - ahead_ns) <= found.uncertainty_ns
    assert found.uncertainty_ns == (min(a + b for a, b in ways) + 1) // 2


def test_quick_exchanges_among_slow_ones_decide() -> None:
    draw = random.Random(5)
    pings = [Ping(0, 5_000_000 + draw.randrange(4_000_000), 9_000_000) for _ in range(20)]
    pings.append(Ping(100, 5_000_100, 300))
    assert offset_of(pings) == Offset(5_000_100 - 200, 100)


def test_clocks_that_part_make_it_less_certain() -> None:
    assert joined_offset(Offset(1000, 10), Offset(1000, 30)) == Offset(1000, 30)
    assert joined_offset(Offset(1000, 10), Offset(1800, 30)) == Offset(1400, 430)


def test_without_ray_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"phasemeter\[ray\]"):
        hire_on("ray://127.0.0.1:1", MonotonicClock())

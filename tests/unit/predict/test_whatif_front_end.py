"""A front end that all requests share, against the formulas of processor sharing."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from phasemeter.predict.whatif import simulate
from phasemeter.predict.whatif_load import EngineSettings, Traffic
from phasemeter.predict.whatif_times import LinearSteps
from phasemeter.record.errors import InputError


class Shared(LinearSteps, frozen=True):
    """Work of the shared process: `busy` for each request, or for each prompt token."""

    busy: float = 0.0
    busy_token: float = 0.0

    def front_end_busy_s(self, input_tokens: int) -> float:
        return self.busy + self.busy_token * input_tokens


def passed(arrive: Sequence[float], model: Shared, prompts: Sequence[int] | None = None) -> np.ndarray:
    n = len(arrive)
    traffic = Traffic(list(prompts or [1] * n), [1] * n, arrive_s=list(arrive))
    seen = simulate(traffic, EngineSettings(), model)
    assert seen.kv_left == 0
    return seen.values_s("front_end")


def test_alone_it_takes_what_it_takes():
    model = Shared(front_end=4e-3, busy=1e-3)
    assert passed([0.0, 1.0], model) == pytest.approx([4e-3, 4e-3])


def test_together_each_takes_as_often_as_long_and_all_are_done_at_once():
    model = Shared(front_end=4e-3, busy=1e-3)
    assert passed([0.0] * 64, model) == pytest.approx([3e-3 + 64e-3] * 64)


def test_one_that_comes_later_shares_what_is_left():
    model = Shared(front_end=10e-3, busy=10e-3)
    # the first is alone for 4 ms, both share until its last 6 ms are done 12 ms later, then the second has 4 ms left
    assert passed([0.0, 4e-3], model) == pytest.approx([16e-3, 16e-3])
    assert passed([0.0, 4e-3, 30e-3], model)[2] == pytest.approx(10e-3)


def test_a_short_one_overtakes_a_long_one():
    model = Shared(front_end_token=1e-3, busy_token=1e-3)
    assert passed([0.0, 0.0], model, [100, 1]) == pytest.approx([101e-3, 2e-3])


def test_work_that_is_more_than_the_whole_is_the_whole():
    assert passed([0.0, 1.0], Shared(front_end=4e-3, busy=9e-3)) == pytest.approx([4e-3, 4e-3])


@pytest.mark.parametrize("spread", ["constant", "exponential"])
def test_the_mean_does_not_depend_on_the_spread_of_work(spread: str):
    """M/G/1 with processor sharing: mean time E[S] / (1 - rho) whatever the distribution (Kleinrock 1976)."""
    load, mean, n = 0.6, 100, 40_000
    draw = random.Random(11)
    now, arrive, work = 0.0, [], []
    for _ in range(n):
        now += draw.expovariate(load / (mean * 1e-5))
        arrive.append(now)
        work.append(mean if spread == "constant" else max(1, round(draw.expovariate(1 / mean))))
    times = passed(arrive, Shared(front_end_token=1e-5, busy_token=1e-5), work)
    batches = times[n // 10 :].reshape(-1, 1200).mean(axis=1)
    error = 3 * float(batches.std(ddof=1)) / batches.size**0.5
    assert float(batches.mean()) == pytest.approx(mean * 1e-5 / (1 - load), abs=max(error, 2e-5))
    assert error < 0.15 * mean * 1e-5 / (1 - load)


def test_work_that_is_no_number_is_refused():
    with pytest.raises(InputError, match="step time"):
        passed([0.0], Shared(front_end=1e-3, busy=float("nan")))

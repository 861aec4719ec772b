"""The simulation against queueing theory, its own books, and what more load or less memory must do."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.predict.routing import policy_of
from phasemeter.predict.whatif import simulate
from phasemeter.predict.whatif_load import EngineSettings, Traffic
from phasemeter.predict.whatif_times import LinearSteps
from phasemeter.record.errors import InputError

ALONE = EngineSettings(max_num_seqs=1, max_num_batched_tokens=100_000)
"""One request at a time: a single server."""
TOKEN_S = 1e-4


def poisson(rate: float, n: int, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    now, found = 0.0, []
    for _ in range(n):
        now += draw.expovariate(rate)
        found.append(now)
    return found


def service_means(lengths: list[int]) -> tuple[float, float]:
    service = np.array(lengths) * TOKEN_S
    return float(service.mean()), float((service**2).mean())


def lindley(arrive: np.ndarray, service: np.ndarray) -> np.ndarray:
    """Waits in a queue with one server, one after another (Lindley 1952)."""
    waits = np.zeros(arrive.size)
    for i in range(1, arrive.size):
        waits[i] = max(0.0, waits[i - 1] + service[i - 1] - (arrive[i] - arrive[i - 1]))
    return waits


@pytest.mark.parametrize("load", [0.3, 0.7])
@pytest.mark.parametrize("lengths", ["same", "exponential", "two kinds"])
def test_prefill_alone_waits_as_pollaczek_and_khinchine_say(load: float, lengths: str):
    """M/D/1 and M/G/1: W = rate E[S^2] / (2 (1 - rho)), within 2 % in the mean of independent runs (or their own
    statistical error, whichever is larger)."""
    draw = random.Random(7)
    n = 20_000
    waits = []
    expected = []
    for seed in range(6):
        sizes = {
            "same": lambda: 100,
            "exponential": lambda: max(1, round(draw.expovariate(1 / 100))),
            "two kinds": lambda: 20 if draw.random() < 0.9 else 820,
        }[lengths]
        tokens = [sizes() for _ in range(n)]
        mean, square = service_means(tokens)
        rate = load / mean
        seen = simulate(
            Traffic(tokens, [1] * n, arrive_s=poisson(rate, n, seed)),
            ALONE,
            LinearSteps(prompt_token=TOKEN_S),
        )
        queue = seen.values_s("queue")
        assert queue == pytest.approx(lindley(seen.arrived_s, np.array(tokens) * TOKEN_S), abs=1e-9)
        waits.append(float(queue[n // 20 :].mean()))
        expected.append(rate * square / (2 * (1 - load)))
    ratio = np.array(waits) / np.array(expected)
    error = 3 * float(ratio.std(ddof=1)) / np.sqrt(ratio.size)
    assert float(ratio.mean()) == pytest.approx(1.0, abs=max(0.02, error))
    assert error < 0.1


def test_little_holds_between_two_ways_of_counting():
    """Areas under the numbers present and waiting, kept at events, against every request's own times."""
    n = 4000
    draw = random.Random(3)
    seen = simulate(
        Traffic(
            [draw.randint(1, 300) for _ in range(n)],
            [draw.randint(1, 60) for _ in range(n)],
            arrive_s=poisson(40, n),
        ),
        EngineSettings(max_num_seqs=8, kv_blocks=200),
        LinearSteps(step=2e-3, prompt_token=1e-5, sequence=1e-4),
    )
    lasted = seen.lasted_s
    rate = n / lasted
    assert seen.present == pytest.approx(rate * float(seen.values_s("e2e").mean()), rel=1e-9)
    assert int(seen.preemptions.sum()) == 0
    assert seen.waiting == pytest.approx(rate * float(seen.values_s("queue").mean()), rel=1e-9)
    assert seen.series[:, 1].max() <= 8


def test_decode_in_steady_state_is_the_fixed_point():
    """A closed loop of B users with long outputs runs at B sequences: TPOT = alpha + beta B."""
    users, alpha, beta = 12, 4e-3, 2e-4
    n = 600
    seen = simulate(
        Traffic([10] * n, [400] * n, users=users), EngineSettings(), LinearSteps(step=alpha, sequence=beta)
    )
    steady = seen.values_s("tpot")[50:-50]
    assert float(np.median(steady)) == pytest.approx(alpha + beta * users, rel=0.01)
    assert seen.busy_ratio == pytest.approx(1.0, abs=1e-9)


@st.composite
def loads(draw):
    n = draw(st.integers(1, 60))
    ints = st.integers(1, 50)
    return (
        draw(st.lists(ints, min_size=n, max_size=n)),
        draw(st.lists(ints, min_size=n, max_size=n)),
        np.cumsum(draw(st.lists(st.floats(0, 0.2), min_size=n, max_size=n))).tolist(),
        draw(st.integers(1, 4)),
        draw(st.sampled_from(["round-robin", "least-requests", "p2c", "least-tokens", "prefix-affinity"])),
        draw(st.booleans()),
    )


@settings(max_examples=80, deadline=None)
@given(loads())
def test_every_request_ends_once_and_nothing_is_lost(case):
    prompts, outputs, arrive, replicas, policy, caching = case
    openings = [((f"s{i % 3}", p // 2),) for i, p in enumerate(prompts)]
    seen = simulate(
        Traffic(prompts, outputs, arrive_s=arrive, openings=openings),
        EngineSettings(max_num_seqs=5, max_num_batched_tokens=20, block_size=4, kv_blocks=30, prefix_caching=caching),
        LinearSteps(step=3.1e-3, prompt_token=1e-4, sequence=2e-4, front_end=1e-3),
        replicas=replicas,
        policy=policy_of(policy),
    )  # fmt: skip
    assert (seen.issued_s < seen.arrived_s).all()
    assert (seen.arrived_s <= seen.scheduled_s).all()
    assert (seen.scheduled_s < seen.first_s).all()
    assert (seen.first_s <= seen.ended_s).all()
    assert ((seen.first_s < seen.ended_s) == (np.array(outputs) > 1)).all()
    assert int(seen.gap_counts.sum()) == sum(outputs) - len(outputs)
    assert seen.kv_left == 0
    assert set(seen.replica.tolist()) <= set(range(replicas))
    gaps = float((seen.gaps_s * seen.gap_counts).sum())
    assert gaps == pytest.approx(float((seen.ended_s - seen.first_s).sum()), abs=1e-9)


def test_more_load_makes_nothing_better():
    model = LinearSteps(step=3e-3, prompt_token=2e-5, sequence=1e-4, context_token=1e-7)
    n = 2000
    moments = poisson(1.0, n)
    before = {"ttft": 0.0, "tpot": 0.0, "e2e": 0.0}
    for rate in (1, 5, 10, 20, 30):
        arrive = [t / rate for t in moments]
        seen = simulate(Traffic([200] * n, [50] * n, arrive_s=arrive), EngineSettings(max_num_seqs=16), model)
        now = {name: float(seen.values_s(name).mean()) for name in before}
        assert all(now[name] >= before[name] for name in before), rate
        before = now


def test_a_second_replica_makes_a_queue_shorter():
    n = 1500
    traffic = Traffic([500] * n, [40] * n, arrive_s=poisson(30, n))
    model = LinearSteps(step=4e-3, prompt_token=4e-5, sequence=1e-4)
    engine = EngineSettings(max_num_seqs=8)
    queue = [
        float(simulate(traffic, engine, model, replicas=r, policy=policy_of("least-requests")).values_s("queue").mean())
        for r in (1, 2, 4)
    ]  # fmt: skip
    assert queue[0] > 5 * queue[1] > 5 * queue[2] or queue[2] == 0.0


def test_the_urgent_overtake():
    n = 400
    priority = [i % 2 for i in range(n)]
    traffic = Traffic([100] * n, [20] * n, arrive_s=[0.0] * n, priority=priority)
    model = LinearSteps(step=1e-3, prompt_token=1e-5)
    seen = simulate(traffic, EngineSettings(max_num_seqs=4, policy="priority"), model)
    urgent, patient = seen.scheduled_s[::2], seen.scheduled_s[1::2]
    assert urgent.max() <= patient.min()
    assert (np.diff(urgent) >= 0).all()
    plain = simulate(traffic, EngineSettings(max_num_seqs=4), model)
    assert (np.diff(plain.scheduled_s) >= 0).all()


def test_little_memory_preempts_and_costs_time():
    n = 60
    traffic = Traffic([64] * n, [200] * n, arrive_s=[0.0] * n)
    model = LinearSteps(step=1e-3, prompt_token=1e-5, sequence=1e-5)
    free = simulate(traffic, EngineSettings(max_num_seqs=32), model)
    short = simulate(traffic, EngineSettings(max_num_seqs=32, kv_blocks=120), model)
    kept = simulate(traffic, EngineSettings(max_num_seqs=32, kv_blocks=120, watermark=0.5), model)
    assert int(free.preemptions.sum()) == 0
    assert int(short.preemptions.sum()) > 0
    assert int(kept.preemptions.sum()) < int(short.preemptions.sum())
    assert short.lasted_s > free.lasted_s
    assert short.series[:, 3].max() <= 120
    assert short.kv_left == 0


def test_a_small_budget_spreads_a_long_prompt_and_spares_the_others():
    """Chunked prefill: the foreign prompt's cost to a decoding neighbour is bounded by the budget."""
    traffic = Traffic([10, 4000], [200, 10], arrive_s=[0.0, 0.1])
    model = LinearSteps(step=1e-3, prompt_token=1e-5)
    wide = simulate(traffic, EngineSettings(max_num_seqs=8, max_num_batched_tokens=8192), model)
    narrow = simulate(traffic, EngineSettings(max_num_seqs=8, max_num_batched_tokens=256), model)
    assert wide.quantile_ms("itl", 1.0) == pytest.approx(41.0, rel=1e-6)
    assert narrow.quantile_ms("itl", 1.0) == pytest.approx(1.0 + 2.55, rel=1e-6)
    ttft = [outcome.values_s("ttft")[1] for outcome in (wide, narrow)]
    assert ttft[0] < ttft[1]


def test_turns_of_a_conversation_follow_each_other_and_hit_their_prefix():
    traffic = Traffic(
        [100, 150, 200],
        [10, 10, 10],
        arrive_s=[1.0, 0.0, 0.0],
        think_s=[0.0, 2.0, 3.0],
        after=[-1, 0, 1],
        openings=[(("c", 100),), (("c", 150),), (("c", 200),)],
    )
    model = LinearSteps(step=1e-3, prompt_token=1e-4)
    seen = simulate(traffic, EngineSettings(prefix_caching=True), model)
    assert seen.issued_s[0] == 1.0
    assert seen.issued_s[1] == pytest.approx(seen.ended_s[0] + 2.0)
    assert seen.issued_s[2] == pytest.approx(seen.ended_s[1] + 3.0)
    assert seen.cached_tokens.tolist() == [0, 96, 144]
    cold = simulate(traffic, EngineSettings(), model)
    assert cold.cached_tokens.tolist() == [0, 0, 0]
    assert seen.values_s("ttft")[2] < cold.values_s("ttft")[2]


def test_a_prefix_that_others_pushed_out_is_computed_again():
    size = 16
    traffic = Traffic(
        [160, 1600, 160],
        [1, 1, 1],
        arrive_s=[0.0, 1.0, 2.0],
        openings=[(("a", 160),), (), (("a", 160),)],
    )
    model = LinearSteps(step=1e-3, prompt_token=1e-5)
    for blocks, cached in ((200, 144), (104, 64), (101, 16)):
        seen = simulate(traffic, EngineSettings(prefix_caching=True, kv_blocks=blocks), model)
        assert seen.cached_tokens[2] == cached // size * size, blocks


def test_closed_loop_keeps_its_users_and_their_thoughts():
    n = 50
    traffic = Traffic([10] * n, [5] * n, users=4, think_s=[0.5] * n)
    seen = simulate(traffic, EngineSettings(), LinearSteps(step=1e-3))
    present = [
        int(((seen.issued_s <= t) & (seen.ended_s > t)).sum()) for t in np.linspace(0, seen.lasted_s, 200)
    ]
    assert max(present) <= 4
    starts = np.sort(seen.issued_s)[4:]
    assert all(np.abs(seen.ended_s + 0.5 - start).min() < 1e-9 for start in starts)


@pytest.mark.parametrize(
    ("traffic", "engine", "says"),
    [
        (Traffic([], [], arrive_s=[]), EngineSettings(), "requests: 0"),
        (Traffic([1], [1]), EngineSettings(), "arrive_s and users"),
        (Traffic([1], [0], arrive_s=[0.0]), EngineSettings(), "request 0"),
        (Traffic([1, 1], [1, 1], arrive_s=[1.0, 0.0]), EngineSettings(), "out of order"),
        (Traffic([1, 1], [1], arrive_s=[0.0, 0.0]), EngineSettings(), "output_tokens: 1 values"),
        (Traffic([1], [1], arrive_s=[float("nan")]), EngineSettings(), "arrive_s"),
        (Traffic([99], [9], arrive_s=[0.0]), EngineSettings(kv_blocks=6), "needs 7 of 6 KV blocks"),
        (Traffic([99], [9], users=0), EngineSettings(), "users: 0"),
        (Traffic([9], [9], users=1), EngineSettings(max_num_seqs=8, max_num_batched_tokens=4), "max_num_seqs = 8"),
        (Traffic([9], [9], users=1), EngineSettings(policy="lifo"), "scheduling policy: lifo"),
        (
            Traffic([9000], [9], users=1),
            EngineSettings(chunked_prefill=False),
            "without chunked prefill it could never",
        ),
        (Traffic([9], [9], users=1, openings=[(("a", 10),)]), EngineSettings(), "longer than its prompt"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_refused_in_one_line(traffic, engine, says):
    with pytest.raises(InputError, match=says) as error:
        simulate(traffic, engine, LinearSteps(step=1e-3))
    assert "\n" not in str(error.value)


def test_a_model_that_gives_no_time_is_refused():
    with pytest.raises(InputError, match="step time"):
        simulate(Traffic([9], [9], users=1), EngineSettings(), LinearSteps(step=float("nan")))

"""Each policy's promise, by itself and in a simulated fleet."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.predict.routing import (
    POLICIES,
    Backend,
    LengthBucket,
    PrefixAffinity,
    ShortestFirst,
    Ticket,
    give_back,
    policy_of,
    predicted,
    prefilled,
    take,
)
from phasemeter.predict.whatif import simulate
from phasemeter.predict.whatif_load import EngineSettings, Traffic
from phasemeter.predict.whatif_times import LinearSteps
from phasemeter.record.errors import InputError

PLAIN = Ticket(100, 50)


def fleet(n: int = 4, **fields) -> list[Backend]:
    return [Backend(f"b{i}", **fields) for i in range(n)]


@given(
    st.sampled_from(POLICIES),
    st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.sampled_from([0.0, 0.5, 1.0, 3.0])), max_size=6),
    st.integers(1, 9000),
    st.sampled_from([None, "a", "b"]),
)
def test_only_healthy_backends_of_some_weight_are_chosen(name, states, prompt, prefix):
    backends = [
        Backend(f"b{i}", healthy=healthy, in_flight=n, prefill_tokens=9 * n, decode_tokens=n, weight=weight)
        for i, (healthy, n, weight) in enumerate(states)
    ]
    before = [(b.in_flight, b.prefill_tokens, b.decode_tokens) for b in backends]
    chosen = policy_of(name).choose(Ticket(prompt, 10, prefix), backends)
    usable = [b for b in backends if b.healthy and b.weight > 0]
    assert chosen in usable if usable else chosen is None
    assert [(b.in_flight, b.prefill_tokens, b.decode_tokens) for b in backends] == before


def test_counters_come_back_to_zero():
    backend = Backend("b")
    tickets = [Ticket(10 * i, i) for i in range(1, 6)]
    for ticket in tickets:
        take(backend, ticket)
    assert (backend.in_flight, backend.prefill_tokens, backend.decode_tokens) == (5, 150, 15)
    for i, ticket in enumerate(tickets):
        if i % 2:
            prefilled(backend, ticket)
        give_back(backend, ticket, was_prefilled=bool(i % 2))
    assert (backend.in_flight, backend.prefill_tokens, backend.decode_tokens) == (0, 0, 0)


def test_round_robin_gives_each_its_weight_and_never_in_a_row():
    backends = [Backend("a", weight=5.0), Backend("b"), Backend("c")]
    policy = policy_of("round-robin")
    order = "".join(policy.choose(PLAIN, backends).name for _ in range(14))
    assert order == "aabacaa" * 2  # the example of nginx's commit
    backends[0].healthy = False
    rest = [policy.choose(PLAIN, backends).name for _ in range(10)]
    assert Counter(rest) == {"b": 5, "c": 5}


def test_least_requests_takes_the_emptiest_by_weight_and_equals_in_turn():
    backends = fleet(3)
    policy = policy_of("least-requests")
    assert [policy.choose(PLAIN, backends).name for _ in range(4)] == ["b0", "b1", "b2", "b0"]
    backends[0].in_flight, backends[1].in_flight, backends[2].in_flight = 3, 1, 2
    assert policy.choose(PLAIN, backends).name == "b1"
    backends[0].weight = 8.0
    assert policy.choose(PLAIN, backends).name == "b0"


def test_least_tokens_tells_long_from_short_where_requests_do_not():
    backends = fleet(2)
    for backend, tokens in zip(backends, (4096, 32), strict=True):
        take(backend, Ticket(tokens, 10))
        take(backend, Ticket(tokens, 10))
    assert {policy_of("least-tokens").choose(PLAIN, backends).name for _ in range(5)} == {"b1"}


def test_two_choices_are_two_seeded_and_nearly_as_even_as_the_least():
    backends = fleet(10)
    for _ in range(10_000):
        take(chosen, PLAIN) if (chosen := POLICY.choose(PLAIN, backends)) else None
    loads = [b.in_flight for b in backends]
    assert max(loads) - min(loads) <= 6  # at random the spread would be about a hundred
    again = policy_of("p2c", seed=4)
    other = policy_of("p2c", seed=4)
    assert [again.choose(PLAIN, backends).name for _ in range(50)] == [
        other.choose(PLAIN, backends).name for _ in range(50)
    ]


POLICY = policy_of("p2c", seed=9)


def test_length_buckets_hold_their_lengths_and_spill_when_full():
    backends = [Backend("short", bucket=0), Backend("long", bucket=1)]
    policy = LengthBucket([1000], hysteresis=0.2, spill=1.5)
    assert policy.choose(Ticket(999), backends).name == "short"
    assert policy.choose(Ticket(1000), backends).name == "long"
    backends[0].in_flight = 20
    assert policy.choose(Ticket(10), backends).name == "long"
    backends[1].in_flight = 18
    assert policy.choose(Ticket(10), backends).name == "short"
    backends[1].healthy = False
    assert policy.choose(Ticket(5000), backends).name == "short"


def test_a_growing_conversation_stays_with_its_cache_for_a_while():
    backends = [Backend("short", bucket=0), Backend("long", bucket=1)]
    policy = LengthBucket([1000], hysteresis=0.2)
    where = [
        policy.choose(Ticket(n, prefix="talk"), backends).name for n in (900, 1100, 1190, 1250, 1100, 790)
    ]
    assert where == ["short", "short", "short", "long", "long", "short"]


def test_a_prefix_stays_and_moves_only_when_its_backend_is_gone_or_full():
    backends = fleet(5)
    policy = PrefixAffinity(bound=1.25)
    keys = [f"key{i}" for i in range(400)]
    home = {key: policy.choose(Ticket(10, prefix=key), backends).name for key in keys}
    assert min(Counter(home.values()).values()) > 40
    assert home == {key: PrefixAffinity().choose(Ticket(10, prefix=key), backends).name for key in keys}
    backends[2].healthy = False
    moved = {key: policy.choose(Ticket(10, prefix=key), backends).name for key in keys}
    assert all(moved[key] == home[key] for key in keys if home[key] != "b2")
    backends[2].healthy = True
    for _ in range(100):  # one prefix alone may not fill one backend
        ticket = Ticket(10, prefix="hot")
        take(policy.choose(ticket, backends), ticket)
    assert max(b.in_flight for b in backends) <= 1.25 * 100 / 5 + 1


def test_the_shortest_first_and_none_starves():
    queue = ShortestFirst()
    for tokens in (500, 20, 100):
        queue.push(Ticket(tokens), 0)
    assert [queue.pop().prompt_tokens for _ in range(3)] == [20, 100, 500]
    queue.push(Ticket(1000), 0, cached_tokens=990)
    queue.push(Ticket(50), 0)
    assert queue.pop().prompt_tokens == 1000
    aged = ShortestFirst(aging_tokens_per_s=100.0)
    aged.push(Ticket(1000), 0)
    for second in range(1, 30):
        aged.push(Ticket(10), second * 10**9)
    order = [aged.pop().prompt_tokens for _ in range(len(aged))]
    assert order.index(1000) == 9  # after 9.9 s of waiting it is ahead of a fresh one of 10 tokens
    with pytest.raises(IndexError):
        aged.pop()


def test_the_predicted_takes_the_backend_that_is_done_first():
    backends = fleet(3)
    policy = predicted(lambda ticket, b: (b.in_flight + 1) * {"b0": 3.0, "b1": 1.0, "b2": 9.0}[b.name])
    chosen = []
    for _ in range(8):
        backend = policy.choose(PLAIN, backends)
        take(backend, PLAIN)
        chosen.append(backend.name)
    assert Counter(chosen) == {"b1": 6, "b0": 2}


@pytest.mark.parametrize("name", ["fastest", ""])
def test_an_unknown_policy_is_named_with_the_known_ones(name):
    with pytest.raises(InputError, match="round-robin"):
        policy_of(name)


def test_bad_edges_are_refused():
    for edges in ([], [5, 5], [9, 3], [0, 4]):
        with pytest.raises(InputError, match="length buckets"):
            LengthBucket(edges)


def test_in_a_fleet_tokens_balance_better_than_turns_and_affinity_finds_the_cache():
    draw = random.Random(5)
    n, now = 3000, 0.0
    arrive, prompts, openings = [], [], []
    for _ in range(n):
        now += draw.expovariate(40)
        arrive.append(now)
        prompts.append(4000 if draw.random() < 0.1 else 100)
        openings.append(((f"p{draw.randrange(40)}", 90),))
    model = LinearSteps(step=3e-3, prompt_token=4e-5, sequence=1e-4)
    engine = EngineSettings(max_num_seqs=16, prefix_caching=True)

    def play(name: str):
        traffic = Traffic(prompts, [30] * n, arrive_s=arrive, openings=openings)
        return simulate(traffic, engine, model, replicas=3, policy=policy_of(name))

    outcomes = {name: play(name) for name in ("round-robin", "least-tokens", "prefix-affinity")}
    p90 = {name: outcome.quantile_ms("ttft", 0.9) for name, outcome in outcomes.items()}
    assert p90["least-tokens"] < p90["round-robin"]
    cold = {name: int((outcome.cached_tokens == 0).sum()) for name, outcome in outcomes.items()}
    assert cold["prefix-affinity"] < cold["round-robin"]
    assert np.bincount(outcomes["round-robin"].replica).tolist() == [1000] * 3

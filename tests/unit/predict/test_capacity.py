"""Capacity: the least that is enough, the flag that helps, the money, and what stays undecided."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from phasemeter.explain.slo import parse_slo
from phasemeter.predict.capacity import Ask, least, plan, plans
from phasemeter.predict.features import Query
from phasemeter.predict.whatif import simulate
from phasemeter.predict.whatif_fitted import MEMORY_SHARE, RESERVE_BYTES, bracket, kv_blocks_of, machine_of
from phasemeter.predict.whatif_load import EngineSettings, Traffic
from phasemeter.predict.whatif_slo import check_slo, stand
from phasemeter.predict.whatif_times import LinearSteps
from phasemeter.predict.whatif_told import METRICS, What, what_if
from phasemeter.record.errors import InputError, UndecidedError
from unit.predict.fitted_fleet import fitted

PLAIN = EngineSettings(max_num_seqs=64, max_num_batched_tokens=8192)


def traffic(rate: float, n: int = 500, prompt: int = 800, output: int = 60) -> Traffic:
    draw = random.Random(2)
    now, arrive = 0.0, []
    for _ in range(n):
        now += draw.expovariate(rate)
        arrive.append(now)
    return Traffic([prompt] * n, [output] * n, arrive_s=arrive)


@pytest.fixture(scope="module")
def model():
    return fitted(noise=0.05)


@pytest.fixture(scope="module")
def machine(model):
    return machine_of(model)


def ask(rate: float, slo: str, **more) -> Ask:
    return Ask(traffic=traffic(rate), slo=parse_slo(slo), settings=PLAIN, replicas_max=16, **more)


@given(st.integers(1, 300), st.integers(1, 300))
def test_least_is_the_first_that_meets(answer, most):
    tried = []

    def meets(n):
        tried.append(n)
        return n >= answer

    assert least(meets, most) == (answer if answer <= most else None)
    assert max(tried) <= most
    assert len(tried) <= 2 * most.bit_length() + 2


@pytest.fixture(scope="module")
def option(machine):
    return plan(ask(120, "ttft_p99=150ms,tpot_p99=20ms"), machine, usd_per_hour=3.0)


def test_one_replica_fewer_is_not_enough(option):
    low, mid, high = option.replicas
    assert low <= mid <= high
    assert mid > 1
    used = {point.replicas: point.mid for point in option.frontier}
    assert used[mid] <= 1.0
    assert used[mid - 1] is None or used[mid - 1] > 1.0
    assert option.standing.met
    assert option.told == "met"
    assert [kept.name for kept in option.standing.kept] == ["ttft_p99", "tpot_p99"]


def test_more_replicas_use_less_of_the_limit_and_the_slow_end_uses_more(option):
    mids = [point.mid for point in option.frontier if point.mid is not None]
    assert all(a >= b * 0.98 for a, b in itertools.pairwise(mids))
    for point in option.frontier:
        if None not in (point.lo, point.mid, point.hi):
            assert point.lo <= point.mid <= point.hi


def test_it_carries_at_least_the_headroom_and_not_without_end(option):
    assert 1.2 <= option.carries < 8.0


def test_money_is_replicas_by_hours_by_tokens(option):
    ask_of = ask(120, "e2e_p50=1s")
    hours = ask_of.lasts_s / 3600
    assert option.usd_per_hour == 3.0 * option.replicas[1]
    assert option.usd_per_million_output == pytest.approx(option.usd_per_hour * hours / (500 * 60) * 1e6)
    assert option.usd_per_million_tokens == pytest.approx(option.usd_per_hour * hours / (500 * 860) * 1e6)


def test_more_headroom_never_needs_fewer(machine):
    slo = "ttft_p99=150ms,tpot_p99=20ms"
    needs = [plan(ask(120, slo, headroom=h), machine).replicas[1] for h in (0.0, 1.0)]
    assert needs[0] <= needs[1]


def test_a_limit_that_no_number_of_replicas_keeps_is_not_met(machine):
    found = plan(ask(20, "ttft_p99=1ms"), machine, usd_per_hour=3.0)
    assert found.told == "not met"
    assert found.replicas[1] is None
    assert found.carries is None
    assert found.usd_per_hour is None
    assert found.standing.used > 1.0


def test_between_the_middle_and_the_slow_end_it_is_undecided(machine):
    """A TPOT limit that the middle keeps and the slow end breaks, whatever the replicas."""
    typical = Query(800, 60, batch=1)
    ends = bracket(machine, typical)
    alone = [m.step_s((), (1, 830)) * 1e3 for m in (ends.lo, ends.mid, ends.hi)]
    assert alone[0] < alone[1] < alone[2]
    limit = (alone[1] + alone[2]) / 2
    found = plan(ask(1.0, f"tpot_p50={limit:.4f}ms"), machine)
    assert found.replicas[1] is not None
    assert found.told == "undecided"
    assert found.replicas[2] is None


def test_a_flag_is_told_where_it_helps_and_not_where_it_is_fixed(machine):
    """One sequence at a time queues; more sequences are the cure."""
    narrow = EngineSettings(max_num_seqs=1, max_num_batched_tokens=8192)
    asked = Ask(traffic=traffic(15), slo=parse_slo("ttft_p99=150ms"), settings=narrow, replicas_max=64)
    found = plan(asked, machine)
    assert found.flags["max_num_seqs"] > 1
    assert found.plain_replicas is None or found.replicas[1] < found.plain_replicas
    kept = Ask(
        traffic=traffic(15), slo=parse_slo("ttft_p99=150ms"), settings=narrow, replicas_max=64,
        fixed=("max_num_seqs", "max_num_batched_tokens"),
    )  # fmt: skip
    assert plan(kept, machine).flags == {}


def test_the_cheapest_that_meets_comes_first(model):
    machines = [machine_of(model), machine_of(model, "a100-80"), machine_of(model, "l4")]
    names = [machine.name for machine in machines]
    asked = ask(30, "ttft_p99=400ms,tpot_p99=40ms")
    found = plans(asked, machines, {names[0]: 9.0, names[1]: 1.0, names[2]: 0.01})
    met = [option for option in found if option.told != "not met"]
    assert [option.usd_per_million_output for option in met] == sorted(o.usd_per_million_output for o in met)
    assert found[: len(met)] == tuple(met)
    by_name = {option.machine: option for option in found}
    assert by_name[names[0]].changed == ()
    assert by_name[names[1]].changed == ("hardware",)


def test_another_chip_is_slower_where_its_ceilings_are_lower_and_less_sure(model):
    own, other = machine_of(model), machine_of(model, "l4")
    assert other.steps.step_s([(2048, 0)]) > 2 * own.steps.step_s([(2048, 0)])
    assert other.steps.front_end_s(100) == own.steps.front_end_s(100)
    typical = Query(800, 60)
    wide, narrow = (bracket(one, typical) for one in (other, own))
    ratio = [e.hi.step_s((), (1, 800)) / e.lo.step_s((), (1, 800)) for e in (wide, narrow)]
    assert ratio[0] > ratio[1]
    with pytest.raises(InputError, match="hardware"):
        machine_of(model, "abacus")
    with pytest.raises(UndecidedError):
        machine_of(fitted(roof=None), "l4")


def test_the_fits_neighbours_are_the_front_ends_shared_work(machine):
    assert machine.steps.front_end_busy_s(64) == pytest.approx(5e-4, rel=0.05)
    n = 16
    seen = simulate(Traffic([64] * n, [1] * n, arrive_s=[0.0] * n), PLAIN, machine.steps)
    assert seen.values_s("front_end") == pytest.approx([3e-3 + 64e-6 + 5e-4 * (n - 1)] * n, rel=0.06)


def test_blocks_are_what_the_memory_leaves(machine, model):
    hardware, shape = machine.roof.hardware, machine.roof.shape
    left = MEMORY_SHARE * hardware.memory_bytes - shape.weight_bytes("bfloat16") - RESERVE_BYTES
    assert kv_blocks_of(machine, 16) == int(left / (16 * shape.kv_bytes_per_token("bfloat16")))
    assert kv_blocks_of(machine_of(fitted(roof=None)), 16) is None


def test_a_model_that_does_not_fit_is_refused_by_name(machine):
    """Llama-3.1-8B in bfloat16 leaves 16 GB nothing."""
    small = replace(machine.roof, hardware=replace(machine.roof.hardware, memory_bytes=16_000_000_000))
    with pytest.raises(InputError, match=r"small.*leaves its memory no KV cache"):
        plan(ask(1, "ttft_p99=1s"), replace(machine, name="small", roof=small))


def test_what_is_told_of_a_load_has_its_interval(machine):
    told = what_if(What(traffic(20), PLAIN), machine)
    assert set(told.ms) == set(METRICS)
    for levels in told.ms.values():
        for level in levels.values():
            assert level.lo <= level.mid <= level.hi
    assert told.ms["ttft"]["p99"].mid > told.ms["ttft"]["p50"].mid
    assert not told.growing
    assert told.kv_assumed
    assert told.requests_per_s.mid == pytest.approx(20, rel=0.1)
    assert what_if(What(traffic(5000, n=3000), PLAIN), machine).growing


def test_goodput_counts_requests_that_keep_every_limit():
    n = 10
    traffic_of = Traffic([10] * n, [2] * n, arrive_s=[float(i) for i in range(n)])
    seen = simulate(traffic_of, PLAIN, LinearSteps(step=0.01))
    good = stand(seen, parse_slo("ttft=11ms,tpot=11ms,goodput=95%"), steady=True)
    assert good.met
    assert good.kept[-1].value == 1.0
    bad = stand(seen, parse_slo("ttft=11ms,tpot=9ms,goodput=95%"), steady=True)
    assert not bad.met
    assert bad.kept[-1].value == 0.0
    assert bad.used == pytest.approx(10 / 9)


@pytest.mark.parametrize(
    "refused", ["itl=30ms", "itl_p99=30ms,goodput=90%", "ttft=10ms,itl_p50=2ms,goodput=99%"]
)
def test_gaps_of_single_requests_cannot_be_asked(refused):
    with pytest.raises(InputError, match="itl"):
        check_slo(parse_slo(refused))


def test_what_cannot_be_planned_is_refused(machine):
    slo = parse_slo("ttft_p99=1s")
    closed = Ask(Traffic([1], [1], users=1), slo, PLAIN)
    with pytest.raises(InputError, match="closed loop"):
        plan(closed, machine)
    with pytest.raises(InputError, match="headroom"):
        plan(Ask(traffic(1), slo, PLAIN, headroom=-1.0), machine)
    with pytest.raises(InputError, match="replicas-max"):
        plan(Ask(traffic(1), slo, PLAIN, replicas_max=0), machine)

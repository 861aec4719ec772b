from __future__ import annotations

import msgspec

from phasemeter.explain.cold import cold
from phasemeter.explain.phases import read
from phasemeter.record.engine import Outcome
from unit.explain.builders import CELL, sequence, timeline

WARM = msgspec.structs.replace(CELL, warmup=True)


def cold_of(firsts, *, warm, **changes):
    made = [
        timeline(f"r{i}", at=1000.0 * i, first=first, cell=WARM if i < warm else CELL, **changes)
        for i, first in enumerate(firsts)
    ]
    return cold([read(t) for t in made])


def test_first_against_steady():
    found = cold_of([900, 300, 70, 55, 50, 50, 51, 50], warm=4)
    assert found.first_ttft_ms == 900
    assert found.steady_ttft_ms == 50
    assert found.requests_to_settle == 3
    assert (found.input_tokens, found.output_tokens) == (64, 5)


def test_settled_from_the_start():
    assert cold_of([50] * 6, warm=2).requests_to_settle == 0


def test_one_lucky_request_is_not_settled():
    assert cold_of([900, 50, 400, 50, 50, 50], warm=3).requests_to_settle == 3


def test_without_warm_up_the_first_is_compared_with_the_rest():
    found = cold_of([200, 50, 50, 50], warm=0)
    assert (found.first_ttft_ms, found.steady_ttft_ms, found.requests_to_settle) == (200, 50, 1)


def test_nothing_to_tell_it_from():
    assert cold_of([], warm=0).first_ttft_ms is None
    one = cold_of([80], warm=0)
    assert (one.first_ttft_ms, one.steady_ttft_ms, one.requests_to_settle) == (80, None, None)


def test_failed_requests_say_nothing():
    assert cold_of([80, 50], warm=0, outcome=Outcome.RESET).first_ttft_ms is None


def test_only_requests_of_the_same_length_count():
    other = msgspec.structs.replace(CELL, input_tokens=512)
    far = [msgspec.structs.replace(t, id=f"x{t.id}", cell=other) for t in sequence(6, first=500.0)]
    near = [timeline(f"n{i}", at=-1000.0 + i, first=60.0) for i in range(4)]
    assert cold([read(t) for t in [*far, *near]]).steady_ttft_ms == 60


def test_a_first_request_is_compared_with_those_that_met_as_little_load():
    """Of four sent at once the later ones wait for the first: that wait is a queue, not the steady state."""
    cell = msgspec.structs.replace(CELL, concurrency=4)
    made = [
        timeline(
            f"r{i}-{slot}",
            at=1000.0 * i + slot / 100,
            first=50.0 * (slot + 1) + (40.0 if i == 0 else 0.0),
            cell=msgspec.structs.replace(cell, warmup=i == 0),
            in_flight=slot + 1,
        )
        for i in range(4)
        for slot in range(4)
    ]
    found = cold([read(t) for t in made])
    assert (found.first_ttft_ms, found.steady_ttft_ms, found.requests_to_settle) == (90, 50, 1)

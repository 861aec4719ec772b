"""Columns against the definition: whatever a request was, `phases.read` of it says the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from phasemeter.explain import columns as columns_module
from phasemeter.explain.columns import ABSENT, FIELDS, OUTCOMES, by_size
from phasemeter.explain.phases import PHASE_NAMES, Basis, read
from phasemeter.explain.readings import Readings, readings_of, sent_inferred
from phasemeter.record.timeline import broken_invariants
from unit.explain.builders import CELL, timeline, timelines


def _odd(t, how):
    """A request as no honest client records it, but others may."""
    return {
        "as it is": lambda: t,
        "not stamped when sent": lambda: replace(t, sent_ns=None),
        "only started": lambda: replace(t, sent_ns=None, connected_ns=None),
        "over before it began": lambda: replace(t, end_ns=t.started_ns - 1),
        "before its time": lambda: replace(t, arrived_ns=t.started_ns + 5),
        "answered after its end": lambda: replace(t, first_byte_ns=t.end_ns + 1),
        "backwards": lambda: replace(t, deltas_ns=tuple(-d for d in t.deltas_ns)),
        "early": lambda: replace(t, sent_ns=t.end_ns),
    }[how]()


_HOW = ["as it is"] * 5 + [
    *("not stamped when sent", "only started", "over before it began", "before its time"),
    *("answered after its end", "backwards", "early"),
]
runs = st.lists(st.builds(_odd, timelines(), st.sampled_from(_HOW)), max_size=8).map(
    lambda found: [replace(t, id=f"r{i}") for i, t in enumerate(found)]
)


def _plain(values) -> list[int | None]:
    return [None if n == ABSENT else n for n in values.tolist()]


@settings(max_examples=150, deadline=None)
@given(runs, st.randoms())
def test_columns_say_what_reading_one_by_one_says(found, rng) -> None:
    one_by_one = [read(t) for t in found]
    order = rng.sample(range(len(found)), len(found))
    for readings, expected in (
        (readings_of(found), one_by_one),
        (readings_of(found).take(np.array(order, dtype=np.int64)), [one_by_one[i] for i in order]),
        (readings_of(found)[::2], one_by_one[::2]),
    ):
        _alike(readings, expected)


def _alike(readings: Readings, expected) -> None:
    assert list(readings) == expected
    assert readings.ids() == [r.timeline.id for r in expected]
    for name in PHASE_NAMES:
        spans = [getattr(r.phases, name) for r in expected]
        assert _plain(readings.ns(name)) == [None if s is None else s.ns for s in spans], name
        if name in ("connect", "first"):
            inferred = [s is not None and s.basis is Basis.INFERRED for s in spans]
            known = readings.ns(name) != ABSENT
            assert (sent_inferred(readings) & known).tolist() == inferred
    for name in ("e2e", "ttft", "ttft_from_arrival", "ttfa"):
        assert _plain(readings.ns(name)) == [getattr(r, f"{name}_ns") for r in expected], name
    tpot, known = readings.tpot_ns()
    assert [v if k else None for v, k in zip(tpot.tolist(), known.tolist(), strict=True)] == [
        r.tpot_ns for r in expected
    ]
    assert readings.tokens().tolist() == [r.tokens for r in expected]
    assert readings.told("counted").tolist() == [r.counted for r in expected]
    assert [OUTCOMES[i] for i in readings.told("outcome").tolist()] == [r.timeline.outcome for r in expected]
    assert [bool(n) for n in readings.told("disordered").tolist()] == [
        bool(broken_invariants(r.timeline)) for r in expected
    ]
    assert readings.gap_sizes().tolist() == [len(r.gaps_ns) for r in expected]
    assert readings.gaps().tolist() == [gap for r in expected for gap in r.gaps_ns]
    tokens = [n for r in expected for n in (r.gap_tokens or (1,) * len(r.gaps_ns))]
    assert (readings.gap_tokens() is None and set(tokens) <= {1}) or readings.gap_tokens().tolist() == tokens


@settings(max_examples=40, deadline=None)
@given(runs)
def test_a_chunk_may_end_anywhere(found) -> None:
    whole = readings_of(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns_module, "_CHUNK_REQUESTS", 2)
        patch.setattr(columns_module, "_CHUNK_PIECES", 3)
        parts = readings_of(found)
    assert parts == whole
    for name in FIELDS:
        assert parts.told(name).tolist() == whole.told(name).tolist(), name
    assert parts.gaps().tolist() == whole.gaps().tolist()


@settings(max_examples=40, deadline=None)
@given(runs)
def test_by_size_gives_every_request_its_gaps(found) -> None:
    readings = readings_of(found)
    seen = {}
    for members, matrix in by_size(readings.gaps(), readings.gap_sizes(), most=4):
        for i, row in zip(members.tolist(), matrix.tolist(), strict=True):
            seen[i] = tuple(row)
    assert seen == {i: read(t).gaps_ns for i, t in enumerate(found)}


def test_they_are_a_sequence() -> None:
    readings = readings_of([timeline(f"r{i}", at=i) for i in range(4)])
    assert readings[2].timeline.id == "r2"
    assert readings[-1] == list(readings)[-1]
    assert (readings[:1] + readings[3:]).ids() == ["r0", "r3"]
    assert readings_of(readings) is readings
    assert readings_of(list(readings)) == readings
    assert not readings_of([])
    assert readings.cells() == [(readings[0].timeline.cell, 4)]


def test_the_largest_numbers_of_a_record_do_not_overflow() -> None:
    most = 2**60
    far = timeline(arrived_ns=-most, started_ns=most, sent_ns=-most, connected_ns=None, end_ns=-most)
    far = replace(far, deltas_ns=(most - 40, 10, 10, 10, 10), report=None)
    _alike(readings_of([far, far]), [read(far)] * 2)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=12))
def test_groups_come_in_order_of_their_first_request(blocks) -> None:
    readings = readings_of([timeline(f"r{i}", cell=replace(CELL, block=b)) for i, b in enumerate(blocks)])
    expected = {}
    for i, block in enumerate(blocks):
        expected.setdefault(block, []).append(f"r{i}")
    found = readings.grouped(lambda cell: cell.block)
    assert [(block, part.ids()) for block, part in found.items()] == list(expected.items())
    assert [(cell.block, n) for cell, n in readings.cells()] == [(b, len(i)) for b, i in expected.items()]

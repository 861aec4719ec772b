"""Timelines and runs made by hand, in milliseconds, for the tests of `explain`."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from phasemeter.record.clock import Anchor
from phasemeter.record.engine import EngineInfo, EngineReport, Outcome
from phasemeter.record.request import Cell, Usage
from phasemeter.record.run import Footer, Header, Machine, Run
from phasemeter.record.timeline import Timeline

MS = 1_000_000
CELL = Cell(input_tokens=64, output_tokens=5)


def timeline(
    name="r0",
    *,
    at=0.0,
    late=1.0,
    connect=2.0,
    first=50.0,
    gaps=(10.0, 10.0, 10.0, 10.0),
    tail=3.0,
    **changes,
):
    """A successful request that arrives at `at` ms; every keyword of Timeline may be replaced."""
    arrived = round(at * MS)
    started = arrived + round(late * MS)
    sent = started + round(connect * MS)
    deltas = [round((connect + first) * MS), *(round(g * MS) for g in gaps)]
    n = len(deltas)
    fields = {
        "id": name,
        "cell": CELL,
        "max_tokens": n,
        "outcome": Outcome.OK,
        "arrived_ns": arrived,
        "started_ns": started,
        "connected_ns": started,
        "sent_ns": sent,
        "end_ns": started + sum(deltas) + round(tail * MS),
        "deltas_ns": tuple(deltas),
        "kinds": "t" * n,
        "counts": (1,) * n,
        "usage": Usage(prompt_tokens=64, completion_tokens=n),
    }
    return Timeline(**(fields | changes))


def report(queue=5.0, prefill=40.0, decode=40.0, **changes):
    """What an engine says, in ms."""

    def ns(ms):
        return None if ms is None else round(ms * MS)

    return EngineReport("test", queue_ns=ns(queue), prefill_ns=ns(prefill), decode_ns=ns(decode), **changes)


def header(**changes):
    """A header of a known machine without a load of its own."""
    made = Header(
        schema=1,
        run_id="run-a",
        phasemeter="0",
        anchor=Anchor(0, 1_700_000_000_000_000_000),
        engine=EngineInfo("openai", "some-model", dtype="bfloat16"),
        machine=Machine("host", "linux", "cpu", 4, load_1min=0.1),
        settings={"repeats": 5},
    )
    return msgspec.structs.replace(made, **changes)


def run(*timelines, **changes):
    """A run that ended by itself."""
    fields = {
        "header": header(),
        "requests": timelines,
        "footer": Footer(10**12),
        "name": "a.jsonl",
    } | changes
    return Run(**fields)


def sequence(n=10, *, cell=CELL, every=200.0, **changes):
    """`n` requests one after another, one a block."""
    return [
        timeline(f"r{i}", at=i * every, cell=msgspec.structs.replace(cell, block=i), **changes)
        for i in range(n)
    ]


_GAP = st.integers(0, 10**10)


@st.composite
def timelines(draw):
    """Any valid request: whole, of one token, without an answer, never sent, with all kinds of pieces."""
    arrived = draw(st.integers(-(10**12), 10**12))
    started = arrived + draw(_GAP)
    sent = started + draw(_GAP) if draw(st.booleans()) else None
    connected = draw(st.integers(started, sent)) if sent is not None else None
    kinds, deltas, last = "", [], started
    if sent is not None:
        kinds = draw(st.text(alphabet="tgcerfudkx", max_size=8))
        for i in range(len(kinds)):
            gap = draw(_GAP)
            at = (sent if i == 0 else last) + gap
            deltas.append(at - last)
            last = at
    counts = tuple(draw(st.integers(0, 4)) for _ in kinds) if draw(st.booleans()) else None
    nanoseconds = st.none() | _GAP
    made = draw(st.none() | st.builds(EngineReport, st.just("x"), nanoseconds, nanoseconds, nanoseconds))
    return Timeline(
        id="r",
        cell=CELL,
        max_tokens=5,
        outcome=draw(st.sampled_from(list(Outcome))),
        arrived_ns=arrived,
        started_ns=started,
        connected_ns=connected,
        sent_ns=sent,
        end_ns=max(last, sent or started) + draw(_GAP),
        deltas_ns=tuple(deltas),
        kinds=kinds,
        counts=counts,
        usage=draw(st.none() | st.builds(Usage, st.none(), st.none() | st.integers(0, 20))),
        report=made,
    )

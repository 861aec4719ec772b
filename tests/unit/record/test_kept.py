"""Requests that a run holds as lines: the same timelines, every time they are asked for."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from phasemeter.record.engine import EngineReport, SeenRequest
from phasemeter.record.file import read_run
from phasemeter.record.kept import KeptRequests
from phasemeter.record.run import merge
from unit.record.test_file import header, timeline, write

LINES = [timeline(i) for i in range(5)]
KEPT = KeptRequests([msgspec.json.encode(line) for line in LINES])


def test_they_are_a_sequence_of_timelines() -> None:
    assert list(KEPT) == LINES
    assert list(KEPT) == LINES  # and again
    assert KEPT == LINES
    assert tuple(LINES) == KEPT
    assert LINES[:-1] != KEPT
    assert [*LINES[:-1], LINES[0]] != KEPT
    assert len(KEPT) == 5
    assert KEPT[-1] == LINES[-1]
    assert KEPT[1:3] == LINES[1:3]
    assert LINES[2] in KEPT


def test_what_the_engine_saw_is_there_however_they_are_asked_for(tmp_path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, [*LINES, SeenRequest(LINES[2].id, EngineReport("vllm plugin", prefill_ns=7))])
    run = read_run(path)
    told = [t.id for t in run.requests if t.report is not None and t.report.prefill_ns == 7]
    assert told == [LINES[2].id]
    assert run.requests[2].report == run.requests[1:][1].report != run.requests[1].report


def test_runs_that_were_read_merge(tmp_path) -> None:
    runs = []
    for name in ("a", "b"):
        path = tmp_path / name
        path.write_bytes(b"".join(msgspec.json.encode(x) + b"\n" for x in (header(run_id=name), *LINES)))
        runs.append(read_run(path))
    merged = merge(runs)
    assert [t.id for t in merged.requests] == [f"{n}/{t.id}" for n in ("a", "b") for t in LINES]
    assert replace(merged.requests[0], id=LINES[0].id) == LINES[0]

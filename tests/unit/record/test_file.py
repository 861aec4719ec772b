"""Run files: round trip, kills at every byte, newer schemas, foreign files, full disks."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.record.clock import Anchor
from phasemeter.record.engine import EngineInfo, EngineReport, Outcome
from phasemeter.record.errors import InputError
from phasemeter.record.file import RunWriter, read_run
from phasemeter.record.request import Cell, Usage
from phasemeter.record.run import SCHEMA, Footer, Header, Machine, Sample
from phasemeter.record.timeline import Timeline


def header(**changes: object) -> Header:
    fields: dict[str, object] = {
        "schema": SCHEMA,
        "run_id": "r1",
        "phasemeter": "0.1.0",
        "anchor": Anchor(5, 1_700_000_000_000_000_000),
        "engine": EngineInfo("openai", "m", details={"a": "b"}),
        "machine": Machine(host="h", os="Linux", cpu="C", cores=2),
        "settings": {"input_tokens": [64]},
    }
    return Header(**(fields | changes))


def timeline(i: int = 0, **changes: object) -> Timeline:
    fields: dict[str, object] = {
        "id": f"r1-{i}",
        "cell": Cell(64, 4, block=i),
        "max_tokens": 4,
        "outcome": Outcome.OK,
        "arrived_ns": 10 + i,
        "started_ns": 11 + i,
        "connected_ns": 12 + i,
        "sent_ns": 13 + i,
        "first_byte_ns": 20 + i,
        "deltas_ns": (10, 5, 5),
        "kinds": "rtt",
        "counts": (0, 1, 3),
        "end_ns": 99 + i,
        "usage": Usage(64, 4),
        "report": EngineReport("vllm", 1, 2, 3),
    }
    return Timeline(**(fields | changes))


def write(path, lines):
    with RunWriter(path, header()) as writer:
        for line in lines:
            writer.write(line)


LINES = [timeline(0), Sample(7, {"loop_lag_ns": 3.0}), timeline(1, outcome=Outcome.RESET), Footer(200)]


def test_round_trip(tmp_path):
    write(tmp_path / "run.jsonl", LINES)
    run = read_run(tmp_path / "run.jsonl")
    assert run.header == header()
    assert run.requests == (LINES[0], LINES[2])
    assert run.samples == (LINES[1],)
    assert run.footer == LINES[3]
    assert not run.cut
    assert run.damaged == ()


def test_every_line_is_json_with_a_type(tmp_path):
    write(tmp_path / "run.jsonl", LINES)
    types = [json.loads(line)["type"] for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert types == ["header", "request", "sample", "request", "footer"]


def test_readable_after_a_kill_at_every_byte(tmp_path):
    """A file cut at any byte gives the requests whose lines are whole, and says that it was cut."""
    whole = tmp_path / "run.jsonl"
    write(whole, LINES)
    data = whole.read_bytes()
    ends = [i + 1 for i, byte in enumerate(data) if byte == 0x0A]
    cut = tmp_path / "cut.jsonl"
    for size in range(len(data)):
        cut.write_bytes(data[:size])
        if size < ends[0] - 1:
            with pytest.raises(InputError, match="header|not a Phasemeter run"):
                read_run(cut)
            continue
        run = read_run(cut)
        # A line that misses nothing but its newline is whole too.
        lines = sum(size >= end - 1 for end in ends) - 1
        assert len(run.requests) + len(run.samples) + (run.footer is not None) == lines
        assert run.cut == (size not in ends and size + 1 not in ends)
        assert run.damaged == ()


def test_gzip_reads_directly_even_when_cut(tmp_path):
    write(tmp_path / "run.jsonl", LINES * 50)
    packed = gzip.compress((tmp_path / "run.jsonl").read_bytes())
    (tmp_path / "run.jsonl.gz").write_bytes(packed)
    assert len(read_run(tmp_path / "run.jsonl.gz").requests) == 100
    (tmp_path / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    run = read_run(tmp_path / "cut.jsonl.gz")
    assert run.cut
    assert len(run.requests) < 100


def test_a_damaged_line_is_left_out_and_named(tmp_path):
    path = tmp_path / "run.jsonl"
    write(path, LINES)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b'{"type":"sample","t_ns":"soon"}\n'
    lines[3] = lines[3].replace(b'"kinds":"rtt"', b'"kinds":"rt"')
    path.write_bytes(b"".join(lines))
    run = read_run(path)
    assert run.damaged == (3, 4)
    assert run.requests == (LINES[0],)


def test_a_newer_schema_is_refused_with_the_mend(tmp_path):
    path = tmp_path / "run.jsonl"
    write(path, [])
    path.write_bytes(path.read_bytes().replace(b'"schema":%d' % SCHEMA, b'"schema":99,"new":[1]'))
    with pytest.raises(InputError, match="schema 99.*upgrade"):
        read_run(path)


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"hello\n", b"[1,2]\n", b'{"type":"request"}\n', b"\xff\xfe\x00", b"{}"]
)
def test_what_is_no_run_file_is_refused(tmp_path, text):
    (tmp_path / "x").write_bytes(text)
    with pytest.raises(InputError, match="not a Phasemeter run file"):
        read_run(tmp_path / "x")


def test_missing_file_folder_and_overwriting_are_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_run(tmp_path / "gone")
    with pytest.raises(InputError, match="is a folder without a run.jsonl"):
        read_run(tmp_path)
    write(tmp_path / "run.jsonl", [])
    before = (tmp_path / "run.jsonl").read_bytes()
    with pytest.raises(InputError, match="never overwritten"):
        write(tmp_path / "run.jsonl", LINES)
    assert (tmp_path / "run.jsonl").read_bytes() == before


def test_a_full_disk_keeps_what_was_written(tmp_path, monkeypatch):
    """The write that does not fit is taken back whole; the lines before stay readable."""
    import os

    path = tmp_path / "run.jsonl"
    writer = RunWriter(path, header())
    writer.write(timeline(0))
    real = os.write
    calls = iter([3])

    def full(fd: int, data: bytes) -> int:
        some = next(calls, None)
        if some is None:
            raise OSError(28, "No space left on device")
        return real(fd, data[:some])

    monkeypatch.setattr("phasemeter.record.file.os.write", full)
    with pytest.raises(InputError, match="no space left"):
        writer.write(timeline(1))
    monkeypatch.undo()
    writer.close()
    run = read_run(path)
    assert [t.id for t in run.requests] == ["r1-0"]
    assert not run.cut


def test_a_real_full_device_is_one_clear_error():
    from pathlib import Path

    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    import os

    fd = os.open("/dev/full", os.O_WRONLY)
    writer = RunWriter.__new__(RunWriter)
    writer.path, writer._fd, writer._end = Path("/dev/full"), fd, 0
    try:
        with pytest.raises(InputError, match="no space left"):
            writer.write(header())
    finally:
        os.close(fd)


ns = st.integers(0, 2**57)
timelines = st.builds(
    Timeline,
    id=st.text(max_size=20),
    cell=st.builds(
        Cell, st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 500), st.integers(0, 50)
    ),
    max_tokens=st.integers(1, 10**6),
    outcome=st.sampled_from(Outcome),
    arrived_ns=ns,
    started_ns=ns,
    end_ns=ns,
    connected_ns=st.none() | ns,
    sent_ns=st.none() | ns,
    deltas_ns=st.lists(ns, max_size=5).map(tuple),
    error=st.none() | st.text(max_size=50),
    text=st.none() | st.text(max_size=50),
    usage=st.none() | st.builds(Usage, st.none() | st.integers(0, 10**9), st.none() | st.integers(0, 10**9)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(timelines, max_size=4))
def test_any_timeline_survives_the_disk(tmp_path_factory, lines):
    import msgspec

    lines = [msgspec.structs.replace(line, kinds="t" * len(line.deltas_ns)) for line in lines]
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    write(path, lines)
    assert read_run(path).requests == tuple(lines)

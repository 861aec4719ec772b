"""Run files that were damaged or made up: one clear refusal, or the bad line left out and named."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from phasemeter.record.errors import InputError
from phasemeter.record.file import read_run
from phasemeter.record.request import Usage
from unit.record.test_file import header, timeline

DEEP = b"[" * 100_000 + b"]" * 100_000


def _lines(*lines: object) -> bytes:
    return b"".join(line if isinstance(line, bytes) else msgspec.json.encode(line) + b"\n" for line in lines)


def _written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "run.jsonl"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "bad",
    [
        timeline(1, end_ns=10**30),
        timeline(1, deltas_ns=(10**30, 1, 1)),
        timeline(1, counts=(0, 10**30, 1)),
        timeline(1, counts=(0, -1, 1)),
        timeline(1, kinds="rtZ"),
        timeline(1, usage=Usage(10**30, 4)),
        b'{"type":"request","zz":' + DEEP + b"}\n",
        b'{"type":"sample","t_ns":5,"values":{"loop_lag_ns":1e999}}\n',
    ],
)
def test_a_line_that_cannot_be_computed_with_is_left_out_and_named(tmp_path: Path, bad: object) -> None:
    run = read_run(_written(tmp_path, _lines(header(), timeline(0), bad, timeline(2))))
    assert [t.id for t in run.requests] == ["r1-0", "r1-2"]
    assert run.damaged == (3,)


@pytest.mark.parametrize(
    "first",
    [
        DEEP + b"\n",
        msgspec.json.encode(header()).replace(b'"settings":{', b'"settings":{"z":' + DEEP + b",") + b"\n",
        msgspec.json.encode(header()).replace(b'"host":"', b'"host":"\xff') + b"\n",
        msgspec.json.encode(header()).replace(b'"wall_ns":', b'"wall_ns":9999999999999') + b"\n",
    ],
)
def test_a_header_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, first: bytes) -> None:
    with pytest.raises(InputError, match="run file"):
        read_run(_written(tmp_path, first + _lines(timeline(0))))


def test_runs_written_behind_one_another_are_not_pooled(tmp_path: Path) -> None:
    data = _lines(header(), timeline(0), header(run_id="r2"), timeline(1))
    with pytest.raises(InputError, match="another run from line 3"):
        read_run(_written(tmp_path, data))


def test_what_never_ends_is_not_begun() -> None:
    with pytest.raises(InputError, match="no regular file"):
        read_run(Path("/dev/zero"))

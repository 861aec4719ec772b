from __future__ import annotations

import pytest

from phasemeter.cli.run_files import read_given
from phasemeter.record.errors import InputError
from phasemeter.record.file import RunWriter
from unit.explain.builders import header, sequence


@pytest.fixture
def parts(tmp_path):
    """What a kill left: two parts, the requests dealt out in turn, the last line cut."""
    requests = sequence(6)
    folder = tmp_path / "run.jsonl.parts"
    folder.mkdir()
    for number in range(2):
        with RunWriter(folder / f"part-{number:03d}.jsonl", header()) as writer:
            for request in requests[number::2]:
                writer.write(request)
    with (folder / "part-001.jsonl").open("a") as file:
        file.write('{"type":"request","id":"cu')
    return requests


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.parts"])
def test_parts_that_a_kill_left_are_read_as_one_run(parts, tmp_path, name):
    run = read_given(tmp_path / name)
    assert [t.id for t in run.requests] == [t.id for t in parts]
    assert run.footer is None
    assert run.name == "run.jsonl"


def test_a_run_that_is_there_counts(parts, tmp_path):
    with RunWriter(tmp_path / "run.jsonl", header()) as writer:
        writer.write(parts[0])
    assert len(read_given(tmp_path / "run.jsonl").requests) == 1
    with pytest.raises(InputError, match="no such file"):
        read_given(tmp_path / "other.jsonl")

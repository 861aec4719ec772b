from __future__ import annotations

import gzip
import os

import pytest

from phasemeter.measure.lengths import parse_lengths
from phasemeter.measure.text_file import open_text, read_text
from phasemeter.measure.traces import read_trace
from phasemeter.measure.workload import open_workload, parse_workload
from phasemeter.record.errors import InputError

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,16,4\n2023-11-16 18:15:47.75,20,3\n"


@pytest.fixture
def pipe(tmp_path):
    place = tmp_path / "pipe.toml"
    os.mkfifo(place)
    return place


def test_a_gzipped_trace_is_the_plain_one(tmp_path):
    plain, zipped = tmp_path / "t.csv", tmp_path / "t.csv.gz"
    plain.write_text(AZURE)
    zipped.write_bytes(gzip.compress(AZURE.encode("utf-8-sig")))
    assert read_trace(str(zipped)) == read_trace(str(plain))


def test_a_cut_gzip_file_is_one_line(tmp_path):
    cut = tmp_path / "t.csv.gz"
    cut.write_bytes(gzip.compress(AZURE.encode())[:-12])
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(str(cut))


def test_what_may_never_end_is_refused_at_once(pipe):
    for read in (
        lambda: read_trace(str(pipe)),
        lambda: parse_lengths(f"csv:{pipe}", "--x"),
        lambda: parse_workload(str(pipe)),
        lambda: open_workload({"kind": "sharegpt", "file": str(pipe)}, 0),
    ):
        with pytest.raises(InputError, match="no regular file"):
            read()
    with pytest.raises(OSError, match="no regular file"):
        open_text(pipe)


def test_text_is_read_without_its_mark(tmp_path):
    place = tmp_path / "x"
    place.write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert read_text(place) == "a\r\nb"


def test_a_trace_without_a_row_to_send_does_not_blame_a_window(tmp_path):
    place = tmp_path / "t.csv"
    place.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,0,4\n")
    with pytest.raises(InputError, match="both its prompt and its answer"):
        read_trace(str(place))

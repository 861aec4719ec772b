"""`scrape` lines: kept whole, refused where they cannot be subtracted, absent from runs of schema 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from phasemeter.record.file import RunWriter, read_run
from phasemeter.record.run import SCHEMA, differences, merge
from phasemeter.record.scrape import Histogram, MetricsPlace, Moment, Scrape
from unit.explain.builders import header, run, timeline

ROOT = Path(__file__).parents[3]
SCRAPE = Scrape(
    t_ns=5,
    moment=Moment.BEFORE,
    histograms={"prefill": Histogram(1.5, 6, ((0.3, 3), (0.5, 5)))},
    finished={"length": 6.0},
    counters={"vllm:generation_tokens": 72.0},
)


def written(path, *lines):
    with RunWriter(path, header(schema=SCHEMA)) as writer:
        for line in lines:
            writer.write(line)
    return path


def test_round_trip(tmp_path):
    path = written(tmp_path / "run.jsonl", SCRAPE, timeline())
    found = read_run(path)
    assert found.scrapes == (SCRAPE,)
    assert found.damaged == ()


def test_a_run_of_schema_1_is_read_without_them():
    """Recorded on an H200 before there were any."""
    found = read_run(ROOT / "benchmarks" / "h200" / "h200-local-eager.jsonl.gz")
    assert found.header.schema == 1
    assert found.scrapes == ()
    assert found.requests


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"[0.3,3]", b"[0.3,9]"),
        (b'"count":6', b'"count":4'),
        (b"[0.3,3]", b"[0.3,-1]"),
        (b'"total":1.5', b'"total":1e999'),
        (b'"length":6.0', b'"length":null'),
        (b'"moment":"before"', b'"moment":"soon"'),
        (b'"count":6', b'"count":99999999999999999999'),
    ],
)
def test_numbers_that_cannot_be_subtracted_are_damage(tmp_path, old, new):
    path = written(tmp_path / "run.jsonl", SCRAPE, timeline())
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))
    found = read_run(path)
    assert found.damaged == (2,)
    assert found.scrapes == ()
    assert len(found.requests) == 1


def test_merged_runs_keep_none_and_may_differ_in_how_often_they_sampled():
    one = run(timeline(), header=header(run_id="a", settings={"scrape_s": 1.0}), scrapes=(SCRAPE,))
    other = run(timeline(), header=header(run_id="b", settings={}), scrapes=(SCRAPE,))
    assert differences(one.header, other.header) == []
    assert merge([one, other]).scrapes == ()
    assert merge([one]).scrapes == (SCRAPE,)


def test_a_place_shows_no_header():
    assert "secret" not in repr(MetricsPlace("http://h/metrics", {"Authorization": "Bearer secret"}))

"""Stamps, counts and names that no honest run has: explained and drawn all the same, in bounded time and memory."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path
from xml.dom.minidom import parseString

import pytest
from msgspec.structs import replace
from rich.console import Console

from phasemeter.cli.report import write_report
from phasemeter.explain.summary import summarise
from phasemeter.record.engine import EngineReport
from phasemeter.record.file import RunWriter
from phasemeter.record.run import Run
from phasemeter.record.timeline import Timeline
from phasemeter.report.plots import charts_of
from phasemeter.report.terminal import render_terminal
from phasemeter.report.view import view_of
from unit.report.made_runs import header, run

YEARS_NS = 10**18
EVIL = "\x1b[31mevil\x1b]0;title\x07\x9b2J\u202e"


def _with(made: Run, **changes: object) -> Run:
    return replace(made, requests=tuple(replace(t, **changes) for t in made.requests))


def _printed(made: Run, *, colour: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=colour)
    render_terminal(view_of([(made, summarise(made))], "en"), console)
    return out.getvalue()


def _backwards(timeline: Timeline) -> Timeline:
    return replace(timeline, arrived_ns=-10, started_ns=-9, end_ns=-1, sent_ns=timeline.end_ns + YEARS_NS)


HOSTILE = {
    "years long": _with(run(repeats=3), end_ns=YEARS_NS),
    "piece of a trillion": _with(run(repeats=3), counts=(10**12,) * 16),
    "backwards": replace(run(repeats=3), requests=tuple(map(_backwards, run(repeats=3).requests))),
    "negative report": _with(
        run(repeats=3), report=EngineReport("x", queue_ns=-5, prefill_ns=-10, decode_ns=-1)
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_numbers_take_no_more_memory_than_others(name: str) -> None:
    made = HOSTILE[name]
    tracemalloc.start()
    try:
        assert "Checks" in _printed(made)
        charts_of(view_of([(made, summarise(made))], "en").runs[0], 0, "en")
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()


def test_the_best_second_is_the_same_however_sparse_the_window() -> None:
    made = run(repeats=3)
    best = summarise(made).throughput.peak_output_tokens_per_s
    last = made.requests[-1]
    late = replace(made, requests=(*made.requests[:-1], replace(last, end_ns=last.end_ns + YEARS_NS // 1000)))
    sparse = summarise(late).throughput.peak_output_tokens_per_s
    assert best is not None
    assert sparse is not None
    assert 0 < sparse <= 2 * best


@pytest.mark.parametrize("colour", [False, True])
def test_a_name_cannot_command_the_terminal(colour: bool) -> None:
    made = run(repeats=3, failed=2, head=header(model=EVIL, cpu=EVIL))
    made = replace(made, requests=tuple(replace(t, error=EVIL if t.error else None) for t in made.requests))
    text = _printed(made, colour=colour)
    assert "evil" in text
    assert not set("\x07\x9b\u202e") & set(text)
    assert ("\x1b[31mevil" in text, "\x1b]0" in text) == (False, False)


def test_a_picture_is_xml_whatever_a_model_is_called(tmp_path: Path) -> None:
    made = run(repeats=3, head=header(model=EVIL))
    with RunWriter(tmp_path / "run.jsonl", made.header) as writer:
        for timeline in made.requests:
            writer.write(timeline)
    write_report([tmp_path / "run.jsonl"], tmp_path / "x.svg", lang="en")
    parseString((tmp_path / "x.svg").read_text("utf-8"))

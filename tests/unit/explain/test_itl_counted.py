"""Of what the gaps are made is said, also where the server tells the total but not each piece's count."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from phasemeter.explain.summary import summarise, summary_json
from phasemeter.record.request import Usage
from phasemeter.report.terminal import render_terminal
from phasemeter.report.view import view_of
from unit.explain.builders import run, timeline

CHUNKED = {"counts": None, "usage": Usage(prompt_tokens=64, completion_tokens=20)}


def shown(made, lang="en"):
    console = Console(file=io.StringIO(), width=100)
    render_terminal(view_of([(made, summarise(made))], lang), console)
    return console.file.getvalue()


def test_per_token_where_each_piece_is_counted():
    made = run(timeline("a", counts=(1, 2, 2, 2, 2), usage=Usage(completion_tokens=9)))
    told = summary_json(summarise(made))
    assert told["itl_counted"] == "token"
    assert told["itl_ms"]["n"] == 8
    assert told["itl_ms"]["p50"] == pytest.approx(5.0)
    assert "gaps (ITL)" not in shown(made)


def test_per_chunk_is_said_although_the_total_is_told():
    made = run(timeline("a", **CHUNKED))
    told = summary_json(summarise(made))
    assert (told["tokens_counted"], told["itl_counted"]) == ("usage", "chunk")
    assert told["itl_ms"]["n"] == 4
    assert told["itl_ms"]["p50"] == pytest.approx(10.0)
    assert told["tpot_ms"]["p50"] == pytest.approx(40.0 / 19)
    assert "per chunk: the server does not tell" in " ".join(shown(made).split())
    assert "间隔（ITL）" in shown(made, "zh")


def test_a_mixture_is_called_one():
    made = run(timeline("a"), timeline("b", at=200.0, **CHUNKED))
    assert summary_json(summarise(made))["itl_counted"] == "mixed"
    assert "where the server told the count" in " ".join(shown(made).split())


def test_no_gap_is_made_of_nothing():
    assert summary_json(summarise(run(timeline("a", gaps=()))))["itl_counted"] is None

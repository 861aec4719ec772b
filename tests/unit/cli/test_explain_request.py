"""`phasemeter explain --request`: one request of a record, as text and as JSON."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from rich.cells import cell_len

from phasemeter.cli import cli
from phasemeter.record.errors import InputError
from phasemeter.record.file import RunWriter
from unit.explain.test_one_request import two_answers


def written(made, path):
    with RunWriter(path, made.header) as writer:
        for line in (*made.requests, *made.seen, *made.steps):
            writer.write(line)
    return str(path)


@pytest.fixture
def record(tmp_path):
    return written(two_answers(), tmp_path / "run.jsonl")


def explain(*args):
    said = CliRunner().invoke(cli, ["explain", *args])
    if said.exception is not None:
        raise said.exception
    return said.stdout


@pytest.mark.parametrize("asked", ["a", "slowest-itl"])
def test_as_json_it_is_the_one_request(record, asked):
    told = json.loads(explain(record, "--request", asked, "--json"))
    assert list(told) == ["request"]
    assert told["request"]["id"] == "a"
    assert told["request"]["shared"]["steps"]["interference_ms"] == pytest.approx(30)


@pytest.mark.parametrize(
    ("lang", "words"),
    [
        ("en", ["Request a", "Its budget", "observed", "256 tokens of other requests", "2.00–10.0"]),
        ("zh", ["请求 a", "时间预算", "观测", "prefill 了 256 个 token"]),
    ],
)
def test_as_text_it_fits_and_says_who_was_there(record, lang, words):
    said = explain(record, "--request", "a", "--lang", lang)
    flat = "".join(said.split())  # prose is wrapped, Chinese between any two characters
    assert all("".join(word.split()) in flat for word in words), said
    assert re.search(r"\bothers\b.*\n.*\bprefill\b", said) or lang == "zh"  # no head is broken within a word
    assert max(cell_len(line) for line in said.splitlines()) <= 100


def test_without_steps_it_says_how_to_get_them_and_shows_the_rest(tmp_path):
    path = written(replace(two_answers(), steps=()), tmp_path / "run.jsonl")
    said = explain(path, "--request", "slowest-ttft")
    assert "--engine-steps" in said
    assert "Its budget" in said
    told = json.loads(explain(path, "--request", "slowest-ttft", "--json"))["request"]
    assert told["shared"] is None
    assert "--engine-steps" in told["note"]


def test_runs_put_together_say_that_their_steps_lie_on_several_clocks(tmp_path):
    made = two_answers()
    other = replace(made, header=replace(made.header, run_id="run-b"))
    paths = [written(made, tmp_path / "a.jsonl"), written(other, tmp_path / "b.jsonl")]
    assert "several clocks" in " ".join(explain(*paths, "--request", "run-b/a").split())


@pytest.mark.parametrize("flag", [["--strict"], ["--slo", "ttft=5s"], ["--hardware", "h200"]])
def test_what_speaks_of_a_whole_run_is_refused(record, flag):
    with pytest.raises(InputError, match="whole run"):
        explain(record, "--request", "a", *flag)


def test_an_unknown_id_lists_near_ones(record):
    with pytest.raises(InputError, match="no such request; there are a, b"):
        explain(record, "--request", "q")

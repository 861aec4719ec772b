"""A comparison on a terminal, as Markdown and as JUnit: all of it is shown, nothing in it acts."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET

import msgspec
import pytest
from rich.console import Console

from phasemeter.explain.compare import compare
from phasemeter.explain.compare_gate import judge, read_gates
from phasemeter.explain.compare_rows import Reason
from phasemeter.report.compare_junit import comparison_junit
from phasemeter.report.compare_markdown import comparison_markdown
from phasemeter.report.compare_terminal import render_comparison
from phasemeter.report.compare_view import compare_view
from phasemeter.report.compare_words import WORDS
from unit.explain.paired_runs import made_run

NASTY = "--x | `@all` <script>\x1b[31m\x00\ud800"
GATES = "ttft_p50:5%,tpot_p50:10%,e2e_p50:15%,ttft_p50:<=300ms"


@pytest.fixture(scope="module")
def comparison():
    quiet = {"per_block": 12, "noise": 0.03, "shapes": ((64, 5), (640, 5))}
    new = made_run("b", 2, scale=1.1, **quiet)
    engine = msgspec.structs.replace(new.header.engine, details={"flags": NASTY})
    new = msgspec.structs.replace(new, header=msgspec.structs.replace(new.header, engine=engine))
    return compare([made_run("a", 1, **quiet)], [new])


def view_in(comparison, lang="en", gates=GATES, **options):
    results = judge(read_gates(gates), comparison) if gates else ()
    return compare_view(comparison, results, lang, **options)


def printed(view, width=110):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    render_comparison(view, console)
    return console.file.getvalue()


def test_both_languages_have_the_same_words_and_placeholders():
    english, chinese = WORDS["en"], WORDS["zh"]
    assert set(english) == set(chinese)
    for key in english:
        assert set(re.findall(r"{(\w+)}", english[key])) == set(re.findall(r"{(\w+)}", chinese[key])), key
    assert {reason.value for reason in Reason} <= set(english)


def test_the_terminal_shows_effects_shapes_gates_and_what_differs(comparison):
    text = printed(view_in(comparison))
    flat = " ".join(text.split())
    assert "engine.flags: absent →" in flat
    assert "TTFT p50" in text
    assert "✗ worse" in text
    assert "64 → 5" in text
    assert "640 → 5" in text
    assert "✗ fail ttft_p50:5%" in flat
    assert "? undecided tpot_p50:10%" in flat
    assert "(the interval holds the limit)" in flat
    assert "A gate failed." in flat
    assert "comparisons were made" in flat
    assert "single run" in flat
    assert "\x1b" not in text
    assert "\x00" not in text


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_line_is_wider_than_the_terminal(comparison, lang):
    from rich.cells import cell_len

    text = printed(view_in(comparison, lang), width=100)
    assert max(cell_len(line) for line in text.splitlines()) <= 100


def test_all_metrics_are_shown_when_asked_for(comparison):
    assert "TTFT mean" not in printed(view_in(comparison))
    assert "TTFT mean" in printed(view_in(comparison, everything=True))
    assert "E2E mean" in printed(view_in(comparison, gates="e2e_mean:5%"))


def test_markdown_is_a_table_and_nothing_in_it_acts(comparison):
    text = comparison_markdown(view_in(comparison))
    assert "**A gate failed.**" in text
    assert "| `ttft_p50:5%` |" in text
    assert "\\<script\\>" in text
    assert "\\@all" in text
    assert "<script>" not in text
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == 3
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1
    assert text.encode()
    assert "有门限未通过" in comparison_markdown(view_in(comparison, "zh"))


def test_junit_says_the_same_as_the_gates(comparison):
    import junitparser

    text = comparison_junit(view_in(comparison))
    suites = junitparser.JUnitXml.fromstring(text.encode())
    (suite,) = suites
    assert (suites.tests, suites.failures, suites.errors, suites.skipped) == (4, 2, 1, 0)
    kinds = {case.name: [type(result).__name__ for result in case.result] for case in suite}
    assert kinds == {
        "ttft_p50:5%": ["Failure"],
        "tpot_p50:10%": ["Error"],
        "e2e_p50:15%": [],
        "ttft_p50:<=300ms": ["Failure"],
    }
    assert all(case.classname == "phasemeter.compare" for case in suite)


def test_junit_has_the_form_that_readers_expect(comparison):
    """Element by element against Apache Ant's form (what Jenkins' schema holds of it)."""
    root = ET.fromstring(comparison_junit(view_in(comparison)))
    assert root.tag == "testsuites"
    (suite,) = root
    assert suite.tag == "testsuite"
    order = [child.tag for child in suite]
    assert order == ["properties", *["testcase"] * 4, "system-out"]
    for node in (root, suite):
        assert {"name", "tests", "failures", "errors", "skipped", "time"} <= set(node.attrib)
        counted = {tag: len(node.findall(f".//{tag}")) for tag in ("testcase", "failure", "error", "skipped")}
        told = {"testcase": "tests", "failure": "failures", "error": "errors", "skipped": "skipped"}
        assert all(int(node.attrib[told[tag]]) == n for tag, n in counted.items())
    for case in suite.iter("testcase"):
        assert {"name", "classname", "time"} <= set(case.attrib)
        assert len(list(case)) == 1
        assert case[0].tag in {"failure", "error", "system-out"}
        assert case[0].tag == "system-out" or {"message", "type"} <= set(case[0].attrib)

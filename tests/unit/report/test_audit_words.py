"""Both languages say every line that the audit can make, with the same fields."""

from __future__ import annotations

import re
from pathlib import Path

from phasemeter.explain.audit.claims import NEEDS
from phasemeter.explain.audit.verdict import Verdict, line
from phasemeter.report.audit_sentences import SENTENCES
from phasemeter.report.audit_view import say_line, word
from phasemeter.report.audit_words import ENGLISH
from phasemeter.report.audit_words_zh import CHINESE

SOURCES = Path(__file__).parents[3] / "src" / "phasemeter" / "explain" / "audit"


def fields(text: str) -> set[str]:
    return set(re.findall(r"{(\w+)}", text))


def test_both_languages_have_the_same_keys_and_fields():
    for english, chinese in ((ENGLISH, CHINESE), (SENTENCES["en"], SENTENCES["zh"])):
        assert set(english) == set(chinese)
        unlike = {key for key in english if fields(english[key]) != fields(chinese[key])}
        assert unlike <= {"note_of"}  # the note is quoted in the reader's language
    assert not set(ENGLISH) & set(SENTENCES["en"])
    assert not re.search(r"[\u4e00-\u9fff]", "".join((*ENGLISH.values(), *SENTENCES["en"].values())))


def test_every_line_of_the_code_has_its_words():
    code = "".join(path.read_text() for path in SOURCES.glob("*.py"))
    keys = set(re.findall(r"\bline\(\s*\"(\w+)\"", code))
    keys |= {f"says_{kind}" for kind in NEEDS} | {verdict.value for verdict in Verdict}
    assert len(keys) > 80
    known = {*ENGLISH, *SENTENCES["en"]}
    assert keys - known == set()
    for start in re.findall(r"\bline\(\s*f\"(\w+_){", code):
        assert any(key.startswith(start) for key in known), start


def test_no_words_are_left_over():
    code = "".join(path.read_text() for path in SOURCES.glob("*.py"))
    view = (SOURCES.parents[1] / "report" / "audit_view.py").read_text()
    starts = tuple(re.findall(r"\bf\"(\w+_){", code))
    metrics = {"prefill", "ttft", "tpot", "decode_total", "e2e", "throughput_name", "bandwidth", "compute"}
    verdicts = {verdict.value for verdict in Verdict}
    left = {
        key
        for key in (*ENGLISH, *SENTENCES["en"])
        if f'"{key}"' not in code + view and not key.startswith(starts) and key not in metrics | verdicts
    }
    assert left == set()


def test_numbers_are_written_by_their_names():
    told = say_line("en", line("growth_claimed", metric="throughput", low=1000, high=20000, exponent=1.999))
    assert told == "claimed for throughput, 1,000 to 20,000 tokens: exponent 2.00"
    assert "12 %" in say_line("zh", line("e2e_differs", off_share=0.12))
    assert word("zh", "bandwidth") == "带宽"

from __future__ import annotations

import base64
import gzip
import json
import re
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace

from phasemeter.explain.summary import summarise
from phasemeter.record.errors import InputError
from phasemeter.record.run import Run
from phasemeter.report import glossary, html, sentences, words
from phasemeter.report.html import html_page, write_html
from phasemeter.report.palette import COLOURS, FILLS
from phasemeter.report.picture import picture_svg
from phasemeter.report.view import view_of
from unit.report.made_runs import header, run

pytest.importorskip("plotly")

HOSTILE = '<script>alert("x")</script>&"\'</title></script><img src=http://evil.example/x>'
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Reader(HTMLParser):
    """Notes every tag, every address, every id, and tags that do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.faults: list[str] = []
        self.text: dict[str, str] = {}
        self._id = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        self.addresses += [found[key] or "" for key in ("src", "href", "data", "action") if key in found]
        self._id = found.get("id") or ""
        if self._id:
            self.ids.append(self._id)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, data: str) -> None:
        if self._id and self.open:
            self.text[self._id] = self.text.get(self._id, "") + data


def page(made: Run, lang: str = "en") -> str:
    return html_page(view_of([(made, summarise(made))], lang))


def parsed(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


@pytest.fixture(scope="module")
def plain() -> str:
    return page(run(repeats=5, concurrency=(1, 2)))


def test_page_is_whole_and_every_link_in_it_leads_somewhere(plain: str) -> None:
    reader = parsed(plain)
    assert reader.faults == []
    assert reader.open == []
    assert len(reader.ids) == len(set(reader.ids))
    for address in reader.addresses:
        assert address.startswith(("#", "data:"))
        if address.startswith("#"):
            assert address[1:] in reader.ids


def test_page_asks_no_host_and_forbids_it(plain: str) -> None:
    assert "http://" not in plain
    assert "https://" not in plain
    assert "default-src 'none'" in plain
    assert "@import" not in plain


def test_plotly_is_inside_and_is_the_installed_one(plain: str) -> None:
    from plotly.offline import get_plotlyjs

    packed = parsed(plain).text["plotly"]
    assert gzip.decompress(base64.b64decode(packed)).decode() == get_plotlyjs()
    assert len(plain) < 3_000_000


def test_charts_are_json_with_every_picture(plain: str) -> None:
    charts = json.loads(parsed(plain).text["charts"])
    assert set(charts) == {
        f"{name}-0" for name in ("overview", "waterfall", "prefill", "tpot", "gaps", "timeline")
    }
    assert len(charts["waterfall-0"]["by_shape"]) == 8
    for name in re.findall(r'data-chart="([a-z]+-[0-9]+)"', plain):
        assert name in charts


def test_waterfall_bars_are_the_budget(plain: str) -> None:
    made = run(repeats=5, concurrency=(1, 2))
    shape = view_of([(made, summarise(made))], "en").runs[0].shapes[3]
    figure = json.loads(parsed(plain).text["charts"])["waterfall-0"]["by_shape"][3]
    bars = {trace["y"][0]: trace["x"][0] for trace in figure["data"]}
    for segment in shape.segments:
        assert bars[segment.label] == pytest.approx(segment.number.value, rel=1e-5)
    assert bars["total"] == pytest.approx(shape.total.value, rel=1e-5)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_whatever_comes_from_the_run_is_escaped(lang: str) -> None:
    made = run(repeats=3, lengths=(64,), head=header(model=HOSTILE, cpu=HOSTILE, weights=HOSTILE))
    text = page(made, lang)
    reader = parsed(text)
    assert "<script>alert" not in text
    assert "img" not in reader.tags
    assert reader.tags.count("script") == 4
    assert reader.faults == []


def test_inferred_and_absent_are_marked() -> None:
    text = page(run(repeats=5, queue=None))
    queue = re.search(r'<td class="text">queue</td>.*?</tr>', text)
    assert queue is not None
    assert "absent" in queue.group(0)
    assert ">0<" not in queue.group(0)
    front = re.search(r'<td class="text">front end</td>.*?</tr>', text)
    assert front is not None
    assert "inferred" in front.group(0)
    assert "~" in front.group(0)


def test_chinese_page_is_chinese_and_says_so() -> None:
    text = page(run(repeats=3), "zh")
    assert '<html lang="zh-CN">' in text
    assert "时间花在哪里" in text
    assert "Where the time goes" not in text


def test_several_runs_have_apart_sections_and_charts() -> None:
    one = run(repeats=3)
    other = run(repeats=3, head=header(run_id="made-2", weights="checkpoint"))
    view = view_of([(one, summarise(one)), (other, summarise(other))], "en")
    reader = parsed(html_page(view))
    assert len(reader.ids) == len(set(reader.ids))
    assert {"budget-0", "budget-1"} <= set(reader.ids)
    assert "engine.weights" in html_page(view)


def _without_prefill_time() -> Run:
    """As the simulated engine tells it where no prefill was asked for: no value has a place on a log axis."""
    made = run(repeats=3, head=header(model="simulated", shape=None, ceilings=False))
    requests = tuple(
        replace(timeline, report=timeline.report and replace(timeline.report, prefill_ns=0))
        for timeline in made.requests
    )
    return replace(made, requests=requests)


@pytest.mark.parametrize(
    "made",
    [
        run(repeats=0, failed=2),
        run(repeats=1, lengths=(64,)),
        run(repeats=3, report=False),
        _without_prefill_time(),
    ],
    ids=["nothing succeeded", "one request", "no report", "a prefill of no time"],
)
def test_poor_runs_still_make_a_page(made: Run) -> None:
    reader = parsed(page(made))
    assert reader.faults == []
    json.loads(reader.text["charts"])


def test_without_plotly_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    html._packed_plotly.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    made = run(repeats=3)
    with pytest.raises(InputError, match=r"pip install 'phasemeter\[report\]'"):
        write_html(view_of([(made, summarise(made))], "en"), tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_picture_is_one_wellformed_svg(lang: str) -> None:
    made = run(repeats=5, head=header(model=HOSTILE))
    text = picture_svg(view_of([(made, summarise(made))], lang))
    root = ET.fromstring(text)
    assert root.tag.endswith("svg")
    assert "prefers-color-scheme: dark" in text
    assert "href" not in text
    drawn = {e.get("fill") for e in root.iter() if e.get("fill")}
    assert {COLOURS["prefill"], COLOURS["decode"]} <= drawn


def test_picture_of_nothing_says_so() -> None:
    made = run(repeats=0, failed=2)
    assert "No request of this run succeeded" in picture_svg(view_of([(made, summarise(made))], "en"))


def test_both_languages_have_the_same_keys_and_places() -> None:
    for table in (words.WORDS, words.PHASES, sentences.SENTENCES, glossary.GLOSSARY):
        assert set(table) == {"en", "zh"}
        assert table["en"].keys() == table["zh"].keys()
    for key, text in sentences.SENTENCES["en"].items():
        places = set(re.findall(r"{(\w+)}", text))
        assert places == set(re.findall(r"{(\w+)}", sentences.SENTENCES["zh"][key])), key


def test_every_phase_has_its_own_colour_and_fill() -> None:
    assert COLOURS.keys() == FILLS.keys() == words.PHASES["en"].keys()
    assert len(set(COLOURS.values())) == len(COLOURS)
    together = [FILLS[phase] for phase in FILLS if phase != "first"]
    assert len(set(together)) == len(together)

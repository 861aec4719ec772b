"""The report page in a real browser: it opens from a file, asks nobody, and draws every chart."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phasemeter.explain.summary import summarise
from phasemeter.record.run import Run
from phasemeter.report.html import write_html
from phasemeter.report.view import view_of
from unit.explain.test_one_request import two_answers
from unit.report.made_runs import header, run

pytestmark = pytest.mark.browser

sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
HOSTILE = "<script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield opened
        opened.close()


def opened(
    browser: Any, made: Run, folder: Path, *, scheme: str = "light", width: int = 1200, lang: str = "en"
) -> Any:
    """The page after it drew; `page.heard` is what its console said and which addresses it asked for."""
    path = folder / "report.html"
    write_html(view_of([(made, summarise(made))], lang), path)
    page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}).new_page()
    page.heard = []
    page.on("console", lambda message: page.heard.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: page.heard.append(f"error: {error}"))
    page.on("request", lambda request: page.heard.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=yes]", timeout=60_000)
    return page


def test_it_opens_quietly_and_draws_every_chart(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, run(repeats=5, concurrency=(1, 2)), tmp_path)
    assert page.heard == [(tmp_path / "report.html").as_uri()]
    charts = page.query_selector_all(".chart")
    assert len(charts) == 6
    for chart in charts:
        assert chart.get_attribute("data-drawn") == "yes"
        assert chart.query_selector("svg.main-svg") is not None
        assert chart.bounding_box()["height"] > 150


def test_choosing_a_shape_moves_every_chart_of_it(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, run(repeats=5), tmp_path)
    before = page.evaluate("document.querySelector('.chart[data-chart=waterfall-0]').data.at(-1).x[0]")
    page.select_option("#timeline-0 select.shape", "3")
    after = page.evaluate("document.querySelector('.chart[data-chart=waterfall-0]').data.at(-1).x[0]")
    assert after > before
    assert page.evaluate("[...document.querySelectorAll('select.shape')].map(s => s.value)") == [
        "3",
        "3",
        "3",
    ]
    page.select_option("#gaps-0 select.mode", "log")
    assert page.evaluate("document.querySelector('.chart[data-chart=gaps-0]').layout.yaxis.type") == "log"
    page.select_option("#timeline-0 select.mode", "wall")
    assert len(page.heard) == 1


def test_dark_and_light_follow_the_reader(browser: Any, tmp_path: Path) -> None:
    made = run(repeats=5, lengths=(64, 128))
    page = opened(browser, made, tmp_path, scheme="dark")
    ink = "document.querySelector('.chart[data-chart=prefill-0]')._fullLayout.font.color"
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ink), page.evaluate(ground)
    page.emulate_media(color_scheme="light")
    for _ in range(100):  # the page's own policy forbids the evaluated waits of Playwright
        if page.evaluate(ink) != dark[0]:
            break
        page.wait_for_timeout(50)
    assert page.evaluate(ink) != dark[0]
    assert page.evaluate(ground) != dark[1]


@pytest.mark.parametrize("width", [380, 1200])
def test_the_page_never_scrolls_sideways(browser: Any, tmp_path: Path, width: int) -> None:
    page = opened(browser, run(repeats=3, concurrency=(1, 4)), tmp_path, width=width, lang="zh")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_model_called_script_runs_nothing(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, run(repeats=3, lengths=(64,), head=header(model=HOSTILE)), tmp_path)
    assert page.title() != "taken"
    assert HOSTILE in page.inner_text("h1")


def test_poor_runs_say_what_is_missing(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, run(repeats=3, output=1, report=False), tmp_path)
    assert page.heard == [(tmp_path / "report.html").as_uri()]
    assert "Nothing was seen of this." in page.inner_text("#gaps-0")


def test_choosing_a_request_moves_its_life_its_sentences_and_its_table(browser: Any, tmp_path: Path) -> None:
    page = opened(browser, two_answers(), tmp_path, width=380)
    chart = "document.querySelector('.chart[data-chart=life-0]')"
    assert page.query_selector(".chart[data-chart=life-0]").get_attribute("data-drawn") == "yes"
    before = page.evaluate(f"{chart}.data.map(t => t.name)")
    assert "2 of the steps also prefilled 256 tokens of other requests" in page.inner_text("#inside-0")
    page.select_option("#inside-0 select.life", "1")
    assert page.evaluate(f"{chart}.data.map(t => t.name)") != before
    assert "256 tokens of other requests" not in page.inner_text("#inside-0")
    shown = page.evaluate(
        "[...document.querySelectorAll('[data-life-of-run]')].filter(n => !n.hidden).length"
    )
    assert shown == 2
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    assert len(page.heard) == 1

from __future__ import annotations

import io
from functools import cache

import pytest
from rich.cells import cell_len
from rich.console import Console

from phasemeter.explain.summary import summarise
from phasemeter.record.run import Run
from phasemeter.report.terminal import render_terminal
from phasemeter.report.view import View, view_of
from unit.report.made_runs import header, run

HOSTILE = "evil/[bold red]model[/] with a name that is much longer than any terminal is wide " + "x" * 120


def printed(made: Run, width: int, lang: str = "en", *, colour: bool = False) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=colour, color_system="truecolor" if colour else None
    )
    render_terminal(_view(id(made), lang) if id(made) in _BY_ID else _viewed(made, lang), console)
    return out.getvalue()


def _viewed(made: Run, lang: str) -> View:
    return view_of([(made, summarise(made))], lang)


@cache
def _view(made_id: int, lang: str) -> View:
    """The view of one of RUNS: summarising is the slow part, and does not depend on the width."""
    return _viewed(_BY_ID[made_id], lang)


RUNS = {
    "plain": run(repeats=5),
    "no report": run(repeats=5, report=False),
    "no queue": run(repeats=5, queue=None),
    "no floor": run(repeats=5, head=header(model="other", shape=None, ceilings=False)),
    "many shapes": run(repeats=3, lengths=(64, 100, 128, 256, 333, 512, 1024), concurrency=(1, 8)),
    "few": run(repeats=1, lengths=(64,)),
    "failed": run(repeats=0, failed=3),
    "hostile": run(repeats=3, head=header(model=HOSTILE, cpu=HOSTILE)),
    "long": run(repeats=3, lengths=(131_072,), output=4096),
}


_BY_ID = {id(made): made for made in RUNS.values()}


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("name", RUNS)
def test_no_line_is_wider_than_the_terminal_and_none_has_colour_codes(
    name: str, width: int, lang: str
) -> None:
    text = printed(RUNS[name], width, lang)
    assert max(cell_len(line) for line in text.splitlines()) <= width
    assert "\x1b" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())


@pytest.mark.parametrize("width", [80, 100, 140])
def test_every_number_of_the_shapes_is_whole(width: int) -> None:
    text = printed(RUNS["plain"], width)
    assert "…" not in text


def test_weights_verdict_and_phases_are_visible() -> None:
    text = printed(RUNS["plain"], 100)
    assert "! random, seed 0" in text
    assert "✓ ok" in text
    for phase in ("late", "connect", "front end", "queue", "prefill", "decode", "tail", "total"):
        assert phase in text
    assert "512 → 16" in text
    assert "no square law" in text


def test_what_is_not_ok_is_expanded_with_its_mend() -> None:
    text = printed(run(repeats=5, failed=12), 100)
    assert "✗ failures" in text
    assert "→" in text
    assert "✗ invalid" in text


def test_absent_is_a_dash_and_inferred_has_its_mark() -> None:
    lines = printed(RUNS["no queue"], 100).splitlines()
    queue = next(line for line in lines if line.lstrip("? ").startswith("queue"))
    assert "—" in queue
    assert "0" not in queue.replace("queue", "")
    front = next(line for line in lines if "front end" in line and "%" in line)
    assert "~" in front


def test_bars_are_as_long_as_their_total() -> None:
    made = RUNS["plain"]
    view = view_of([(made, summarise(made))], "en").runs[0]
    lines = printed(made, 100).splitlines()
    lengths: dict[str, int] = {}
    for shape in view.shapes:
        line = next(x for x in lines if x.strip().startswith(shape.short) and "▒" in x and " ms" in x)
        lengths[shape.short] = sum(line.count(fill) for fill in "·=▓?█▒-")
    longest = max(shape.total.value or 0.0 for shape in view.shapes)
    for shape in view.shapes:
        expected = (shape.total.value or 0.0) / longest * max(lengths.values())
        assert lengths[shape.short] == pytest.approx(expected, abs=1.0)


@pytest.mark.parametrize("width", [80, 100, 124])
def test_an_unsplit_first_at_concurrency_is_named_whole_and_not_blamed_on_the_host(width: int) -> None:
    made = run(repeats=5, lengths=(64, 1024), concurrency=(1, 8), report=False, prefill_per_token=40)
    text = printed(made, width)
    part = text.split("What the time of a phase is spent on")[1].split("Growth with length")[0]
    assert "…" not in part
    assert "first (not split)" in part
    assert "1024 → 16 ×8" in part
    assert "the rest holds queue, network and front end too" in " ".join(part.split())
    rows = [line for line in text.splitlines() if "TTFT ms" in line and "~" in line]
    assert all("host" not in line for line in rows)
    if width < 124:
        assert rows
        assert all("not told" in line for line in rows)


def test_shares_are_said_of_the_mean_and_ratios_of_the_median() -> None:
    text = " ".join(printed(RUNS["plain"], 100).split())
    assert "ms in the median" in text
    assert "Of the mean" in text


def test_every_concurrency_asked_is_named_with_what_was_seen() -> None:
    text = printed(run(repeats=5, lengths=(64,), concurrency=(1, 8)), 100)
    assert "1, 8 asked, at most 1, 8 seen" in text
    assert "all shapes together" in text
    assert "all shapes together" not in printed(run(repeats=5, lengths=(64,)), 100)


def test_a_launch_is_named_in_the_ceilings() -> None:
    assert "4.00 µs a kernel launch" in " ".join(printed(RUNS["plain"], 100).split())


def test_markup_in_a_name_is_text() -> None:
    text = printed(RUNS["hostile"], 100)
    assert "[bold red]model[/]" in text.replace("\n", "")


def test_colours_go_to_terminals_only() -> None:
    assert "\x1b[" in printed(RUNS["plain"], 100, colour=True)

"""The Prometheus text format: all of a page, or a few names picked out of it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from phasemeter.engines.exposition import parse, picked

BODIES = Path(__file__).parent / "bodies"


def test_the_format_is_read_with_escapes_stamps_and_odd_lines():
    text = 'a{x="1,2",y="say \\"hi\\" \\\\ \\n"} 3 1700000000\nb NaN\nc +Inf\nbroken{\n# a comment 1\n d  4\n'
    a, b, c, d = parse(text)
    assert (a.name, a.labels, a.value) == ("a", {"x": "1,2", "y": 'say "hi" \\ \n'}, 3.0)
    assert (b.value != b.value, c.value, d.name) == (True, float("inf"), "d")


def test_picking_finds_what_parsing_finds_on_a_real_page():
    page = (BODIES / "vllm_0.32_metrics.txt").read_bytes()
    points = parse(page.decode())
    names = {point.name for point in points}
    assert len(names) > 100
    for name in names:
        assert picked(page, name.encode()) == [p.value for p in points if p.name == name], name


def test_a_name_is_the_whole_name_at_the_start_of_a_line():
    page = b'# HELP up x\nup_time 9\nnot_up 8\nup{a="b} 7"} 1\nup 2 1700000000\nup NaN\nup\nup{broken\nup +Inf\nup 3'
    assert picked(page, b"up") == [1.0, 2.0, 3.0]
    assert picked(b"", b"up") == []


@given(st.binary(max_size=60))
def test_no_bytes_break_it(page):
    picked(page + b"\nup " + page + b"\nup{" + page, b"up")

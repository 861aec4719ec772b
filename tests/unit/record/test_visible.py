"""Text from elsewhere must not command the terminal that shows it."""

from __future__ import annotations

import pytest

from phasemeter.record.visible import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b]0;title\x07", "[31mred]0;title"),
        ("\x9b2J\x7f\x00\r", "2J"),
        ("abc\u202edcba\u2066", "abcdcba"),
        ("half \udc80 a pair", "half  a pair"),
        ("tab\tand\nline, 中文, café, 👩‍🚀", "tab\tand\nline, 中文, café, 👩‍🚀"),
    ],
)
def test_what_acts_is_left_out_and_what_shows_stays(text: str, shown: str) -> None:
    assert visible(text) == shown

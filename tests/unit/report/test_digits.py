from __future__ import annotations

import pytest

from phasemeter.report.digits import interval, marked, percent, plain, power, times, with_interval, with_unit
from phasemeter.report.parts import ABSENT, Mark, Number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (float("nan"), "—"),
        (0, "0"),
        (0.46474, "0.465"),
        (4.4, "4.40"),
        (18.249, "18.2"),
        (2337.4, "2,337"),
        (0.00212, "0.0021"),
        (-3.5, "-3.50"),
        (131072.0, "131,072"),
        (0.0000000001, "<0.000001"),
    ],
)
def test_three_digits_that_mean_something(value: float | None, text: str) -> None:
    assert plain(value) == text


def test_marks_and_units() -> None:
    inferred = Number(2.0, mark=Mark.INFERRED, lo=1.5, hi=2.5)
    assert marked(inferred) == "~2.00"
    assert with_unit(inferred) == "~2.00 ms"
    assert with_interval(inferred) == "~2.00 [1.50, 2.50]"
    assert with_unit(ABSENT) == "—"
    assert interval(Number(1.0)) == ""
    assert marked(Number(4.0, unit="")) == "4"


def test_ratios_shares_and_powers() -> None:
    assert times(Number(11.32, unit="")) == "11.3×"
    assert times(Number(801.2, unit="")) == "801×"
    assert times(Number(1.3, unit="", mark=Mark.INFERRED)) == "~1.30×"
    assert times(ABSENT) == "—"
    assert [percent(share) for share in (None, 0.0, 0.0004, 0.034, 0.56)] == [
        "—",
        "0 %",
        "<0.1 %",
        "3.4 %",
        "56 %",
    ]
    assert power(-0.001) == "0.00"

"""Numbers as text: three significant digits, a dash for what is absent, a mark for what is inferred."""

from __future__ import annotations

import math

from phasemeter.report.parts import Mark, Number

DASH = "—"
INFERRED = "~"
"""Put before every inferred number."""


def plain(value: float | None) -> str:
    """Three significant digits without exponent; thousands separated; a dash for None."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    size = abs(value)
    if size < 0.0005:
        return f"{value:.1g}" if size >= 1e-6 else "<0.000001"
    places = max(0, 2 - math.floor(math.log10(size)))
    return f"{value:,.{min(places, 4)}f}"


def marked(number: Number) -> str:
    """The value alone, with "~" in front where it is inferred."""
    text = plain(number.value)
    if number.value is not None and not number.unit and number.value.is_integer():
        text = f"{number.value:,.0f}"  # a count
    return INFERRED + text if number.mark is Mark.INFERRED and number.value is not None else text


def with_unit(number: Number) -> str:
    """Value and unit, for example "18.2 ms"; a dash alone where absent."""
    text = marked(number)
    return text if number.value is None or not number.unit else f"{text} {number.unit}"


def interval(number: Number) -> str:
    """The 95 % interval as "[lo, hi]"; empty where there is none."""
    if number.value is None or number.lo is None or number.hi is None:
        return ""
    return f"[{plain(number.lo)}, {plain(number.hi)}]"


def with_interval(number: Number) -> str:
    """Value and interval, for example "18.2 [17.9, 18.6]"."""
    span = interval(number)
    return f"{marked(number)} {span}" if span else marked(number)


def times(number: Number) -> str:
    """A ratio, for example "11.3×"."""
    if number.value is None:
        return DASH
    text = f"{number.value:,.0f}" if number.value >= 100 else f"{number.value:,.1f}"
    if number.value < 10:
        text = f"{number.value:.2f}"
    return (INFERRED if number.mark is Mark.INFERRED else "") + text + "×"


def percent(share: float | None) -> str:
    """A share as per cent; a dash for None, "<0.1 %" for what is there but small."""
    if share is None:
        return DASH
    if share == 0:
        return "0 %"
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{share * 100:.1f} %" if share < 0.1 else f"{share * 100:.0f} %"


def power(exponent: float) -> str:
    """An exponent with two places, and no minus before zero."""
    return f"{round(exponent, 2) + 0.0:.2f}"

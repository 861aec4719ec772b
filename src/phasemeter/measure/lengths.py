"""Lengths as a user writes them: lists such as "64,128,256", and distributions such as "lognormal:512:0.8:16:4096".

Distributions are drawn by inversion from `random.Random.random`: one number in, one length out, the same in every
process. A bounded distribution is the one that redrawing until a value lies inside would give: nothing piles up at the
bounds.
"""

from __future__ import annotations

import bisect
import csv
import itertools
import math
import random
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from statistics import NormalDist

from phasemeter.measure.text_file import UNZIPPABLE, open_text
from phasemeter.record.errors import InputError

MOST_TOKENS = 10_000_000
FORMS = (
    "128, 64,128, uniform:LO:HI, normal:MEAN:SD[:LO:HI], lognormal:MEDIAN:SIGMA[:LO:HI], zipf:A:LO:HI or "
    "csv:FILE[:COLUMN]"
)
SECONDS = "2.5, uniform:LO:HI, exp:MEAN or lognormal:MEDIAN:SIGMA (seconds)"
_LEAST_MASS = 1e-6
"""Bounds that hold less of a distribution describe another one."""
_MOST_VALUES = 1_000_000
"""Rows of an empirical file, and the width of a Zipf range."""


def parse_counts(text: str, field: str, most: int = MOST_TOKENS) -> tuple[int, ...]:
    """A comma-separated list of positive whole numbers, doubles dropped, order kept. `field` names the option in the
    InputError that bad text raises."""
    numbers: list[int] = []
    for part in text.split(","):
        if not re.fullmatch(r"[+-]?[0-9][0-9_]{0,20}", part.strip()):
            raise InputError(field, text, "give whole numbers separated by commas, for example 64,128,256")
        number = int(part.strip().replace("_", ""))
        if number < 1:
            raise InputError(field, text, f"{number} is not positive; every number must be 1 or more")
        if number > most:
            raise InputError(field, text, f"{number} is too large; the most is {most}")
        if number not in numbers:
            numbers.append(number)
    return tuple(numbers)


class Lengths:
    """A distribution of whole numbers from 1 up. `at(u)` is its quantile function: u in [0, 1) to a length."""

    def __init__(self, text: str, at: Callable[[float], int]) -> None:
        self.text = text
        self.at = at

    def draw(self, source: random.Random) -> int:
        """The next length; takes one number from `source`."""
        return self.at(source.random())

    @cached_property
    def mean(self) -> float:
        """Of the distribution, by the midpoint rule over 20,000 quantiles; exact for lists and files of so few."""
        n = 20_000
        return math.fsum(self.at((i + 0.5) / n) for i in range(n)) / n


def parse_lengths(text: str, field: str) -> Lengths:
    """A distribution of token counts; the forms are in `FORMS`.

    64,128           one of the list, each as often
    uniform:LO:HI    every whole number from LO to HI as often
    normal, lognormal    rounded to whole numbers, within LO to HI (else from 1) as if redrawn until inside
    zipf:A:LO:HI     LO + k - 1 with a probability that falls as k**-A
    csv:FILE:COLUMN  one of the file's values, each row as often; without a column the file's first

    Raises InputError that names `field`, and for a file its line, column and value.
    """
    kind, _, rest = text.strip().partition(":")
    makers: dict[str, Callable[[str, str, str], Callable[[float], int]]] = {
        "uniform": _uniform,
        "normal": _normal,
        "lognormal": _lognormal,
        "zipf": _zipf,
        "csv": _empirical,
    }
    if kind in makers:
        return Lengths(text.strip(), makers[kind](rest, text, field))
    if rest or not re.fullmatch(r"[0-9_, +-]+", text):
        raise InputError(field, text, f"use one of {FORMS}")
    return Lengths(text.strip(), _one_of(parse_counts(text, field)))


class Seconds:
    """A distribution of times, 0 or more. `at(u)` is its quantile function, nanoseconds."""

    def __init__(self, text: str, at_s: Callable[[float], float]) -> None:
        self.text = text
        self._at_s = at_s

    def draw_ns(self, source: random.Random) -> int:
        """The next time; takes one number from `source`."""
        return round(self._at_s(source.random()) * 1e9)


def parse_seconds(text: str, field: str) -> Seconds:
    """A distribution of times; the forms are in `SECONDS`. Raises InputError that names `field`."""
    kind, *parts = text.strip().split(":")
    if kind == "uniform" and len(parts) == 2:
        lo, hi = (_real(part, text, field, 0.0) for part in parts)
        if hi >= lo:
            return Seconds(text, lambda u: lo + u * (hi - lo))
    elif kind == "exp" and len(parts) == 1:
        mean = _real(parts[0], text, field, 0.0)
        return Seconds(text, lambda u: -mean * math.log(1.0 - u))
    elif kind == "lognormal" and len(parts) == 2:
        median, sigma = _real(parts[0], text, field, 1e-9), _real(parts[1], text, field, 1e-9)
        unit = NormalDist()
        return Seconds(text, lambda u: median * math.exp(sigma * unit.inv_cdf(max(u, 2**-53))))
    elif not parts and re.fullmatch(r"[0-9.]+", kind):
        fixed = _real(kind, text, field, 0.0)
        return Seconds(text, lambda _: fixed)
    raise InputError(field, text, f"use one of {SECONDS}")


def zipf_table(exponent: float, n: int) -> list[float]:
    """Cumulative probabilities of ranks 1 to n, each falling as rank**-exponent; the last is 1."""
    weights = list(itertools.accumulate(rank**-exponent for rank in range(1, n + 1)))
    return [weight / weights[-1] for weight in weights]


def _one_of(values: Sequence[int]) -> Callable[[float], int]:
    return lambda u: values[int(u * len(values))]


def _uniform(rest: str, text: str, field: str) -> Callable[[float], int]:
    parts = rest.split(":")
    if len(parts) != 2:
        raise InputError(field, text, "write uniform:LO:HI")
    lo, hi = _bounds(parts, text, field)
    return lambda u: lo + int(u * (hi - lo + 1))


def _normal(rest: str, text: str, field: str) -> Callable[[float], int]:
    parts = rest.split(":")
    if len(parts) not in (2, 4):
        raise InputError(field, text, "write normal:MEAN:SD or normal:MEAN:SD:LO:HI")
    mean, sd = _real(parts[0], text, field, 1e-9), _real(parts[1], text, field, 1e-9)
    lo, hi = _bounds(parts[2:], text, field)
    spread = NormalDist(mean, sd)
    return _between(spread, lo - 0.5, hi + 0.5, lambda x: min(hi, max(lo, round(x))), (text, field))


def _lognormal(rest: str, text: str, field: str) -> Callable[[float], int]:
    parts = rest.split(":")
    if len(parts) not in (2, 4):
        raise InputError(field, text, "write lognormal:MEDIAN:SIGMA or lognormal:MEDIAN:SIGMA:LO:HI")
    median, sigma = _real(parts[0], text, field, 1e-9), _real(parts[1], text, field, 1e-9)
    lo, hi = _bounds(parts[2:], text, field)
    spread = NormalDist(math.log(median), sigma)

    def length(x: float) -> int:
        return min(hi, max(lo, round(math.exp(x))))

    return _between(spread, math.log(lo - 0.5), math.log(hi + 0.5), length, (text, field))


def _between(
    spread: NormalDist, low: float, high: float, length: Callable[[float], int], said: tuple[str, str]
) -> Callable[[float], int]:
    """Quantiles of `spread` between `low` and `high`. `length` only guards the last rounding at the bounds."""
    text, field = said
    below, above = spread.cdf(low), spread.cdf(high)
    if above - below < _LEAST_MASS:
        raise InputError(field, text, "next to nothing of this distribution lies within its bounds")
    tiny = 2**-53

    def at(u: float) -> int:
        return length(spread.inv_cdf(min(1 - tiny, max(tiny, below + u * (above - below)))))

    return at


def _zipf(rest: str, text: str, field: str) -> Callable[[float], int]:
    parts = rest.split(":")
    if len(parts) != 3:
        raise InputError(field, text, "write zipf:A:LO:HI")
    exponent = _real(parts[0], text, field, 0.0)
    lo, hi = _bounds(parts[1:], text, field)
    if exponent > 20 or hi - lo >= _MOST_VALUES:
        raise InputError(field, text, f"A may be up to 20, and HI - LO below {_MOST_VALUES}")
    table = zipf_table(exponent, hi - lo + 1)
    return lambda u: lo + bisect.bisect_right(table, u)


def _empirical(rest: str, text: str, field: str) -> Callable[[float], int]:
    try:
        whole = Path(rest).is_file()
    except OSError as error:  # a name that no file can have
        raise InputError(field, text, f"the file cannot be read ({error})") from error
    name, column = (rest, None) if whole else _file_and_column(rest)
    return _one_of(_column_of(Path(name), column, text, field))


def _file_and_column(rest: str) -> tuple[str, str | None]:
    name, found, column = rest.rpartition(":")
    return (name, column) if found else (rest, None)


def _column_of(path: Path, column: str | None, text: str, field: str) -> list[int]:
    values: list[int] = []
    try:
        with open_text(path) as lines:
            rows = csv.reader(lines)
            header: list[str] = next(rows, list[str]())
            place = _place(header, column, text, field)
            if column is None and re.fullmatch(r"\s*[0-9]+\s*", header[place]):
                values.append(_count(header[place], path, 1, "1"))  # no header
            for row in rows:
                if row:
                    cell = row[place] if place < len(row) else ""
                    values.append(_count(cell, path, rows.line_num, column or header[place]))
                if len(values) > _MOST_VALUES:
                    raise InputError(
                        field, text, f"the file has more than {_MOST_VALUES} rows; give a sample of it"
                    )
    except (OSError, ValueError, csv.Error, *UNZIPPABLE) as error:
        raise InputError(field, text, f"the file cannot be read as CSV ({error})") from error
    if not values:
        raise InputError(field, text, "the file has no rows")
    return values


def _place(header: list[str], column: str | None, text: str, field: str) -> int:
    names = [name.strip() for name in header]
    if not names:
        raise InputError(field, text, "the file is empty")
    if column is None:
        return 0
    if column not in names:
        raise InputError(field, text, f"the file has no column {column!r}; it has {', '.join(names)}")
    return names.index(column)


def _count(cell: str, path: Path, line: int, column: str) -> int:
    if not re.fullmatch(r"\s*[0-9]{1,8}(\.0+)?\s*", cell) or not 1 <= float(cell) <= MOST_TOKENS:
        raise InputError(
            f"{path}, line {line}, column {column}",
            cell,
            f"a length is a whole number from 1 to {MOST_TOKENS}",
        )
    return int(float(cell))


def _bounds(parts: Sequence[str], text: str, field: str) -> tuple[int, int]:
    """LO and HI; from 1 to the most where none are given."""
    if not parts:
        return 1, MOST_TOKENS
    if not all(re.fullmatch(r"[0-9]{1,8}", part) for part in parts):
        raise InputError(field, text, f"LO and HI are whole numbers; use one of {FORMS}")
    lo, hi = int(parts[0]), int(parts[1])
    if not 1 <= lo <= hi <= MOST_TOKENS:
        raise InputError(field, text, f"LO must be 1 or more, HI no less than LO and at most {MOST_TOKENS}")
    return lo, hi


def _real(part: str, text: str, field: str, least: float) -> float:
    try:
        number = float(part)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and least <= number <= MOST_TOKENS):
        raise InputError(
            field, text, f"{part!r} is not usable here; give a number from {least:g} to {MOST_TOKENS}"
        )
    return number

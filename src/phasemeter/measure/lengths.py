"""Lists of lengths as a user writes them: "64,128,256"."""

from __future__ import annotations

import re

from phasemeter.record.errors import InputError

MOST_TOKENS = 10_000_000


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

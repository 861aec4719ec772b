"""Text from elsewhere as a terminal may show it: a model's name or a server's error must not command the terminal."""

from __future__ import annotations

import re

_ACTING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed (ECMA-48 C0, DEL, C1), marks that turn the direction of writing
(Unicode UAX 9), and halves of surrogate pairs, which no output can encode."""


def visible(text: str) -> str:
    """`text` without the characters that act instead of showing."""
    return _ACTING.sub("", text)

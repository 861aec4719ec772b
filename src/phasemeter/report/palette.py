"""One colour a phase, everywhere: Okabe and Ito's palette, told apart by colour-blind readers, on light and
dark.

Sources: M. Okabe and K. Ito, "Color Universal Design" (2008). Each phase also has a letter-like fill for
terminals without colour; inferred phases are hatched, so colour never carries a meaning alone.
"""

from __future__ import annotations

COLOURS: dict[str, str] = {
    "late": "#8c8c8c",
    "connect": "#56b4e9",
    "first": "#d55e00",
    "front_end": "#e69f00",
    "queue": "#cc79a7",
    "prefill": "#2b7fc4",
    "decode": "#009e73",
    "tail": "#b3a32e",
}

CAUSES: dict[str, str] = {
    "arithmetic": "#2b7fc4",
    "memory traffic": "#009e73",
    "host and kernel inefficiency": "#e69f00",
    "queue": "#cc79a7",
    "client": "#8c8c8c",
}

FILLS: dict[str, str] = {
    "late": "·",
    "connect": "=",
    "first": "█",
    "front_end": "▓",
    "queue": "?",
    "prefill": "█",
    "decode": "▒",
    "tail": "-",
}

CAUSE_FILLS: dict[str, str] = {
    "arithmetic": "█",
    "memory traffic": "▒",
    "host and kernel inefficiency": "░",
    "queue": "?",
    "client": "·",
}

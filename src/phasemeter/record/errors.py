"""The few errors of Phasemeter.

A failed request is data (an `Outcome` in the record); only a broken run or bad input raises.

    PhasemeterError
    ├── InputError      what the user gave cannot be used      exit code 2
    ├── UndecidedError  the data does not allow an answer      exit code 3
    └── EngineError     nothing reached the engine, or it died exit code 4
"""

from __future__ import annotations


class PhasemeterError(Exception):
    """Base of every error that Phasemeter raises on purpose; `exit_code` is what the command returns."""

    exit_code: int = 2


class InputError(PhasemeterError):
    """Bad input, told as one line: which field, the value it had, and how to mend it."""

    exit_code = 2

    def __init__(self, field: str, value: object, mend: str) -> None:
        self.field = field
        self.value = value
        self.mend = mend
        super().__init__(f"{field}: {_shown(value)}: {mend}")


class UndecidedError(PhasemeterError):
    """The data at hand does not allow an answer; the message says what is missing."""

    exit_code = 3


class EngineError(PhasemeterError):
    """Nothing reached the engine, or it died; the message says why in plain words."""

    exit_code = 4


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 200 else f"{text[:197]}..."

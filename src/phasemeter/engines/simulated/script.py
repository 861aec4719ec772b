"""What a request can be told to do: one `Behaviour`, asked for by `x_simulate`, a script file or a fault.

Every field of `Behaviour` is None when nobody asked for it; `merged` lays one behaviour over another, so that
`x_simulate` wins over the script and the script over `--fault`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, structs

from phasemeter.engines.simulated.truth import MOST, Jitter, Truth
from phasemeter.record.errors import InputError


class Stall(Struct, frozen=True, forbid_unknown_fields=True):
    """After `after` tokens everything comes `ms` milliseconds later."""

    after: int
    ms: float


class Status(Struct, frozen=True, forbid_unknown_fields=True):
    """Answer with this HTTP status instead, with a Retry-After of so many seconds where it is given."""

    code: int
    retry_after_s: float | None = None


class Behaviour(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything that can be scripted; see docs/commands/simulate.md. None: not asked for.

    Where a field counts tokens ("after K tokens"), it acts after the first chunk with which at least K are
    out.
    """

    # the truth of this request
    ttft_ms: float | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    prefill_us_per_token: float | None = None
    prefill_ns_per_token_squared: float | None = None
    itl_ms: float | None = None
    itl_per_context_token_us: float | None = None
    jitter: Jitter | None = None
    seed: int | None = None
    tokens_per_chunk: int | None = None
    first_chunk_tokens: int | None = None
    cold_first_ms: float | None = None
    # what the stream holds
    role_first: bool | None = None
    empty_deltas: tuple[int, ...] | None = None
    reasoning: int | None = None
    reasoning_field: Literal["reasoning", "reasoning_content"] | None = None
    usage: Literal["none", "end", "chunk"] | None = None
    usage_lie: int | None = None
    cached_tokens: int | None = None
    short_output: int | None = None
    finish: str | None = None
    finish_with_last: bool | None = None
    no_done: bool | None = None
    keepalive_comments: float | None = None
    # what goes wrong
    hang_before_first: bool | None = None
    hang_after: int | None = None
    stall: Stall | None = None
    reset_after: int | None = None
    truncate_after: int | None = None
    error_event_after: int | None = None
    garbage_json: int | None = None
    empty_stream: bool | None = None
    status: Status | None = None
    not_streaming: bool | None = None
    wrong_content_type: bool | None = None
    # how the bytes are cut
    split_utf8: bool | None = None
    split_events: bool | None = None
    slow_drip: float | None = None
    coalesce: bool | None = None
    crlf: bool | None = None
    close_connection: bool | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be; the fields of the truth are checked when it is put together."""
        counts = ("reasoning", "hang_after", "reset_after", "truncate_after", "error_event_after")
        for name in (*counts, "garbage_json", "usage_lie", "cached_tokens"):
            _at_least(name, getattr(self, name), 0)
        _at_least("short_output", self.short_output, 1)
        _at_least("keepalive_comments", self.keepalive_comments, 0.1)
        _at_least("slow_drip", self.slow_drip, 0)
        if self.stall is not None:
            _at_least("stall.after", self.stall.after, 0)
            _at_least("stall.ms", self.stall.ms, 0)
        if self.status is not None:
            _check_status(self.status)
        if any(chunk < 0 for chunk in self.empty_deltas or ()):
            raise InputError("empty_deltas", self.empty_deltas, "give chunk numbers, counted from 0")


BYTES_ONLY = (
    *("split_utf8", "split_events", "slow_drip", "coalesce", "crlf", "close_connection"),
    *("reasoning_field", "wrong_content_type"),
)
"""Fields about bytes and framing: an engine in process has none, so they are without meaning there."""

_TRUTH_FIELDS = tuple(name for name in Truth.__struct_fields__ if name in Behaviour.__struct_fields__)
_PREFILL_PARTS = ("queue_ms", "prefill_ms", "prefill_us_per_token", "prefill_ns_per_token_squared")


def behaviour_of(table: object, field: str = "x_simulate") -> Behaviour:
    """Build a behaviour from a decoded table. Raises InputError naming unknown keys and wrong values."""
    if not isinstance(table, dict):
        raise InputError(field, table, "give an object of simulate's fields")
    unknown = sorted(str(key) for key in table if key not in Behaviour.__struct_fields__)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if unknown:
        raise InputError(field, ", ".join(unknown), "unknown keys; see `phasemeter simulate --list-faults`")
    try:
        return msgspec.convert(table, Behaviour)
    except msgspec.ValidationError as error:
        raise InputError(field, table, str(error)) from None  # pyright: ignore[reportUnknownArgumentType]


def merged(base: Behaviour, over: Behaviour) -> Behaviour:
    """`base`, with every field that `over` asks for taken from `over`."""
    return structs.replace(base, **asked(over))


def asked(behaviour: Behaviour) -> dict[str, object]:
    """The fields that somebody asked for."""
    fields = structs.asdict(behaviour)
    return {name: value for name, value in fields.items() if value is not None}


def truth_for(truth: Truth, behaviour: Behaviour) -> Truth:
    """The truth of one request: `ttft_ms` and the parts of a prefill replace each other. Raises
    InputError."""
    changes = {name: getattr(behaviour, name) for name in _TRUTH_FIELDS}
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes:
        return truth
    if "ttft_ms" in changes:
        changes = dict.fromkeys(_PREFILL_PARTS, 0.0) | changes
    elif any(name in changes for name in _PREFILL_PARTS):
        changes = {"ttft_ms": None} | changes
    return structs.replace(truth, **changes)


class Step(Struct, frozen=True):
    """One step of a script: who it is for, how many requests take it, and what they do."""

    behaviour: Behaviour
    times: int = 1
    path: str | None = None
    model: str | None = None

    def matches(self, path: str, model: str | None) -> bool:
        """Whether a request to this path and model may take this step."""
        return (self.path is None or self.path == path) and (self.model is None or self.model == model)


class _StepHead(Struct, frozen=True):
    times: int = 1
    path: str | None = None
    model: str | None = None


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    cycle: bool = False
    step: list[dict[str, object]] = []


class Script(Struct, frozen=True):
    """Steps, taken in order; with `cycle` they start again when the last one was taken."""

    steps: tuple[Step, ...] = ()
    cycle: bool = False


class ScriptReader:
    """Hands out the steps of a script: a request takes the first step that matches it and has uses left."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._left = [step.times for step in script.steps]

    def take(self, path: str, model: str | None) -> Behaviour | None:
        """The behaviour for the next request, or None when no step is left for it."""
        fitting = [i for i, step in enumerate(self._script.steps) if step.matches(path, model)]
        if not fitting:
            return None
        if self._script.cycle and not any(self._left[i] for i in fitting):
            for i in fitting:
                self._left[i] = self._script.steps[i].times
        for i in fitting:
            if self._left[i]:
                self._left[i] -= 1
                return self._script.steps[i].behaviour
        return None


def script_of(text: str, field: str = "--script") -> Script:
    """Read a script from TOML. Raises InputError for what is no script, naming the step."""
    try:
        file = msgspec.convert(tomllib.loads(text), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise InputError(
            field, "script", f"not a script: {error}; see examples/simulate-script.toml"
        ) from None
    if not file.step:
        raise InputError(field, "script", "has no [[step]]; see examples/simulate-script.toml")
    steps = tuple(_step(number, table, field) for number, table in enumerate(file.step, start=1))
    return Script(steps, file.cycle)


def load_script(path: Path) -> Script:
    """Read a script file. Raises InputError when it cannot be read or is no script."""
    if path.exists() and not path.is_file() and not path.is_dir():  # a device may never end
        raise InputError("--script", str(path), "is no regular file; name a TOML file of steps")
    try:
        return script_of(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or "cannot be read") if isinstance(error, OSError) else "is not UTF-8 text"
        raise InputError("--script", str(path), f"{reason}; name a TOML file of steps") from None


def _step(number: int, table: Mapping[str, object], field: str) -> Step:
    where = f"{field} step {number}"
    try:
        head = msgspec.convert(dict(table), _StepHead)
    except msgspec.ValidationError as error:
        raise InputError(where, dict(table), str(error)) from None
    if head.times < 1:
        raise InputError(f"{where} times", head.times, "give a whole number of at least 1")
    rest = {key: value for key, value in table.items() if key not in _StepHead.__struct_fields__}
    return Step(behaviour_of(rest, where), head.times, head.path, head.model)


def _at_least(name: str, value: float | None, least: float) -> None:
    if value is not None and not least <= value <= MOST:
        raise InputError(name, value, f"give a number of at least {least:g}, at most {MOST:g}")


def _check_status(status: Status) -> None:
    if not 400 <= status.code <= 599:
        raise InputError("status", status.code, "give an error status, 400 to 599")
    _at_least("status.retry_after_s", status.retry_after_s, 0)

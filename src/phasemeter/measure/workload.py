"""Workloads: what requests look like, by a specification that is plain JSON and travels to every process.

`parse_workload` turns what a user writes into a specification, `open_workload` turns that into a source of items. The
kinds are a dict literal below; each is a frozen struct of its own keys, so that an unknown key is an error.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from phasemeter.measure.load import Workload
from phasemeter.measure.text_file import UNZIPPABLE, read_text
from phasemeter.measure.workload_conversations import Conversations, ConversationsSpec
from phasemeter.measure.workload_lengths import ByLengths, LengthsSpec
from phasemeter.measure.workload_prefixes import Prefixes, PrefixesSpec
from phasemeter.measure.workload_sharegpt import ShareGpt, ShareGptSpec
from phasemeter.measure.workload_trace import Trace, TraceSpec
from phasemeter.record.errors import InputError

FIELD = "--workload"

_SPECS: dict[str, Any] = {
    "lengths": LengthsSpec,
    "prefixes": PrefixesSpec,
    "conversations": ConversationsSpec,
    "sharegpt": ShareGptSpec,
    "trace": TraceSpec,
}
_OPENERS: dict[str, Callable[[Any, int], Workload]] = {
    "lengths": ByLengths,
    "prefixes": Prefixes,
    "conversations": Conversations,
    "sharegpt": ShareGpt,
    "trace": Trace,
}
KINDS = tuple(_SPECS)


def open_workload(spec: dict[str, object], seed: int = 0) -> Workload:
    """The source of items that `spec` describes; the same spec and seed give the same items in every process. Files
    are read here. Raises InputError for an unknown kind or key, a bad value, and a file that cannot be used."""
    kind, keys = _split(spec)
    try:
        checked = msgspec.convert(keys, type=_SPECS[kind], strict=False)
    except msgspec.ValidationError as error:
        raise _refusal(kind, keys, str(error)) from error
    return _OPENERS[kind](checked, seed)


def parse_workload(text: str) -> dict[str, object]:
    """A specification as the command line takes it: `KIND:key=value,key=value`, or `FILE.toml` with the same keys and
    `kind`. A value may hold commas (`input=64,128,output=32`) and colons. Raises InputError; keys and values are
    checked by `open_workload`."""
    if text.endswith(".toml"):
        return _from_toml(text)
    kind, _, rest = text.strip().partition(":")
    spec: dict[str, object] = {"kind": kind}
    key = ""
    for part in rest.split(",") if rest else []:
        found = re.match(r"\s*([a-z_]+)=(.*)$", part, re.DOTALL)
        if found is not None:
            key = found[1]
            if key in spec:
                raise InputError(FIELD, text, f"{key} is given twice")
            spec[key] = re.sub(r"^\.(?=\d)", "0.", found[2].strip())
        elif key:
            spec[key] = f"{spec[key]},{part.strip()}"
        else:
            raise InputError(
                FIELD, text, "write KIND:key=value,key=value, for example lengths:input=512,output=64"
            )
    _split(spec)
    return spec


def trace_spec(file: str, scale: float | None = None, window: str | None = None) -> dict[str, object]:
    """The specification of `--trace FILE`, `--trace-scale` and `--trace-window START:LENGTH` (seconds of the trace's
    own time). Raises InputError for a window that is none."""
    spec: dict[str, object] = {"kind": "trace", "file": file}
    if scale is not None:
        spec["scale"] = scale
    if window is not None:
        found = re.fullmatch(r"\s*([0-9.]+):([0-9.]+)\s*", window)
        try:
            spec |= {"start_s": float(found[1]), "length_s": float(found[2])} if found else {}
        except ValueError:
            found = None
        if found is None:
            raise InputError("--trace-window", window, "write START:LENGTH in seconds, for example 600:300")
    return spec


def _split(spec: dict[str, object]) -> tuple[str, dict[str, object]]:
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in _SPECS:
        raise InputError(FIELD, kind or "no kind", f"use one of {', '.join(KINDS)}")
    return kind, {key: value for key, value in spec.items() if key != "kind"}


def _from_toml(text: str) -> dict[str, object]:
    try:
        spec: dict[str, object] = tomllib.loads(read_text(Path(text)))
    except (OSError, ValueError, *UNZIPPABLE) as error:
        raise InputError(FIELD, text, f"the file cannot be read as TOML ({error})") from error
    _split(spec)
    return spec


def _refusal(kind: str, keys: dict[str, object], said: str) -> InputError:
    """The library's sentence, beside the value that it is about."""
    known = ", ".join(field.name for field in msgspec.structs.fields(_SPECS[kind]))
    found = re.match(r"(.*) - at `\$\.(\w+)`$", said)
    if found is None:
        shown = ", ".join(f"{key}={value}" for key, value in keys.items()) or "no keys"
        return InputError(f"{FIELD} {kind}", shown, f"{said}; the keys of this kind are: {known}")
    return InputError(f"{FIELD} {kind} {found[2]}", keys.get(found[2]), found[1])

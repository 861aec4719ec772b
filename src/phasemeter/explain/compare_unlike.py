"""Why two runs may not be compared, and what differs between two that may.

What is under test (the engine's version, flags and other details, dtype, weights, address) is told. What would make
the numbers mean something else (machine, model, kind of engine, API, settings) is refused unless it is allowed by name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

from msgspec import Struct

from phasemeter.record.errors import InputError
from phasemeter.record.run import Header, Run, identity

SHAPES = "shapes"
"""The name by which differing shapes are allowed."""

_REFUSED = (
    "machine",
    "settings",
    "model_shape",
    "engine.kind",
    "engine.api",
    "engine.model",
    "engine.device",
)
_MOST_TOLD = 6


class Difference(Struct, frozen=True):
    """One field that is not the same on both sides; None where a side does not have it."""

    field: str
    base: str | None
    new: str | None


def differing_fields(base: Header, new: Header) -> list[Difference]:
    """Every field of what makes runs one measurement in which the two differ, nested settings by their path."""
    left, right = _fields(base), _fields(new)
    names = list(left) + [name for name in right if name not in left]
    return [
        Difference(name, left.get(name), right.get(name))
        for name in names
        if left.get(name) != right.get(name) and name.rsplit(".", 1)[-1] != "seed"
    ]


def is_refused(field: str) -> bool:
    """Whether runs that differ in this field are refused unless it is allowed."""
    return any(_covers(name, field) for name in _REFUSED)


def check_like(found: Sequence[Difference], allow: Collection[str], names: tuple[str, str]) -> None:
    """Raises InputError for a difference that is neither under test nor allowed; `names` are those of the sides."""
    bad = [d for d in found if is_refused(d.field) and not any(_covers(a, d.field) for a in allow)]
    if not bad:
        return
    told = "; ".join(f"{d.field} ({_short(d.base)} is not {_short(d.new)})" for d in bad[:_MOST_TOLD])
    more = f"; and {len(bad) - _MOST_TOLD} more" if len(bad) > _MOST_TOLD else ""
    fields = ",".join(dict.fromkeys(_allowable(d.field) for d in bad))
    raise InputError(
        "BASE and NEW",
        " and ".join(names),
        f"they differ in {told}{more}: compare like with like, or allow what was changed on purpose: --allow {fields}",
    )


def check_allow(allow: Collection[str], found: Sequence[Difference], headers: Sequence[Header]) -> None:
    """Raises InputError for a name in --allow that is no field of the runs."""
    known = {SHAPES} | {d.field for d in found} | {name for h in headers for name in _fields(h)}
    for name in allow:
        if not any(_covers(name, field) for field in known):
            groups = sorted({field.split(".")[0] for field in known})
            raise InputError(
                "--allow", name, f"is no field of these runs; they have {', '.join(groups)} (and parts, a.b)"
            )


def check_other(base: Sequence[Run], new: Sequence[Run]) -> None:
    """Raises InputError where one run stands on both sides: its comparison would be exact and say nothing."""
    both = {run.header.run_id for run in base} & {run.header.run_id for run in new}
    if both:
        raise InputError("BASE and NEW", ", ".join(sorted(both)), "the same run stands on both sides")


def _fields(header: Header) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name, value in identity(header).items():
        _flatten(name.replace(" ", "_"), value, found)
    return found


def _flatten(name: str, value: object, into: dict[str, str | None]) -> None:
    if isinstance(value, dict) and name.split(".")[0] == "settings":
        for key, inner in cast("dict[str, object]", value).items():
            _flatten(f"{name}.{key}", inner, into)
    else:
        into[name] = None if value is None else str(cast("object", value))


def _covers(name: str, field: str) -> bool:
    return field == name or field.startswith(f"{name}.")


def _allowable(field: str) -> str:
    """The name to offer: a nested setting by its first two parts."""
    return ".".join(field.split(".")[:2])


def _short(value: str | None) -> str:
    text = "absent" if value is None else value
    return text if len(text) <= 40 else f"{text[:37]}..."

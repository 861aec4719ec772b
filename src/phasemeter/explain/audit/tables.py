"""The audit's own tables: releases of engines, what hosts were seen to add, names that settings have."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from functools import cache
from importlib import resources
from typing import Literal

from msgspec import Struct, convert


class Release(Struct, frozen=True, forbid_unknown_fields=True):
    """When a release of an engine came out."""

    engine: str
    version: str
    date: date
    source: str


class Support(Struct, frozen=True, forbid_unknown_fields=True):
    """The first release that runs an architecture, the newest seen without it ("" if none was), and the release
    after which a generic way (the checkpoint's own code) might have run it ("" if there is none)."""

    engine: str
    model_type: str
    since: str
    absent_in: str
    fallback_after: str
    source: str
    note: str = ""
    note_zh: str = ""


class ModelRelease(Struct, frozen=True, forbid_unknown_fields=True):
    """When models of an architecture were published."""

    model_type: str
    date: date
    source: str


class Releases(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole table."""

    release: tuple[Release, ...]
    support: tuple[Support, ...]
    model: tuple[ModelRelease, ...]


class Seen(Struct, frozen=True, forbid_unknown_fields=True):
    """Least host time that a quick machine could reach, and the slowest median seen; ms."""

    least_ms: float
    seen_ms: float


class Many(Struct, frozen=True, forbid_unknown_fields=True):
    """What each further sequence of a batch was seen to add; ms."""

    prefill: float
    ttft: float
    token: float


class HostBounds(Struct, frozen=True, forbid_unknown_fields=True):
    """Host time of one engine in one era, `since` <= version < `until` ("" is open)."""

    engine: str
    device: Literal["gpu", "cpu"]
    since: str
    until: str
    multiple: float
    prefill: Seen
    ttft: Seen
    token: Seen
    seen_ms_per_input_token: float
    seen_ms_per_sequence: Many
    source: str


class Bounds(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole table, with the ratios that hold for every engine."""

    floor_tolerance_share: float
    floor_tolerance_source: str
    kernel_most_ratio: float
    kernel_most_source: str
    attention_step_ms_per_layer: float
    attention_step_source: str
    attention_most_ratio: float
    attention_most_source: str
    own_rows_ratio: float
    own_rows_source: str
    bounds: tuple[HostBounds, ...]


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """The names that one object of one engine's release takes."""

    engine: str
    version: str
    object: str
    source: str
    names: tuple[str, ...]


class _SettingsTable(Struct, frozen=True, forbid_unknown_fields=True):
    settings: tuple[Settings, ...]


@cache
def releases() -> Releases:
    """Releases, architectures, models."""
    return convert(_read("releases.toml"), Releases)


@cache
def bounds() -> Bounds:
    """What hosts add."""
    return convert(_read("host_bounds.toml"), Bounds)


@cache
def settings() -> tuple[Settings, ...]:
    """Every object's names."""
    return convert(_read("settings.toml"), _SettingsTable).settings


def engine_key(name: str | None) -> str | None:
    """One name for an engine's spellings: "vLLM (server)" and "vllm-local" are vllm; any other as it is, in lower
    case."""
    if name is None:
        return None
    word = re.match(r"[a-z0-9.+]+", name.strip().lower())
    key = word[0] if word else name.strip().lower()
    return {"hf": "transformers", "huggingface": "transformers"}.get(key, key)


def version_key(text: str) -> tuple[int, ...] | None:
    """A version as numbers, "0.9.0.1" and "v0.6.3.post1" too (a post release counts as its base); None when it is
    none. Trailing zeros do not count."""
    found = re.match(r"v?(\d{1,6}(?:\.\d{1,6}){0,5})(?![\d])", text.strip())
    if found is None:
        return None
    parts = [int(part) for part in found[1].split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def host_bounds(engine: str | None, version: str | None, device: str) -> HostBounds | None:
    """The host's row for an engine; without a usable version the newest era. None when there is no row."""
    rows = [row for row in bounds().bounds if row.engine == engine_key(engine) and row.device == device]
    number = version_key(version) if version else None
    if number is None:
        return rows[-1] if rows else None
    for row in rows:
        since, until = version_key(row.since) or (), version_key(row.until) if row.until else None
        if since <= number and (until is None or number < until):
            return row
    return None


def _read(name: str) -> dict[str, object]:
    text = resources.files("phasemeter.explain.audit").joinpath("data", name).read_text("utf-8")
    return tomllib.loads(text)

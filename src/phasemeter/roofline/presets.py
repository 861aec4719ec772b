"""Architectures known by name: the published config.json of each, with its source (`data/models.toml`)."""

from __future__ import annotations

import copy
import difflib
import json
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import cast

import msgspec

from phasemeter.record.errors import InputError
from phasemeter.roofline.config import shape_from_config
from phasemeter.roofline.shape import ModelShape


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One published architecture: `config` is what transformers needs to build it (without weights)."""

    name: str
    title: str
    aliases: tuple[str, ...]
    source: str
    config: dict[str, object]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    preset: tuple[Preset, ...]


@cache
def all_presets() -> tuple[Preset, ...]:
    """Every preset, in the table's order."""
    text = resources.files("phasemeter.roofline").joinpath("data", "models.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), _Table).preset


def preset_config(name: str) -> dict[str, object]:
    """A fresh copy of the config.json of a preset. Raises InputError, with the nearest names, if unknown."""
    found = find_preset(name)
    if found is None:
        raise InputError("model", name, _hint(name))
    return copy.deepcopy(found.config)


def load_shape(name_or_path: str) -> ModelShape:
    """The shape of a preset (name or hub id), of a config.json, or of a directory that holds one.

    Raises InputError when there is none, or when the file cannot be read or is not a model's config.json.
    """
    path = Path(name_or_path).expanduser()
    found = find_preset(name_or_path)
    if found is not None and not path.is_file():
        return shape_from_config(found.config, found.name)
    if not name_or_path.strip() or not _exists(path):
        raise InputError("model", name_or_path, _hint(name_or_path))
    file = path / "config.json" if path.is_dir() else path
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return shape_from_config(_read(file), name)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long or with a null byte is no path
        return False


def _read(file: Path) -> dict[str, object]:
    if file.exists() and not file.is_file() and not file.is_dir():  # a device may never end
        raise InputError("model", str(file), "is no regular file; give a model's config.json")
    try:
        parsed = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError("model", str(file.parent), "the directory holds no config.json") from None
    except OSError as error:
        raise InputError("model", str(file), f"cannot be read: {error.strerror}") from None
    except RecursionError:
        raise InputError("model", str(file), "nests too deeply; give a model's config.json") from None
    except ValueError as error:  # JSON or UTF-8
        raise InputError(
            "model", str(file), f"is not valid JSON ({error}); give a model's config.json"
        ) from None
    if not isinstance(parsed, dict):
        raise InputError("model", str(file), "holds no JSON object; give a model's config.json")
    return cast("dict[str, object]", parsed)


def find_preset(name: str) -> Preset | None:
    """The preset that goes by `name` (its own or an alias, any case), or None."""
    key = name.strip().lower()
    for preset in all_presets():
        if key in {preset.name, *(alias.lower() for alias in preset.aliases)}:
            return preset
    return None


def _hint(name: str) -> str:
    names = [preset.name for preset in all_presets()]
    short = name.strip().lower().rpartition("/")[2]
    near = difflib.get_close_matches(short, names, n=3, cutoff=0.4)
    known = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(names)};"
    return f"{known} or give a config.json or a directory that holds one"


PRESETS: tuple[str, ...] = tuple(preset.name for preset in all_presets())

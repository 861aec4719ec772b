"""Configs that never end or nest without end."""

from __future__ import annotations

from pathlib import Path

import pytest

from phasemeter.record.errors import InputError
from phasemeter.roofline.model import load_shape


def test_a_device_is_no_config() -> None:
    with pytest.raises(InputError, match="no regular file"):
        load_shape("/dev/zero")


def test_brackets_without_end(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[" * 200_000)
    with pytest.raises(InputError, match="nests too deeply"):
        load_shape(str(tmp_path))

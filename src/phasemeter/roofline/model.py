"""Models: their shape, from a config.json or by name. One door to `shape`, `config` and `presets`."""

from __future__ import annotations

from phasemeter.roofline.config import shape_from_config
from phasemeter.roofline.presets import PRESETS, Preset, all_presets, find_preset, load_shape, preset_config
from phasemeter.roofline.shape import ModelShape

__all__ = [
    "PRESETS",
    "ModelShape",
    "Preset",
    "all_presets",
    "find_preset",
    "load_shape",
    "preset_config",
    "shape_from_config",
]

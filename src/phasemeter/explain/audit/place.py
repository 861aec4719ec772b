"""A claim's set-up looked up: the model's shape, the chip, the host's bounds, and what was not found."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from phasemeter.explain.audit.claims import Setup
from phasemeter.explain.audit.tables import HostBounds, host_bounds
from phasemeter.explain.audit.verdict import Line, line
from phasemeter.record.errors import InputError
from phasemeter.roofline.hardware import Hardware, arithmetic_dtype, find_hardware
from phasemeter.roofline.presets import find_preset, load_shape
from phasemeter.roofline.shape import ModelShape


class Chip(Struct, frozen=True):
    """Model on hardware: everything that a floor needs. `arithmetic` is the format that the chip computes in;
    `cached` says that the weights fit its last-level cache, so that memory sets no floor."""

    shape: ModelShape
    hardware: Hardware
    dtype: str
    arithmetic: str
    gpus: int
    cached: bool

    @property
    def peak_flops_per_s(self) -> float:
        """Of all GPUs together."""
        return self.hardware.peak_flops_per_s[self.arithmetic]

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Of all GPUs together."""
        return self.hardware.memory_bandwidth_bytes_per_s


class Place(Struct, frozen=True):
    """A set-up looked up; what is None was not given or not found, and `missing` says it."""

    setup: Setup
    shape: ModelShape | None
    chip: Chip | None
    host: HostBounds | None
    missing: Line | None


def place_of(setup: Setup) -> Place:
    """Look a set-up up. What is not found is told in `missing`; nothing is raised, nothing is guessed. Only presets
    are looked up by name; a config.json by its path."""
    shape, missing = _shape(setup.model)
    hardware, lacking = _hardware(setup.hardware)
    missing = missing or lacking
    chip = None
    if shape is not None and hardware is not None:
        arithmetic = arithmetic_dtype(hardware, setup.dtype)
        if arithmetic in hardware.peak_flops_per_s:
            chip = _chip(shape, hardware, setup, arithmetic)
        else:
            missing = missing or line("missing_dtype", hardware=hardware.title, dtype=setup.dtype)
    host = None if hardware is None else host_bounds(setup.engine, setup.version, hardware.kind)
    return Place(setup, shape, chip, host, missing)


def _shape(model: str | None) -> tuple[ModelShape | None, Line | None]:
    if model is None:
        return None, line("missing_model_name")
    try:
        if find_preset(model) is None and not model.endswith(".json"):
            return None, line("missing_model", model=model)
        return load_shape(model), None
    except InputError as error:
        return None, line("missing_shape", model=model, why=error.mend)


def _hardware(name: str | None) -> tuple[Hardware | None, Line | None]:
    if name is None:
        return None, line("missing_hardware_name")
    try:
        return find_hardware(name), None
    except InputError:
        return None, line("missing_hardware", hardware=name)


def _chip(shape: ModelShape, hardware: Hardware, setup: Setup, arithmetic: str) -> Chip:
    many = setup.gpus
    wide = replace(
        hardware,
        peak_flops_per_s={name: rate * many for name, rate in hardware.peak_flops_per_s.items()},
        memory_bandwidth_bytes_per_s=hardware.memory_bandwidth_bytes_per_s * many,
        memory_bytes=None if hardware.memory_bytes is None else hardware.memory_bytes * many,
        l2_bytes=None if hardware.l2_bytes is None else hardware.l2_bytes * many,
    )
    cached = wide.l2_bytes is not None and shape.weight_bytes(setup.dtype) <= wide.l2_bytes
    return Chip(shape, wide, setup.dtype, arithmetic, many, cached)

"""Which model and which ceilings a run is held against."""

from __future__ import annotations

import msgspec

from phasemeter.record.errors import InputError
from phasemeter.record.run import Header, Run
from phasemeter.roofline.dtypes import canonical_dtype
from phasemeter.roofline.hardware import (
    Ceilings,
    Hardware,
    arithmetic_dtype,
    better,
    effective,
    find_hardware,
)
from phasemeter.roofline.presets import load_shape
from phasemeter.roofline.shape import ModelShape

MEASURED = "measured"
DATASHEET = "datasheet"


class Roof(msgspec.Struct, frozen=True):
    """One model under one set of ceilings. `dtype` is that of weights and cache, `arithmetic` the one the
    chip calculates in. `launch_ns` is the measured cost of one empty operator, None where it was not
    measured."""

    source: str
    hardware: Hardware
    shape: ModelShape
    dtype: str
    arithmetic: str
    launch_ns: float | None = None

    @property
    def peak_flops_per_s(self) -> float:
        """Arithmetic ceiling for the dtype in use."""
        return self.hardware.peak_flops_per_s[self.arithmetic]


def shape_of(header: Header, model_shape: str | None) -> ModelShape | None:
    """The model's shape: the one named by the caller, else the header's; None where nobody knows it. Raises
    InputError for an unknown name or a header whose shape cannot be read."""
    if model_shape is not None:
        return load_shape(model_shape)
    if header.shape is None:
        return None
    try:
        return msgspec.convert(header.shape, ModelShape)
    except msgspec.ValidationError as error:
        raise InputError("header.shape", str(error), "name the model with --model-shape") from None


def best_header(run: Run) -> Header:
    """The run's header with the better of the ceilings measured before and after it."""
    header, footer = run.header, run.footer
    if header.ceilings is None or footer is None or footer.ceilings is None:
        return header
    try:
        before, after = (msgspec.convert(found, Ceilings) for found in (header.ceilings, footer.ceilings))
        best = better(before, after)
    except (msgspec.ValidationError, InputError):
        return header
    return msgspec.structs.replace(header, ceilings=msgspec.to_builtins(best))


def roofs(header: Header, *, hardware: str | None, model_shape: str | None) -> tuple[Roof, ...]:
    """Measured ceilings first, then the datasheet's; empty where model or machine is not known.

    A machine named by the caller replaces the header's, and then what was measured on the header's machine
    no longer counts.
    """
    shape = shape_of(header, model_shape)
    if shape is None:
        return ()
    name = hardware or header.hardware
    row = find_hardware(name) if name is not None else None
    found: list[Roof | None] = []
    if header.ceilings is not None and hardware in (None, header.hardware):
        found.append(_measured(header, shape, row))
    if row is not None:
        found.append(_roof(DATASHEET, row, shape, header.engine.dtype))
    return tuple(roof for roof in found if roof is not None)


def _measured(header: Header, shape: ModelShape, row: Hardware | None) -> Roof | None:
    try:
        ceilings = msgspec.convert(header.ceilings, Ceilings)
        hardware = effective(row, ceilings)
    except (msgspec.ValidationError, InputError):
        return None  # too little was measured for a floor; the datasheet's still stands
    if hardware is row:
        return None
    return _roof(MEASURED, hardware, shape, header.engine.dtype, ceilings.launch_ns)


def _roof(
    source: str, hardware: Hardware, shape: ModelShape, dtype: str | None, launch_ns: float | None = None
) -> Roof | None:
    try:
        known = canonical_dtype(dtype or shape.weight_dtype)
    except InputError:
        return None  # a format that the tables do not know has no floor
    arithmetic = arithmetic_dtype(hardware, known)
    if arithmetic not in hardware.peak_flops_per_s:
        return None
    return Roof(source, hardware, shape, known, arithmetic, launch_ns)

"""Carrying a fit over to another chip, number format or model: the chip's part by the roofline, the host's part kept.

The chip's terms are slowdowns against the ceilings, so another chip, dtype or shape changes the seconds at the ceilings
and keeps the slowdowns. The host's terms are kept as they were measured. Neither is quite true, so both are widened.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from phasemeter.explain.roof import DATASHEET, Roof
from phasemeter.record.errors import UndecidedError
from phasemeter.roofline.dtypes import canonical_dtype
from phasemeter.roofline.hardware import arithmetic_dtype, find_hardware, peak_flops_per_s
from phasemeter.roofline.presets import load_shape

CHIP_LOG_SD = 0.25
"""Other kernels reach other shares of other ceilings: 61 to 73 % for large matrix products and 41 to 61 % for attention
on A100 and H100 (aiconfigurator's tables for vLLM 0.14), half of that for the one-row products of a decode step."""
HOST_LOG_SD = 0.1
"""Another dtype or shape changes a little of what the host does in a step."""
OTHER_HOST_LOG_SD = 0.45
"""Another chip mostly sits in another host: single-thread speed of the server CPUs in use differs by up to about two
times, and one standard deviation of this is 1.6 times either way. Name the chip of this machine to leave it out."""


class Target(Struct, frozen=True):
    """Where a prediction is for: its roof, and how much each part is widened, as standard deviations of a logarithm."""

    roof: Roof | None
    chip_log_sd: float = 0.0
    host_log_sd: float = 0.0
    changed: tuple[str, ...] = ()
    """What differs from what was measured: "hardware", "dtype", "model"."""


def target(
    roof: Roof | None,
    *,
    hardware: str | None = None,
    model_shape: str | None = None,
    dtype: str | None = None,
) -> Target:
    """The roof of another machine, model or number format of weights and cache. Raises InputError for names that are
    not known, UndecidedError where the fit has no roof to start from."""
    if hardware is None and model_shape is None and dtype is None:
        return Target(roof)
    if roof is None:
        raise UndecidedError(
            "the fit knows no model shape or hardware, so nothing can be carried over by ratio: fit again with"
            " --model-shape NAME --hardware NAME"
        )
    row = roof.hardware if hardware is None else find_hardware(hardware)
    shape = roof.shape if model_shape is None else load_shape(model_shape)
    known = roof.dtype if dtype is None else canonical_dtype(dtype)
    arithmetic = arithmetic_dtype(row, known)
    peak_flops_per_s(row, arithmetic)
    found = replace(
        roof, source=DATASHEET, hardware=row, shape=shape, dtype=known, arithmetic=arithmetic, launch_ns=None
    )
    changed = (
        *(("hardware",) if row.name != roof.hardware.name else ()),
        *(("dtype",) if known != roof.dtype else ()),
        *(("model",) if shape != roof.shape else ()),
    )
    if not changed:
        return Target(roof)
    host = OTHER_HOST_LOG_SD if "hardware" in changed else HOST_LOG_SD
    # Launches, and kernels too short to fill the chip, count with the layers: at worst all of the host's part does.
    host = math.hypot(host, math.log(shape.layers / roof.shape.layers))
    return Target(found, CHIP_LOG_SD, host, changed)

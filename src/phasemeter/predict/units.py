"""Coefficients as a person reads them: milliseconds of host, effective TB/s and TFLOP/s, microseconds a token."""

from __future__ import annotations

from typing import cast

from msgspec import Struct

from phasemeter.explain.roof import Roof
from phasemeter.predict.forms import Term
from phasemeter.predict.phase import PhaseFit


class Coefficient(Struct, frozen=True):
    """One coefficient with its 90 % bootstrap interval. `share` is what a chip term reaches of its ceiling, None for
    the host's; `told` says whether the cells tell it, or only its bounds and its prior do."""

    term: str
    value: float
    unit: str
    lo: float
    hi: float
    share: float | None = None
    told: bool = True


_TOLD_BY_CELLS = 0.15
"""A chip term that moves no cell's time by more than this share of its own change is decided by its prior."""


def coefficients(fit: PhaseFit, roof: Roof | None) -> tuple[Coefficient, ...]:
    """Every coefficient of one phase in human units."""
    import numpy as np

    found: list[Coefficient] = []
    for i, (term, value) in enumerate(zip(fit.form.terms, fit.fitted.coefficients, strict=True)):
        drawn = np.array([draw[i] for draw in fit.draws] or [value])
        low, high = cast("list[float]", np.quantile(drawn, [0.05, 0.95]).tolist())
        moved = max((abs(line[i]) for line in fit.fitted.jacobian), default=1.0)
        scaled = fit.form.scaled and term.part in ("roof", "gpu") and roof is not None
        if scaled:
            assert roof is not None
            rate, unit = _rate(term, roof)
            found.append(
                Coefficient(
                    term=term.name,
                    value=rate / value,
                    unit=unit,
                    lo=rate / max(high, 1.0),
                    hi=rate / max(low, 1.0),
                    share=1.0 / value,
                    told=moved > _TOLD_BY_CELLS,
                )
            )
        else:
            factor, unit = _UNITS.get(term.feature, (1e6, "µs a unit"))
            found.append(Coefficient(term.name, value * factor, unit, low * factor, high * factor))
    return tuple(found)


def _rate(term: Term, roof: Roof) -> tuple[float, str]:
    if term.feature in ("memory", "kv"):
        return roof.hardware.memory_bandwidth_bytes_per_s / 1e12, "TB/s"
    return roof.peak_flops_per_s / 1e12, "TFLOP/s"


_UNITS: dict[str, tuple[float, str]] = {
    "one": (1e3, "ms"),
    "full": (1e3, "ms"),
    "sequences": (1e6, "µs a sequence"),
    "others": (1e6, "µs a request beside"),
    "input": (1e6, "µs a token"),
    "compute": (1e6, "µs a token"),
    "batch_input": (1e6, "µs a token of the batch"),
    "turns": (1e3, "ms a step waited"),
    "output": (1e6, "µs an output token"),
    "foreign": (1e6, "µs a foreign token"),
    "foreign_pairs": (1e9, "ns a foreign pair"),
    "attention": (1e9, "ns a pair"),
    "kv": (1e9, "ns a token of context"),
}

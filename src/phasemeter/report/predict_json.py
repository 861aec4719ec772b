"""A fit and a forecast as the JSON that scripts read."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phasemeter.predict.design import NextCell
from phasemeter.predict.foresee import Forecast, Foreseen, Prediction
from phasemeter.predict.model import FittedModel
from phasemeter.predict.units import coefficients


def forecast_json(model: FittedModel, forecast: Forecast) -> dict[str, object]:
    """The keys of `predict --json`; a phase that the model does not tell is null."""
    roof = forecast.target.roof
    return {
        "ttft_ms": _range(forecast.ttft),
        "prefill_ms": _range(forecast.prefill),
        "tpot_ms": _range(forecast.tpot),
        "e2e_ms": None if forecast.e2e_ms is None else _interval(forecast.e2e_ms),
        "inside_domain": forecast.inside_domain,
        "query": msgspec.to_builtins(forecast.query),
        "model": model.model if roof is None else roof.shape.name,
        "hardware": None if roof is None else roof.hardware.name,
        "dtype": model.dtype if roof is None else roof.dtype,
        "changed": list(forecast.target.changed),
        "phases": {
            found.phase: {
                "floor_ms": found.floor_ms or None,
                "outside": list(found.outside),
                "parts": msgspec.to_builtins(found.parts),
            }
            for found in (forecast.prefill, forecast.ttft, forecast.tpot)
            if found is not None
        },
    }


def fit_json(model: FittedModel, cells: Sequence[NextCell]) -> dict[str, object]:
    """The keys of `fit --json`: the phases with their coefficients in human units, and the cells to measure next."""
    return {
        "machine": model.machine,
        "model": model.model,
        "engine": model.engine,
        "engine_version": model.engine_version,
        "dtype": model.dtype,
        "hardware": None if model.roof is None else model.roof.hardware.name,
        "runs": list(model.runs),
        "phases": {
            name: {
                "form": fit.form.name,
                "cells": len(fit.residuals),
                "held_out_error": fit.score,
                "repeatability": fit.noise,
                "half_width": msgspec.to_builtins(fit.widths),
                "coefficients": msgspec.to_builtins(coefficients(fit, model.roof)),
                "residuals": msgspec.to_builtins(fit.residuals),
                "rivals": [rival.form.name for rival in fit.rivals],
            }
            for name, fit in model.phases.items()
        },
        "notes": list(model.notes),
        "next": msgspec.to_builtins(cells),
    }


def _range(found: Foreseen | None) -> dict[str, float] | None:
    return None if found is None else _interval(found.ms)


def _interval(ms: Prediction) -> dict[str, float]:
    return {"lo": ms.lo, "mid": ms.mid, "hi": ms.hi}

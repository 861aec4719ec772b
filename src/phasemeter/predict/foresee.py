"""Asking a fitted model: what will a request take, how sure is that, and whose uncertainty it is."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from phasemeter.predict.features import Query, checked_query, features, floor_s
from phasemeter.predict.model import FittedModel
from phasemeter.predict.phase import PhaseFit
from phasemeter.predict.transfer import Target, target
from phasemeter.record.errors import UndecidedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_DRAWS = 400


class Prediction(Struct, frozen=True):
    """Milliseconds with a 90 % interval. `inside_domain`: everything asked lies within what was measured."""

    lo: float
    mid: float
    hi: float
    inside_domain: bool


class Part(Struct, frozen=True):
    """One part of a prediction: its milliseconds, and its share of the variance of the prediction's logarithm."""

    name: str
    ms: float
    share_of_uncertainty: float


class Foreseen(Struct, frozen=True):
    """One phase: the prediction, its floor, its parts and in which way it leaves the measured domain."""

    phase: str
    ms: Prediction
    floor_ms: float
    parts: tuple[Part, ...]
    outside: tuple[str, ...] = ()


class Forecast(Struct, frozen=True):
    """What was asked of a model. None where the model was fitted to runs that do not tell the phase."""

    query: Query
    target: Target
    ttft: Foreseen | None
    prefill: Foreseen | None
    tpot: Foreseen | None
    front_end: Foreseen | None
    e2e_ms: Prediction | None

    @property
    def inside_domain(self) -> bool:
        """Whether every phase that is told lies inside."""
        told = [found for found in (self.ttft, self.prefill, self.tpot) if found is not None]
        return all(found.ms.inside_domain for found in told)


def foresee(
    model: FittedModel,
    query: Query,
    *,
    hardware: str | None = None,
    model_shape: str | None = None,
    dtype: str | None = None,
) -> Forecast:
    """Predict a query, also on another machine, model or number format. Raises InputError for counts below 1 or unknown
    names, UndecidedError where the model cannot tell."""
    checked_query(query)
    to = target(model.roof, hardware=hardware, model_shape=model_shape, dtype=dtype)
    if to.roof is not None and to.roof.shape.max_positions is not None:
        _fits(query, to.roof.shape.max_positions)
    found = {name: foresee_phase(fit, query, to) for name, fit in model.phases.items()}
    prefill, front_end, tpot = found.get("prefill"), found.get("front_end"), found.get("decode")
    ttft = found.get("first") if prefill is None or front_end is None else _joined(prefill, front_end)
    return Forecast(
        query=query,
        target=to,
        ttft=ttft,
        prefill=found.get("prefill"),
        tpot=tpot if query.output_tokens > 1 else None,
        front_end=found.get("front_end"),
        e2e_ms=_whole(ttft, tpot, query),
    )


def foresee_phase(fit: PhaseFit, query: Query, to: Target) -> Foreseen:
    """One phase of a forecast."""
    row = features(fit.phase, query, to.roof)
    floor_ms = floor_s(fit.phase, query, to.roof) * 1e3
    outside = outside_of(fit, query, row, to)
    mid = max(fit.fitted.seconds(row) * 1e3, floor_ms)
    spread = _spread(fit, row, to, outside=bool(outside))
    width = _width(fit, query)
    total = math.sqrt(width**2 + spread["host"] ** 2 + spread["chip"] ** 2 + spread["form"] ** 2)
    lo, hi = mid * math.exp(-total), mid * math.exp(total)
    if outside and not to.changed:
        lo, hi = _limits(fit, row, width, (lo, hi))
    lo = max(lo, floor_ms)
    parts = fit.form.parts(fit.fitted.coefficients, fit.form.rows(row))
    variance = {
        "host": spread["host"] ** 2,
        "chip": spread["chip"] ** 2,
        "residual": width**2 + spread["form"] ** 2,
    }
    return Foreseen(
        phase=fit.phase,
        ms=Prediction(min(lo, mid), mid, max(hi, mid), not outside),
        floor_ms=floor_ms,
        parts=_parts(parts, variance, mid),
        outside=outside,
    )


def _joined(prefill: Foreseen, front_end: Foreseen) -> Foreseen:
    """TTFT where the engine tells its part: prefill + front end, their errors taken as apart. No queue: the requests
    asked for are all that is there, and they are prefilled together."""
    a, b = prefill.ms, front_end.ms
    mid = a.mid + b.mid
    down, up = math.hypot(a.mid - a.lo, b.mid - b.lo), math.hypot(a.hi - a.mid, b.hi - b.mid)
    widths = [(x.hi - x.lo) ** 2 for x in (a, b)]
    weight = sum(widths) or 1.0
    parts = [Part(p.name, p.ms, p.share_of_uncertainty * widths[0] / weight) for p in prefill.parts]
    return Foreseen(
        phase="first",
        ms=Prediction(max(mid - down, prefill.floor_ms), mid, mid + up, a.inside_domain and b.inside_domain),
        floor_ms=prefill.floor_ms,
        parts=(*parts, Part("front end", b.mid, widths[1] / weight)),
        outside=tuple(dict.fromkeys((*prefill.outside, *front_end.outside))),
    )


def outside_of(fit: PhaseFit, query: Query, row: dict[str, float], to: Target) -> tuple[str, ...]:
    """In which ways a query leaves what was measured; empty where it does not."""
    way, length = _length_of(fit.phase, query)
    asked = {"batch": float(query.batch), way: length}
    if fit.phase in ("prefill", "first", "front_end") and not to.changed and "tokens" in row:
        asked["tokens"] = row["tokens"]
    found = [f"another {name}" for name in to.changed]
    for name, value in asked.items():
        low, high = fit.domain[name]
        if not low <= value <= high:
            found.append(f"{name} {value:,.0f}, measured {low:,.0f} to {high:,.0f}")
    return tuple(found)


def _fits(query: Query, most: int) -> None:
    if query.input_tokens + query.output_tokens > most:
        raise UndecidedError(
            f"{query.input_tokens} + {query.output_tokens} tokens: the model takes {most} positions at most"
        )


def _width(fit: PhaseFit, query: Query) -> float:
    """Half width from cells left out: beyond the measured lengths or batches that of the rim in that direction, and one
    more of it for each factor of e further out."""
    way, length = _length_of(fit.phase, query)
    found = fit.widths.inside(query.batch)
    for where, value, rim in (
        (way, length, fit.widths.far_length),
        ("batch", float(query.batch), fit.widths.far_batch),
    ):
        low, high = fit.domain[where]
        if not low <= value <= high:
            found = max(found, rim * (1.0 + max(math.log(low / value), math.log(value / high))))
    return found


def _length_of(phase: str, query: Query) -> tuple[str, float]:
    """The length that a phase depends on, by its name in the domain."""
    if phase in ("decode", "step"):
        return "context_tokens", float(query.context_tokens)
    return "input_tokens", float(query.input_tokens)


def _spread(fit: PhaseFit, row: dict[str, float], to: Target, *, outside: bool) -> dict[str, float]:
    """Half widths (logarithms, 90 %) by what causes them: host terms, chip terms, and the choice of form outside of the
    domain. Inside, on the same machine, the held-out cells hold all of it already."""
    if not outside:
        return {"host": 0.0, "chip": 0.0, "form": 0.0}
    chip = [term.part in ("roof", "gpu") for term in fit.form.terms]
    mid = max(fit.fitted.seconds(row), 1e-12)
    found = {
        "host": _log_spread(fit, row, [not is_chip for is_chip in chip], to.host_log_sd),
        "chip": _log_spread(fit, row, chip, to.chip_log_sd),
    }
    others = [abs(math.log(max(rival.seconds(row), 1e-12) / mid)) for rival in fit.rivals]
    return {**found, "form": max(others, default=0.0)}


def _log_spread(fit: PhaseFit, row: dict[str, float], moved: list[bool], log_sd: float) -> float:
    """Half width of log(t) when the coefficients in `moved` are drawn, together, and scaled by one factor."""
    import numpy as np

    if not fit.draws:
        return 0.0
    random = np.random.default_rng(0)
    values = fit.form.rows(row)
    logs: list[float] = []
    for i in range(_DRAWS):
        drawn = fit.draws[i % len(fit.draws)]
        factor = math.exp(log_sd * float(random.standard_normal()))
        mixed = [
            c * factor if move else best
            for c, best, move in zip(drawn, fit.fitted.coefficients, moved, strict=True)
        ]
        bounded = [max(c, least) for c, least in zip(mixed, fit.form.least(), strict=True)]
        logs.append(math.log(max(fit.form.seconds(bounded, values), 1e-12)))
    low, high = cast("list[float]", np.quantile(np.array(logs), [0.05, 0.95]).tolist())
    return (high - low) / 2


def _limits(
    fit: PhaseFit, row: dict[str, float], width: float, asked: tuple[float, float]
) -> tuple[float, float]:
    """What the measured cells exclude. Every term grows with its feature: so a query that asks no less of anything than
    a measured cell takes no less time, and no query takes more than a measured cell times the largest ratio of any of
    the form's features. Both within the width of an interval; nothing here can cross the middle."""
    lo, hi = asked
    names = [term.feature for term in fit.form.terms]
    for measured, residual in zip(fit.rows, fit.residuals, strict=True):
        at_ms = residual.measured_s * 1e3
        if all(row[name] >= measured[name] for name in names):
            lo = max(lo, at_ms * math.exp(-width))
        if all(measured[name] > 0.0 or row[name] == 0.0 for name in names):
            ratio = max(row[name] / measured[name] for name in names if measured[name] > 0.0)
            hi = min(hi, max(1.0, ratio) * at_ms * math.exp(width))
    return lo, hi


def _parts(sums: dict[str, float], variance: dict[str, float], mid: float) -> tuple[Part, ...]:
    """Host and chip as they add up to the prediction: what is hidden behind the chip is left out of the host's."""
    whole = sum(variance.values()) or 1.0
    chip = min(sums["gpu"] * 1e3, mid)
    rest = max(0.0, mid - chip - sums["apart"] * 1e3)
    return (
        Part("chip", chip, variance["chip"] / whole),
        Part("host", rest, variance["host"] / whole),
        Part("other requests", max(0.0, mid - chip - rest), 0.0),
        Part("residual", 0.0, variance["residual"] / whole),
    )


def _whole(ttft: Foreseen | None, tpot: Foreseen | None, query: Query) -> Prediction | None:
    """TTFT + (output - 1) x TPOT; their errors are taken as apart, so that half widths add in squares."""
    if ttft is None or (tpot is None and query.output_tokens > 1):
        return None
    first = ttft.ms
    if tpot is None or query.output_tokens == 1:
        return first
    steps, token = query.output_tokens - 1, tpot.ms
    mid = first.mid + steps * token.mid
    down = math.hypot(first.mid - first.lo, steps * (token.mid - token.lo))
    up = math.hypot(first.hi - first.mid, steps * (token.hi - token.mid))
    return Prediction(mid - down, mid, mid + up, first.inside_domain and token.inside_domain)

"""When the requests of an open loop arrive: nanoseconds after their stage began.

Everything is drawn by inversion from `random.Random.random`, whose numbers Python keeps the same from version to
version, so every process that has the seed has the same plan. Moments are summed in floating point with the lost part
carried along and rounded to a nanosecond once each: no drift, however many arrivals.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

from phasemeter.measure.load import Arrivals, Stage
from phasemeter.record.errors import InputError

FIELD = "--arrivals"
KINDS = "constant, poisson, gamma:CV, bursts:ON_S:OFF_S or ramp:FROM_RATE"
_LEAST_CV, _MOST_CV = 0.01, 100.0
"""Beyond: a constant rate in all but name, or one gap that outlasts any run."""
MOST_RATE_PER_S = 1e6


def parse_arrivals(text: str) -> Arrivals:
    """`constant`, `poisson`, `gamma:CV`, `bursts:ON_S:OFF_S` or `ramp:FROM_RATE`. Raises InputError."""
    kind, *rest = text.strip().split(":")
    counts = {"constant": 0, "poisson": 0, "gamma": 1, "bursts": 2, "ramp": 1}
    if kind not in counts or len(rest) != counts[kind]:
        raise InputError(FIELD, text, f"use one of {KINDS}")
    numbers = [_number(part, text) for part in rest]
    if kind == "gamma":
        arrivals = Arrivals("gamma", cv=numbers[0])
    elif kind == "bursts":
        arrivals = Arrivals("bursts", on_s=numbers[0], off_s=numbers[1])
    elif kind == "ramp":
        arrivals = Arrivals("ramp", from_rate_per_s=numbers[0])
    else:
        arrivals = Arrivals(kind)
    check_arrivals(arrivals)
    return arrivals


def arrivals_text(arrivals: Arrivals) -> str:
    """As a user writes it; `parse_arrivals` reads it back."""
    numbers = (arrivals.cv, arrivals.on_s, arrivals.off_s, arrivals.from_rate_per_s)
    return ":".join([arrivals.kind, *(repr(number) for number in numbers if number is not None)])


def check_arrivals(arrivals: Arrivals) -> None:
    """Raises InputError for numbers that no process can have."""
    kind, shown = arrivals.kind, arrivals_text(arrivals)
    if kind == "gamma" and not _LEAST_CV <= (arrivals.cv or 0) <= _MOST_CV:
        raise InputError(
            FIELD, shown, f"CV is the coefficient of variation of the gaps, {_LEAST_CV} to {_MOST_CV:g}"
        )
    if kind == "bursts" and not (0 < (arrivals.on_s or 0) < 1e6 and 0 <= _or(arrivals.off_s, -1) < 1e6):
        raise InputError(
            FIELD, shown, "ON_S must be above 0 and OFF_S 0 or more seconds, for example bursts:2:8"
        )
    if kind == "ramp" and not 0 <= _or(arrivals.from_rate_per_s, -1) <= MOST_RATE_PER_S:
        raise InputError(
            FIELD, shown, "FROM_RATE is a rate in requests a second, 0 or more; --rate is the last one"
        )
    if kind not in {"constant", "poisson", "gamma", "bursts", "ramp"}:
        raise InputError(FIELD, kind, f"use one of {KINDS}")


def offsets(arrivals: Arrivals, stage: Stage, seed: int) -> Iterator[int]:
    """The moments of a stage's arrivals, nanoseconds after its start, in order; at most `stage.requests` of them and
    none at `stage.duration_ns` or later; endless when neither bounds it.

    constant  the first at 0, then every 1/rate
    poisson   independent exponential gaps, the first before the first arrival
    gamma     independent gamma gaps of mean 1/rate and the given CV (a renewal process that begins with a gap: over
              a time t it yields rate*t + (CV*CV - 1)/2 arrivals in the mean)
    bursts    Poisson while on, at rate*(on + off)/on, so that the mean over both is the rate
    ramp      Poisson with a rate that goes evenly from the first to the stage's rate over `duration_ns`; without one,
              over the time in which `requests` arrivals are expected. By inversion of the summed rate, exact

    Raises InputError for a ramp without an end and for bad numbers, at the call.
    """
    check_arrivals(arrivals)
    draw = random.Random(f"arrivals/{seed}")
    rate = stage.rate_per_s
    if rate is None:
        raise ValueError("a stage without a rate has no arrivals of this kind")
    if not 0 < rate <= MOST_RATE_PER_S:
        raise InputError("--rate", rate, f"give requests a second, above 0 and up to {MOST_RATE_PER_S:g}")
    makers: dict[str, Callable[[], Iterator[float]]] = {
        "constant": lambda: _constant(rate),
        "poisson": lambda: _sums(lambda: _exponential(draw) / rate),
        "gamma": lambda: _gamma(rate, arrivals.cv or 1.0, draw),
        "bursts": lambda: _bursts(rate, arrivals.on_s or 1.0, arrivals.off_s or 0.0, draw),
        "ramp": lambda: _ramp(arrivals.from_rate_per_s or 0.0, rate, ramp_s, draw),
    }
    ramp_s = _ramp_s(arrivals, stage, rate) if arrivals.kind == "ramp" else 0.0
    return _bounded(makers[arrivals.kind](), stage)


def _bounded(moments_s: Iterator[float], stage: Stage) -> Iterator[int]:
    for number, moment_s in enumerate(moments_s):
        offset_ns = round(moment_s * 1e9)
        if stage.requests is not None and number >= stage.requests:
            return
        if stage.duration_ns is not None and offset_ns >= stage.duration_ns:
            return
        yield offset_ns


def _constant(rate: float) -> Iterator[float]:
    number = 0
    while True:
        yield number / rate
        number += 1


def _exponential(draw: random.Random) -> float:
    """Mean 1. `random()` is in [0, 1), so the logarithm's argument is never 0."""
    return -math.log(1.0 - draw.random())


def _sums(gap: Callable[[], float]) -> Iterator[float]:
    """Running sums with the rounding error of each addition carried into the next (Kahan 1965)."""
    total = lost = 0.0
    while True:
        step = gap() - lost
        after = total + step
        lost = (after - total) - step
        total = after
        yield total


def _gamma(rate: float, cv: float, draw: random.Random) -> Iterator[float]:
    if cv == 1.0:
        return _sums(lambda: _exponential(draw) / rate)
    shape, scale = 1 / cv**2, cv**2 / rate
    return _sums(lambda: draw.gammavariate(shape, scale))


def _bursts(rate: float, on_s: float, off_s: float, draw: random.Random) -> Iterator[float]:
    """Poisson in the time spent on, which is then stretched by the pauses."""
    on_rate = rate * (on_s + off_s) / on_s
    for spent_s in _sums(lambda: _exponential(draw) / on_rate):
        bursts, within_s = divmod(spent_s, on_s)
        yield bursts * (on_s + off_s) + within_s


def _ramp(first: float, last: float, ramp_s: float, draw: random.Random) -> Iterator[float]:
    """Arrival k is where the integral of the rate reaches the k-th point of a unit Poisson process (Cinlar 1975)."""
    slope = (last - first) / ramp_s
    whole = (first + last) / 2 * ramp_s
    for reached in _sums(lambda: _exponential(draw)):
        if reached >= whole:
            yield ramp_s + (reached - whole) / last
        else:
            yield 2 * reached / (first + math.sqrt(max(0.0, first * first + 2 * slope * reached)))


def _ramp_s(arrivals: Arrivals, stage: Stage, rate: float) -> float:
    if stage.duration_ns is not None:
        return stage.duration_ns / 1e9
    if stage.requests is not None:
        return 2 * stage.requests / ((arrivals.from_rate_per_s or 0.0) + rate)
    raise InputError(FIELD, arrivals_text(arrivals), "a ramp needs --duration: it rises over that time")


def _or(value: float | None, instead: float) -> float:
    return instead if value is None else value


def _number(part: str, text: str) -> float:
    try:
        number = float(part)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(FIELD, text, f"{part!r} is not a number; use one of {KINDS}")
    return number

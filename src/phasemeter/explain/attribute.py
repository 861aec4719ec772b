"""Whose time each phase was: arithmetic, memory traffic, the host, a queue or our own client.

For prefill and decode the roofline (measured ceilings, else the datasheet's) is laid over the phase,
operator by operator: an operator's floor max(FLOPs / peak, bytes / bandwidth) is counted as arithmetic where
the first is larger, else as traffic. What the floor does not explain is the remainder, "host and kernel
inefficiency": launches, scheduling, Python, and kernels that do not reach the ceilings. The shares of a
phase add up to its mean.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from phasemeter.explain.floors import Load, decode_step_of, prefill_of
from phasemeter.explain.phases import Basis
from phasemeter.explain.roof import Roof
from phasemeter.roofline.floor import Floor
from phasemeter.roofline.work import Work


class Cause(StrEnum):
    """Who took the time."""

    ARITHMETIC = "arithmetic"
    TRAFFIC = "memory traffic"
    HOST = "host and kernel inefficiency"
    QUEUE = "queue"
    CLIENT = "client"


class Share(Struct, frozen=True):
    """A part of one phase, milliseconds a request."""

    cause: Cause
    ms: float


class Attribution(Struct, frozen=True):
    """One phase of one shape, split by cause. The shares add up to `mean_ms`.

    `below_floor` means that the phase was measured faster than its floor: the host share is then negative,
    shown as it is, and a check flags it. `launch_ms` is the least time it takes to launch the phase's
    kernels one by one at the measured launch cost; None where that cost is not known or the engine does not
    launch them so. On a device that works beside the host it may hide behind the other shares, so it is no
    share of its own. `note` says what a bound is a bound of.
    """

    phase: str
    """A field name of `Phases`: late, connect, first, front_end, queue, prefill, decode, tail."""
    mean_ms: float
    basis: Basis
    shares: tuple[Share, ...]
    below_floor: bool = False
    launch_ms: float | None = None
    note: str = ""


class Mean(Struct, frozen=True):
    """The mean of one phase over the requests of a shape, milliseconds."""

    ms: float
    basis: Basis


_WHOSE: dict[str, Cause] = {
    "late": Cause.CLIENT,
    "connect": Cause.CLIENT,
    "front_end": Cause.HOST,
    "queue": Cause.QUEUE,
    "tail": Cause.HOST,
}
_ORDER = ("late", "connect", "first", "front_end", "queue", "prefill", "decode", "tail")


def attribute(
    means: dict[str, Mean], roof: Roof | None, load: Load, *, launches_one_by_one: bool
) -> tuple[Attribution, ...]:
    """Split every phase in `means`; where `prefill` is there, `first` is left to its three parts. Prefill,
    decode and an unsplit `first` are left out where there is no roof."""
    found: list[Attribution] = []
    for phase in _ORDER:
        mean = means.get(phase)
        if mean is None or (phase == "first" and "prefill" in means):
            continue
        whose = _WHOSE.get(phase)
        if whose is not None:
            found.append(Attribution(phase, mean.ms, mean.basis, (Share(whose, mean.ms),)))
        elif roof is not None:
            found.append(_under_roof(phase, mean, roof, load, launches_one_by_one=launches_one_by_one))
    return tuple(found)


def _under_roof(phase: str, mean: Mean, roof: Roof, load: Load, *, launches_one_by_one: bool) -> Attribution:
    steps = max(0.0, load.output_tokens - 1) if phase == "decode" else 1.0
    needed, least = decode_step_of(roof, load) if phase == "decode" else prefill_of(roof, load)
    launch_ns = roof.launch_ns if launches_one_by_one else None
    arithmetic_ms, traffic_ms = _parts_ms(least, steps)
    rest_ms = mean.ms - arithmetic_ms - traffic_ms
    return Attribution(
        phase=phase,
        mean_ms=mean.ms,
        basis=Basis.INFERRED,
        shares=(
            Share(Cause.ARITHMETIC, arithmetic_ms),
            Share(Cause.TRAFFIC, traffic_ms),
            Share(Cause.HOST, rest_ms),
        ),
        below_floor=rest_ms < 0.0,
        launch_ms=None if launch_ns is None else steps * kernels(needed) * launch_ns / 1e6,
        note=_note(phase, roof),
    )


def kernels(needed: Work) -> int:
    """The least number of kernels one pass launches: one an operator and layer that does anything."""
    return sum(operator.count for operator in needed.operators if operator.flops > 0 or operator.bytes > 0)


def _parts_ms(least: Floor, steps: float) -> tuple[float, float]:
    return least.arithmetic_s * steps * 1e3, least.traffic_s * steps * 1e3


def _note(phase: str, roof: Roof) -> str:
    if phase != "first":
        return f"{roof.source} ceilings"
    bound = "queue and front end are in it, so the remainder is an upper bound of the host's"
    return f"{roof.source} ceilings; {bound}"

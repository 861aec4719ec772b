"""One shape of work (input tokens, output tokens, concurrency asked) and everything that was seen of it."""

from __future__ import annotations

from msgspec import Struct

from phasemeter.explain.attribute import Attribution
from phasemeter.explain.floors import FloorCheck
from phasemeter.explain.growth import DecodeSlope
from phasemeter.explain.phases import Basis
from phasemeter.explain.stats import Dist


class PhaseDist(Struct, frozen=True):
    """A phase over many requests, milliseconds. The basis is inferred as soon as one request's was."""

    dist: Dist
    basis: Basis


class PhaseDists(Struct, frozen=True):
    """The budget over many requests. Means add up: late + connect + first + decode + tail = end to end, and
    where every request has a report first = front_end + queue + prefill. Medians need not add up. Absent is
    None."""

    late: PhaseDist | None = None
    connect: PhaseDist | None = None
    first: PhaseDist | None = None
    front_end: PhaseDist | None = None
    queue: PhaseDist | None = None
    prefill: PhaseDist | None = None
    decode: PhaseDist | None = None
    engine_decode: PhaseDist | None = None
    tail: PhaseDist | None = None


class Latency(Struct, frozen=True):
    """The distributions of successful measured requests; definitions in docs/definitions.md. All
    milliseconds."""

    ttft_ms: Dist | None = None
    ttft_from_arrival_ms: Dist | None = None
    ttfa_ms: Dist | None = None
    """To the first answer token; None where no request had reasoning (then it is TTFT)."""
    tpot_ms: Dist | None = None
    itl_ms: Dist | None = None
    """Every gap; per token where the server tells the count, else per piece."""
    itl_chunk_ms: Dist | None = None
    """Every gap between pieces."""
    itl_token_ms: Dist | None = None
    """A piece of k tokens gives its gap / k, k times; None where the server does not tell the count."""
    e2e_ms: Dist | None = None
    """From the intended arrival to the end of the stream."""


class ShapeKey(Struct, frozen=True, order=True):
    """What makes two requests comparable."""

    input_tokens: int
    output_tokens: int
    concurrency: int


class ShapeSummary(Struct, frozen=True):
    """Everything about one shape. `floor_measured` uses the ceilings measured on this machine,
    `floor_datasheet` the hardware table; None where the model's shape or the hardware is not known."""

    key: ShapeKey
    ok: int
    failed: int
    blocks: int
    latency: Latency
    phases: PhaseDists
    floor_measured: FloorCheck | None = None
    floor_datasheet: FloorCheck | None = None
    attribution: tuple[Attribution, ...] = ()
    decode_slope: DecodeSlope | None = None

    @property
    def floor(self) -> FloorCheck | None:
        """The floor to compare with: measured ceilings where there are any, else the datasheet's."""
        return self.floor_measured or self.floor_datasheet

"""The first line of a run file, from what an engine says of itself, the machine, and what was asked for."""

from __future__ import annotations

import secrets

import msgspec
from msgspec import Struct

from phasemeter import __version__
from phasemeter.measure.environment import fingerprint
from phasemeter.measure.plan import Grid
from phasemeter.record.clock import Anchor, Clock
from phasemeter.record.engine import EngineInfo
from phasemeter.record.run import SCHEMA, Header, Machine

FINGERPRINTED = (
    "phasemeter",
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "httptools",
    "uvloop",
    "msgspec",
    "vllm",
    "triton",
)
"""Distributions whose versions a run names, where they are installed."""


class Asked(Struct, frozen=True):
    """What a run was asked for, and what is known beside the engine; see `record.run.Header`."""

    started: Anchor
    settings: dict[str, object]
    planned: int | None = None
    shape: dict[str, object] | None = None
    hardware: str | None = None
    ceilings: dict[str, object] | None = None
    notes: tuple[str, ...] = ()


def make_header(info: EngineInfo, asked: Asked, clock: Clock, machine: Machine | None = None) -> Header:
    """A header with a run id of its own; `machine` is this one unless given."""
    return Header(
        schema=SCHEMA,
        run_id=f"{clock.now_ns() & 0xFFFF:04x}{secrets.token_hex(4)}",
        phasemeter=__version__,
        anchor=asked.started,
        engine=info,
        machine=machine or fingerprint(FINGERPRINTED),
        settings=asked.settings,
        shape=asked.shape,
        hardware=asked.hardware,
        ceilings=asked.ceilings,
        planned=asked.planned,
        notes=asked.notes,
    )


def grid_settings(grid: Grid) -> dict[str, object]:
    """What a grid asked for, as the header's settings hold it and as a merge must agree on."""
    return {
        "input_tokens": list(grid.input_tokens),
        "output_tokens": list(grid.output_tokens),
        "concurrency": list(grid.concurrency),
        "paired": grid.paired,
        "repeats": grid.repeats,
        "requests": grid.requests,
        "warmup": "auto" if grid.warmup is None else grid.warmup,
        "seed": grid.seed,
        "sampling": msgspec.to_builtins(grid.sampling),
    }

"""The first line of a run file, from what an engine says of itself, the machine, and what was asked for."""

from __future__ import annotations

import secrets

import msgspec
from msgspec import Struct

from phasemeter import __version__
from phasemeter.measure.arrivals import arrivals_text
from phasemeter.measure.environment import fingerprint
from phasemeter.measure.load import Load, Stage
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


def load_settings(load: Load) -> dict[str, object]:
    """What a load asked for; what it did not ask for is left out. `driver` says which loop."""
    levels = [stage for stage in load.stages if stage.block == 0]
    rates = [stage.rate_per_s for stage in levels if stage.rate_per_s is not None]
    slots = [stage.concurrency for stage in levels if stage.concurrency is not None]
    first, patience = levels[0], load.patience
    asked: dict[str, object] = {
        "workload": load.workload,
        "tokenizer": load.tokenizer,
        "driver": _driver(first),
        "rate_per_s": rates or None,
        "arrivals": arrivals_text(load.arrivals) if rates else None,
        "concurrency": slots or None,
        "requests": first.requests,
        "duration_s": None if first.duration_ns is None else first.duration_ns / 1e9,
        "repeats": 1 + max(stage.block for stage in load.stages),
        "think_s": load.think_s or None,
        "stagger_s": load.stagger_s or None,
        "connect_timeout_s": patience.connect_s,
        "first_token_timeout_s": patience.first_token_s,
        "gap_timeout_s": patience.gap_s,
        "timeout_s": patience.total_s,
        "cancel_ratio": patience.cancel_ratio or None,
        "cancel_after_tokens": patience.cancel_after_tokens if patience.cancel_ratio else None,
        "late_limit_ms": load.late_limit_ms if first.concurrency is None else None,
        "warmup": "auto" if load.warmup is None else load.warmup,
        "seed": load.seed,
        "sampling": msgspec.to_builtins(load.sampling),
    }
    return {name: value for name, value in asked.items() if value is not None}


def _driver(stage: Stage) -> str:
    if stage.concurrency is not None:
        return "closed loop"
    return "trace" if stage.rate_per_s is None else "open loop"

"""Rows of small models that people posted: is one host constant a machine enough for TPOT?

TPOT = weights and cache at 0.8 of the peak bandwidth (the share that aiconfigurator's `*_sxm.yaml` assume) + host. The
host's constant is taken from the machine's first row, and the others are predicted with it. A time below the floor is
no accuracy figure but a case for `phasemeter audit`.
"""

from __future__ import annotations

import csv
from pathlib import Path

from msgspec import Struct

from phasemeter.roofline.floor import decode_floor, prefill_floor
from phasemeter.roofline.hardware import find_hardware
from phasemeter.roofline.presets import load_shape

BANDWIDTH_SHARE = 0.8
CHIPS = {"NVIDIA A100 (variant not stated)": "a100-40gb-sxm", "RTX 4090": "rtx-4090", "H200": "h200"}
SHAPES = {"Qwen/Qwen3-0.6B": "qwen3-0.6b", "Qwen/Qwen3-4B": "qwen3-4b"}


class Row(Struct, frozen=True):
    """One public row. `host_ms` is the machine's constant, None on the row that it was taken from."""

    source: str
    what: str
    tpot_ms: float
    predicted_ms: float | None
    host_ms: float
    ttft_ms: float
    ttft_floor_ms: float

    @property
    def error(self) -> float | None:
        return None if self.predicted_ms is None else self.predicted_ms / self.tpot_ms - 1.0

    @property
    def below_floor(self) -> bool:
        return self.ttft_ms < self.ttft_floor_ms


def rows(data: Path) -> list[Row]:
    with (data / "public_e2e_small_models.csv").open(encoding="utf-8", newline="") as file:
        table = [row for row in csv.DictReader(file) if row["model"] in SHAPES and row["tpot_ms"]]
    hosts: dict[tuple[str, str], float] = {}
    found: list[Row] = []
    for row in table:
        machine = (row["gpu"], row["model"])
        chip, shape = find_hardware(CHIPS[row["gpu"]]), load_shape(SHAPES[row["model"]])
        isl, osl, tpot = int(row["isl"]), int(row["osl"]), float(row["tpot_ms"])
        chip_ms = decode_floor(shape, isl + osl // 2, chip).seconds * 1e3 / BANDWIDTH_SHARE
        known = machine in hosts
        host = hosts.setdefault(machine, max(0.0, tpot - chip_ms))
        found.append(
            Row(
                source=row["source_id"],
                what=f"{row['model'].rpartition('/')[2]}, {row['gpu']}, {isl} → {osl}",
                tpot_ms=tpot,
                predicted_ms=chip_ms + host if known else None,
                host_ms=host,
                ttft_ms=float(row["ttft_ms"]),
                ttft_floor_ms=prefill_floor(shape, isl, chip).seconds * 1e3,
            )
        )
    return found

"""Kernel sums of ERNIE's prefill on an A100, from a public kernel table: does the form find what was left out?

The sum of one prefill of N tokens is 18 x (qkv + o + gate and up + down at m = N, and attention at N) + the head at
m = 1; the head's table row has 65,536 columns and counts 103,424 / 65,536 times.
"""

from __future__ import annotations

import csv
from pathlib import Path

from msgspec import Struct

from phasemeter.explain.roof import Roof
from phasemeter.predict.features import Cell, Query, features
from phasemeter.predict.forms import prefill_forms
from phasemeter.predict.judge import groups_of, judge
from phasemeter.roofline.hardware import find_hardware
from phasemeter.roofline.presets import load_shape

GEMMS = ((2560, 1024), (1024, 2048), (6144, 1024), (1024, 3072))
HEAD = (65536, 1024)
LAYERS, VOCAB = 18, 103424
LENGTHS = (16, 8192)
SHORT = 512


class Row(Struct, frozen=True):
    """One length: measured, and predicted by a fit to the other lengths, milliseconds."""

    tokens: int
    measured_ms: float
    predicted_ms: float
    form: str

    @property
    def error(self) -> float:
        return self.predicted_ms / self.measured_ms - 1.0


class Quadratic(Struct, frozen=True):
    """a + b N + c N^2, no coefficient negative, fitted to the lengths up to 512 and asked for the longest."""

    tokens: int
    measured_ms: float
    predicted_ms: float


def sums(data: Path) -> dict[int, float]:
    """Milliseconds of a prefill by its length, from 16 to 8,192 tokens."""
    gemm = {
        (int(row["m"]), int(row["n"]), int(row["k"])): float(row["latency_ms"])
        for row in _rows(data / "aic_a100_vllm_gemm_ernie_shapes.csv")
    }
    attention = {
        int(row["isl"]): float(row["latency_ms"])
        for row in _rows(data / "aic_a100_vllm_context_attention_16q.csv")
        if row["num_key_value_heads"] == "2" and row["batch_size"] == "1"
    }
    head = gemm[(1, *HEAD)] * VOCAB / HEAD[0]
    lengths = [n for n in attention if LENGTHS[0] <= n <= LENGTHS[1] and (n, *GEMMS[0]) in gemm]
    return {n: LAYERS * (sum(gemm[(n, *g)] for g in GEMMS) + attention[n]) + head for n in sorted(lengths)}


def left_out(data: Path) -> list[Row]:
    """Each length as a fit to all the others predicts it; the form is chosen anew from those others alone."""
    measured = sums(data)
    roof = Roof(
        "datasheet", find_hardware("a100-80gb-sxm"), load_shape("ernie-4.5-0.3b"), "bfloat16", "bfloat16"
    )
    cells = [Cell("prefill", Query(n, 1), (ms / 1e3,)) for n, ms in measured.items()]
    rows = [features("prefill", cell.query, roof) for cell in cells]
    found: list[Row] = []
    for i, cell in enumerate(cells):
        rest = [k for k in range(len(cells)) if k != i]
        told = judge(
            prefill_forms(scaled=True, batched=False),
            [rows[k] for k in rest],
            [cells[k].median_s for k in rest],
            groups_of([cells[k] for k in rest]),
        )
        assert told is not None
        fitted = told.chosen.fitted
        found.append(
            Row(cell.query.input_tokens, cell.median_s * 1e3, fitted.seconds(rows[i]) * 1e3, fitted.form.name)
        )
    return found


def quadratic(data: Path) -> Quadratic:
    import numpy as np
    from scipy.optimize import nnls

    measured = sums(data)
    short = [n for n in measured if n <= SHORT]
    matrix = np.array([[1.0, n, n * n] for n in short])
    times = np.array([measured[n] for n in short])
    found = nnls(matrix / times[:, None], np.ones(len(short)))[0]
    most = max(measured)
    return Quadratic(most, measured[most], float(found @ np.array([1.0, most, most * most])))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))

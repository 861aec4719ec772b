"""Figures of the validation page that are quick to compute: what was left out is found, wrong rows are named."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from statistics import fmean

import pytest

BENCH = Path(__file__).parents[2] / "benchmarks" / "validation"
DATA = BENCH / "data"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(BENCH))
    try:
        yield {name: importlib.import_module(name) for name in ("kernels", "silicon", "small_models")}
    finally:
        sys.path.remove(str(BENCH))


def test_kernel_sums_are_the_known_ones_and_left_out_lengths_are_found(bench):
    sums = bench["kernels"].sums(DATA)
    known = {64: 1.09, 128: 1.24, 256: 1.51, 512: 2.31, 8192: 49.0}
    assert {n: sums[n] for n in known} == pytest.approx(known, rel=0.01)
    errors = [abs(row.error) for row in bench["kernels"].left_out(DATA)]
    assert fmean(errors) <= 0.04
    assert max(errors) <= 0.10
    square = bench["kernels"].quadratic(DATA)
    assert square.predicted_ms / square.measured_ms > 4


def test_public_rows_of_small_models_need_one_host_constant_a_machine(bench):
    rows = bench["small_models"].rows(DATA)
    told = [abs(row.error) for row in rows if row.error is not None]
    assert len(told) == 4
    assert max(told) <= 0.10
    assert {row.source for row in rows if row.below_floor} == {"tt394-4", "tt394-5", "tt394-6"}


def test_the_page_holds_every_set_up_of_the_table_and_says_what_misses():
    page = (BENCH.parents[1] / "docs" / "validation.md").read_text()
    lines = [line for line in page.splitlines() if " PP 1 | " in line]
    assert len(lines) == 47
    assert sum("skipped" in line for line in lines) == 8
    assert "**not reached**" in page

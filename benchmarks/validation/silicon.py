"""Public end-to-end rows of dense models: TTFT and TPOT of batches that a fit has not seen."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from msgspec import Struct

from phasemeter.predict.features import Cell, Query, features
from phasemeter.predict.judge import batch_groups, groups_of, judge
from phasemeter.predict.phase import forms_for

LEAST_ROWS, LEAST_BATCHES = 8, 3
METRICS = {"decode": "silicon_tpot_ms", "first": "silicon_ttft_ms"}
KEYS = (
    "model_path",
    "system",
    "backend",
    "backend_version",
    "precision",
    "gemm_quant_mode",
    "tp_size",
    "pp_size",
)


class Group(Struct, frozen=True):
    """One set-up. Errors are |predicted / measured - 1| over its rows, each predicted by a fit without its batch; None
    where it was skipped, and then `why` says so."""

    name: str
    rows: int
    batches: int
    tpot: tuple[float, float] | None
    ttft: tuple[float, float] | None
    forms: str = ""
    why: str = ""


def groups(data: Path) -> list[Group]:
    """Every group of the table, the skipped ones too."""
    with (data / "aic_silicon_sample_dense_agg.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found: defaultdict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        found[tuple(row[key] for key in KEYS)].append(row)
    return [_group(key, found[key]) for key in sorted(found)]


def _group(key: tuple[str, ...], rows: list[dict[str, str]]) -> Group:
    name = _named(key)
    batches = {row["batch_size"] for row in rows}
    if len(rows) < LEAST_ROWS or len(batches) < LEAST_BATCHES:
        why = (
            f"skipped: {len(rows)} rows of {len(batches)} batches, fewer than {LEAST_ROWS} or {LEAST_BATCHES}"
        )
        return Group(name, len(rows), len(batches), None, None, why=why)
    told = {phase: _left_out(phase, column, rows) for phase, column in METRICS.items()}
    forms = "; ".join(sorted({form for _, names in told.values() for form in names}))
    errors = {phase: (fmean(found), max(found)) for phase, (found, _) in told.items()}
    return Group(name, len(rows), len(batches), errors["decode"], errors["first"], forms)


def _left_out(phase: str, column: str, rows: list[dict[str, str]]) -> tuple[list[float], set[str]]:
    usable = [
        row for row in rows if row[column] and float(row[column]) > 0 and math.isfinite(float(row[column]))
    ]
    cells = [
        Cell(
            phase,
            Query(int(row["isl"]), int(row["osl"]), int(float(row["batch_size"]))),
            (float(row[column]) / 1e3,),
        )
        for row in usable
    ]
    features_of = [features(phase, cell.query, None) for cell in cells]
    errors: list[float] = []
    forms: set[str] = set()
    for members in batch_groups(cells).values():
        rest = [i for i in range(len(cells)) if i not in members]
        known = [features_of[i] for i in rest]
        told = judge(
            forms_for(phase, known, scaled=False),
            known,
            [cells[i].median_s for i in rest],
            groups_of([cells[i] for i in rest]),
        )
        assert told is not None
        fitted = told.chosen.fitted
        forms.add(fitted.form.name)
        errors += [abs(fitted.seconds(features_of[i]) / cells[i].median_s - 1.0) for i in members]
    return errors, forms


def _named(key: tuple[str, ...]) -> str:
    model, system, backend, version, precision, quant, tp, pp = key
    how = " ".join(part for part in (precision, quant if quant != precision else "") if part) or "bf16"
    return (
        f"{model.rpartition('/')[2]}, {system}, {backend} {version or '?'}, {how},"
        f" TP {float(tp):g} PP {float(pp):g}"
    )

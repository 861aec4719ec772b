"""From runs to cells: each phase of each shape of work with one value a block, and whether they can carry a fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phasemeter.explain.columns import ABSENT
from phasemeter.explain.readings import Readings, readings_of
from phasemeter.explain.shapes import SERIAL_ENGINES, by_shape, cached_of
from phasemeter.predict.features import DEFAULT_BUDGET_TOKENS, Cell, Query, checked
from phasemeter.record.engine import Outcome
from phasemeter.record.errors import InputError, UndecidedError
from phasemeter.record.run import Run, differences, merge

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from phasemeter.explain.columns import Ints

    Floats = NDArray[np.float64]

LEAST_CELLS = 3
LEAST_BLOCKS = 2


def merged(runs: Sequence[Run]) -> Run:
    """The runs as one. Raises InputError where there is none or where they differ in machine, model, engine or
    settings: a fit of two machines describes neither."""
    if not runs:
        raise InputError("RUN", "none", "name at least one run file")
    for other in runs[1:]:
        apart = differences(runs[0].header, other.header)
        if apart:
            raise InputError(
                "RUN", other.name or other.header.run_id, f"{apart[0]}; fit one machine at a time"
            )
    return merge(runs)


def cells_of(run: Run) -> tuple[Cell, ...]:
    """Every phase of every shape of a closed loop, failed and warm-up requests left out. An engine that serves one
    request at a time tells nothing of a batch, so only its cells at one request in flight count."""
    columns = readings_of(run.requests)
    usable = columns.take(columns.where(Outcome.OK) & ~columns.told_of(lambda cell: cell.warmup))
    budget = _budget(run)
    found: list[Cell] = []
    for key, readings in by_shape(usable).items():
        if key.concurrency is None or not key.one_shape:
            continue
        if key.concurrency > 1 and run.header.engine.kind in SERIAL_ENGINES:
            continue
        cached = int(cached_of(readings).mean())
        query = Query(key.input_tokens, key.output_tokens, key.concurrency, cached, budget)
        found += _phases(query, readings)
    return tuple(checked(cell) for cell in found)


def believable(phase: str, cells: Sequence[Cell]) -> None:
    """Raises UndecidedError for too few cells, or for cells of a single repeat."""
    mine = [cell for cell in cells if cell.phase == phase]
    shapes = {(c.query.input_tokens, c.query.output_tokens, c.query.batch) for c in mine}
    if len(shapes) < LEAST_CELLS:
        raise UndecidedError(
            f"{phase}: {len(shapes)} cells measured, a fit needs {LEAST_CELLS} or more of different lengths or"
            " batches: measure with --input-tokens 64,256,1024 --repeats 5"
        )
    if max(len(cell.seconds) for cell in mine) < LEAST_BLOCKS:
        raise UndecidedError(
            f"{phase}: one repeat of each cell, so that nothing tells noise from effect: measure with --repeats 5"
        )
    if len({c.query.input_tokens for c in mine}) == 1 and len({c.query.batch for c in mine}) == 1:
        raise UndecidedError(
            f"{phase}: all cells have the same input length and batch, so that nothing can be learnt of either:"
            " measure more lengths"
        )


def _budget(run: Run) -> int:
    told = run.header.engine.details.get("max_num_batched_tokens", "")
    return int(told) if told.isdigit() and int(told) > 0 else DEFAULT_BUDGET_TOKENS


def _phases(query: Query, readings: Readings) -> list[Cell]:
    import numpy as np

    blocks = readings.by_cell(lambda cell: cell.block)
    found: list[Cell] = []
    for phase in ("prefill", "first", "front_end", "queue"):
        ns = readings.ns(phase)
        known = (ns != ABSENT) & (ns > 0)
        if known.any() and bool((ns != ABSENT).all()):
            found.append(Cell(phase, query, _by_block(ns[known] / 1e9, blocks[known])))
    tpot, known = readings.tpot_ns()
    known &= tpot > 0
    if known.any():
        found.append(Cell("decode", query, _by_block(tpot[known] / 1e9, blocks[known])))
    engine, tokens = readings.ns("engine_decode"), readings.tokens()
    if bool((engine != ABSENT).all()) and bool((tokens > 1).all()):
        steps = engine / np.maximum(1, tokens - 1) / 1e9
        if bool((steps > 0).all()):
            found.append(Cell("step", query, _by_block(steps, blocks)))
    return found


def _by_block(seconds: Floats, blocks: Ints) -> tuple[float, ...]:
    """The median of each block."""
    import numpy as np

    return tuple(float(np.median(seconds[blocks == block])) for block in np.unique(blocks).tolist())

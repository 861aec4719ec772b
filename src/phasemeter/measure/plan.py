"""What to measure, in which order: a grid of shapes, repeated in interleaved blocks.

A block visits every cell once, in an order of its own drawn from the seed, so that a slow minute of the machine falls
on all shapes alike. The anchor, the cheapest cell, is visited once more at the start of every block: drift shows there.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from msgspec import Struct

from phasemeter.record.errors import InputError
from phasemeter.record.request import Cell, Sampling

MOST_REQUESTS = 1_000_000
"""In one run: the plan is laid out in memory, and so is the record when it is read."""


class Grid(Struct, frozen=True):
    """Every pairing of the lists is a cell; `repeats` blocks of all cells.

    requests    requests a cell and block; None: one at concurrency 1, else two for every slot
    warmup      warm-up requests a shape; None: until its times settle
    paired      input and output lists are read side by side (64 with 128, 128 with 256) instead of crossed
    """

    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    concurrency: tuple[int, ...] = (1,)
    repeats: int = 5
    requests: int | None = None
    seed: int = 0
    warmup: int | None = None
    anchor: bool = True
    paired: bool = False
    sampling: Sampling = Sampling()


class Visit(Struct, frozen=True):
    """One visit of a cell: `requests` requests, all of one shape, at the cell's concurrency."""

    cell: Cell
    requests: int


def check_grid(grid: Grid, max_context_tokens: int | None = None) -> None:
    """Raises InputError for a grid that cannot be measured: empty, pairs that do not match, over the context."""
    if grid.repeats < 1:
        raise InputError("--repeats", grid.repeats, "measure every shape at least once")
    if grid.paired and len(grid.input_tokens) != len(grid.output_tokens):
        raise InputError(
            "--output-tokens",
            ",".join(map(str, grid.output_tokens)),
            f"with --paired it needs as many entries as --input-tokens ({len(grid.input_tokens)})",
        )
    planned = grid.repeats * sum(_visit(grid, cell, 0).requests for cell in cells(grid))
    if planned > MOST_REQUESTS:
        raise InputError(
            "--repeats and --requests",
            f"{planned} requests in all",
            f"a run holds {MOST_REQUESTS} at the most; ask for fewer, in several runs",
        )
    for new, out in shapes(grid):
        if max_context_tokens is not None and new + out > max_context_tokens:
            raise InputError(
                "--input-tokens",
                f"{new} with {out} output tokens",
                f"together {new + out}, over the model's context of {max_context_tokens}; ask for fewer",
            )


def shapes(grid: Grid) -> list[tuple[int, int]]:
    """(input tokens, output tokens) of every shape, in the user's order."""
    if grid.paired:
        return list(zip(grid.input_tokens, grid.output_tokens, strict=True))
    return list(itertools.product(grid.input_tokens, grid.output_tokens))


def cells(grid: Grid) -> list[Cell]:
    """Every cell of the grid, block 0."""
    return [
        Cell(input_tokens=new, output_tokens=out, concurrency=concurrency)
        for concurrency in grid.concurrency
        for new, out in shapes(grid)
    ]


def visits(grid: Grid) -> list[Visit]:
    """The whole measured part of the plan in its randomised order."""
    order = random.Random(f"order/{grid.seed}")
    base = cells(grid)
    cheapest = min(base, key=lambda c: (c.slots, c.input_tokens + 4 * c.output_tokens))
    plan: list[Visit] = []
    for block in range(grid.repeats):
        if grid.anchor and len(base) > 1:
            plan.append(_visit(grid, cheapest, block, anchor=True))
        shuffled: Sequence[Cell] = order.sample(base, k=len(base))
        plan += [_visit(grid, cell, block) for cell in shuffled]
    return plan


def warmups(grid: Grid) -> list[Cell]:
    """One cell for every shape and concurrency to warm, largest first so that buffers grow only once."""
    seen: dict[tuple[int, int], Cell] = {}
    for cell in cells(grid):
        key = (cell.input_tokens, cell.slots)
        known = seen.get(key)
        if known is None or cell.output_tokens < known.output_tokens:
            seen[key] = cell
    return sorted(seen.values(), key=lambda c: (-c.slots, -c.input_tokens))


def planned_requests(grid: Grid) -> int:
    """Measured requests in the plan, warm-up not counted."""
    return sum(visit.requests for visit in visits(grid))


def _visit(grid: Grid, cell: Cell, block: int, *, anchor: bool = False) -> Visit:
    requests = (
        grid.requests if grid.requests is not None else (1 if cell.concurrency == 1 else 2 * cell.slots)
    )
    return Visit(
        cell=Cell(
            input_tokens=cell.input_tokens,
            output_tokens=cell.output_tokens,
            concurrency=cell.concurrency,
            block=block,
            anchor=anchor,
        ),
        requests=requests,
    )

"""Our own run files: each length and each batch predicted by a fit that has not seen it, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from msgspec import Struct

from phasemeter.predict.cells import cells_of
from phasemeter.predict.features import Cell
from phasemeter.predict.foresee import foresee_phase
from phasemeter.predict.judge import edges_of, groups_of
from phasemeter.predict.model import roof_of
from phasemeter.predict.phase import fit_phase, split_half
from phasemeter.predict.transfer import Target
from phasemeter.record.file import read_run

LIMIT = {"prefill": 0.10, "decode": 0.05, "step": 0.05}
DRAWS = 10


class Held(Struct, frozen=True):
    """One cell of a group left out. `edge`: the group lies at the rim, so that the fit had to extrapolate."""

    group: str
    input_tokens: int
    output_tokens: int
    batch: int
    measured_ms: float
    lo_ms: float
    mid_ms: float
    hi_ms: float
    edge: bool

    @property
    def error(self) -> float:
        return self.mid_ms / self.measured_ms - 1.0

    @property
    def covered(self) -> bool:
        return self.lo_ms <= self.measured_ms <= self.hi_ms

    @property
    def half_width(self) -> float:
        return (self.hi_ms - self.lo_ms) / 2 / self.mid_ms


class Phase(Struct, frozen=True):
    """One phase of one run, all of its held-out cells; `repeatability` is the split-half one of its cells (median)."""

    run: str
    phase: str
    cells: int
    repeatability: float | None
    held: tuple[Held, ...]

    @property
    def limit(self) -> float:
        return max(LIMIT[self.phase], 1.5 * (self.repeatability or 0.0))

    def within(self, *, edges: bool) -> tuple[int, int]:
        """(held-out cells within the limit, all of them), at the rim or inside."""
        kind = [held for held in self.held if held.edge == edges]
        return sum(abs(held.error) <= self.limit for held in kind), len(kind)

    @property
    def coverage(self) -> float | None:
        return sum(held.covered for held in self.held) / len(self.held) if self.held else None

    @property
    def half_width(self) -> float | None:
        return median(held.half_width for held in self.held) if self.held else None


def phases(paths: Sequence[Path]) -> list[Phase]:
    found: list[Phase] = []
    for path in paths:
        run = read_run(path)
        cells, roof = cells_of(run), roof_of(run, hardware=None, model_shape=None)
        for phase in LIMIT:
            mine = [cell for cell in cells if cell.phase == phase]
            if len(mine) >= 6:
                noise = split_half(mine)
                held = _held(mine, roof)
                found.append(
                    Phase(path.name, phase, len(mine), None if noise is None else math.expm1(noise), held)
                )
    return found


def _held(cells: list[Cell], roof: object) -> tuple[Held, ...]:
    from phasemeter.explain.roof import Roof

    assert roof is None or isinstance(roof, Roof)
    edges = edges_of(cells)
    found: list[Held] = []
    for group, members in groups_of(cells).items():
        rest = [cell for i, cell in enumerate(cells) if i not in members]
        fit = fit_phase(cells[0].phase, rest, roof, draws=DRAWS)
        if fit is None:
            continue
        for i in members:
            query = cells[i].query
            told = foresee_phase(fit, query, Target(roof)).ms
            found.append(
                Held(
                    group=group,
                    input_tokens=query.input_tokens,
                    output_tokens=query.output_tokens,
                    batch=query.batch,
                    measured_ms=cells[i].median_s * 1e3,
                    lo_ms=told.lo,
                    mid_ms=told.mid,
                    hi_ms=told.hi,
                    edge=group in edges,
                )
            )
    return tuple(found)

"""Which cells to measure next: those that would narrow a prediction most.

Near the fit log(t) is linear in the logarithms of the coefficients. With J the derivatives at the measured cells, each
cell known to within `noise`, the coefficients' covariance is C = (J'J / noise^2 + P)^-1 (P: the prior), the variance of
a prediction with derivatives g is g'Cg, and measuring one more cell with derivatives x lowers it by
(g'Cx)^2 / (noise^2 + x'Cx) (Fedorov, Theory of Optimal Experiments, 1972). Cells are chosen one after another. Without
a question the largest variance over all candidates is lowered (G-optimality).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from phasemeter.explain.roof import Roof
from phasemeter.predict.features import Query, features
from phasemeter.predict.phase import PhaseFit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_LEAST_NOISE = 0.02


class NextCell(Struct, frozen=True):
    """A cell worth measuring: by what share it narrows the half width that coefficients leave to the question."""

    input_tokens: int
    output_tokens: int
    batch: int
    phase: str
    narrows: float


def next_cells(
    fits: Sequence[PhaseFit], roof: Roof | None, ask: Query | None, count: int = 3
) -> tuple[NextCell, ...]:
    """The `count` cells that narrow `ask` most (None: the worst known point of a grid) over the phases together."""
    grid = _grid(fits, ask)
    designs = [_Design(fit, roof, ask, grid) for fit in fits]
    found: list[NextCell] = []
    for _ in range(count):
        gains = [[design.gain(i) for i in range(len(grid))] for design in designs]
        totals = [sum(of[i] for of in gains) for i in range(len(grid))]
        open_ = [i for i in range(len(grid)) if not any(_same(grid[i], cell) for cell in found)]
        best = max(open_, key=lambda i: totals[i])
        phase = max(range(len(designs)), key=lambda k: gains[k][best])
        query = grid[best]
        found.append(
            NextCell(
                query.input_tokens, query.output_tokens, query.batch, fits[phase].phase, gains[phase][best]
            )
        )
        for design in designs:
            design.take(best)
    return tuple(found)


class _Design:
    """The covariance of one phase's coefficients, and what each candidate would do to it."""

    def __init__(self, fit: PhaseFit, roof: Roof | None, ask: Query | None, grid: Sequence[Query]) -> None:
        import numpy as np

        self._noise = max(fit.noise or 0.0, fit.score, _LEAST_NOISE)
        jacobian = np.array(fit.fitted.jacobian, dtype=np.float64)
        # Everything has a weak prior: a factor of e either way.
        information = jacobian.T @ jacobian / self._noise**2 + np.eye(len(fit.form.terms))
        self._covariance = cast("Floats", np.linalg.inv(information))
        self._rows = np.array([_derivatives(fit, roof, query) for query in grid])
        self._asked = None if ask is None else np.array(_derivatives(fit, roof, ask))

    def gain(self, i: int) -> float:
        """The share by which measuring candidate i lowers the half width of the question."""
        import numpy as np

        covariance = self._covariance
        asked = self._worst() if self._asked is None else self._asked
        variance = float(asked @ covariance @ asked)
        x = self._rows[i]
        lowered = float(asked @ covariance @ x) ** 2 / (self._noise**2 + float(x @ covariance @ x))
        return 1.0 - float(np.sqrt(max(0.0, 1.0 - lowered / variance))) if variance > 0.0 else 0.0

    def take(self, i: int) -> None:
        """As if candidate i had been measured."""
        import numpy as np

        x = self._covariance @ self._rows[i]
        whole = self._noise**2 + float(self._rows[i] @ x)
        self._covariance = self._covariance - cast("Floats", np.outer(x, x)) / whole

    def _worst(self) -> Floats:
        import numpy as np

        variances = np.einsum("ij,jk,ik->i", self._rows, self._covariance, self._rows)
        return self._rows[int(variances.argmax())]


def _derivatives(fit: PhaseFit, roof: Roof | None, query: Query) -> list[float]:
    """d log(t) / d log(coefficient) at one query."""
    values = fit.form.rows(features(fit.phase, query, roof))
    base = fit.fitted.coefficients
    step = math.exp(1e-4)
    found: list[float] = []
    for i in range(len(base)):
        up = [c * step if i == k else c for k, c in enumerate(base)]
        down = [c / step if i == k else c for k, c in enumerate(base)]
        ratio = max(fit.form.seconds(up, values), 1e-12) / max(fit.form.seconds(down, values), 1e-12)
        found.append(math.log(ratio) / 2e-4)
    return found


def _grid(fits: Sequence[PhaseFit], ask: Query | None) -> list[Query]:
    """Lengths by powers of two and batches by powers of four, from the least measured to twice the most, or to what is
    asked."""
    lows = [fit.domain["input_tokens"][0] for fit in fits]
    highs = [fit.domain["input_tokens"][1] for fit in fits]
    most_batch = max(fit.domain["batch"][1] for fit in fits)
    output = 32 if ask is None else max(2, min(ask.output_tokens, 64))
    most = max(2 * max(highs), 0 if ask is None else ask.input_tokens)
    if ask is not None:
        most_batch = max(most_batch, ask.batch)
    lengths, batches = set(_powers(int(min(lows)), int(most), 2)), set(_powers(1, int(most_batch), 4))
    if ask is not None:
        lengths.add(ask.input_tokens)
        batches.add(ask.batch)
    return [Query(length, output, batch) for length in sorted(lengths) for batch in sorted(batches)]


def _powers(low: int, high: int, base: int) -> list[int]:
    found = [max(1, low)]
    while found[-1] * base <= high:
        found.append(found[-1] * base)
    return found


def _same(query: Query, cell: NextCell) -> bool:
    return (query.input_tokens, query.batch) == (cell.input_tokens, cell.batch)

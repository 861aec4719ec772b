"""One form fitted to measured cells: bounded, robust least squares on relative errors.

Residuals are log(predicted / measured), so that a fast cell counts as much as a slow one; `soft_l1` lets a cell that
no form explains pull less than the square of its error (scipy.optimize.least_squares). Coefficients are fitted as
multiples of a start value, which keeps tokens (1e3), pairs (1e7) and seconds (1e-3) on one scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from phasemeter.predict.forms import Form

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MOST_SLOWDOWN = 12.0
"""No term of the chip is taken to run below 1/12 of its ceiling: a bound that keeps a term which the data does not show
finite. All kernels of ERNIE's decode step on an H200 together take 5.6 times their floor (profiled), its worst alone
(one-row products on an A100) 13 times (aiconfigurator's table)."""

_SOFT = 0.08
"""Relative error from which a cell counts less than quadratically: about the repeatability of a quiet machine."""
_PRIORS = {"memory": (2.0, 0.5), "kv": (2.0, 0.5)}
_PRIOR = (1.6, 1.0)
"""Weak priors on the chip's slowdowns, (centre, standard deviation of the logarithm); they decide only what the cells
leave open. Large matrix products reach 61 to 73 % of the peak in the A100 and H100 tables, attention 41 to 61 %.
Reading weights takes 1.3 (large models) to 3 times its floor (ERNIE's shortest prefill on an A100), and has the tighter
prior: at batch 1 it is a constant, as the host's is, which else it would stand in for."""
LEAST_NOISE = 0.02
"""How well a cell is known at best, as the standard deviation of its logarithm: what a prior weighs against."""


class KernelPrior(Struct, frozen=True):
    """What profiles of kernels say of a chip term before any cell is fitted: its slowdown against the ceiling (1 is
    perfect) and how sure that is, as a standard deviation of its logarithm."""

    feature: str
    slowdown: float
    log_sd: float


class Fitted(Struct, frozen=True):
    """A form with its coefficients. `jacobian` holds d log(t) / d log(coefficient) for each cell fitted."""

    form: Form
    coefficients: tuple[float, ...]
    jacobian: tuple[tuple[float, ...], ...] = ()
    loss: float = 0.0

    def seconds(self, found: dict[str, float]) -> float:
        """The time of one row of features."""
        return self.form.seconds(self.coefficients, self.form.rows(found))


def fit_form(
    form: Form,
    rows: Sequence[dict[str, float]],
    seconds: Sequence[float],
    weights: Sequence[float] | None = None,
    priors: Sequence[KernelPrior] = (),
    start: Sequence[float] | None = None,
    noise: float = LEAST_NOISE,
) -> Fitted | None:
    """Fit `form` to cells given by their features and seconds, each known to within `noise` (relative), from `start`
    where it is known (a fit to almost the same cells); None where they cannot carry it: fewer cells than
    coefficients, a term that is 0 in all of them, or two that differ in nothing but scale."""
    import numpy as np

    matrix = np.array([form.rows(row) for row in rows], dtype=np.float64)
    measured = np.array(seconds, dtype=np.float64)
    if matrix.shape[0] < len(form.terms) or not _carries(matrix, form):
        return None
    solver = _Solver(form, matrix, measured, weights, priors)
    solver.noise = max(noise, LEAST_NOISE)
    begins = solver.starts() if start is None else [np.array(start, dtype=np.float64)]
    best = min((solver.solve(begin) for begin in begins), key=lambda found: found[1])
    coefficients = best[0]
    return Fitted(
        form=form,
        coefficients=tuple(cast("list[float]", coefficients.tolist())),
        jacobian=tuple(
            tuple(cast("list[float]", line)) for line in solver.log_jacobian(coefficients).tolist()
        ),
        loss=best[1],
    )


def shaken(form: Form, priors: Sequence[KernelPrior], random: np.random.Generator) -> tuple[KernelPrior, ...]:
    """The priors of the form's chip terms with their centres drawn anew."""
    told = {prior.feature: prior for prior in priors}
    found: list[KernelPrior] = []
    for term in form.terms:
        if form.scaled and term.part in ("roof", "gpu"):
            known = told.get(term.feature) or _weak(term.feature)
            drawn = known.slowdown * math.exp(known.log_sd * float(random.standard_normal()))
            centre = min(max(drawn, 1.0), MOST_SLOWDOWN)
            found.append(KernelPrior(term.feature, centre, known.log_sd))
    return tuple(found)


def _weak(feature: str) -> KernelPrior:
    return KernelPrior(feature, *_PRIORS.get(feature, _PRIOR))


def seconds_of(form: Form, coefficients: Floats, matrix: Floats) -> Floats:
    """`Form.seconds` for many rows at once."""
    import numpy as np

    parts = np.array([("host", "roof", "gpu", "apart").index(term.part) for term in form.terms])
    each = matrix * coefficients
    host, gpu, apart = (each[:, parts == i].sum(axis=1) for i in (0, 2, 3))
    roof = _norms(list(each[:, parts == 1].T), form.p, host.shape)
    return _norms([host, roof + gpu], form.q, host.shape) + apart


def _norms(values: list[Floats], power: float, shape: tuple[int, ...]) -> Floats:
    import numpy as np

    if not values:
        return np.zeros(shape)
    stack = np.stack(values)
    if power == 1.0:
        return stack.sum(axis=0)
    most = np.maximum(stack.max(axis=0), 1e-300)
    return most * ((stack / most) ** power).sum(axis=0) ** (1.0 / power)


def _carries(matrix: Floats, form: Form) -> bool:
    """Whether cells tell the terms apart. Terms of the chip have a prior and bounds and may look like the host's
    constant (the weights are read once a step whatever the step); the others must have full rank."""
    import numpy as np

    if not (np.abs(matrix).max(axis=0) > 0.0).all():
        return all(
            term.part in ("roof", "gpu") or column.any()
            for term, column in zip(form.terms, matrix.T, strict=True)
        )
    free = [i for i, term in enumerate(form.terms) if not (form.scaled and term.part in ("roof", "gpu"))]
    scaled = matrix[:, free] / np.abs(matrix[:, free]).max(axis=0)
    return int(np.linalg.matrix_rank(scaled, tol=1e-6)) == len(free)


class _Solver:
    """One weighted problem, its starts and its solution. Held together because every step needs all of it."""

    def __init__(
        self,
        form: Form,
        matrix: Floats,
        measured: Floats,
        weights: Sequence[float] | None,
        priors: Sequence[KernelPrior],
    ) -> None:
        import numpy as np

        self.form, self.matrix, self.measured = form, matrix, measured
        self.weights = np.sqrt(
            np.ones(measured.size) if weights is None else np.array(weights, dtype=np.float64)
        )
        self.noise = LEAST_NOISE
        self.least = np.array(form.least())
        chip = np.array([term.part in ("roof", "gpu") for term in form.terms])
        self.chip = chip & form.scaled
        told = {prior.feature: prior for prior in priors}
        known = [told.get(term.feature) or _weak(term.feature) for term in form.terms]
        self.centre = np.array([prior.slowdown for prior in known])
        self.spread = np.array([prior.log_sd for prior in known])
        largest = np.abs(matrix).max(axis=0)
        self.unit = np.where(self.chip, 1.0, np.median(measured) / np.where(largest > 0, largest, 1.0))

    def starts(self) -> list[Floats]:
        """Two points to begin at: non-negative least squares on 1/t-weighted rows, and an even share for each term."""
        import numpy as np
        from scipy.optimize import nnls  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

        even = np.where(self.chip, self.centre, self.unit / max(1, len(self.form.terms)))
        weighted = self.matrix / self.measured[:, None]
        scale = np.abs(weighted).max(axis=0)
        scale[scale == 0.0] = 1.0
        found = cast("Floats", nnls(weighted / scale, np.ones(self.measured.size))[0]) / scale
        return [np.maximum(found, 1e-3 * even), *([even] if self.chip.any() else [])]

    def solve(self, start: Floats) -> tuple[Floats, float]:
        """(coefficients, loss) of the local optimum next to `start`."""
        import numpy as np
        from scipy.optimize import least_squares  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

        low = self.least / self.unit
        high = np.where(self.chip, MOST_SLOWDOWN, np.inf)
        inside = np.clip(start / self.unit, low + 1e-9, high * (1 - 1e-9))
        done = least_squares(  # pyright: ignore[reportUnknownVariableType]
            self._residuals,
            inside,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=_SOFT,
            x_scale=np.maximum(inside, 1e-3),
            max_nfev=80,
            ftol=1e-6,
            xtol=1e-6,
        )
        return cast("Floats", done.x) * self.unit, float(cast("float", done.cost))

    def log_jacobian(self, coefficients: Floats) -> Floats:
        """d log(t) / d log(coefficient) for each cell, by central differences."""
        import numpy as np

        lines: list[Floats] = []
        for i in range(coefficients.size):
            step = np.ones(coefficients.size)
            step[i] = math.exp(1e-4)
            up = np.log(seconds_of(self.form, coefficients * step, self.matrix))
            down = np.log(seconds_of(self.form, coefficients / step, self.matrix))
            lines.append((up - down) / 2e-4)
        return np.stack(lines, axis=1)

    def _residuals(self, multiples: Floats) -> Floats:
        import numpy as np

        coefficients = multiples * self.unit
        told = np.maximum(seconds_of(self.form, coefficients, self.matrix), 1e-12)
        fit = self.weights * np.log(told / self.measured)
        if not self.chip.any():
            return fit
        prior = self.noise * np.log(coefficients[self.chip] / self.centre[self.chip]) / self.spread[self.chip]
        return np.concatenate((fit, prior))

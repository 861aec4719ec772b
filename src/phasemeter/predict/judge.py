"""Which form to believe: candidates compared on what they were not fitted to, whole lengths and batches at a time.

A random split flatters: a length's neighbours, or its other repeats, stay in. So each distinct input length and each
distinct batch is left out as a whole, the form is fitted to the rest, and the error is that of the cells left out. The
simplest form whose error lies within one standard error of the best one's is chosen (Breiman et al., CART, 1984; the
standard error is that of the difference, group by group).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

from phasemeter.predict.features import Cell
from phasemeter.predict.fit import LEAST_NOISE, Fitted, KernelPrior, fit_form
from phasemeter.predict.forms import Form, Term

_LEAST_VALUES = 3
_MOST_JUDGED = 8
"""Candidates that are judged by hold-out, the most promising by AICc."""

_IDLE = 1e-3
"""A term that makes up less than this share of every cell's time."""

MOST_LOG_ERROR = math.log(3.0)
"""One cell missed by more than a factor of three counts as a factor of three: a form is judged by all of its cells."""


class HeldOut(Struct, frozen=True):
    """One cell as a fit without its group predicted it. `error` = log(predicted / measured)."""

    cell: int
    group: str
    error: float


class Judged(Struct, frozen=True):
    """A candidate with its fit to all cells and what it said of cells left out. `score` is the mean over groups of the
    mean |error|, in the groups' order in `means`; `failed` counts groups that could not be fitted without."""

    fitted: Fitted
    held_out: tuple[HeldOut, ...]
    score: float
    means: tuple[float, ...] = ()
    failed: int = 0


class Verdicts(Struct, frozen=True):
    """The chosen candidate, and all that could be fitted, best first."""

    chosen: Judged
    candidates: tuple[Judged, ...]


def groups_of(cells: Sequence[Cell]) -> dict[str, list[int]]:
    """Cells to leave out together: each input length, and each batch, of which there are three or more (to leave one
    of two out would ask for a line through one point), and which hold at most a third of the cells (else the rest is
    another experiment); else each output length; else each cell alone."""
    both = {**_by("input", _input, cells), **_by("batch", _batch, cells)}
    found = {name: members for name, members in both.items() if len(members) * _LEAST_VALUES <= len(cells)}
    return found or _by("output", _output, cells) or {f"cell {i + 1}": [i] for i in range(len(cells))}


def edges_of(cells: Sequence[Cell]) -> frozenset[str]:
    """The groups of the smallest and the largest input, batch and output: without one of them the rest must be
    extrapolated to it, without another group only interpolated."""
    found: set[str] = set()
    for name, value in (("input", _input), ("batch", _batch), ("output", _output)):
        values = [value(cell) for cell in cells]
        if values:
            found |= {f"{name} {min(values)}", f"{name} {max(values)}"}
    return frozenset(found)


def _input(cell: Cell) -> int:
    return cell.query.input_tokens


def _batch(cell: Cell) -> int:
    return cell.query.batch


def _output(cell: Cell) -> int:
    return cell.query.output_tokens


def batch_groups(cells: Sequence[Cell]) -> dict[str, list[int]]:
    """Whole batches alone."""
    return _by("batch", _batch, cells)


def judge(
    forms: Sequence[Form],
    rows: Sequence[dict[str, float]],
    seconds: Sequence[float],
    groups: dict[str, list[int]],
    weights: Sequence[float] | None = None,
    priors: Sequence[KernelPrior] = (),
    noise: float = LEAST_NOISE,
) -> Verdicts | None:
    """Fit and compare `forms`, each given by its number of terms as simpler or not; None where none can be fitted."""
    able = [
        told
        for form in forms
        if (told := fit_form(form, rows, seconds, weights, priors, None, noise)) is not None
    ]
    if not able:
        return None
    able = [fitted for fitted in able if not _idle(fitted)] or able
    ranked = sorted(able, key=lambda fitted: _aicc(fitted, rows, seconds))
    found = [_judged(f, rows, seconds, groups, weights, priors, noise) for f in ranked[:_MOST_JUDGED]]
    best = min(found, key=lambda judged: judged.score)
    within = [judged for judged in found if _as_good(judged, best)]
    chosen = min(within, key=lambda judged: (len(judged.fitted.form.terms), judged.score))
    return Verdicts(chosen, tuple(sorted(found, key=lambda judged: judged.score)))


def _idle(fitted: Fitted) -> bool:
    """Whether a term of the host or of other requests came out as nothing: a simpler form says the same. Not so the
    constant beside a chip's weights: no form is without it, and the weights may stand in for it."""
    form = fitted.form
    most = [max((abs(line[i]) for line in fitted.jacobian), default=1.0) for i in range(len(form.terms))]
    return any(
        m < _IDLE and term.part in ("host", "apart") and not (form.scaled and term == Term("one"))
        for m, term in zip(most, form.terms, strict=True)
    )


def _aicc(fitted: Fitted, rows: Sequence[dict[str, float]], seconds: Sequence[float]) -> float:
    """Akaike's criterion with the small-sample correction, on log errors (Hurvich and Tsai, Biometrika 1989)."""
    n, k = len(rows), len(fitted.form.terms)
    errors = [math.log(max(fitted.seconds(row), 1e-12) / s) for row, s in zip(rows, seconds, strict=True)]
    mean = max(sum(min(error * error, MOST_LOG_ERROR**2) for error in errors) / n, 1e-8)
    return n * math.log(mean) + 2 * k + (2 * k * (k + 1) / (n - k - 1) if n > k + 1 else math.inf)


def _judged(
    fitted: Fitted,
    rows: Sequence[dict[str, float]],
    seconds: Sequence[float],
    groups: dict[str, list[int]],
    weights: Sequence[float] | None,
    priors: Sequence[KernelPrior],
    noise: float,
) -> Judged:
    held: list[HeldOut] = []
    means: list[float] = []
    failed = 0
    for name, members in groups.items():
        outside = set(members)
        rest = [i for i in range(len(rows)) if i not in outside]
        told = fit_form(
            fitted.form,
            [rows[i] for i in rest],
            [seconds[i] for i in rest],
            None if weights is None else [weights[i] for i in rest],
            priors,
            fitted.coefficients,
            noise,
        )
        if told is None:
            failed += 1
            means.append(MOST_LOG_ERROR)
            continue
        errors = [math.log(max(told.seconds(rows[i]), 1e-12) / seconds[i]) for i in members]
        held += [HeldOut(i, name, error) for i, error in zip(members, errors, strict=True)]
        means.append(sum(min(abs(error), MOST_LOG_ERROR) for error in errors) / len(errors))
    score = sum(means) / len(means) if means else MOST_LOG_ERROR
    return Judged(fitted, tuple(held), score, tuple(means), failed)


def _as_good(judged: Judged, best: Judged) -> bool:
    """Whether the error exceeds the best one's by no more than one standard error of the difference, group by group:
    what is hard about a group is hard for both and cancels."""
    gaps = [mine - its for mine, its in zip(judged.means, best.means, strict=True)]
    mean = sum(gaps) / max(1, len(gaps))
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / max(1, len(gaps) - 1))
    return mean <= spread / math.sqrt(max(1, len(gaps)))


def _by(name: str, value: Callable[[Cell], int], cells: Sequence[Cell]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for i, cell in enumerate(cells):
        found.setdefault(f"{name} {value(cell)}", []).append(i)
    return found if len(found) >= _LEAST_VALUES else {}

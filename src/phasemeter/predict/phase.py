"""One phase fitted, with what is needed to say how sure it is: rivals, draws, residuals and the measured domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from phasemeter.explain.roof import Roof
from phasemeter.predict.features import Cell, features
from phasemeter.predict.fit import Fitted, KernelPrior, fit_form, shaken
from phasemeter.predict.forms import Form, decode_forms, first_forms, front_end_forms, prefill_forms
from phasemeter.predict.judge import Judged, Verdicts, edges_of, groups_of, judge

if TYPE_CHECKING:
    import numpy as np

LEVEL = 0.90
"""What an interval promises to cover."""
GRAPH_ENDS = (512.0, 256.0)
"""Tokens up to which a step may run in captured graphs: vLLM's default is min(2 x max_num_seqs, 512)
(`vllm/config/vllm.py`). Of two that the cells cannot tell apart the first counts: 512, for max_num_seqs of 256 and
more, which is the default."""
KNEES = (32.0, 64.0, 128.0)
"""Sequences from which a decode step may cost more each: kernels and delivery change where batches grow."""
DRAWS = 40
_LEAST_OF_A_KIND = 4
_MOST_RIVALS = 4


class Residual(Struct, frozen=True):
    """A measured cell beside what the fit says of it, and what a fit without its length or batch said (None where no
    such fit was possible). Errors are log(predicted / measured)."""

    input_tokens: int
    output_tokens: int
    batch: int
    measured_s: float
    fitted_s: float
    held_out: float | None = None


class Widths(Struct, frozen=True):
    """Conformal half widths as logarithms, from cells left out: `alone` for a batch of 1 and `together` for more (each
    from its own kind of cells where there are enough), both from cells that the rest surrounds; `far_length` and
    `far_batch` from those at the rim of what was measured in that direction, which had to be extrapolated."""

    alone: float
    together: float
    far_length: float
    far_batch: float

    def inside(self, batch: int) -> float:
        """The half width inside the domain."""
        return self.alone if batch == 1 else self.together


class PhaseFit(Struct, frozen=True):
    """One phase. `noise` is the split-half
    repeatability of the cells (median |log ratio| of two halves of the repeats), None with one repeat. `rivals` are the
    other forms that the data cannot tell from the chosen one; `draws` coefficients from resampled repeats."""

    phase: str
    fitted: Fitted
    widths: Widths
    score: float
    residuals: tuple[Residual, ...]
    noise: float | None = None
    rivals: tuple[Fitted, ...] = ()
    draws: tuple[tuple[float, ...], ...] = ()
    domain: dict[str, tuple[float, float]] = {}
    rows: tuple[dict[str, float], ...] = ()

    @property
    def form(self) -> Form:
        """The chosen form."""
        return self.fitted.form


def fit_phase(
    phase: str,
    cells: Sequence[Cell],
    roof: Roof | None,
    priors: Sequence[KernelPrior] = (),
    draws: int = DRAWS,
) -> PhaseFit | None:
    """Choose and fit a form for the cells of one phase, with `draws` bootstrap draws; None where no form can be
    fitted."""
    mine = [cell for cell in cells if cell.phase == phase]
    rows = [features(phase, cell.query, roof) for cell in mine]
    seconds = [cell.median_s for cell in mine]
    noise = split_half(mine)
    told = judge(
        forms_for(phase, rows, scaled=roof is not None),
        rows,
        seconds,
        groups_of(mine),
        None,
        priors,
        noise or 0.0,
    )
    if told is None:
        return None
    chosen = told.chosen
    return PhaseFit(
        phase=phase,
        fitted=chosen.fitted,
        widths=_widths(mine, chosen),
        score=chosen.score,
        residuals=_residuals(mine, rows, chosen),
        noise=noise,
        rivals=_rivals(told),
        draws=_draws(chosen.fitted, mine, rows, priors, draws, noise or 0.0),
        domain=_domain(mine, rows),
        rows=tuple(rows),
    )


def forms_for(phase: str, rows: Sequence[dict[str, float]], *, scaled: bool) -> list[Form]:
    """The candidates that these cells could show: steps and knees only where there are cells on both sides of them."""
    wide = {row["others"] if "others" in row else row["sequences"] for row in rows}
    batched = len(wide) > 1
    if phase == "front_end":
        return front_end_forms(batched=batched)
    if phase in ("decode", "step"):
        return decode_forms(_between("sequences", KNEES, rows), scaled=scaled, batched=batched)
    ends = _between("tokens", GRAPH_ENDS, rows)
    if phase == "first":
        return first_forms(ends, scaled=scaled, batched=batched)
    return prefill_forms(ends, scaled=scaled, batched=batched)


def conformal(errors: Sequence[float], level: float = LEVEL) -> float:
    """The half width that covers `level` of new cells if they are like those held out: the ceil((n + 1) level)-th of
    the sorted |errors| (Vovk et al., Algorithmic Learning in a Random World, 2005); the largest where n is small."""
    ordered = sorted(errors)
    return ordered[min(len(ordered), math.ceil((len(ordered) + 1) * level)) - 1]


def _widths(cells: Sequence[Cell], chosen: Judged) -> Widths:
    edges = edges_of(cells)
    inner = [(held.cell, abs(held.error)) for held in chosen.held_out if held.group not in edges]
    every = [abs(held.error) for held in chosen.held_out] or [math.log(2.0)]
    both = [error for _, error in inner] or every
    alone = [error for i, error in inner if cells[i].query.batch == 1]
    together = [error for i, error in inner if cells[i].query.batch > 1]
    widths = [conformal(kind if len(kind) >= _LEAST_OF_A_KIND else both) for kind in (alone, together)]
    rims = [
        [
            abs(held.error)
            for held in chosen.held_out
            if held.group in edges and held.group.startswith(way) == batch
        ]
        for way, batch in (("batch", False), ("batch", True))
    ]
    far = [max(*widths, conformal(rim or every)) for rim in rims]
    return Widths(widths[0], widths[1], far[0], far[1])


def split_half(cells: Sequence[Cell]) -> float | None:
    """Median over the cells of |log(median of the odd repeats / median of the even ones)|."""
    found: list[float] = []
    for cell in cells:
        odd, even = cell.seconds[::2], cell.seconds[1::2]
        if even:
            found.append(
                abs(math.log(Cell("", cell.query, odd).median_s / Cell("", cell.query, even).median_s))
            )
    ordered = sorted(found)
    return ordered[len(ordered) // 2] if ordered else None


def _between(feature: str, values: Sequence[float], rows: Sequence[dict[str, float]]) -> tuple[float, ...]:
    """Those of `values` with two different cells above and one below or at them."""
    seen = sorted({row[feature] for row in rows})
    return tuple(x for x in values if seen and seen[0] <= x and sum(value > x for value in seen) > 1)


def _residuals(
    cells: Sequence[Cell], rows: Sequence[dict[str, float]], chosen: Judged
) -> tuple[Residual, ...]:
    worst: dict[int, float] = {}
    for held in chosen.held_out:
        if abs(held.error) >= abs(worst.get(held.cell, 0.0)):
            worst[held.cell] = held.error
    return tuple(
        Residual(
            input_tokens=cell.query.input_tokens,
            output_tokens=cell.query.output_tokens,
            batch=cell.query.batch,
            measured_s=cell.median_s,
            fitted_s=chosen.fitted.seconds(row),
            held_out=worst.get(i),
        )
        for i, (cell, row) in enumerate(zip(cells, rows, strict=True))
    )


def _rivals(told: Verdicts) -> tuple[Fitted, ...]:
    """Forms no worse on cells left out than half again the chosen one's error, best first: outside of the domain they
    say how far the truth may be from the chosen form."""
    near = [c for c in told.candidates if c is not told.chosen and c.score <= 1.5 * told.chosen.score]
    return tuple(judged.fitted for judged in near[:_MOST_RIVALS])


def _draws(
    best: Fitted,
    cells: Sequence[Cell],
    rows: Sequence[dict[str, float]],
    priors: Sequence[KernelPrior],
    count: int,
    noise: float,
) -> tuple[tuple[float, ...], ...]:
    """Coefficients after resampling cells, and the repeats inside them, with replacement; the prior's centre is drawn
    too, so that what only the prior decides varies as widely as the prior."""
    import numpy as np

    random = np.random.default_rng(0)
    found: list[tuple[float, ...]] = []
    for _ in range(count):
        taken = cast("list[int]", random.integers(0, len(cells), len(cells)).tolist())
        seconds = [_resampled(cells[i], random) for i in taken]
        told = fit_form(
            best.form,
            [rows[i] for i in taken],
            seconds,
            None,
            shaken(best.form, priors, random),
            best.coefficients,
        )
        if told is not None:
            found.append(told.coefficients)
    return tuple(found)


def _resampled(cell: Cell, random: np.random.Generator) -> float:
    import numpy as np

    values = np.array(cell.seconds)
    return float(np.median(values[random.integers(0, values.size, values.size)]))


def _domain(cells: Sequence[Cell], rows: Sequence[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """The measured range of everything a form may depend on, in the units of a query where they have a name there."""
    found: dict[str, tuple[float, float]] = {}
    for name, values in {
        "input_tokens": [float(cell.query.input_tokens) for cell in cells],
        "context_tokens": [float(cell.query.context_tokens) for cell in cells],
        "batch": [float(cell.query.batch) for cell in cells],
        **{name: [row[name] for row in rows] for name in rows[0]},
    }.items():
        found[name] = (min(values), max(values))
    return found

"""The article's ten numbers as a fit to our own run predicts them for the hardware that it names."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from phasemeter.predict.features import Query
from phasemeter.predict.foresee import Foreseen, foresee
from phasemeter.predict.model import FittedModel, fit_runs
from phasemeter.record.errors import UndecidedError
from phasemeter.record.file import read_run
from phasemeter.report.article import HARDWARE, LIST_PREFILL_MS, TABLE_MS
from phasemeter.report.parts import ABSENT, Mark, Number


@cache
def predicted(path: Path | None) -> tuple[Number, ...]:
    """One number a row, with its 90 % interval: the chip's part by the ratio of ceilings, the host's part that of our
    host, widened. Absent where the run holds too little for a fit."""
    model = None if path is None else _fitted(path)
    if model is None:
        return (ABSENT,) * (len(LIST_PREFILL_MS) + 2 * len(TABLE_MS))
    prefills = [(n, TABLE_MS[0][1]) for n, _ in LIST_PREFILL_MS] + [(n, out) for n, out, _, _ in TABLE_MS]
    found = [_number(foresee(model, Query(n, out), hardware=HARDWARE).prefill) for n, out in prefills]
    return (
        *found,
        *(_number(foresee(model, Query(n, out), hardware=HARDWARE).tpot) for n, out, _, _ in TABLE_MS),
    )


def _fitted(path: Path) -> FittedModel | None:
    try:
        return fit_runs([read_run(path)])
    except UndecidedError:
        return None


def _number(told: Foreseen | None) -> Number:
    if told is None:
        return ABSENT
    return Number(told.ms.mid, mark=Mark.INFERRED, lo=told.ms.lo, hi=told.ms.hi)

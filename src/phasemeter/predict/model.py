"""The fitted model: what one machine, model, engine and version does, as a frozen struct that saves to a JSON file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec
from msgspec import Struct

from phasemeter import __version__
from phasemeter.explain.roof import Roof, best_header, roofs
from phasemeter.predict.cells import believable, cells_of, merged
from phasemeter.predict.features import Cell
from phasemeter.predict.fit import KernelPrior
from phasemeter.predict.phase import PhaseFit, fit_phase
from phasemeter.predict.played import PlayedSteps
from phasemeter.record.errors import InputError, UndecidedError
from phasemeter.record.run import Run

SCHEMA = 1
"""Version of a saved model."""


class FittedModel(Struct, frozen=True, dict=True):
    """What was fitted, of what, and by which version. Times are seconds; `roof` holds model shape, hardware row and
    dtype, None where they are not known (then nothing can be carried over to another model or machine).

    phases   prefill, first (TTFT), decode (TPOT as the client sees it), step (as the engine does) and front_end, as far
             as the runs told them
    notes    what could not be fitted and why
    """

    schema: int
    phasemeter: str
    machine: str
    engine: str
    engine_version: str | None
    model: str
    dtype: str | None
    settings: dict[str, str]
    runs: tuple[str, ...]
    budget_tokens: int
    phases: dict[str, PhaseFit]
    roof: Roof | None = None
    notes: tuple[str, ...] = ()

    def phase(self, name: str) -> PhaseFit:
        """The fit of one phase. Raises UndecidedError, saying why, where there is none."""
        found = self.phases.get(name)
        if found is None:
            why = "; ".join(note for note in self.notes if note.startswith(name)) or "the runs do not tell it"
            raise UndecidedError(f"{name}: not in this model: {why}")
        return found

    @cached_property
    def steps(self) -> PlayedSteps:
        """The same model made quick, for simulations that ask hundreds of thousands of times."""
        return PlayedSteps(
            prefill=self.phases.get("prefill") or self.phase("first"),
            decode=self.phases.get("step") or self.phase("decode"),
            front_end=self.phases.get("front_end"),
            roof=self.roof,
            budget_tokens=self.budget_tokens,
        )

    def step_s(self, prefill: Sequence[tuple[int, int]], decode: tuple[int, int] = (0, 0)) -> float:
        """See `steps.StepModel`."""
        return self.steps.step_s(prefill, decode)

    def front_end_s(self, input_tokens: int) -> float:
        """See `steps.StepModel`."""
        return self.steps.front_end_s(input_tokens)


def fit_runs(
    runs: Sequence[Run],
    *,
    hardware: str | None = None,
    model_shape: str | None = None,
    priors: Sequence[KernelPrior] = (),
) -> FittedModel:
    """Fit the runs of one machine, model and engine. `hardware` and `model_shape` stand in for what the header does not
    know. `priors` is what kernel profiles say. Raises InputError where the runs differ or a name is unknown,
    UndecidedError where there are too few cells, or one repeat of each."""
    run = merged(runs)
    cells = cells_of(run)
    roof = roof_of(run, hardware=hardware, model_shape=model_shape)
    header = run.header
    phases, notes = fit_cells(cells, roof, priors)
    gpus = header.machine.gpus
    return FittedModel(
        schema=SCHEMA,
        phasemeter=__version__,
        machine=gpus[0].name if gpus else header.machine.cpu,
        engine=header.engine.kind,
        engine_version=header.engine.version,
        model=header.engine.model if roof is None else roof.shape.name,
        dtype=header.engine.dtype,
        settings=dict(header.engine.details),
        runs=tuple(one.name or one.header.run_id for one in runs),
        budget_tokens=cells[0].query.budget_tokens,
        phases=phases,
        roof=roof,
        notes=notes,
    )


def fit_cells(
    cells: Sequence[Cell], roof: Roof | None, priors: Sequence[KernelPrior] = ()
) -> tuple[dict[str, PhaseFit], tuple[str, ...]]:
    """(the phases that could be fitted, notes on the others). Raises UndecidedError when it is neither a time to the
    first token nor a decode step."""
    phases: dict[str, PhaseFit] = {}
    notes: list[str] = []
    for name in ("prefill", "first", "decode", "step", "front_end"):
        try:
            believable(name, cells)
        except UndecidedError as error:
            notes.append(str(error))
            continue
        found = fit_phase(name, cells, roof, priors)
        if found is None:
            notes.append(
                f"{name}: the cells differ in too little to tell any form's terms apart: measure more lengths"
            )
        else:
            phases[name] = found
    if not {"prefill", "first", "decode"} & set(phases):
        raise UndecidedError(notes[0] if notes else "no cell of a closed loop was measured")
    return phases, tuple(notes)


def roof_of(run: Run, *, hardware: str | None, model_shape: str | None) -> Roof | None:
    """A GPU's datasheet ceilings where it is in the table, so that a fit can be carried over to another row of it; else
    what was measured (a CPU is seldom ours alone, and a share of its cores is no row); None where model or machine is
    unknown."""
    found = roofs(best_header(run), hardware=hardware, model_shape=model_shape)
    if not found:
        return None
    return found[-1] if found[-1].hardware.kind == "gpu" else found[0]


def save(model: FittedModel, path: Path) -> None:
    """Write the model as JSON. Raises InputError where the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(model), indent=1) + b"\n")
    except OSError as error:
        raise InputError("--out", str(path), f"cannot be written ({error.strerror})") from None


def load(path: Path) -> FittedModel:
    """Read a saved model. Raises InputError where there is none, or none that this version understands."""
    mend = "give a MODEL.json that `phasemeter fit RUN... --out MODEL.json` wrote"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError("MODEL", str(path), f"cannot be read ({error.strerror}); {mend}") from None
    try:
        found = msgspec.json.decode(data, type=FittedModel)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("MODEL", str(path), f"is no fitted model ({error}); {mend}") from None
    if found.schema != SCHEMA:
        raise InputError("MODEL", str(path), f"has version {found.schema}, this is {SCHEMA}; fit it again")
    for name, phase in found.phases.items():
        if not all(math.isfinite(c) and c >= 0 for c in phase.fitted.coefficients):
            raise InputError(
                "MODEL", str(path), f"{name} has a coefficient that is negative or not a number; {mend}"
            )
    return found

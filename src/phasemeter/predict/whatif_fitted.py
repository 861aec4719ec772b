"""A fitted model as three engines for a simulation: as it is, and as fast and as slow as its intervals allow.

The intervals are `foresee`'s (90 %) for a typical request of the traffic, at the number of sequences that run together:
one factor for steps with prompts in them, one for steps of decode alone, one for the front end. All of a simulation is
slow or fast together, because what an interval holds (a kernel's efficiency, the host, another chip) stays the same
from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from phasemeter.explain.roof import Roof
from phasemeter.predict.features import Query
from phasemeter.predict.foresee import foresee_phase
from phasemeter.predict.model import FittedModel
from phasemeter.predict.phase import PhaseFit
from phasemeter.predict.played import PlayedSteps
from phasemeter.predict.steps import StepModel
from phasemeter.predict.transfer import target
from phasemeter.record.errors import InputError

MEMORY_SHARE = 0.92
"""Of a GPU's memory that vLLM takes (`gpu_memory_utilization`, 0.32)."""
RESERVE_BYTES = 1.5e9
"""Activations and captured graphs, a round number for models of a few billion parameters and less."""


class FittedSteps(Struct, frozen=True):
    """A fitted model's steps, and its front end as one that is shared: what each request beside it costs one that is
    sent together with others is the work of that other, for of B that come at once each takes B times as long."""

    steps: PlayedSteps
    front_end: PhaseFit | None = None

    def step_s(self, prefill: Sequence[tuple[int, int]], decode: tuple[int, int] = (0, 0)) -> float:
        """As `StepModel.step_s`."""
        return self.steps.step_s(prefill, decode)

    def front_end_s(self, input_tokens: int) -> float:
        """As `StepModel.front_end_s`: of a request alone."""
        return self.steps.front_end_s(input_tokens)

    def front_end_busy_s(self, input_tokens: int) -> float:
        """As `SharedFrontEnd.front_end_busy_s`."""
        if self.front_end is None:
            return 0.0
        row = {"one": 1.0, "input": float(input_tokens), "others": 1.0, "batch_input": float(input_tokens)}
        beside = self.front_end.fitted.seconds(row)
        return max(0.0, beside - self.front_end_s(input_tokens))


class ScaledSteps(Struct, frozen=True):
    """Another model's steps and front end, each of its times multiplied."""

    model: FittedSteps
    prefill: float = 1.0
    decode: float = 1.0
    front_end: float = 1.0

    def step_s(self, prefill: Sequence[tuple[int, int]], decode: tuple[int, int] = (0, 0)) -> float:
        """As `StepModel.step_s`."""
        return self.model.step_s(prefill, decode) * (self.prefill if prefill else self.decode)

    def front_end_s(self, input_tokens: int) -> float:
        """As `StepModel.front_end_s`."""
        return self.model.front_end_s(input_tokens) * self.front_end

    def front_end_busy_s(self, input_tokens: int) -> float:
        """As `SharedFrontEnd.front_end_busy_s`."""
        return self.model.front_end_busy_s(input_tokens) * self.front_end


class Machine(Struct, frozen=True):
    """The fitted model's own machine, or one it is carried over to. `changed`: what differs, empty for its own."""

    name: str
    model: FittedModel
    roof: Roof | None
    steps: FittedSteps
    changed: tuple[str, ...] = ()
    hardware: str | None = None


class Bracket(Struct, frozen=True):
    """Three step models, and in which ways the typical request leaves the measured domain."""

    lo: StepModel
    mid: StepModel
    hi: StepModel
    outside: tuple[str, ...] = ()


def machine_of(model: FittedModel, hardware: str | None = None) -> Machine:
    """The model's own machine, or the chip named `hardware` by transfer. Raises InputError for an unknown name,
    UndecidedError where nothing can be carried over."""
    to, front_end = target(model.roof, hardware=hardware), model.phases.get("front_end")
    if hardware is None or to.roof is None:
        return Machine(model.machine, model, model.roof, FittedSteps(model.steps, front_end))
    steps = PlayedSteps(
        prefill=_prefill(model),
        decode=_decode(model),
        front_end=front_end,
        roof=to.roof,
        budget_tokens=model.budget_tokens,
    )
    return Machine(to.roof.hardware.name, model, to.roof, FittedSteps(steps, front_end), to.changed, hardware)


def bracket(machine: Machine, typical: Query) -> Bracket:
    """`machine` at the middle and at both ends of its intervals."""
    model = machine.model
    to = target(model.roof, hardware=machine.hardware)
    alone = Query(typical.input_tokens, typical.output_tokens, budget_tokens=typical.budget_tokens)
    told = [foresee_phase(_prefill(model), alone, to), foresee_phase(_decode(model), typical, to)]
    front_end = model.phases.get("front_end")
    if front_end is not None:
        told.append(foresee_phase(front_end, alone, to))
    down = [phase.ms.lo / phase.ms.mid for phase in told]
    up = [phase.ms.hi / phase.ms.mid for phase in told]
    outside = dict.fromkeys(f"{phase.phase}: {way}" for phase in told for way in phase.outside)
    return Bracket(
        ScaledSteps(machine.steps, *down), machine.steps, ScaledSteps(machine.steps, *up), tuple(outside)
    )


def kv_blocks_of(machine: Machine, block_size: int) -> int | None:
    """Blocks of KV cache on the machine's memory: `MEMORY_SHARE` of it less the weights and `RESERVE_BYTES`; None where
    model or memory is not known, or it is no GPU (a CPU's cache is as large as one says). Raises InputError where the
    weights leave nothing."""
    roof = machine.roof
    if roof is None or roof.hardware.kind != "gpu" or roof.hardware.memory_bytes is None:
        return None
    left = MEMORY_SHARE * roof.hardware.memory_bytes - roof.shape.weight_bytes(roof.dtype) - RESERVE_BYTES
    blocks = int(left / (block_size * roof.shape.kv_bytes_per_token(roof.dtype)))
    if blocks < 1:
        raise InputError(
            "hardware",
            machine.name,
            f"{roof.shape.name} in {roof.dtype} leaves its memory no KV cache; leave it out, or give --kv-blocks",
        )
    return blocks


def _prefill(model: FittedModel) -> PhaseFit:
    return model.phases.get("prefill") or model.phase("first")


def _decode(model: FittedModel) -> PhaseFit:
    return model.phases.get("step") or model.phase("decode")

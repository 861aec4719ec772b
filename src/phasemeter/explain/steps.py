"""The steps of a batching engine, and what sharing them cost each request.

A continuous batcher runs step after step; in one step every running request gets a token, and a request that
just came in is prefilled beside them. So a prefill makes the others' next token late. From the steps that an
engine tells (`EngineStep`) and from where each request finished among them (`SeenRequest.engine_ns`, both on
the engine's clock):

    cost          of a step with decoding requests: end of the step before until its own end, which is what those
                  requests waited; of any other step: the duration that the engine told
    baseline(b)   median cost of the steps that decode b requests and prefill nothing
    interference  of a request: over the steps of its decode phase that also prefilled (its own prefill is over, so
                  they prefilled others), the sum of cost - baseline(decoding requests)

A server with several engine cores (data parallelism) numbers them; each has a batch, a baseline and steps of its own,
and a request is laid over those of the core that served it.

Where a request's decode phase began is inferred from when it finished and how long it decoded; the step that
ended nearest to it gave the first token. A baseline needs three steps; for another batch size it is
interpolated between those that have one, and the steps that this was done for are counted."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from phasemeter.explain.phases import Basis
from phasemeter.explain.stats import Dist, distribution
from phasemeter.explain.steps_life import Life, began_ns, decode_place, life_in
from phasemeter.explain.steps_table import (
    Baseline,
    StepKind,
    StepTable,
    by_engine,
    engine_of,
    kind_of,
    kinds_of,
    tables_of,
)
from phasemeter.record.engine import EngineStep, Outcome, SeenRequest
from phasemeter.record.run import Run

MOST_REQUESTS = 20
MOST_ROWS = 400

UNTOLD = "the engine told its steps without tokens; start vLLM with --enable-logging-iteration-details"
UNPLACED = "no request finished on the clock of the steps, so none can be laid over them"


class RequestSteps(Struct, frozen=True):
    """The decode phase of one request (one sequence of it) over the steps it shared.

    shared_steps     steps in which others decoded as well
    prefill_steps    steps that prefilled others; `prefill_steps_ms` is their whole cost
    interference_ms  what those cost beyond the same step without a prefill; None without a baseline
    share            interference of the decode time
    borrowed_steps   prefill steps whose baseline was interpolated
    """

    request: str
    index: int
    decode_ms: float
    decode_steps: int
    shared_steps: int
    prefill_steps: int
    prefill_tokens: int
    prefill_steps_ms: float
    interference_ms: float | None
    share: float | None
    borrowed_steps: int
    preempted: bool = False
    """It was preempted and computed again, so some of the prefill may be its own."""


class StepsSummary(Struct, frozen=True):
    """What the engine's steps say of a run. `placed` sequences of measured requests were laid over the steps;
    the distributions are over them. `most` are those that lost most to others' prefills, and `life` is the
    first of these step by step. Inferred throughout. `note` says what is missing, or is empty."""

    steps: int
    told: int
    kinds: tuple[StepKind, ...] = ()
    baseline: tuple[Baseline, ...] = ()
    placed: int = 0
    disturbed: int = 0
    interference_ms: Dist | None = None
    share: Dist | None = None
    most: tuple[RequestSteps, ...] = ()
    life: Life | None = None
    basis: Basis = Basis.INFERRED
    note: str = ""


def summarise_steps(run: Run) -> StepsSummary | None:
    """Everything the steps say; None for a run whose engine told none (also for a merged run: its steps lie
    on several clocks and are left out)."""
    if not run.steps:
        return None
    told = told_steps(run.steps)
    if not told:
        return StepsSummary(steps=len(run.steps), told=0, note=UNTOLD)
    placed = measured_lines(run)
    tables = tables_in(told, placed)
    requests = [one for line in placed if (one := request_steps(tables, line)) is not None]
    lost = sorted(requests, key=lambda r: -(r.interference_ms or 0.0))
    first = [line for line in placed if lost and _same(line, lost[0])]
    return StepsSummary(
        steps=len(run.steps),
        told=len(told),
        kinds=kinds_of(tables.values()),
        baseline=tuple(baseline for table in tables.values() for baseline in table.baselines),
        placed=len(requests),
        disturbed=sum(r.prefill_steps > 0 for r in requests),
        interference_ms=_dist([r.interference_ms for r in requests]),
        share=_dist([r.share for r in requests]),
        most=tuple(r for r in lost[:MOST_REQUESTS] if r.prefill_steps),
        life=life_over(tables, first[0], most=MOST_ROWS) if first else None,
        note="" if requests else UNPLACED,
    )


def life_of(run: Run, request: str, index: int = 0) -> Life | None:
    """One request's life over the steps; None where its engine did not tell enough of it."""
    told = told_steps(run.steps)
    line = line_of(run, request, index)
    return (
        life_over(tables_in(told, [*measured_lines(run), line]), line, most=MOST_ROWS)
        if told and line
        else None
    )


def line_of(run: Run, request: str, index: int = 0) -> SeenRequest | None:
    """What the engine saw of one sequence, by the source that places it among the steps; None without one."""
    return next(
        (
            line
            for line in run.seen
            if (line.request, line.index) == (request, index) and line.engine_ns is not None
        ),
        None,
    )


def tables_in(told: Sequence[EngineStep], lines: Sequence[SeenRequest]) -> dict[int | None, StepTable]:
    """The steps of each engine core as a table, from the first to the last of the requests of `lines` that it served.
    `told` is what `told_steps` left."""
    groups = by_engine(told)
    served: dict[int | None, list[SeenRequest]] = {}
    for line in lines:
        found = engine_of(groups, line.engine)
        if found is not None:
            served.setdefault(found[0], []).append(line)
    return tables_of({engine: _window(steps, served.get(engine, [])) for engine, steps in groups.items()})


def life_over(
    tables: dict[int | None, StepTable],
    line: SeenRequest,
    *,
    prompt_tokens: int | None = None,
    most: int | None = None,
) -> Life | None:
    """The life of one request over the steps of its engine core; None where that is not known or told too little."""
    found = engine_of(tables, line.engine)
    if found is None:
        return None
    engine = found[0] if len(tables) > 1 else None
    return life_in(tables[found[0]], line, prompt_tokens=prompt_tokens, most=most, engine=engine)


def told_steps(steps: Sequence[EngineStep]) -> list[EngineStep]:
    """Steps with their tokens that did any work; an engine also tells of empty ones."""
    return [s for s in steps if s.prefill_tokens is not None and kind_of(s) is not None]


def _same(line: SeenRequest, found: RequestSteps) -> bool:
    return (line.request, line.index) == (found.request, found.index)


def measured_lines(run: Run) -> list[SeenRequest]:
    """What the engine saw of measured, successful requests that can be laid over the steps."""
    wanted = {t.id for t in run.requests if not t.cell.warmup and t.outcome is Outcome.OK}
    return [
        line
        for line in run.seen
        if line.request in wanted and line.engine_ns is not None and line.report.decode_ns is not None
    ]


def _window(steps: list[EngineStep], placed: list[SeenRequest]) -> list[EngineStep]:
    """Steps from the first to the last measured request: a warm-up's are slower and would spoil the
    baseline."""
    if not placed:
        return steps
    first = min(began_ns(line) for line in placed)
    last = max(line.engine_ns or 0 for line in placed)
    return [step for step in steps if first <= step.engine_ns <= last] or steps


def request_steps(tables: dict[int | None, StepTable], line: SeenRequest) -> RequestSteps | None:
    """What the decode phase of one sequence shared; None where it cannot be laid over the steps, or had no step."""
    engine = engine_of(tables, line.engine)
    if engine is None:
        return None
    table, decode_ns = tables[engine[0]], line.report.decode_ns
    place = decode_place(table, line)
    if place is None or not decode_ns or place[0] == place[1]:
        return None
    first, last = place
    found = {name: table.over(name, first, last) for name in table.running}
    lost_ms = found["interference_ns"] / 1e6 if table.baselines or not found["prefill_steps"] else None
    return RequestSteps(
        request=line.request,
        index=line.index,
        decode_ms=decode_ns / 1e6,
        decode_steps=last - first,
        shared_steps=round(found["shared"]),
        prefill_steps=round(found["prefill_steps"]),
        prefill_tokens=round(found["prefill_tokens"]),
        prefill_steps_ms=found["prefill_steps_ns"] / 1e6,
        interference_ms=lost_ms,
        share=None if lost_ms is None else lost_ms * 1e6 / decode_ns,
        borrowed_steps=round(found["borrowed"]),
        preempted=bool(line.report.preemptions),
    )


def _dist(values: Sequence[float | None]) -> Dist | None:
    return distribution([value for value in values if value is not None])

"""The steps of a batching engine, and what sharing them cost each request.

A continuous batcher runs step after step; in one step every running request gets a token, and a request that
just came in is prefilled beside them. So a prefill makes the others' next token late. From the steps that an
engine tells (`EngineStep`) and from where each request finished among them (`SeenRequest.engine_ns`, both on
the engine's clock):

    cost          of a step with decoding requests: end of the step before until its own end, which is what
    those
                  requests waited; of any other step: the duration that the engine told
    baseline(b)   median cost of the steps that decode b requests and prefill nothing interference  of a
    request: over the steps of its decode phase that also prefilled (its own prefill is over, so
                  they prefilled others), the sum of cost - baseline(decoding requests)

Where a request's decode phase began is inferred from when it finished and how long it decoded; the step that
ended nearest to it gave the first token. A baseline needs three steps; for another batch size it is
interpolated between those that have one, and the steps that this was done for are counted."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from phasemeter.explain.phases import Basis
from phasemeter.explain.stats import Dist, distribution
from phasemeter.explain.steps_table import Baseline, StepKind, StepTable, kind_of
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


class StepRow(Struct, frozen=True):
    """One step in a request's life. `at_ms` is the step's end, from the moment the engine accepted the
    request; `part` the phase the request was in: "queue", "prefill" or "decode"."""

    at_ms: float
    part: str
    cost_ms: float | None
    duration_ms: float | None
    prefill_requests: int | None
    prefill_tokens: int | None
    decode_requests: int | None
    decode_tokens: int | None
    running: int | None
    waiting: int | None
    kv_usage_ratio: float | None


class Life(Struct, frozen=True):
    """One request over the engine's steps, from its acceptance to its last token; `cut` where it had more
    steps than are kept."""

    request: str
    index: int
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    rows: tuple[StepRow, ...]
    cut: bool = False


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
    told = _told(run.steps)
    if not told:
        return StepsSummary(steps=len(run.steps), told=0, note=UNTOLD)
    placed = _measured(run)
    table = StepTable.of(told if not placed else _window(told, placed))
    requests = [one for line in placed if (one := _request(table, line)) is not None]
    lost = sorted(requests, key=lambda r: -(r.interference_ms or 0.0))
    first = [line for line in placed if lost and _same(line, lost[0])]
    return StepsSummary(
        steps=len(run.steps),
        told=len(told),
        kinds=table.kinds(),
        baseline=table.baselines,
        placed=len(requests),
        disturbed=sum(r.prefill_steps > 0 for r in requests),
        interference_ms=_dist([r.interference_ms for r in requests]),
        share=_dist([r.share for r in requests]),
        most=tuple(r for r in lost[:MOST_REQUESTS] if r.prefill_steps),
        life=_life(table, first[0]) if first else None,
        note="" if requests else UNPLACED,
    )


def life_of(run: Run, request: str, index: int = 0) -> Life | None:
    """One request's life over the steps; None where its engine did not tell enough of it."""
    told = _told(run.steps)
    lines = [line for line in run.seen if (line.request, line.index) == (request, index)]
    return _life(StepTable.of(told), lines[0]) if told and lines else None


def _told(steps: Sequence[EngineStep]) -> list[EngineStep]:
    """Steps with their tokens that did any work; an engine also tells of empty ones."""
    return [s for s in steps if s.prefill_tokens is not None and kind_of(s) is not None]


def _same(line: SeenRequest, found: RequestSteps) -> bool:
    return (line.request, line.index) == (found.request, found.index)


def _measured(run: Run) -> list[SeenRequest]:
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
    first = min(_began_ns(line) for line in placed)
    last = max(line.engine_ns or 0 for line in placed)
    return [step for step in steps if first <= step.engine_ns <= last] or steps


def _began_ns(line: SeenRequest) -> int:
    report = line.report
    return (line.engine_ns or 0) - (report.decode_ns or 0) - (report.prefill_ns or 0) - (report.queue_ns or 0)


def _decode_steps(table: StepTable, line: SeenRequest) -> tuple[int, int] | None:
    """(the step of the first token, the step of the last), None where the steps do not reach that far."""
    import numpy as np

    end_ns, decode_ns = line.engine_ns, line.report.decode_ns
    if end_ns is None or decode_ns is None:
        return None
    last = int(np.searchsorted(table.ends, end_ns, side="right")) - 1
    begin_ns = end_ns - decode_ns
    if last < 0 or begin_ns < table.ends[0] - (table.steps[0].duration_ns or 0):
        return None
    after = min(int(np.searchsorted(table.ends, begin_ns)), last)
    before = max(after - 1, 0)
    nearer = before if begin_ns - table.ends[before] < table.ends[after] - begin_ns else after
    return nearer, last


def _request(table: StepTable, line: SeenRequest) -> RequestSteps | None:
    place = _decode_steps(table, line)
    decode_ns = line.report.decode_ns
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


def _life(table: StepTable, line: SeenRequest) -> Life | None:
    import numpy as np

    place = _decode_steps(table, line)
    if place is None:
        return None
    first, last = place
    report, began_ns = line.report, _began_ns(line)
    scheduled_ns = began_ns + (report.queue_ns or 0)
    begin = int(np.searchsorted(table.ends, began_ns, side="right"))
    rows: list[StepRow] = []
    for i in range(begin, min(last + 1, begin + MOST_ROWS)):
        step = table.steps[i]
        part = "decode" if i > first else "queue" if step.engine_ns <= scheduled_ns else "prefill"
        rows.append(
            StepRow(
                at_ms=(step.engine_ns - began_ns) / 1e6,
                part=part,
                cost_ms=float(table.costs[i]) / 1e6,
                duration_ms=None if step.duration_ns is None else step.duration_ns / 1e6,
                prefill_requests=step.prefill_requests,
                prefill_tokens=step.prefill_tokens,
                decode_requests=step.decode_requests,
                decode_tokens=step.decode_tokens,
                running=step.running,
                waiting=step.waiting,
                kv_usage_ratio=step.kv_usage_ratio,
            )
        )
    return Life(
        request=line.request,
        index=line.index,
        queue_ms=(report.queue_ns or 0) / 1e6,
        prefill_ms=(report.prefill_ns or 0) / 1e6,
        decode_ms=(report.decode_ns or 0) / 1e6,
        rows=tuple(rows),
        cut=last + 1 > begin + MOST_ROWS,
    )


def _dist(values: Sequence[float | None]) -> Dist | None:
    return distribution([value for value in values if value is not None])

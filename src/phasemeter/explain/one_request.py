"""One request of a run on its own: its budget, its latencies, and its life over the engine's steps."""

from __future__ import annotations

from msgspec import Struct

from phasemeter.explain.contract import struct_json
from phasemeter.explain.phases import Basis, Phases, Reading, Span, read
from phasemeter.explain.pick_request import itl
from phasemeter.explain.steps import (
    UNTOLD,
    RequestSteps,
    life_over,
    line_of,
    measured_lines,
    request_steps,
    tables_in,
    told_steps,
)
from phasemeter.explain.steps_gaps import Gaps, gaps_over
from phasemeter.explain.steps_life import Life
from phasemeter.record.run import Run
from phasemeter.record.timeline import Timeline

NO_STEPS = "the record holds no engine steps; measure with --engine vllm --engine-steps to have them"
MERGED = "steps of several runs lie on several clocks; explain the one file that holds this request"
UNSEEN = "the engine told nothing of this request on the clock of its steps"
UNREACHED = "the steps that were told do not reach as far back as this request"


class Shared(Struct, frozen=True):
    """A life over the steps and what sharing them cost. `steps` is None for an answer of one token, whose decode
    phase is empty. `gaps_note` says why `gaps` is None, or is empty. All inferred."""

    life: Life
    steps: RequestSteps | None
    gaps: Gaps | None
    gaps_note: str
    basis: Basis = Basis.INFERRED


class RequestExplained(Struct, frozen=True):
    """One request. `shared` is None where it could not be laid over the engine's steps, and `note` says why. Of a
    request with several answers (`sequences`), `shared` is the first one's."""

    reading: Reading
    sequences: int
    shared: Shared | None
    note: str


def explain_request(run: Run, timeline: Timeline, *, merged: bool = False) -> RequestExplained:
    """All that a run says of one of its requests. `merged` says that the run was put together from several."""
    reading = read(timeline)
    line = line_of(run, timeline.id)
    source = None if line is None else line.report.source
    sequences = (
        len({o.index for o in run.seen if o.request == timeline.id and o.report.source == source}) or 1
    )
    told = told_steps(run.steps)
    note = MERGED if merged else NO_STEPS if not run.steps else UNTOLD if not told else "" if line else UNSEEN
    if note or line is None:
        return RequestExplained(reading, sequences, None, note)
    tables = tables_in(told, [*measured_lines(run), line])
    life = life_over(tables, line, prompt_tokens=_prompt_tokens(timeline))
    if life is None:
        return RequestExplained(reading, sequences, None, UNREACHED)
    gaps, why = gaps_over(reading, life, sequences)
    return RequestExplained(reading, sequences, Shared(life, request_steps(tables, line), gaps, why), "")


def request_json(explained: RequestExplained) -> dict[str, object]:
    """As `explain --request --json` prints it; times in milliseconds, absent is None."""
    reading = explained.reading
    timeline, usage = reading.timeline, reading.timeline.usage
    report, longest = timeline.report, itl(reading)
    return {
        "id": timeline.id,
        "outcome": timeline.outcome.value,
        "warmup": timeline.cell.warmup,
        "error": timeline.error,
        "status": timeline.status,
        "finish_reason": timeline.finish_reason,
        "input_tokens": timeline.cell.input_tokens,
        "output_tokens": timeline.cell.output_tokens,
        "prompt_tokens": _prompt_tokens(timeline),
        "cached_tokens": _first(
            None if report is None else report.cached_tokens, None if usage is None else usage.cached_tokens
        ),
        "tokens": reading.tokens,
        "preemptions": None if report is None else report.preemptions,
        "in_flight": timeline.in_flight,
        "sequences": explained.sequences,
        "engine_source": None if report is None else report.source,
        "ttft_ms": _ms(reading.ttft_ns),
        "ttft_from_arrival_ms": _ms(reading.ttft_from_arrival_ns),
        "tpot_ms": _ms(reading.tpot_ns),
        "itl_max_ms": _ms(longest),
        "e2e_ms": _ms(reading.e2e_ns),
        "phases": phases_json(reading.phases),
        "shared": None if explained.shared is None else struct_json(explained.shared),
        "note": explained.note,
    }


def phases_json(phases: Phases) -> dict[str, object]:
    """Every phase as its duration and how it is known; None where nobody saw it."""
    spans: dict[str, Span | None] = {name: getattr(phases, name) for name in Phases.__struct_fields__}
    return {
        name: None if span is None else {"ms": span.ns / 1e6, "basis": span.basis.value}
        for name, span in spans.items()
    }


def _prompt_tokens(timeline: Timeline) -> int | None:
    usage = timeline.usage
    return _first(None if usage is None else usage.prompt_tokens, timeline.prompt_tokens_sent)


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6

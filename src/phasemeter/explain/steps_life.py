"""One request over the engine's steps: in which it was, what of them was its own, and who was in them beside it.

A step's tokens are told for the whole batch. What of them was the request's own follows from what is known of it:

    decoding     one sequence of the step's, and one token where every sequence had one (no speculation)
    prefilling   it computes its prompt without the cached part, in one step or in several that follow each other and
                 end with the one of its first token; a step that prefilled one request alone and belongs to it is all
                 its own. `own_prefill_tokens` is what all ways to fulfil this agree on, None where they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from statistics import median

from msgspec import Struct

from phasemeter.explain.steps_table import StepTable
from phasemeter.record.engine import EngineStep, SeenRequest


class StepRow(Struct, frozen=True):
    """One step in a request's life. `at_ms` is the step's end, from the moment the engine accepted the request, and
    `start_ms` that end less the cost; `part` the phase the request was in: "queue", "prefill" or "decode".
    `other_decodes` counts the sequences beside it that decoded. `baseline_ms` is what a step of as many decoding
    requests and no prefill costs, for steps of its decode phase; None where no such step is there to compare with."""

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
    start_ms: float | None = None
    own_prefill_tokens: int | None = None
    own_decode_tokens: int | None = None
    other_prefill_tokens: int | None = None
    other_decodes: int | None = None
    baseline_ms: float | None = None


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
    engine: int | None = None
    """The engine core that served it, where there are several."""
    own_prefill_tokens: int | None = None
    """Its prompt without the cached part, where its prefill steps can have computed that."""


class StepGroup(Struct, frozen=True):
    """Steps that follow each other and are alike for the request: `kind` is "queue", "prefill", "decode" (nobody was
    prefilled beside it), "beside" (others were) or "several" (decoding, with and without). Tokens and costs are sums,
    `each_ms` the median cost; `excess_ms` what the steps beside a prefill cost beyond their baselines. Pairs are the
    least and the most."""

    kind: str
    steps: int
    start_ms: float | None
    end_ms: float
    cost_ms: float
    each_ms: float
    own_tokens: int | None
    other_prefill_tokens: int | None
    beside_steps: int
    other_decodes: tuple[int, int] | None
    running: tuple[int, int] | None
    waiting: tuple[int, int] | None
    kv_usage_ratio: float | None
    excess_ms: float | None


def began_ns(line: SeenRequest) -> int:
    """When the engine accepted it, on the engine's clock: its end less all that it reported."""
    report = line.report
    return (line.engine_ns or 0) - (report.decode_ns or 0) - (report.prefill_ns or 0) - (report.queue_ns or 0)


def decode_place(table: StepTable, line: SeenRequest) -> tuple[int, int] | None:
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


def life_in(
    table: StepTable,
    line: SeenRequest,
    *,
    prompt_tokens: int | None = None,
    most: int | None = None,
    engine: int | None = None,
) -> Life | None:
    """The life of one request in its engine's steps, at most `most` of them. `prompt_tokens` is its whole prompt; its
    cached part is taken off where the engine tells it. None where the steps do not reach that far."""
    import numpy as np

    place = decode_place(table, line)
    if place is None:
        return None
    first, last = place
    report, start_ns = line.report, began_ns(line)
    scheduled_ns = start_ns + (report.queue_ns or 0)
    begin = int(np.searchsorted(table.ends, start_ns, side="right"))
    scheduled = min(int(np.searchsorted(table.ends, scheduled_ns, side="right")), first)
    to_compute = None if prompt_tokens is None else prompt_tokens - (report.cached_tokens or 0)
    own, possible = _own_prefill(table.steps[scheduled : first + 1], to_compute)
    upto = last + 1 if most is None else min(last + 1, begin + most)
    rows: list[StepRow] = []
    for i in range(begin, upto):
        part = "decode" if i > first else "queue" if i < scheduled else "prefill"
        known = own[i - scheduled] if part == "prefill" else 0
        rows.append(_row(table, i, part, start_ns, known))
    return Life(
        request=line.request,
        index=line.index,
        queue_ms=(report.queue_ns or 0) / 1e6,
        prefill_ms=(report.prefill_ns or 0) / 1e6,
        decode_ms=(report.decode_ns or 0) / 1e6,
        rows=tuple(rows),
        cut=last + 1 > upto,
        engine=engine,
        own_prefill_tokens=to_compute if possible else None,
    )


def groups_of(life: Life, most: int) -> tuple[StepGroup, ...]:
    """Steps that are alike put together, at most `most` groups: where there are more, those that cost most beyond
    their baseline stay apart and what lies between them becomes one group."""
    alike = [list(members) for _, members in groupby(life.rows, key=kind_of_row)]
    if len(alike) > most:
        ranked = sorted(range(len(alike)), key=lambda i: -_standing_out(alike[i]))
        apart = set(ranked[: max(1, (most - 1) // 2)])
        keyed = groupby(enumerate(alike), key=lambda pair: pair[0] if pair[0] in apart else -1)
        alike = [[row for _, rows in members for row in rows] for _, members in keyed]
    whole = life.own_prefill_tokens
    return tuple(_group(rows, whole if rows[0].part == "prefill" else None) for rows in alike)


def kind_of_row(row: StepRow) -> str:
    """ "queue", "prefill", "decode", or "beside" where others were prefilled while it decoded."""
    return "beside" if row.part == "decode" and row.prefill_tokens else row.part


def excess_ms(row: StepRow) -> float | None:
    """What a step cost beyond its baseline; None where either is not known."""
    return None if row.cost_ms is None or row.baseline_ms is None else row.cost_ms - row.baseline_ms


def _row(table: StepTable, i: int, part: str, start_ns: int, own: int | None) -> StepRow:
    step, cost_ms = table.steps[i], float(table.costs[i]) / 1e6
    decodes, least = part == "decode", table.least
    at_ms = (step.engine_ns - start_ns) / 1e6
    single = step.decode_tokens is not None and step.decode_tokens == step.decode_requests
    prefill, sequences = step.prefill_tokens, step.decode_requests
    return StepRow(
        at_ms=at_ms,
        part=part,
        cost_ms=cost_ms,
        duration_ms=None if step.duration_ns is None else step.duration_ns / 1e6,
        prefill_requests=step.prefill_requests,
        prefill_tokens=prefill,
        decode_requests=sequences,
        decode_tokens=step.decode_tokens,
        running=step.running,
        waiting=step.waiting,
        kv_usage_ratio=step.kv_usage_ratio,
        start_ms=at_ms - cost_ms,
        own_prefill_tokens=own,
        own_decode_tokens=_own_decode(sequences, single=single) if decodes else 0,
        other_prefill_tokens=None if own is None or prefill is None else prefill - own,
        other_decodes=None if sequences is None else max(0, sequences - 1) if decodes else sequences,
        baseline_ms=float(least[i]) / 1e6 if decodes and sequences and least is not None else None,
    )


def _own_decode(sequences: int | None, *, single: bool) -> int | None:
    return 0 if sequences == 0 else 1 if single else None


def _own_prefill(steps: Sequence[EngineStep], whole: int | None) -> tuple[list[int | None], bool]:
    """(own prefill tokens in each of the steps that may have prefilled it, the last of which gave its first token;
    whether all of them together can have been its `whole`)."""
    if whole is None:
        alone = len(steps) == 1 and steps[0].prefill_requests == 1
        return ([steps[0].prefill_tokens] if alone else [None] * len(steps)), False
    least: list[int | None] = [None] * len(steps)
    most: list[int | None] = [None] * len(steps)
    for begin in range(len(steps)):
        bounds = _bounds(steps[begin:], whole)
        if bounds is None:
            continue
        for i, (lo, hi) in enumerate([(0, 0)] * begin + bounds):
            low, high = least[i], most[i]
            least[i] = lo if low is None else min(low, lo)
            most[i] = hi if high is None else max(high, hi)
    return [lo if lo == hi else None for lo, hi in zip(least, most, strict=True)], None not in least


def _bounds(steps: Sequence[EngineStep], whole: int) -> list[tuple[int, int]] | None:
    """The least and the most of its `whole` tokens in each step, if it was in all of them that prefilled; None where
    that cannot be."""
    limits = [_limits(step) for step in steps]
    lowest, highest = sum(lo for lo, _ in limits), sum(hi for _, hi in limits)
    if not lowest <= whole <= highest:
        return None
    return [(max(lo, whole - (highest - hi)), min(hi, whole - (lowest - lo))) for lo, hi in limits]


def _limits(step: EngineStep) -> tuple[int, int]:
    tokens, requests = step.prefill_tokens or 0, step.prefill_requests
    if not tokens or requests == 1:
        return tokens, tokens
    return 1, max(1, tokens - ((requests or 1) - 1))


def _standing_out(rows: Sequence[StepRow]) -> float:
    if rows[0].part != "decode":
        return float("inf")  # what comes before the first token is never folded away
    over = [excess_ms(row) for row in rows]
    return sum((row.cost_ms or 0.0) if more is None else more for row, more in zip(rows, over, strict=True))


def _group(rows: Sequence[StepRow], whole: int | None) -> StepGroup:
    """`whole` is what the request prefilled in all of them, where that is known though not of each."""
    kinds = {kind_of_row(row) for row in rows}
    beside = [row for row in rows if kind_of_row(row) == "beside"]
    over = [excess_ms(row) for row in beside]
    known = [value for value in over if value is not None]
    costs = [row.cost_ms or 0.0 for row in rows]
    own = _sum([own_tokens(row) for row in rows]) if whole is None else whole
    prefilled = _sum([row.prefill_tokens for row in rows])
    others = _sum([row.other_prefill_tokens for row in rows])
    return StepGroup(
        kind=kinds.pop() if len(kinds) == 1 else "several",
        steps=len(rows),
        start_ms=rows[0].start_ms,
        end_ms=rows[-1].at_ms,
        cost_ms=sum(costs),
        each_ms=median(costs),
        own_tokens=own,
        other_prefill_tokens=others if whole is None or prefilled is None else prefilled - whole,
        beside_steps=len(beside),
        other_decodes=_range([row.other_decodes for row in rows]),
        running=_range([row.running for row in rows]),
        waiting=_range([row.waiting for row in rows]),
        kv_usage_ratio=max(
            (row.kv_usage_ratio for row in rows if row.kv_usage_ratio is not None), default=None
        ),
        excess_ms=sum(known) if known and len(known) == len(over) else None,
    )


def own_tokens(row: StepRow) -> int | None:
    """Its own tokens in a step, of its prompt or its answer; None where that is not known."""
    prefill, decode = row.own_prefill_tokens, row.own_decode_tokens
    return None if prefill is None or decode is None else prefill + decode


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _range(values: Sequence[int | None]) -> tuple[int, int] | None:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None

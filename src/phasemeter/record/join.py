"""Join what the engine said of a request, by whatever way, into one report: better sources first (`ORDER`), gaps
filled from the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

from msgspec.structs import asdict, replace

from phasemeter.record.engine import EngineReport, SeenRequest
from phasemeter.record.timeline import Timeline

ORDER = ("vllm plugin", "vllm response metrics", "vllm otel spans")
"""Sources of one engine from best to worst; one that is not named here stands beside the stream's own reports."""
_UNNAMED = 1


def joiner(seen: Iterable[SeenRequest]) -> Callable[[Timeline], Timeline] | None:
    """What gives a timeline the report of what was `seen` of it and what came in its stream, by the rank of its source;
    of equal rank, what was seen goes first. None where nothing was seen."""
    by_request: defaultdict[str, list[SeenRequest]] = defaultdict(list)
    for line in seen:
        by_request[line.request].append(line)
    if not by_request:
        return None

    def join(timeline: Timeline) -> Timeline:
        lines = by_request.get(timeline.id)
        return timeline if lines is None else replace(timeline, report=_ranked(lines, timeline.report))

    return join


def joined(timelines: Sequence[Timeline], seen: Iterable[SeenRequest]) -> tuple[Timeline, ...]:
    """Every timeline as `joiner` of `seen` leaves it."""
    join = joiner(seen)
    return tuple(timelines) if join is None else tuple(map(join, timelines))


def _ranked(lines: Sequence[SeenRequest], in_stream: EngineReport | None) -> EngineReport:
    """Sequences add up within a source, never over two: both tell of the same ones."""
    by_source: defaultdict[str, list[SeenRequest]] = defaultdict(list)
    for line in lines:
        by_source[line.report.source].append(line)
    reports = [one_report(told) for told in by_source.values()]
    reports += [] if in_stream is None else [in_stream]
    return reduce(_filled, sorted(reports, key=lambda report: _rank(report.source)))


def _rank(source: str) -> int:
    return ORDER.index(source) if source in ORDER else _UNNAMED


def one_report(lines: Sequence[SeenRequest]) -> EngineReport:
    """One source's report of a request, also of one with several sequences (n > 1): the prompt waited and was
    computed once (the least queue and prefill), decoding ended with the last sequence, tokens add up."""
    reports = [line.report for line in sorted(lines, key=lambda line: line.index)]
    if len(reports) == 1:
        return reports[0]
    return replace(
        reports[0],
        queue_ns=_over(min, [r.queue_ns for r in reports]),
        prefill_ns=_over(min, [r.prefill_ns for r in reports]),
        decode_ns=_over(max, [r.decode_ns for r in reports]),
        e2e_ns=_over(max, [r.e2e_ns for r in reports]),
        before_ns=_over(min, [r.before_ns for r in reports]),
        after_ns=_over(min, [r.after_ns for r in reports]),
        preemptions=_over(sum, [r.preemptions for r in reports]),
        n_tokens=_over(sum, [r.n_tokens for r in reports]),
    )


def _over(function: Callable[[list[int]], int], values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return function(known) if known else None


def _filled(best: EngineReport, other: EngineReport) -> EngineReport:
    missing = {name: value for name, value in asdict(other).items() if getattr(best, name) is None}
    return replace(best, **missing)

"""What each client says it saw, read from its own result files.

Every reader returns one `Seen`. Where a tool exports requests one by one they are read so; a percentile that a tool
computed is never used where its own numbers are there. Times in milliseconds, as the peers write them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from phasemeter.explain.phases import read
from phasemeter.record.engine import Outcome
from phasemeter.record.file import read_run

_T = TypeVar("_T")


class SeenRequest(Struct, frozen=True):
    """One request that the client counts as good. `id` is what it sent as X-Request-Id, where it tells."""

    ttft_ms: float
    id: str | None = None


class Seen(Struct, frozen=True):
    """One client's own account of one turn.

    good     those with a time to first token
    counted  how many the client counts as good, which may be more
    gaps_ms  every gap between tokens, or (`gaps_are` "request means") one mean a request, as the tool exports it
    """

    good: tuple[SeenRequest, ...]
    gaps_ms: tuple[float, ...]
    gaps_are: str
    counted: int
    failed: int
    failed_as: dict[str, int] = {}
    says: str | None = None
    """The tool's own verdict on its run, where it has one."""


class UnreadableError(Exception):
    """A tool left no result that can be read."""


def seen_by_us(folder: Path) -> Seen:
    """Our run file."""
    from phasemeter.explain.summary import summarise

    run = read_run(folder / "run.jsonl")
    good: list[SeenRequest] = []
    gaps: list[float] = []
    failed: dict[str, int] = {}
    for timeline in run.requests:
        if timeline.cell.warmup:
            continue
        if timeline.outcome is not Outcome.OK:
            failed[timeline.outcome.value] = failed.get(timeline.outcome.value, 0) + 1
            continue
        reading = read(timeline)
        if reading.ttft_ns is not None:
            good.append(SeenRequest(reading.ttft_ns / 1e6, timeline.id))
        gaps += [gap / 1e6 for gap in reading.gaps_ns]
    verdict = summarise(run).verdict
    return Seen(tuple(good), tuple(gaps), "gaps", len(good), sum(failed.values()), failed, str(verdict))


class _Bench(Struct, frozen=True):
    """`vllm bench serve --save-detailed`, of either client."""

    ttfts: list[float]
    itls: list[list[float]]
    errors: list[str | None]
    completed: int
    failed: int = 0


def seen_by_vllm(folder: Path) -> Seen:
    """Seconds, in the order of the prompts; the ids end in that order's number."""
    bench = _decoded(folder / "result.json", _Bench)
    rows = zip(bench.ttfts, bench.itls, bench.errors, strict=True)
    good = [(i, ttft, itls) for i, (ttft, itls, error) in enumerate(rows) if not error and ttft]
    told = _told(error for error in bench.errors if error)
    return Seen(
        tuple(SeenRequest(ttft * 1e3, f"-{i}") for i, ttft, _ in good),
        tuple(gap * 1e3 for _, _, itls in good for gap in itls),
        "gaps",
        bench.completed,
        bench.failed or len(bench.errors) - bench.completed,
        told,
    )


class _Value(Struct, frozen=True):
    value: float | list[float] | None = None


class _AiperfMetrics(Struct, frozen=True):
    time_to_first_token: _Value | None = None
    inter_token_latency: _Value | None = None


class _AiperfMeta(Struct, frozen=True):
    x_request_id: str | None = None
    benchmark_phase: str = "profiling"


class _AiperfError(Struct, frozen=True):
    type: str | None = None
    message: str | None = None


class _AiperfLine(Struct, frozen=True):
    metadata: _AiperfMeta
    metrics: _AiperfMetrics = _AiperfMetrics()
    error: _AiperfError | None = None


def seen_by_aiperf(folder: Path) -> Seen:
    """profile_export.jsonl, one line a request. What it calls ITL is one mean a request, so that is read."""
    path = folder / "profile_export.jsonl"
    if not path.is_file():
        raise UnreadableError(f"no {path.name}")
    lines = [msgspec.json.decode(raw, type=_AiperfLine) for raw in path.read_bytes().splitlines()]
    lines = [line for line in lines if line.metadata.benchmark_phase == "profiling"]
    good: list[SeenRequest] = []
    gaps: list[float] = []
    for line in lines:
        first = line.metrics.time_to_first_token
        if line.error is not None or first is None or not isinstance(first.value, float | int):
            continue
        good.append(SeenRequest(float(first.value), line.metadata.x_request_id))
        mean = line.metrics.inter_token_latency
        if mean is not None and isinstance(mean.value, float | int):
            gaps.append(float(mean.value))
    bad = [line for line in lines if line.error is not None]
    told = _told((line.error.type or line.error.message or "error") for line in bad if line.error)
    return Seen(tuple(good), tuple(gaps), "request means", len(lines) - len(bad), len(bad), told)


class _GuideRequest(Struct, frozen=True):
    time_to_first_token_ms: float | None = None
    inter_token_latency_ms: float | None = None


class _GuideRequests(Struct, frozen=True):
    successful: list[_GuideRequest] = []
    errored: list[msgspec.Raw] = []
    incomplete: list[msgspec.Raw] = []


class _GuideBenchmark(Struct, frozen=True):
    requests: _GuideRequests


class _Guide(Struct, frozen=True):
    benchmarks: list[_GuideBenchmark]


def seen_by_guidellm(folder: Path) -> Seen:
    """benchmarks.json; it exports one mean gap a request and sends no id of its own."""
    requests = _decoded(folder / "result.json", _Guide).benchmarks[0].requests
    good = [r for r in requests.successful if r.time_to_first_token_ms]
    told = {"errored": len(requests.errored), "incomplete": len(requests.incomplete)}
    return Seen(
        tuple(SeenRequest(r.time_to_first_token_ms or 0.0) for r in good),
        tuple(r.inter_token_latency_ms for r in good if r.inter_token_latency_ms),
        "request means",
        len(requests.successful),
        sum(told.values()),
        {kind: n for kind, n in told.items() if n},
    )


def _decoded(path: Path, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise UnreadableError(f"no {path.name}") from None
    except msgspec.DecodeError as error:
        raise UnreadableError(f"{path.name}: {error}") from None


def _told(errors: Iterable[str]) -> dict[str, int]:
    """How often each kind of error was told, by its last line cut short."""
    found: dict[str, int] = {}
    for error in errors:
        words = " ".join(error.strip().splitlines()[-1:])[:60]
        found[words] = found.get(words, 0) + 1
    return found

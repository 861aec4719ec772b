"""From a run to everything that is said about it. Pure: the same run gives the same summary."""

from __future__ import annotations

from msgspec import Struct

from phasemeter.explain.case import Case
from phasemeter.explain.checks import run_checks
from phasemeter.explain.cold import Cold, cold
from phasemeter.explain.columns import ABSENT
from phasemeter.explain.contract import Json, latency_json, phases_json, shapes_json, struct_json
from phasemeter.explain.facts import all_contradictions
from phasemeter.explain.growth import Exponent
from phasemeter.explain.latency import Latency, PhaseDists, latency, phase_dists
from phasemeter.explain.load import Concurrency, Throughput, concurrency, origins_by_id, throughput
from phasemeter.explain.readings import Readings, clocks, outcomes_of, readings_of
from phasemeter.explain.roof import Roof, best_header, roofs, shape_of
from phasemeter.explain.server_metrics import ServerMetrics, server_metrics, server_metrics_json
from phasemeter.explain.shapes import Context, ShapeSummary, growth, summarise_shapes
from phasemeter.explain.slo import Slo
from phasemeter.explain.steps import StepsSummary, summarise_steps
from phasemeter.explain.under_load import UnderLoad, capacity_json, load_json, slo_json, under_load
from phasemeter.explain.verdict import Check, Verdict, worst
from phasemeter.record.clock import wall_text
from phasemeter.record.engine import Outcome
from phasemeter.record.run import Header, Run


class Requests(Struct, frozen=True):
    """Requests by what came of them. Warm-up requests are counted apart and are in none of the other
    numbers; those given up on purpose (`cancelled_planned`) are neither ok nor failed."""

    planned: int | None
    ok: int
    failed: int
    by_outcome: dict[str, int]
    warmup: int


class Ceiling(Struct, frozen=True):
    """One set of ceilings in use. Peak in FLOP/s of the dtype in use, bandwidth in bytes/s, launch in ns."""

    source: str
    """"measured" or "datasheet"."""
    hardware: str
    dtype: str
    peak_flops_per_s: float | None
    read_bytes_per_s: float | None
    launch_ns: float | None = None


class Summary(Struct, frozen=True):
    """Everything that is derived from one run.

    `tokens_counted` says how: "usage" (the server's total), "server" (the server told each piece's count) or
    "chunk" (nobody told; each piece counts one). `itl_counted` says of what the gaps are: "token", "chunk", "mixed"
    (not the same for all requests), None without a gap. `started` is ISO 8601 in UTC. `shape_name` and
    `hardware_name` are what the floors were computed for.
    """

    name: str
    started: str
    header: Header
    requests: Requests
    latency: Latency
    phases: PhaseDists
    throughput: Throughput
    concurrency: Concurrency
    cold: Cold
    tokens_counted: str
    itl_counted: str | None
    shapes: tuple[ShapeSummary, ...]
    growth: tuple[Exponent, ...]
    ceilings: tuple[Ceiling, ...]
    checks: tuple[Check, ...]
    verdict: Verdict
    shape_name: str | None = None
    hardware_name: str | None = None
    steps: StepsSummary | None = None
    """What a batching engine's steps say; None where it told none."""
    server_metrics: ServerMetrics | None = None
    """What the server's own sums say of all measured requests; None where /metrics was not read."""
    under_load: UnderLoad = UnderLoad()
    """Levels of load, objectives and capacity."""
    readings: Readings | None = None
    """Every request of the run, warm-up included, as it was read: so that a report need not read it again."""


def summarise(
    run: Run, *, hardware: str | None = None, model_shape: str | None = None, slo: Slo | None = None
) -> Summary:
    """Derive everything from `run`. `hardware` (a name in the table) and `model_shape` (a preset or a
    config.json) stand in for what the header does not know, or replace it; every level of load is judged by `slo`.
    Raises InputError for names that are not known."""
    readings = readings_of(run.requests)
    origin = origins_by_id(readings.columns.ids, run.header.run_id)
    warm_up = readings.told_of(lambda cell: cell.warmup)
    warm, measured = readings.take(warm_up), readings.take(~warm_up)
    ok = measured.take(measured.where(Outcome.OK))
    failed = measured.take(~measured.where(Outcome.OK) & (measured.told("given_up") == 0))
    header = best_header(run)
    held = roofs(header, hardware=hardware, model_shape=model_shape)
    context = Context(held, origin, run.header.engine.kind)
    flying = concurrency(measured, origin)
    loaded = under_load(measured, flying, origin, slo)
    shapes = summarise_shapes(measured, context)
    only = shapes[0] if len(shapes) == 1 else None  # one shape is the whole run: nothing is worked out twice
    case = Case(
        run=run,
        ok=ok,
        failed=failed,
        warm=warm,
        shapes=shapes,
        concurrency=flying,
        levels=loaded.levels,
        throughput=only.throughput if only else throughput(ok, measured, origin),
        cold=cold(_first_clock(readings, origin)),
        origin=origin,
        contradictions=all_contradictions(measured),
    )
    checks = run_checks(case)
    blocks = context.blocks(ok)
    shape = shape_of(run.header, model_shape)
    return Summary(
        name=run.name or run.header.run_id,
        started=wall_text(run.header.anchor.wall_ns),
        header=header,
        requests=_requests(case, measured),
        latency=only.latency if only else latency(ok, blocks),
        phases=only.phases if only else phase_dists(ok, blocks),
        throughput=case.throughput,
        concurrency=case.concurrency,
        cold=case.cold,
        tokens_counted=_tokens_counted(ok),
        itl_counted=_itl_counted(ok),
        shapes=case.shapes,
        growth=growth(measured, context),
        ceilings=tuple(_ceiling(roof) for roof in held),
        checks=checks,
        verdict=worst(checks),
        shape_name=None if shape is None else shape.name,
        hardware_name=hardware or run.header.hardware,
        steps=summarise_steps(run),
        server_metrics=server_metrics(run),
        under_load=loaded,
        readings=readings,
    )


def summary_json(summary: Summary) -> Json:
    """The summary under the keys of `explain --json`; times in milliseconds, absent is null."""
    header = summary.header
    return {
        "run": {
            "name": summary.name,
            "id": header.run_id,
            "started": summary.started,
            "phasemeter": header.phasemeter,
            "schema": header.schema,
            "notes": list(header.notes),
        },
        "model": {
            "name": header.engine.model,
            "shape": summary.shape_name,
            "dtype": header.engine.dtype,
            "weights": header.engine.weights,
        },
        "engine": struct_json(header.engine),
        "machine": struct_json(header.machine),
        "hardware": summary.hardware_name,
        "ceilings": struct_json(summary.ceilings),
        "settings": struct_json(header.settings),
        "requests": struct_json(summary.requests),
        **latency_json(summary.latency),
        "phases": phases_json(summary.phases),
        "throughput": struct_json(summary.throughput),
        "concurrency": struct_json(summary.concurrency),
        "load": load_json(summary.under_load),
        "slo": slo_json(summary.under_load),
        "capacity": capacity_json(summary.under_load),
        "cold": struct_json(summary.cold),
        "tokens_counted": summary.tokens_counted,
        "itl_counted": summary.itl_counted,
        "growth": struct_json(summary.growth),
        "checks": struct_json(summary.checks),
        "verdict": summary.verdict.value,
        "by_shape": shapes_json(summary.shapes),
        "steps": None if summary.steps is None else struct_json(summary.steps),
        "server_metrics": server_metrics_json(summary.server_metrics),
    }


def _requests(case: Case, measured: Readings) -> Requests:
    return Requests(
        planned=case.run.header.planned,
        ok=len(case.ok),
        failed=len(case.failed),
        by_outcome=dict(outcomes_of(measured).most_common()),
        warmup=len(case.warm),
    )


def _first_clock(readings: Readings, origin: dict[str, str]) -> Readings:
    """The requests of the first run: only one clock can say what came first."""
    _, clock = clocks(readings, origin)
    return readings.take(clock == 0)


def _tokens_counted(ok: Readings) -> str:
    if ok and bool((ok.told("usage_completion") != ABSENT).all()):
        return "usage"
    return "server" if ok and bool(ok.told("counts_told").all()) else "chunk"


def _itl_counted(ok: Readings) -> str | None:
    told = ok.told("counts_told")[ok.gap_sizes() > 0]
    if not told.size:
        return None
    return "token" if told.all() else "mixed" if told.any() else "chunk"


def _ceiling(roof: Roof) -> Ceiling:
    return Ceiling(
        source=roof.source,
        hardware=roof.hardware.name,
        dtype=roof.arithmetic,
        peak_flops_per_s=roof.peak_flops_per_s,
        read_bytes_per_s=roof.hardware.memory_bandwidth_bytes_per_s,
        launch_ns=roof.launch_ns,
    )

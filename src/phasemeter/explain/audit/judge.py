"""Every claim of a source gets its verdict, each alone: a set-up that cannot run does not spread to its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from phasemeter.explain.audit.about_decode import (
    batch_raises_throughput,
    cache_hits_decide,
    decode_dominates,
    decode_memory_bound,
    decode_recomputes,
    late_slowdown,
)
from phasemeter.explain.audit.about_prefill import (
    batch_raises_prefill_of_one,
    prefill_compute_bound,
    resource_speeds_prefill,
)
from phasemeter.explain.audit.about_settings import setting_has_effect
from phasemeter.explain.audit.claims import (
    Agreement,
    Claims,
    Growth,
    Placed,
    Row,
    SetUp,
    Setup,
    Statement,
    TimeMetric,
    time_of,
)
from phasemeter.explain.audit.growth import judge_growth
from phasemeter.explain.audit.internal import judge_agreement, judge_e2e, judge_total
from phasemeter.explain.audit.place import Place, place_of
from phasemeter.explain.audit.rows import Quickest, judge_number, quickest_rows
from phasemeter.explain.audit.set_up import judge_set_up
from phasemeter.explain.audit.verdict import Finding, Judged, Line, line

_STATEMENTS: dict[str, Callable[[Statement, Claims, Place], Finding]] = {
    "prefill_compute_bound": lambda claim, _, place: prefill_compute_bound(claim, place),
    "decode_memory_bound": lambda claim, _, place: decode_memory_bound(claim, place),
    "decode_dominates": decode_dominates,
    "decode_recomputes_attention": decode_recomputes,
    "cache_hit_rate_decides_decode": lambda claim, _, place: cache_hits_decide(claim, place),
    "bandwidth_speeds_prefill": lambda claim, _, place: resource_speeds_prefill(claim, place),
    "compute_speeds_prefill": lambda claim, _, place: resource_speeds_prefill(claim, place),
    "batch_raises_prefill_of_one": lambda claim, _, place: batch_raises_prefill_of_one(claim, place),
    "batch_raises_throughput": lambda claim, _, place: batch_raises_throughput(claim, place),
    "late_slowdown": lambda claim, _, place: late_slowdown(claim, place),
    "setting_has_effect": lambda claim, _, place: setting_has_effect(claim, place.setup),
}


def audit(claims: Claims) -> list[Judged]:
    """All verdicts in the source's order. A row with several numbers gives one each ("ID.prefill"), and checks of its
    own sums ("ID.total"); every set-up that names an engine's version is judged too, once."""
    places: dict[Setup, Place] = {}
    judged: list[Judged] = list(_set_ups(claims, places))
    own = quickest_rows(claims, lambda setup: _place(setup, places))
    for placed in claims.placed:
        place = _place(placed.setup, places)
        claim = placed.claim
        if isinstance(claim, Row):
            judged += _row(placed, own, place)
        else:
            finding = _judge(claim, claims, place)
            judged.append(_joined(claim.id, placed, finding, _says(claim)))
    return judged


def _set_ups(claims: Claims, places: dict[Setup, Place]) -> Iterator[Judged]:
    """The set-ups that no claim of the file speaks of."""
    told = {placed.setup for placed in claims.placed if isinstance(placed.claim, SetUp)}
    ids = {placed.claim.id for placed in claims.placed}
    wanted: dict[Setup, None] = {}
    for placed in claims.placed:
        setup = placed.setup
        if setup.engine and setup.version and setup.model and setup not in told:
            wanted[setup] = None
    for number, setup in enumerate(wanted, start=1):
        name = "set-up" if len(wanted) == 1 else f"set-up-{number}"
        while name in ids:
            name = f"{name}-"
        claim = SetUp(name)
        finding = judge_set_up(_place(setup, places))
        yield _joined(name, Placed(claim, setup), finding, _says_set_up(setup))


def _place(setup: Setup, places: dict[Setup, Place]) -> Place:
    if setup not in places:
        places[setup] = place_of(setup)
    return places[setup]


def _judge(claim: SetUp | Growth | Agreement | Statement, claims: Claims, place: Place) -> Finding:
    if isinstance(claim, SetUp):
        return judge_set_up(place)
    if isinstance(claim, Growth):
        return judge_growth(claim, claims, place)
    if isinstance(claim, Agreement):
        return judge_agreement(claim, claims)
    return _STATEMENTS[claim.kind](claim, claims, place)


def _row(placed: Placed, own: Quickest, place: Place) -> Iterator[Judged]:
    row = placed.claim
    if not isinstance(row, Row):
        return
    found: list[tuple[str, Finding, Line]] = []
    metrics: tuple[TimeMetric, ...] = get_args(TimeMetric)
    for metric in metrics:
        value = time_of(row, metric)
        if value is not None:
            says = line(
                f"says_{metric}", value=value, input=row.input_tokens or "?", output=row.output_tokens or "?"
            )
            found.append((metric, judge_number(row, metric, value, own, place), says))
    for name, check in (("total", judge_total(row)), ("whole", judge_e2e(row))):
        if check is not None:
            found.append((name, check, line(f"says_{name}")))
    for name, finding, says in found:
        yield _joined(row.id if len(found) == 1 else f"{row.id}.{name}", placed, finding, says)


def _says(claim: SetUp | Growth | Agreement | Statement) -> Line:
    if isinstance(claim, Growth):
        return line("says_growth", metric=claim.metric, low=claim.from_tokens, high=claim.to_tokens)
    if isinstance(claim, Agreement):
        return line("says_agreement", metric=claim.metric, count=len(claim.rows))
    return line("says_set_up_claim") if isinstance(claim, SetUp) else line(f"says_{claim.kind}")


def _says_set_up(setup: Setup) -> Line:
    return line(
        "says_set_up", model=setup.model or "?", engine=setup.engine or "?", version=setup.version or "?",
        hardware=setup.hardware or "?",
    )  # fmt: skip


def _joined(name: str, placed: Placed, finding: Finding, says: Line) -> Judged:
    return Judged(name, placed.claim, finding.verdict, finding.reason, says, finding.working, finding.bound)

"""Doubts about the steady state and about what physics and delivery allow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from phasemeter.explain.case import Case, grade, graded, percent
from phasemeter.explain.floors import FloorCheck
from phasemeter.explain.phases import Reading
from phasemeter.explain.shapes import ShapeKey, ShapeSummary, shape_key
from phasemeter.explain.stats import MIN_FOR_INTERVAL, theil_sen
from phasemeter.explain.verdict import Check, Verdict

DRIFT_WARN, DRIFT_INVALID = 0.05, 0.50
"""Blocks are interleaved: drift falls on all shapes alike and widens intervals; only a machine of two speeds is
unusable."""
COLD_RATIO = 1.5
COLD_MS = 1.0
BURST_RATIO = 0.5
AT_ONCE_NS = 50_000
MIN_TOKENS_FOR_BURST = 8
PER_PIECE_WARN = 1.5
CEILING_SLACK = 0.98


def drift(case: Case) -> Check:
    """Did the anchor cell (or the shape measured most) get slower or faster from first to last? The change
    is the Theil-Sen slope times the time it was watched, relative to the median; it counts when its 95 %
    interval leaves out zero."""
    watched, what = _watched(case)
    found: list[tuple[float, str]] = []
    for name, pick in (("first token", _first_ns), ("per token", _tpot_ns)):
        change = _change(watched, pick)
        if change is not None:
            found.append((abs(change), f"{name} {change:+.1%}"))
    if len(watched) < MIN_FOR_INTERVAL:
        return Check(
            "drift", Verdict.OK, f"fewer than {MIN_FOR_INTERVAL} requests of one shape; no trend can be told"
        )
    if not found:
        return Check("drift", Verdict.OK, f"no trend in {len(watched)} requests of {what}")
    verdict = grade(max(size for size, _ in found), warn=DRIFT_WARN, invalid=DRIFT_INVALID)
    evidence = f"{what}, {len(watched)} requests, first to last: " + ", ".join(text for _, text in found)
    mend = "let the machine settle (clocks, heat, other work), warm up longer, then measure again"
    return graded("drift", verdict, evidence, mend)


def warm_up(case: Case) -> Check:
    """Is a shape's first measured request slower than all that followed, by half and by a millisecond?"""
    groups: defaultdict[ShapeKey, list[Reading]] = defaultdict(list)
    for reading in sorted(case.ok, key=lambda r: r.timeline.started_ns):
        groups[shape_key(reading.timeline)].append(reading)
    cold = [key for key, readings in groups.items() if _first_is_cold(readings)]
    evidence = (
        f"{len(case.warm)} warm-up requests; first measured one cold in {len(cold)} of {len(groups)} shapes"
    )
    if cold:
        key = cold[0]
        evidence += f", for example {key.input_tokens} in, {key.output_tokens} out"
    verdict = Verdict.WARN if cold else Verdict.OK
    return graded(
        "warm_up", verdict, evidence, "--warmup auto, or more warm-up requests, for every shape measured"
    )


def buffering(case: Case) -> Check:
    """Something between engine and client holds tokens back and sends them together; gaps lie then."""
    names = Counter(name for r in case.ok if (name := _held_back(r)) is not None)
    n = sum(names.values())
    evidence = f"{n} of {len(case.ok)} streams look held back"
    if names:
        evidence += ": " + ", ".join(f"{name} {count}" for name, count in names.most_common())
    mend = "use TPOT, not gaps; switch proxies' buffering off (X-Accel-Buffering: no), stream every token"
    return graded("buffering", grade(n / len(case.ok) if case.ok else 0.0, warn=0.05), evidence, mend)


def below_floor(case: Case) -> Check:
    """Faster than the chip can be: invalid below the datasheet's floor, a warning below measured ceilings."""
    found: list[str] = []
    verdicts = [Verdict.OK]
    looked = 0
    for shape in case.shapes:
        for check, verdict in (
            (shape.floor_datasheet, Verdict.INVALID),
            (shape.floor_measured, Verdict.WARN),
        ):
            if check is None:
                continue
            looked += 1
            texts = _below(shape, check)
            found += texts
            verdicts += [verdict] * len(texts)
    if not looked:
        return Check("below_floor", Verdict.OK, "no floor: model or hardware is not known")
    worst = max(verdicts, key=list(Verdict).index)
    evidence = f"{len(found)} phases below their floor" + (f": {found[0]}" if found else "")
    mend = "check hardware, dtype and model shape; a cache, speculation or several devices do this too"
    return graded("below_floor", worst, evidence, mend)


def _below(shape: ShapeSummary, check: FloorCheck) -> list[str]:
    texts: list[str] = []
    key = shape.key
    where = f"{key.input_tokens} in, {key.output_tokens} out, {check.ceilings} ceilings"
    if check.prefill_ratio is not None and check.prefill_ratio < CEILING_SLACK:
        texts.append(f"{check.prefill_from} at {percent(check.prefill_ratio)} of its floor ({where})")
    tpot, alone_ms = shape.latency.tpot_ms, check.tpot_alone_floor_ms
    if tpot is not None and alone_ms is not None and tpot.p50 < CEILING_SLACK * alone_ms:
        texts.append(f"TPOT at {percent(tpot.p50 / alone_ms)} of its floor ({where})")
    return texts


def _held_back(reading: Reading) -> str | None:
    """Which sign of buffering a stream shows."""
    import numpy as np

    pieces = len(reading.gaps_ns) + 1
    if reading.tokens < MIN_TOKENS_FOR_BURST or reading.tpot_ns is None:
        return None
    if reading.tokens > PER_PIECE_WARN * pieces:
        return "several tokens a piece"
    client, engine = reading.phases.decode, reading.phases.engine_decode
    if client is not None and engine is not None and client.ns < BURST_RATIO * engine.ns:
        return "faster than the engine made them"
    middle = float(np.median(reading.gaps_ns))
    if middle < AT_ONCE_NS:
        return "pieces at once"
    return "bursts" if middle < BURST_RATIO * reading.tpot_ns else None


def _first_is_cold(readings: Sequence[Reading]) -> bool:
    import numpy as np

    times = [r.ttft_ns / 1e6 for r in readings if r.ttft_ns is not None]
    if len(times) < MIN_FOR_INTERVAL:
        return False
    first, rest = times[0], times[1:]
    usual = float(np.median(rest))
    return first > COLD_RATIO * usual and first > usual + COLD_MS and first > max(rest)


def _watched(case: Case) -> tuple[list[Reading], str]:
    """The requests of the anchor's shape (on the clock with most of them), else of the commonest shape."""
    anchors = {shape_key(r.timeline) for r in case.ok if r.timeline.cell.anchor}
    groups: defaultdict[tuple[str, ShapeKey], list[Reading]] = defaultdict(list)
    for reading in case.ok:
        key = shape_key(reading.timeline)
        if not anchors or key in anchors:
            groups[case.origin[reading.timeline.id], key].append(reading)
    if not groups:
        return [], "nothing"
    most = max(groups.values(), key=len)
    key = shape_key(most[0].timeline)
    kind = "anchor" if anchors else "most measured shape"
    return most, f"{kind} {key.input_tokens} in, {key.output_tokens} out"


def _change(readings: Sequence[Reading], pick: Callable[[Reading], float | None]) -> float | None:
    import numpy as np

    points = [(r.timeline.started_ns, ns) for r in readings if (ns := pick(r)) is not None]
    if len(points) < MIN_FOR_INTERVAL:
        return None
    start_ns = min(t for t, _ in points)
    x = np.asarray([(t - start_ns) / 1e9 for t, _ in points])
    y = np.asarray([ns for _, ns in points], dtype=np.float64)
    found, middle = theil_sen(x, y), float(np.median(y))
    if found is None or middle <= 0.0 or found[0] <= 0.0 <= found[2]:
        return None
    return found[1] * float(x.max() - x.min()) / middle


def _first_ns(reading: Reading) -> float | None:
    prefill = reading.phases.prefill
    return prefill.ns if prefill is not None else reading.ttft_ns


def _tpot_ns(reading: Reading) -> float | None:
    return reading.tpot_ns

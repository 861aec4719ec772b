"""Doubts about the steady state and about what physics and delivery allow."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from phasemeter.explain.case import Case, grade, graded, percent
from phasemeter.explain.columns import ABSENT, by_size
from phasemeter.explain.floors import FloorCheck
from phasemeter.explain.readings import Readings, clocks, milliseconds, tally
from phasemeter.explain.shape_key import ShapeKey, key_of_cell
from phasemeter.explain.shapes import ShapeSummary
from phasemeter.explain.stats import MIN_FOR_INTERVAL, theil_sen
from phasemeter.explain.verdict import Check, Verdict

if TYPE_CHECKING:
    from phasemeter.explain.columns import Bools, Ints
    from phasemeter.explain.stats import Floats

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
FASTER = "faster than the engine made them"


def drift(case: Case) -> Check:
    """Did the anchor cell (or the shape measured most) get slower or faster from first to last? The change
    is the Theil-Sen slope times the time it was watched, relative to the median; it counts when its 95 %
    interval leaves out zero."""
    watched, what = _watched(case)
    found: list[tuple[float, str]] = []
    for name, (ns, known) in (("first token", _first_ns(watched)), ("per token", watched.tpot_ns())):
        change = _change(watched.told("started")[known], ns[known])
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
    import numpy as np

    in_order = case.ok.take(np.argsort(case.ok.told("started"), kind="stable"))
    groups = in_order.grouped(key_of_cell)
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
    names = _held_back(case.ok)
    n = sum(names.values())
    evidence = f"{n} of {len(case.ok)} streams look held back"
    if names:
        evidence += ": " + ", ".join(f"{name} {count}" for name, count in names.most_common())
    mend = "use TPOT, not gaps"
    if 4 * names[FASTER] > n:
        mend = (
            "first tokens came late, with the next ones: neither TTFT nor TPOT nor gaps are the engine's, read "
            "`prefill` and `engine_decode`; give the client a core of its own"
        )
    mend += "; switch proxies' buffering off (X-Accel-Buffering: no), stream every token"
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


def _held_back(readings: Readings) -> Counter[str]:
    """How many streams show which sign of buffering, the first that fits."""
    import numpy as np

    tokens, pieces = readings.tokens(), readings.gap_sizes() + 1
    tpot, known = readings.tpot_ns()
    client, engine = readings.ns("decode"), readings.ns("engine_decode")
    middle = _middle_gaps(readings)
    faster = (client != ABSENT) & (engine != ABSENT) & (client < BURST_RATIO * engine)
    signs = {
        "several tokens a piece": tokens > PER_PIECE_WARN * pieces,
        FASTER: faster,
        "pieces at once": middle < AT_ONCE_NS,
        "bursts": middle < BURST_RATIO * tpot,
    }
    judged = (tokens >= MIN_TOKENS_FOR_BURST) & known
    sign = np.select(list(signs.values()), list(range(len(signs))), -1)
    return Counter({list(signs)[i]: n for i, n in tally(sign[judged & (sign >= 0)])})


def _middle_gaps(readings: Readings) -> Floats:
    """Each request's median gap; infinite where it has none."""
    import numpy as np

    found = np.full(len(readings), np.inf)
    for members, gaps in by_size(readings.gaps(), readings.gap_sizes()):
        if gaps.shape[1]:
            found[members] = np.median(gaps, axis=1)
    return found


def _first_is_cold(readings: Readings) -> bool:
    import numpy as np

    if len(readings) < MIN_FOR_INTERVAL:
        return False
    times, _ = milliseconds(readings.ns("ttft"))
    if times.size < MIN_FOR_INTERVAL:
        return False
    first, rest = float(times[0]), times[1:]
    usual = float(np.median(rest))
    return first > COLD_RATIO * usual and first > usual + COLD_MS and first > float(rest.max())


def _watched(case: Case) -> tuple[Readings, str]:
    """The requests of the anchor's shape (on the clock with most of them), else of the commonest shape."""
    anchors = {key_of_cell(cell) for cell, _ in case.ok.cells() if cell.anchor}
    looked = case.ok.take(case.ok.told_of(lambda cell: not anchors or key_of_cell(cell) in anchors))
    if not looked:
        return looked, "nothing"
    names: dict[ShapeKey, int] = {}
    shape = looked.by_cell(lambda cell: names.setdefault(key_of_cell(cell), len(names)))
    _, clock = clocks(looked, case.origin)
    group = clock * len(names) + shape
    most, _ = max(tally(group), key=lambda entry: entry[1])
    key = list(names)[most % len(names)]
    kind = "anchor" if anchors else "most measured shape"
    return looked.take(group == most), f"{kind} {key.input_tokens} in, {key.output_tokens} out"


def _change(started_ns: Ints, ns: Floats | Ints) -> float | None:
    import numpy as np

    if ns.size < MIN_FOR_INTERVAL:
        return None
    x = (started_ns - started_ns.min()) / 1e9
    found, middle = theil_sen(x, ns.astype(np.float64)), float(np.median(ns))
    if found is None or middle <= 0.0 or found[0] <= 0.0 <= found[2]:
        return None
    return found[1] * float(x.max() - x.min()) / middle


def _first_ns(readings: Readings) -> tuple[Ints, Bools]:
    """Prefill where the engine told it, else time to first token."""
    import numpy as np

    prefill = readings.ns("prefill")
    first = np.where(prefill == ABSENT, readings.ns("ttft"), prefill)
    return first, first != ABSENT

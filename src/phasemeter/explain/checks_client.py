"""Doubts about ourselves: did the client keep up, and did the load that was asked for really happen?"""

from __future__ import annotations

from phasemeter.explain.case import Case, grade, graded, percent
from phasemeter.explain.load import Level
from phasemeter.explain.readings import milliseconds
from phasemeter.explain.shape_key import Asked
from phasemeter.explain.steady import MIN_REQUESTS, State
from phasemeter.explain.verdict import Check, Verdict
from phasemeter.record.run import Sample

LAG_FLOOR_MS = 1.0
"""Less than this is never held against a client: an event loop's own grain."""
LAG_OF_TTFT_WARN, LAG_OF_TTFT_INVALID = 0.05, 0.50
LOAD_PER_CORE_WARN = 0.5
CLIENT_CPU_WARN = 0.9
MEAN_OF_ASKED_WARN = 0.7
RATE_OFF_WARN, RATE_OFF_INVALID = 0.02, 0.05
LEAST_BEHIND_MS = 10.0
"""A plan is not fallen behind by less over a whole level: of a few requests in a short time one late send moves the
rate by much, and `late_sends` judges single sends."""
LATE_LIMIT_MS = 10.0
"""Of an open loop whose header names none."""
LATE_SHARE_WARN, LATE_SHARE_INVALID = 0.001, 0.01


def late_sends(case: Case) -> Check:
    """99th percentile of `late` against the median TTFT; in an open loop also how many sends were later than the run's
    limit."""
    import numpy as np

    spans = case.measured.ns("late")
    if not spans.size:
        return Check("late_sends", Verdict.OK, "no request to judge")
    late_ms = float(np.percentile(spans, 99)) / 1e6
    mend = "the client was late, not the server: lower the load or give the client a faster machine"
    verdict, evidence = _lag(late_ms, case), f"99 % of sends were at most {late_ms:.3g} ms late"
    planned = spans[case.measured.told_of(lambda cell: cell.concurrency is None)]
    if planned.size:
        limit_ms = _late_limit_ms(case)
        late = int((planned > limit_ms * 1e6).sum()) / planned.size
        evidence += f"; {percent(late)} of the open loop's later than {limit_ms:g} ms"
        by_limit = grade(late, warn=LATE_SHARE_WARN, invalid=LATE_SHARE_INVALID)
        verdict = max(verdict, by_limit, key=list(Verdict).index)
    return graded("late_sends", verdict, evidence, mend)


def _late_limit_ms(case: Case) -> float:
    told = case.run.header.settings.get("late_limit_ms")
    return float(told) if isinstance(told, int | float) else LATE_LIMIT_MS


def client_lag(case: Case) -> Check:
    """How late our own event loop was while requests were in flight; a token may be stamped as late."""
    import numpy as np

    lags = [s.values["loop_lag_ns"] / 1e6 for s in _samples(case) if "loop_lag_ns" in s.values]
    if not lags:
        return Check("client_lag", Verdict.OK, "the loop's lag was not sampled")
    high = float(np.percentile(lags, 99))
    evidence = f"event loop at most {high:.3g} ms late (99th percentile of {len(lags)} samples)"
    if case.in_process:
        evidence += "; stamps are taken in the engine's own thread, so they are not late by it"
        return Check("client_lag", Verdict.OK, evidence)
    mend = "stamps may be late by as much: give the client a core of its own, or lower the concurrency if it is high"
    return graded("client_lag", _lag(high, case), evidence, mend)


def concurrency(case: Case) -> Check:
    """Requests in flight against those asked for, at every level of a closed loop; of an open loop, starts against
    the rate of intended arrivals."""
    found: list[str] = []
    verdicts = [Verdict.OK]
    pauses = bool(case.run.header.settings.get("think_s"))
    for level in case.concurrency.levels:
        if level.asked is None:
            verdict, text = _open_level(level)
        elif pauses:
            verdict, text = _thinking_level(level, level.asked)
        else:
            verdict, text = _closed_level(level, level.asked)
        verdicts.append(verdict)
        found.append(text)
    verdict = max(verdicts, key=list(Verdict).index)
    mend = (
        "send at least three requests for every slot, and see that no pool or semaphore caps the connections"
        if any(level.asked is not None for level in case.concurrency.levels)
        else "the client fell behind its plan: lower the rate, or send from more processes or a faster machine"
    )
    return graded("concurrency", verdict, "; ".join(found) or "no request to judge", mend)


def _thinking_level(level: Level, asked: int) -> tuple[Verdict, str]:
    """A slot that thinks has nothing in flight, so fewer than asked are no fault."""
    text = f"asked {asked} with think time: at most {level.seen_max}, {level.seen_mean:.3g} on average"
    return (Verdict.WARN if level.seen_max > asked else Verdict.OK), text


def _closed_level(level: Level, asked: int) -> tuple[Verdict, str]:
    text = f"asked {asked}: at most {level.seen_max}, {level.seen_mean:.3g} on average"
    if level.seen_max < asked:
        return (Verdict.INVALID if 2 * level.seen_max < asked else Verdict.WARN), text
    few = level.seen_max > asked or level.seen_mean < MEAN_OF_ASKED_WARN * asked
    return (Verdict.WARN if few else Verdict.OK), text


def _open_level(level: Level) -> tuple[Verdict, str]:
    """A client that falls behind its own plan starts requests more slowly than they arrive."""
    name = Asked(None, level.rate_per_s).text
    if level.arrived_per_s is None or level.sent_per_s is None:
        return Verdict.OK, f"{name}: at most {level.seen_max} in flight"
    off = abs(level.sent_per_s / level.arrived_per_s - 1.0)
    behind_ms = abs(1.0 / level.sent_per_s - 1.0 / level.arrived_per_s) * level.requests * 1e3
    off = 0.0 if behind_ms < LEAST_BEHIND_MS else off
    text = f"{name}: {level.sent_per_s:.3g} a second started of {level.arrived_per_s:.3g} due"
    return grade(
        off, warn=RATE_OFF_WARN, invalid=RATE_OFF_INVALID
    ), f"{text}, at most {level.seen_max} in flight"


def steady(case: Case) -> Check:
    """A level that never came to rest has no latency of its own: it depends on how long was measured."""
    seen = [(level.asked.text, level.steady) for level in case.levels if level.steady is not None]
    if not seen:
        return Check(
            "steady", Verdict.OK, f"no stage of {MIN_REQUESTS} requests to look for a steady window in"
        )
    off = [f"{name}: {found.evidence}" for name, found in seen if found.state is not State.STEADY]
    evidence = f"{len(seen) - len(off)} of {len(seen)} levels have a steady window"
    mend = "believe no latency of such a level; ask for less load where the queue grows, else measure longer"
    verdict = Verdict.WARN if off else Verdict.OK
    return graded("steady", verdict, evidence + "".join(f"; {text}" for text in off), mend)


def cpu_contention(case: Case) -> Check:
    """Was the machine busy before we came, or our process at its limit?"""
    import numpy as np

    machine, verdict = case.run.header.machine, Verdict.OK
    found: list[str] = []
    if machine.load_1min is not None:
        found.append(f"load before the start {machine.load_1min:.2g} on {machine.cores} cores")
        verdict = grade(machine.load_1min / max(1, machine.cores), warn=LOAD_PER_CORE_WARN)
    ratios = [s.values["client_cpu_ratio"] for s in _samples(case) if "client_cpu_ratio" in s.values]
    if verdict is not Verdict.OK and case.run.header.ceilings is not None:
        found.append("the ceilings were measured under it too, so ratios to the floor may look too good")
    if ratios and not case.in_process:
        high = float(np.percentile(ratios, 90))
        found.append(f"client used {percent(high)} of a core (90th percentile)")
        verdict = max(verdict, grade(high, warn=CLIENT_CPU_WARN), key=list(Verdict).index)
    mend = "stop what else runs on this machine, or measure from another one"
    return graded("cpu_contention", verdict, "; ".join(found) or "not known", mend)


def throughput(case: Case) -> Check:
    """The best second cannot be slower than the mean; where it is, pieces were counted as tokens."""
    mean, peak = case.throughput.output_tokens_per_s, case.throughput.peak_output_tokens_per_s
    if mean is None or peak is None:
        return Check("throughput", Verdict.OK, "no request to judge")
    verdict = Verdict.WARN if peak < mean * (1 - 1e-9) else Verdict.OK
    evidence = f"{mean:.4g} tokens/s on average, {peak:.4g} in the best second"
    mend = "the stream shows fewer tokens than usage tells: ask for usage with every chunk"
    return graded("throughput", verdict, evidence, mend)


def _samples(case: Case) -> tuple[Sample, ...]:
    """Samples from the first measured request on; of a merged run all, since its clocks differ."""
    if len(set(case.origin.values())) > 1 or not case.measured:
        return case.run.samples
    start_ns = int(case.measured.told("started").min())
    return tuple(sample for sample in case.run.samples if sample.t_ns >= start_ns)


def _lag(lag_ms: float, case: Case) -> Verdict:
    import numpy as np

    seen, _ = milliseconds(case.ok.ns("ttft"))
    ttft_ms = float(np.median(seen)) if seen.size else 0.0
    return grade(
        lag_ms,
        warn=max(LAG_FLOOR_MS, LAG_OF_TTFT_WARN * ttft_ms),
        invalid=max(10 * LAG_FLOOR_MS, LAG_OF_TTFT_INVALID * ttft_ms),
    )

"""Doubts about the requests themselves: failures, contradictions, tokens, caches, too few of them."""

from __future__ import annotations

from collections import Counter

from phasemeter.explain.case import Case, grade, graded, percent, share
from phasemeter.explain.columns import ABSENT, total
from phasemeter.explain.facts import delivery_lags_ns
from phasemeter.explain.readings import milliseconds, outcomes_of
from phasemeter.explain.shape_key import Asked, asked_of
from phasemeter.explain.shapes import cached_of
from phasemeter.explain.stats import MIN_FOR_INTERVAL
from phasemeter.explain.verdict import Check, Verdict

FAILURES_WARN, FAILURES_INVALID = 0.01, 0.10
CONTRADICTIONS_INVALID = 0.10
DELIVERY_WARN = 0.01
CACHED_INVALID = 0.20
SHARING = frozenset({"conversations", "prefixes", "trace"})
"""Workloads that are there to be found in a prefix cache (a trace: by the blocks that its prompts share)."""
PROMPT_TOKENS_WARN, PROMPT_TOKENS_INVALID = 0.02, 0.50


def failures(case: Case) -> Check:
    """Warns above 1 % of failed requests, invalid above 10 % or without one that succeeded."""
    name, total = "failures", len(case.measured)
    if total == 0:
        return Check(name, Verdict.INVALID, "no measured request", "measure at least one request")
    outcomes = outcomes_of(case.failed)
    listed = ", ".join(f"{outcome} {n}" for outcome, n in outcomes.most_common())
    ratio = share(case.failed, case.measured)
    verdict = grade(ratio, warn=FAILURES_WARN, invalid=FAILURES_INVALID)
    evidence = f"{len(case.failed)} of {total} failed ({percent(ratio)})" + (f": {listed}" if listed else "")
    error = next((r.timeline.error for r in case.failed if r.timeline.error), None)
    mend = "mend the failures first; what succeeded may be only the easy part"
    return graded(name, verdict, evidence, mend + (f" (first error: {error})" if error else ""))


def record(case: Case) -> Check:
    """A run that ended early, or whose file has gaps, is part of what was planned."""
    run, verdict = case.run, Verdict.OK
    found: list[str] = []
    if run.footer is None:
        found.append("the run was killed before its end")
    elif run.footer.interrupted:
        found.append("the run was interrupted")
    if run.cut:
        found.append("its file ends inside a line")
    if run.damaged:
        found.append(f"{len(run.damaged)} unreadable lines were left out")
    if found:
        verdict = Verdict.WARN
    if run.footer is not None and run.footer.error is not None:
        found.append(f"it was ended by an error: {run.footer.error}")
        verdict = Verdict.INVALID
    planned = run.header.planned
    if planned is not None and planned != len(case.measured):
        found.append(f"{len(case.measured)} of {planned} planned requests are there")
        verdict = max(verdict, Verdict.WARN, key=list(Verdict).index)
    evidence = "; ".join(found) or "complete"
    return graded(
        "record", verdict, evidence, "measure again and let it end; compare nothing with a part of a run"
    )


def clock(case: Case) -> Check:
    """Stamps in an impossible order."""
    broken = [c.evidence for cs in case.contradictions.values() for c in cs if c.name == "order"]
    evidence = f"{len(broken)} stamps out of order, first: {broken[0]}" if broken else "all stamps in order"
    verdict = Verdict.INVALID if broken else Verdict.OK
    return graded(
        "clock", verdict, evidence, "the record is wrong: report it with the run file, trust no number in it"
    )


def contradictions(case: Case) -> Check:
    """Client, engine and server tell different things of the same request."""
    told = {name: [c for c in found if c.name != "order"] for name, found in case.contradictions.items()}
    hit = [cs for name in case.ok.ids() if (cs := told.get(name))] if told else []
    if not hit:
        joined = int(case.ok.told("report_told").sum())
        return Check(
            "contradictions", Verdict.OK, f"none; {joined} of {len(case.ok)} requests have an engine's report"
        )
    names = Counter(c.name for cs in hit for c in cs)
    verdict = grade(share(hit, case.ok), warn=0.0, invalid=CONTRADICTIONS_INVALID)
    listed = ", ".join(f"{name} {n}" for name, n in names.most_common())
    evidence = f"{len(hit)} of {len(case.ok)} requests: {listed}; first: {hit[0][0].evidence}"
    mend = (
        "do not use the engine's phases until both sides agree: was our client late (client_lag), or are reports "
        "joined to the wrong requests?"
    )
    return graded("contradictions", verdict, evidence, mend)


def delivery(case: Case) -> Check:
    """Did the client get its tokens when the engine made them? Where not, client TPOT is the front end's, not the
    engine's."""
    import numpy as np

    joined = case.ok.take(case.ok.ns("engine_decode") != ABSENT)
    if not joined:
        return Check("delivery", Verdict.OK, "no engine told its own decode time")
    lags, late = milliseconds(delivery_lags_ns(joined))
    evidence = f"decode took no longer for the client than in the engine in {len(joined)} requests"
    if lags.size:
        evidence = f"{lags.size} of {len(joined)} requests got their tokens later than the engine made them"
        asked = {asked_of(cell) for cell, _ in joined.take(late).cells()}
        evidence += f", by {float(np.median(lags)):.3g} ms at the median, at {_few(asked)}"
    mend = (
        "the server's front end is slower than its engine here: read `engine_decode` beside `decode`; more API server "
        "processes or a longer stream interval help"
    )
    return graded("delivery", grade(lags.size / len(joined), warn=DELIVERY_WARN), evidence, mend)


def _few(levels: set[Asked]) -> str:
    texts = [asked.text for asked in sorted(levels, key=lambda asked: asked.order)]
    shown = ", ".join(texts[:3])
    return shown if len(texts) <= 3 else f"{shown} to {texts[-1]}"


def cache_hits(case: Case) -> Check:
    """A cache that answers the prompt is what gets measured instead of prefill."""
    cached, prompts = total(cached_of(case.ok)), total(case.ok.by_cell(lambda cell: cell.input_tokens))
    told = any(bool((case.ok.told(name) != ABSENT).any()) for name in ("usage_cached", "engine_cached"))
    if not told:
        return Check("cache_hits", Verdict.OK, "nobody reports cached tokens; prompts were unique by plan")
    ratio = cached / prompts if prompts else 0.0
    evidence = f"{cached} of {prompts} prompt tokens came from a cache ({percent(ratio)})"
    kind = _workload(case)
    if kind in SHARING:
        return Check("cache_hits", Verdict.OK, f"{evidence}; prompts of the workload {kind} share by plan")
    mend = "use prompts that share no prefix (another --seed), or switch the server's prefix cache off"
    return graded("cache_hits", grade(ratio, warn=0.0, invalid=CACHED_INVALID), evidence, mend)


def _workload(case: Case) -> str | None:
    match case.run.header.settings.get("workload"):
        case {"kind": str(kind)}:
            return kind
        case _:
            return None


def output_shortfall(case: Case) -> Check:
    """Fewer tokens than asked: the model stopped by itself, and shapes are no longer what they are called."""
    most, tokens = case.ok.told("max_tokens"), case.ok.tokens()
    short = int((tokens < most).sum())
    asked, got = total(most), total(tokens)
    evidence = f"{short} of {len(case.ok)} requests ended early; {got} of {asked} tokens came"
    mend = "set ignore_eos where the engine has it, or read these shapes by the tokens that really came"
    return graded("output_shortfall", grade(short / max(len(case.ok), 1), warn=0.0), evidence, mend)


def output_tokens(case: Case) -> Check:
    """What the server says it generated against what was counted in the stream."""
    import numpy as np

    told = case.ok.take(case.ok.told("usage_completion") != ABSENT)
    if not told:
        untold = bool((case.ok.told("counts_told") == 0).any())
        verdict = Verdict.WARN if untold else Verdict.OK
        evidence = "the server tells no total; tokens were counted from the stream"
        mend = "ask for usage (stream_options.include_usage); a chunk is not a token"
        return graded("output_tokens", verdict, evidence, mend)
    usage, counted = told.told("usage_completion"), told.told("counted")
    differ = int((usage != counted).sum())
    evidence = f"usage and stream agree in {len(told) - differ} of {len(told)} requests"
    if differ:
        worst = int(np.argmax(np.abs(usage - counted)))
        evidence += f"; furthest apart: usage {usage[worst]}, stream {counted[worst]}"
    mend = "gaps are per piece, not per token, here: ask for usage with every chunk (continuous_usage_stats)"
    return graded("output_tokens", grade(differ / len(told), warn=0.0), evidence, mend)


def prompt_tokens(case: Case) -> Check:
    """The prompt as the server counted it against the shape's name; texts of a data set whose length was but estimated
    are no part of it."""
    first = next(iter(case.ok), None)  # a run's lengths are all estimated, or none is
    if first is not None and first.timeline.tags.get("lengths") == "estimated":
        return graded(
            "prompt_tokens", Verdict.OK, "lengths of the data set's texts were estimated: nothing to hold", ""
        )
    import numpy as np

    by_server, by_us = case.ok.told("usage_prompt"), case.ok.told("prompt_sent")
    counts = by_server if bool((by_server != ABSENT).any()) else by_us
    known = counts != ABSENT
    if not known.any():
        why = "neither the server nor we counted the prompt's tokens"
        return graded(
            "prompt_tokens",
            Verdict.WARN if case.ok else Verdict.OK,
            why,
            "send token ids (--api completions)",
        )
    got, asked = counts[known], case.ok.by_cell(lambda cell: cell.input_tokens)[known]
    ratios = np.sort(np.abs(got - asked) / np.maximum(1, asked))
    middle, largest = float(ratios[ratios.size // 2]), float(ratios[-1])
    verdict = Verdict.INVALID if middle > PROMPT_TOKENS_INVALID else grade(largest, warn=PROMPT_TOKENS_WARN)
    evidence = f"{int((got == asked).sum())} of {got.size} prompts have the tokens asked"
    most = int(np.argmax(np.abs(got - asked)))
    if got[most] != asked[most]:
        evidence += f"; furthest off: {got[most]} instead of {asked[most]}"
    return graded(
        "prompt_tokens", verdict, evidence, "send token ids, or count a chat template's tokens in the length"
    )


def samples(case: Case) -> Check:
    """Below five requests or repeats there is no interval, and a single mood of the machine decides."""
    few = [s for s in case.shapes if s.ok < MIN_FOR_INTERVAL or 1 < s.blocks < MIN_FOR_INTERVAL]
    evidence = (
        f"{len(few)} of {len(case.shapes)} shapes have fewer than {MIN_FOR_INTERVAL} requests or repeats"
    )
    verdict = Verdict.WARN if few or not case.shapes else Verdict.OK
    return graded("samples", verdict, evidence, f"--repeats {MIN_FOR_INTERVAL} or more")

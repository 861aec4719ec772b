"""Doubts that the server's own sums raise: does /metrics tell the same as the reports of single requests?"""

from __future__ import annotations

from phasemeter.explain.case import Case, graded
from phasemeter.explain.server_metrics import Agreement, server_metrics, sums_beside
from phasemeter.explain.verdict import Check, Verdict


def server_metrics_agree(case: Case) -> Check:
    """The sums of /metrics beside those of single requests, within 1 ms or 2 %; and whether all of it was ours."""
    name = "server_metrics"
    told = server_metrics(case.run)
    if told is None:
        return Check(name, Verdict.OK, "the server's /metrics was not read before and after the run")
    if told.refused:
        mend = "measure a server that nobody else uses; what others sent took its time from our requests, too"
        return graded(name, Verdict.WARN, told.refused, mend)
    counted = f"the server finished {told.finished} requests, as many as were ours"
    found = sums_beside(case.run)
    if not found:
        return Check(name, Verdict.OK, f"{counted}; none has a report of its own to compare")
    apart = [one for one in found if not one.agrees]
    if not apart:
        return Check(name, Verdict.OK, f"{counted}; sums agree: " + ", ".join(map(_sums, found)))
    mend = "do not use the engine's phases until both agree: are all requests reported, and joined to the right ones?"
    return graded(name, Verdict.WARN, f"{counted}; sums differ: " + ", ".join(map(_sums, apart)), mend)


def _sums(one: Agreement) -> str:
    counts = "" if one.count == one.their_count else f" over {one.count} and {one.their_count}"
    return f"{one.name} {one.ours_ms:.6g} and {one.theirs_ms:.6g} ms{counts}"

"""Is this run fit to be believed? Every check runs on every run, and its answer is shown with the numbers.

A check is one function from a `Case` to a `Check`; a new one is a function and a line here.
"""

from __future__ import annotations

from phasemeter.explain import checks_client, checks_requests, checks_server, checks_steady
from phasemeter.explain.case import Case, Doubt
from phasemeter.explain.verdict import Check, Verdict, worst

__all__ = ["CHECKS", "Check", "Verdict", "run_checks", "worst"]

CHECKS: tuple[Doubt, ...] = (
    checks_requests.failures,
    checks_requests.record,
    checks_requests.clock,
    checks_requests.contradictions,
    checks_requests.delivery,
    checks_server.server_metrics_agree,
    checks_steady.below_floor,
    checks_client.late_sends,
    checks_client.client_lag,
    checks_client.concurrency,
    checks_client.cpu_contention,
    checks_client.throughput,
    checks_requests.cache_hits,
    checks_requests.prompt_tokens,
    checks_requests.output_tokens,
    checks_requests.output_shortfall,
    checks_requests.samples,
    checks_steady.warm_up,
    checks_steady.drift,
    checks_client.steady,
    checks_steady.buffering,
)


def run_checks(case: Case) -> tuple[Check, ...]:
    """The answer of every check, in the order above."""
    return tuple(check(case) for check in CHECKS)

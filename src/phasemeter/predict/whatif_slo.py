"""A simulated outcome against service level objectives (`explain.slo`'s grammar).

Every condition becomes a share of its limit: the percentile it names over the limit it sets; without a percentile, and
for goodput, the value that the asked share of requests keeps within. 1 or less is met. A simulation has no sampling of
clients and no failures, so it has no confidence interval of that kind; what the model does not know is told apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.slo import Condition, Slo
from phasemeter.predict.whatif_outcome import Outcome
from phasemeter.record.errors import InputError

if TYPE_CHECKING:
    from phasemeter.predict.whatif_outcome import Floats


class Kept(Struct, frozen=True):
    """One condition: what was seen, in milliseconds (a share of good requests for `goodput`), and the share of the
    limit. None where no request has the metric."""

    name: str
    value: float | None
    limit: float
    used: float | None


class Standing(Struct, frozen=True):
    """An outcome against all conditions. `used`: the largest share of a limit; None where requests pile up faster than
    they are served, so that no number belongs to the load."""

    met: bool
    used: float | None
    kept: tuple[Kept, ...]
    growing: bool = False


def check_slo(slo: Slo) -> None:
    """Raises InputError for what a simulation cannot answer: each request's own gaps are not kept."""
    for condition in slo.conditions:
        alone = condition.metric == "itl" and (condition.percentile is None or slo.good_share is not None)
        if alone:
            raise InputError(
                "--slo",
                condition.name,
                "a simulation keeps the gaps of all requests together; ask for itl_pQ without goodput, or for tpot",
            )


def stand(outcome: Outcome, slo: Slo, *, steady: bool) -> Standing:
    """`steady`: the load has one rate, so that a number of requests present which keeps rising means overload."""
    if steady and grows(outcome):
        return Standing(met=False, used=None, kept=_kept(outcome, slo), growing=True)
    kept = _kept(outcome, slo)
    used = max((one.used for one in kept if one.used is not None), default=0.0)
    return Standing(met=used <= 1.0, used=used, kept=kept)


def grows(outcome: Outcome) -> bool:
    """Whether requests present keep rising while they arrive: their mean over the last quarter of that time lies
    clearly above that over the second."""
    import numpy as np

    start, end = float(outcome.issued_s.min()), float(outcome.issued_s.max())
    if end <= start:
        return False
    moments = start + (end - start) * (np.arange(400) + 0.5) / 400
    came = np.searchsorted(np.sort(outcome.issued_s), moments, side="right")
    gone = np.searchsorted(np.sort(outcome.ended_s), moments, side="right")
    present = came - gone
    second, last = float(present[100:200].mean()), float(present[300:].mean())
    return last > 1.5 * second + 4.0


def _kept(outcome: Outcome, slo: Slo) -> tuple[Kept, ...]:
    found: list[Kept] = []
    for condition in slo.conditions:
        if condition.percentile is not None:
            value = outcome.quantile_ms(condition.metric, condition.percentile / 100)
            used = None if value is None else value / condition.limit_ms
            found.append(Kept(condition.name, value, condition.limit_ms, used))
    if slo.good_share is not None:
        found.append(_goodput(outcome, slo.conditions, slo.good_share))
    return tuple(found)


def _goodput(outcome: Outcome, conditions: tuple[Condition, ...], asked: float) -> Kept:
    import numpy as np

    worst = np.zeros(outcome.requests)
    for condition in conditions:
        values: Floats = np.zeros(outcome.requests)
        if condition.metric == "tpot":
            values[outcome.output_tokens > 1] = outcome.values_s("tpot")
        else:
            values = outcome.values_s(condition.metric)
        worst = np.maximum(worst, values * 1e3 / condition.limit_ms)
    good = float((worst <= 1.0).mean())
    return Kept("goodput", good, asked, float(np.quantile(worst, asked, method="inverted_cdf")))

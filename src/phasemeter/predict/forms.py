"""The shapes a phase's time may have: candidates that are fitted and compared, simplest first.

    t = (host^q + gpu^q)^(1/q) + apart          host, apart: sums of coefficient x feature
    gpu = ((cm memory)^p + (cc compute)^p)^(1/p) + further terms of the chip

q = 1 adds host and chip (the host waits for every step); a large q hides the smaller behind the larger (kernels are
launched ahead, asynchronous scheduling). p joins memory and compute, which overlap, perfectly with p = infinity (the
roofline: Williams, Waterman and Patterson, CACM 2009). Coefficients are never negative: a published fit with a negative
square term shows the trap (DistServe's profiler-a100-80g.vllm.json).
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from phasemeter.predict.features import Features

Part = Literal["host", "roof", "gpu", "apart"]


_NAMES = {
    "one": "constant",
    "sequences": "each sequence",
    "full": "more than one step",
    "kv": "cache read",
    "input": "each input token",
    "others": "each request beside",
    "batch_input": "input tokens of the batch",
    "turns": "wait for a place",
    "output": "each output token",
    "foreign": "foreign prefill",
    "foreign_pairs": "foreign prefill, square",
}


class Term(Struct, frozen=True):
    """One coefficient: which feature it multiplies, in which part of the form, and from where on (`above` is a
    threshold of `gate`, a feature: below it the term is off)."""

    feature: str
    part: Part = "host"
    gate: str | None = None
    above: float = 0.0

    def value(self, found: Features) -> float:
        """What the coefficient multiplies: the feature; beyond a threshold of itself only what exceeds it."""
        if self.gate is None:
            return found[self.feature]
        if found[self.gate] <= self.above:
            return 0.0
        return found[self.feature] - (self.above if self.gate == self.feature else 0.0)

    @property
    def name(self) -> str:
        """How the coefficient is called in tables: the feature, and its threshold where it has one."""
        known = _NAMES.get(self.feature, self.feature)
        return known if self.gate is None else f"{known} above {self.above:g} {self.gate}"


class Form(Struct, frozen=True):
    """One candidate. `scaled`: the chip's features are seconds at the ceilings, so that 1 bounds their coefficients."""

    name: str
    terms: tuple[Term, ...]
    p: float = 1.0
    q: float = 1.0
    scaled: bool = True

    def rows(self, found: Features) -> list[float]:
        """The features in the order of the terms, gated ones 0 where they are off."""
        return [term.value(found) for term in self.terms]

    def least(self) -> list[float]:
        """Lower bound of each coefficient: no kernel is faster than the ceiling."""
        return [1.0 if self.scaled and term.part in ("roof", "gpu") else 0.0 for term in self.terms]

    def seconds(self, coefficients: list[float] | tuple[float, ...], row: list[float]) -> float:
        """The form's time for one row of features."""
        sums = self.parts(coefficients, row)
        return _norm(sums["host"], sums["gpu"], self.q) + sums["apart"]

    def parts(self, coefficients: list[float] | tuple[float, ...], row: list[float]) -> dict[str, float]:
        """Seconds of host, chip (`gpu`) and what is added apart."""
        sums = {"host": 0.0, "gpu": 0.0, "apart": 0.0}
        roof = 0.0
        for term, coefficient, value in zip(self.terms, coefficients, row, strict=True):
            if term.part == "roof":
                roof = _norm(roof, coefficient * value, self.p)
            else:
                sums[term.part] += coefficient * value
        sums["gpu"] += roof
        return sums


def _norm(a: float, b: float, power: float) -> float:
    if power == 1.0:
        return a + b
    if math.isinf(power):
        return max(a, b)
    most = max(a, b)
    if most <= 0.0:
        return 0.0
    return most * ((a / most) ** power + (b / most) ** power) ** (1.0 / power)


_HOST = Term("one")
_SEQUENCES = Term("sequences")
_FULL = Term("full")
_ROOF = (Term("memory", "roof"), Term("compute", "roof"))
_ATTENTION = Term("attention", "gpu")
_OVERLAP = 4.0
"""Smooth enough to fit, and within 19 % of the maximum where both are equal, 1 % where one is twice the other."""


def prefill_forms(thresholds: tuple[float, ...] = (), *, scaled: bool, batched: bool) -> list[Form]:
    """Candidates for prefill: host beside the chip, added or hidden, with attention apart; each again with a step in
    the host's part above each number of tokens in `thresholds` (where captured graphs end), with a part for each
    further sequence, and with one for prompts that fill more than a step. A constant is no candidate where the chip's
    work is known: that grows, so a constant is wrong somewhere. Without a roof the chip's constant and the host's are
    one, and the sums are of tokens and pairs."""
    ends: list[tuple[Term, ...]] = [(), *((Term("one", gate="tokens", above=x),) for x in thresholds)]
    wide: list[tuple[Term, ...]] = [()]
    if batched:
        wide = [(_SEQUENCES,), (_FULL,), (_SEQUENCES, _FULL)]
    found: list[Form] = []
    for step in (end + more for end in ends for more in wide):
        host, named = (_HOST, *step), _named(step)
        if not scaled:
            found.append(Form(f"constant{named}", host, scaled=False))
            linear = (*host, Term("compute", "gpu"))
            found.append(Form(f"linear{named}", linear, scaled=False))
            found.append(Form(f"linear and square{named}", (*linear, _ATTENTION), scaled=False))
            continue
        found += [
            Form(f"{way}, p {p:g}{named}", (*host, *_ROOF, _ATTENTION), p=p, q=q)
            for way, q in (("host + chip", 1.0), ("host beside chip", _OVERLAP))
            for p in (1.5, 3.0)
        ]
    return sorted(found, key=lambda form: len(form.terms))


def decode_forms(knees: tuple[float, ...] = (), *, scaled: bool, batched: bool) -> list[Form]:
    """Candidates for one decode step: host, weights (in `memory`), KV traffic, per sequence, foreign prefill."""
    if not batched:
        alone = (Form("constant", (_HOST,), scaled=scaled),)
        return [
            *alone,
            *(Form(f"host and context{_hid(q)}", (_HOST, *_CHIP), q=q, scaled=scaled) for q in _QS),
        ]
    found: list[Form] = [Form("constant", (_HOST,), scaled=scaled)]
    foreign: list[tuple[Term, ...]] = [
        (),
        (Term("foreign", "apart"),),
        (Term("foreign", "apart"), Term("foreign_pairs", "apart")),
    ]
    jumps: list[tuple[Term, ...]] = [
        (),
        *((Term("sequences", gate="sequences", above=x),) for x in knees),
    ]
    for q in _QS if scaled else (1.0,):
        for jump in jumps:
            for extra in foreign:
                name = f"host, chip and sequences{_hid(q)}{_named(jump)}{_foreign(extra)}"
                terms = (_HOST, _SEQUENCES, *jump, *(_CHIP if scaled else (Term("kv", "gpu"),)), *extra)
                found.append(Form(name, terms, q=q, scaled=scaled))
    return sorted(found, key=lambda form: len(form.terms))


def first_forms(thresholds: tuple[float, ...] = (), *, scaled: bool, batched: bool) -> list[Form]:
    """Candidates for the time to the first token as a client in a closed loop sees it: prefill, the prompts of its
    batch and the wait for a place (`turns`)."""
    if not batched:
        return prefill_forms(thresholds, scaled=scaled, batched=False)
    more = [
        ("others",),
        ("batch_input",),
        ("batch_input", "turns"),
        ("others", "batch_input"),
        ("batch_input", "turns", "others"),
        ("batch_input", "turns", "output"),
    ]
    bases = prefill_forms(thresholds, scaled=scaled, batched=False)
    if not scaled:
        bases = [
            Form("constant", (_HOST,), scaled=False),
            Form("linear", (_HOST, Term("input")), scaled=False),
        ]
    found = [
        Form(
            f"{b.name}; {', '.join(names)}", (*b.terms, *(Term(n, "apart") for n in names)), b.p, b.q, scaled
        )
        for b in bases
        for names in more
    ]
    return sorted(found, key=lambda form: len(form.terms))


def front_end_forms(*, batched: bool) -> list[Form]:
    """Candidates for the front end: a constant, a part for each token of the prompt, a part for each neighbour."""
    host, token = (Term("one"),), (Term("input"),)
    found = [Form("constant", host, scaled=False), Form("per token", host + token, scaled=False)]
    if batched:
        near = Term("others")
        found += [
            Form("per token and neighbour", (*host, *token, near), scaled=False),
            Form(
                "per token and neighbours' tokens", (*host, *token, near, Term("batch_input")), scaled=False
            ),
        ]
    return found


_CHIP = (Term("memory", "gpu"), Term("kv", "gpu"))
_QS = (1.0, _OVERLAP)


def _named(step: tuple[Term, ...]) -> str:
    return "".join(f", {term.name}" for term in step)


def _hid(q: float) -> str:
    return "" if q == 1.0 else ", overlapped"


def _foreign(extra: tuple[Term, ...]) -> str:
    return ("", ", foreign prefill", ", foreign prefill and its square")[len(extra)]

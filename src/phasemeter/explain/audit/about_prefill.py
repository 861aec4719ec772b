"""Sentences about prefill: what binds it, what speeds it up, what a batch does to one request of it."""

from __future__ import annotations

from msgspec.structs import replace

from phasemeter.explain.audit.chip import Pass, prefill_pass, ridge_length
from phasemeter.explain.audit.claims import Statement
from phasemeter.explain.audit.place import Chip, Place
from phasemeter.explain.audit.tables import HostBounds
from phasemeter.explain.audit.verdict import Finding, Line, Verdict, line, together, undecidable

FELT_SHARE = 0.1
"""A change below it is not felt: medians of separate starts differ by as much (benchmarks/h200)."""


def prefill_compute_bound(claim: Statement, place: Place) -> Finding:
    """True where arithmetic exceeds both memory traffic and the slowest host; misleading where it exceeds the
    traffic, but a host may still hide it; false where traffic exceeds it."""
    if place.chip is None:
        return undecidable(place.missing or line("missing_hardware_name"))
    ridge = ridge_length(place.chip, claim.batch)
    working: list[Line] = [line("ridge", tokens=ridge) if ridge is not None else line("no_ridge")]
    verdicts: list[Verdict] = []
    for tokens in claim.input_tokens:
        one = prefill_pass(place.chip, tokens, claim.batch)
        host = _host_ms(place.host, claim.batch)
        working.append(_three(tokens, one, host))
        verdicts.append(_compute(one, host))
    verdict = together(verdicts)
    reason = line(
        f"prefill_compute_{verdict.value}",
        low=min(claim.input_tokens),
        high=max(claim.input_tokens),
        ridge=ridge or 0,
    )
    return Finding(verdict, reason, tuple(working), {"ridge_tokens": ridge})


def resource_speeds_prefill(claim: Statement, place: Place) -> Finding:
    """Would `factor` times the bandwidth (or arithmetic) shorten prefill by a share that is felt? True where it does
    even beside the slowest host, false where it does not even beside the quickest."""
    chip = place.chip
    if chip is None:
        return undecidable(place.missing or line("missing_hardware_name"))
    if place.host is None:
        return undecidable(line("missing_host", engine=place.setup.engine or "-"))
    better = _better(chip, claim)
    working: list[Line] = []
    verdicts: list[Verdict] = []
    gains: list[list[float]] = []
    for tokens in claim.input_tokens:
        before, after = (prefill_pass(one, tokens, claim.batch).floor_ms for one in (chip, better))
        low_ms, high_ms = _host_ms(place.host, claim.batch) or (0.0, 0.0)
        most, least = (1.0 - (after + host) / (before + host) for host in (low_ms, high_ms))
        gains.append([least, most])
        working.append(
            line("speeds_up", tokens=tokens, before_ms=before, after_ms=after, low_ms=low_ms, high_ms=high_ms,
                 least_share=least, most_share=most)
        )  # fmt: skip
        verdicts.append(_felt(least, most))
    verdict = together(verdicts)
    name = "bandwidth" if claim.kind == "bandwidth_speeds_prefill" else "compute"
    reason = line(
        f"speeds_{verdict.value}", resource=name, factor=claim.factor, most_share=max(most for _, most in gains),
        felt_share=FELT_SHARE, low=min(claim.input_tokens), high=max(claim.input_tokens),
    )  # fmt: skip
    return Finding(verdict, reason, tuple(working), {"gain_share": gains})


def batch_raises_prefill_of_one(claim: Statement, place: Place) -> Finding:
    """Does one request's prefill take longer in a batch of so many? By how much beside the host decides."""
    chip = place.chip
    if chip is None:
        return undecidable(place.missing or line("missing_hardware_name"))
    if place.host is None:
        return undecidable(line("missing_host", engine=place.setup.engine or "-"))
    working: list[Line] = [line("ridge", tokens=ridge)] if (ridge := ridge_length(chip)) is not None else []
    verdicts: list[Verdict] = []
    rises: list[list[float]] = []
    for tokens in claim.input_tokens:
        alone, batched = (prefill_pass(chip, tokens, batch).floor_ms for batch in (1, claim.batch))
        low_ms, high_ms = _host_ms(place.host, 1) or (0.0, 0.0)
        most, least = ((batched + host) / (alone + host) - 1.0 for host in (low_ms, high_ms))
        rises.append([least, most])
        working.append(
            line("batched", tokens=tokens, batch=claim.batch, alone_ms=alone, batched_ms=batched, least_share=least,
                 most_share=most)
        )  # fmt: skip
        verdicts.append(_felt(least, most))
    verdict = together(verdicts)
    reason = line(f"batch_prefill_{verdict.value}", batch=claim.batch, low=min(claim.input_tokens),
                  high=max(claim.input_tokens), most_share=max(most for _, most in rises))  # fmt: skip
    return Finding(verdict, reason, tuple(working), {"rise_share": rises})


def _felt(least: float, most: float) -> Verdict:
    """Of a change between two shares: with the quickest host and with the slowest."""
    if most < FELT_SHARE:
        return Verdict.FALSE
    return Verdict.TRUE if least >= FELT_SHARE else Verdict.MISLEADING


def _compute(one: Pass, host: tuple[float, float] | None) -> Verdict:
    if one.bound == "memory":
        return Verdict.FALSE
    if host is None:
        return Verdict.UNDECIDABLE
    return Verdict.TRUE if one.compute_ms > host[1] else Verdict.MISLEADING


def _three(tokens: int, one: Pass, host: tuple[float, float] | None) -> Line:
    if host is None:
        return line("binds_two", tokens=tokens, compute_ms=one.compute_ms, memory_ms=one.memory_ms)
    return line(
        "binds",
        tokens=tokens,
        compute_ms=one.compute_ms,
        memory_ms=one.memory_ms,
        low_ms=host[0],
        high_ms=host[1],
    )


def _host_ms(host: HostBounds | None, batch: int) -> tuple[float, float] | None:
    if host is None:
        return None
    high = host.prefill.seen_ms + (batch - 1) * host.seen_ms_per_sequence.prefill
    return host.prefill.least_ms, host.multiple * high


def _better(chip: Chip, claim: Statement) -> Chip:
    hardware = chip.hardware
    if claim.kind == "bandwidth_speeds_prefill":
        rate = hardware.memory_bandwidth_bytes_per_s * claim.factor
        return replace(chip, hardware=replace(hardware, memory_bandwidth_bytes_per_s=rate))
    peaks = {name: rate * claim.factor for name, rate in hardware.peak_flops_per_s.items()}
    return replace(chip, hardware=replace(hardware, peak_flops_per_s=peaks))

"""Sentences about decode: what binds it, what a cache does for it, how it grows, what a batch gains."""

from __future__ import annotations

from phasemeter.explain.audit.chip import Pass, capacity_tokens, decode_pass, decode_total_pass, prefill_pass
from phasemeter.explain.audit.claims import Claims, Row, Statement
from phasemeter.explain.audit.place import Chip, Place
from phasemeter.explain.audit.tables import HostBounds, bounds
from phasemeter.explain.audit.verdict import Finding, Line, Verdict, line, together, undecidable

FELT_SHARE = 0.1
_SLIGHT_SHARE = 0.01
"""Growth that a reader of a table could see at all; medians of one shape scatter by more (benchmarks/h200)."""


def decode_memory_bound(claim: Statement, place: Place) -> Finding:
    """True where memory traffic exceeds arithmetic and the slowest host; misleading where the chip's part is traffic,
    but a host may take longer; false where arithmetic exceeds the traffic."""
    if place.chip is None:
        return undecidable(place.missing or line("missing_hardware_name"))
    working: list[Line] = []
    verdicts: list[Verdict] = []
    for tokens, output in _lengths(claim):
        context = tokens + output // 2
        one = decode_pass(place.chip, context, claim.batch)
        host = _token_ms(place.host, claim.batch)
        key, extra = (
            ("decode_binds_two", {})
            if host is None
            else ("decode_binds", {"low_ms": host[0], "high_ms": host[1]})
        )
        working.append(
            line(
                key,
                context=context,
                batch=claim.batch,
                compute_ms=one.compute_ms,
                memory_ms=one.memory_ms,
                **extra,
            )
        )
        verdicts.append(_memory(one, host))
    verdict = together(verdicts)
    return Finding(verdict, line(f"decode_memory_{verdict.value}", batch=claim.batch), tuple(working), {})


def decode_dominates(claim: Statement, claims: Claims, place: Place) -> Finding:
    """Is decode more than half of first + decode: in the source's rows, and by floors and host bounds?"""
    working: list[Line] = []
    verdicts: list[Verdict] = []
    for name in claim.rows:
        placed = claims.row(name)
        share = None if placed is None or not isinstance(placed.claim, Row) else _own_share(placed.claim)
        if share is not None:
            working.append(line("own_decode_share", row=name, decode_share=share))
            verdicts.append(Verdict.TRUE if share > 0.5 else Verdict.FALSE)
    if place.chip is not None:
        for tokens, output in _lengths(claim):
            low, high = _decode_share(place.chip, place.host, tokens, output, claim.batch)
            working.append(line("decode_share", tokens=tokens, output=output, low_share=low, high_share=high))
            verdicts.append(
                Verdict.TRUE if low > 0.5 else Verdict.FALSE if high <= 0.5 else Verdict.MISLEADING
            )
    if not verdicts:
        return undecidable(place.missing or line("missing_hardware_name"), working)
    verdict = together(verdicts)
    return Finding(verdict, line(f"dominates_{verdict.value}"), tuple(working), {})


def decode_recomputes(claim: Statement, claims: Claims, place: Place) -> Finding:
    """Does every step compute the attention of the whole sequence anew? With a cache one query attends to what is
    stored; the source's own rows may refute the rest."""
    chip = place.chip
    if chip is None:
        return undecidable(place.missing or line("missing_hardware_name"))
    if not place.setup.kv_cache:
        return Finding(Verdict.TRUE, line("no_cache"), (), {})
    working: list[Line] = []
    for tokens, output in _lengths(claim):
        context = tokens + output // 2
        whole, step = prefill_pass(chip, context), decode_pass(chip, context)
        working.append(
            line(
                "recompute", context=context, whole_gflop=whole.flops / 1e9, step_gflop=step.flops / 1e9,
                flops_ratio=whole.flops / step.flops, kv_bytes=chip.shape.kv_bytes_per_token(chip.dtype),
                kv_mbytes=context * chip.shape.kv_bytes_per_token(chip.dtype) / 1e6,
            )
        )  # fmt: skip
    against = _refuted(claim, claims, chip, working)
    if against is not None:
        return Finding(Verdict.FALSE, against, tuple(working), {})
    return Finding(Verdict.MISLEADING, line("half_true"), tuple(working), {})


def cache_hits_decide(claim: Statement, place: Place) -> Finding:
    """Does the hit rate of the cache decide decode speed? A hit spares prefill; a step reads the same bytes. False for
    sequences alone that fit the memory; misleading where other prompts' prefills or evictions delay the steps."""
    chip = place.chip
    if chip is None:
        return undecidable(place.missing or line("missing_hardware_name"))
    working: list[Line] = []
    verdicts: list[Verdict] = []
    for tokens, output in _lengths(claim):
        step = decode_pass(chip, tokens + output // 2, claim.batch)
        spared = prefill_pass(chip, tokens).floor_ms - prefill_pass(chip, tokens, 1, tokens - 1).floor_ms
        working.append(line("hit_spares", tokens=tokens, spared_ms=spared, step_ms=step.floor_ms))
        capacity, needs = capacity_tokens(chip), claim.batch * (tokens + output)
        if capacity is not None:
            working.append(line("capacity", capacity_tokens=capacity, needs_tokens=needs))
        alone = claim.batch == 1 and (capacity is None or needs <= capacity)
        verdicts.append(Verdict.FALSE if alone else Verdict.MISLEADING)
    verdict = together(verdicts)
    return Finding(verdict, line(f"hits_{verdict.value}", batch=claim.batch), tuple(working), {})


def late_slowdown(claim: Statement, place: Place) -> Finding:
    """Are the last tokens slower than the first? True where the cache's growth can be seen even beside the slowest
    host; misleading where it cannot be seen even beside the quickest, or only with it."""
    chip = place.chip
    if chip is None:
        return undecidable(place.missing or line("missing_hardware_name"))
    host = _token_ms(place.host, claim.batch)
    if host is None:
        return undecidable(line("missing_host", engine=place.setup.engine or "-"))
    working: list[Line] = []
    verdicts: list[Verdict] = []
    grown: list[list[float]] = []
    for tokens, output in _lengths(claim):
        first = decode_pass(chip, tokens + 1, claim.batch).floor_ms
        last = decode_pass(chip, tokens + output, claim.batch).floor_ms
        most, least = ((last - first) / (first + ms) for ms in host)
        grown.append([least, most])
        working.append(
            line("late", first=tokens + 1, last=tokens + output, first_ms=first, last_ms=last,
                 more_us=(last - first) * 1e3, least_share=least, most_share=most)
        )  # fmt: skip
        verdicts.append(Verdict.TRUE if least >= _SLIGHT_SHARE else Verdict.MISLEADING)
    verdict = together(verdicts)
    reason = line(
        f"late_{verdict.value}", most_share=max(most for _, most in grown), slight_share=_SLIGHT_SHARE
    )
    return Finding(verdict, reason, tuple(working), {"growth_share": grown})


def batch_raises_throughput(claim: Statement, place: Place) -> Finding:
    """Do more sequences a step give more tokens/s? Their steps' floors beside the same host."""
    chip = place.chip
    if chip is None:
        return undecidable(place.missing or line("missing_hardware_name"))
    host = _token_ms(place.host, 1) or (0.0, 0.0)
    working: list[Line] = []
    verdicts: list[Verdict] = []
    for tokens, output in _lengths(claim):
        context = tokens + output // 2
        alone, batched = (decode_pass(chip, context, batch).floor_ms for batch in (1, claim.batch))
        least = claim.batch * (alone + host[0]) / (batched + host[0])
        working.append(
            line(
                "throughput",
                context=context,
                batch=claim.batch,
                alone_ms=alone,
                batched_ms=batched,
                gain_ratio=least,
            )
        )
        verdicts.append(Verdict.TRUE if least >= 1.0 + FELT_SHARE else Verdict.FALSE)
    verdict = together(verdicts)
    return Finding(verdict, line(f"throughput_{verdict.value}", batch=claim.batch), tuple(working), {})


def _lengths(claim: Statement) -> list[tuple[int, int]]:
    return list(zip(claim.input_tokens, claim.output_tokens, strict=True))


def _token_ms(host: HostBounds | None, batch: int) -> tuple[float, float] | None:
    if host is None:
        return None
    return host.token.least_ms, host.multiple * (
        host.token.seen_ms + (batch - 1) * host.seen_ms_per_sequence.token
    )


def _memory(one: Pass, host: tuple[float, float] | None) -> Verdict:
    if one.bound == "compute":
        return Verdict.FALSE
    if host is None:
        return Verdict.UNDECIDABLE
    return Verdict.TRUE if one.memory_ms > host[1] else Verdict.MISLEADING


def _own_share(row: Row) -> float | None:
    first = row.prefill_ms if row.prefill_ms is not None else row.ttft_ms
    decode = row.decode_total_ms
    if decode is None and row.tpot_ms is not None and row.output_tokens is not None:
        decode = row.tpot_ms * (row.output_tokens - 1)
    return None if first is None or decode is None else decode / (first + decode)


def _decode_share(
    chip: Chip, host: HostBounds | None, tokens: int, output: int, batch: int
) -> tuple[float, float]:
    """The least and the most of decode's share: a slow first phase beside quick steps, and the reverse."""
    first = prefill_pass(chip, tokens, batch).floor_ms
    steps = max(0, output - 1)
    decode = decode_total_pass(chip, tokens, steps, batch).floor_ms if steps else 0.0
    slow = bounds().kernel_most_ratio
    first_host, token_host = (0.0, 0.0), (0.0, 0.0)
    if host is not None:
        first_host = (host.prefill.least_ms, host.multiple * host.prefill.seen_ms)
        token_host = _token_ms(host, batch) or token_host
    quick, late = (decode + steps * token_host[0], slow * decode + steps * token_host[1])
    low = quick / (quick + slow * first + first_host[1])
    high = late / (late + first + first_host[0]) if late else 0.0
    return low, high


def _refuted(claim: Statement, claims: Claims, chip: Chip, working: list[Line]) -> Line | None:
    """A row whose time per token is far below what computing its context anew would take: by the chip's floor, or by
    the source's own prefill of at most that length."""
    rows = [placed.claim for name in claim.rows if (placed := claims.row(name)) is not None]
    told = [row for row in rows if isinstance(row, Row) and row.input_tokens is not None]
    against: list[tuple[float, Line]] = []
    for row in told:
        if row.tpot_ms is None:
            continue
        context = (row.input_tokens or 1) + (row.output_tokens or 0) // 2
        floor_ms = prefill_pass(chip, context).floor_ms
        own = [
            (r.input_tokens or 0, r.prefill_ms or r.ttft_ms) for r in told if (r.input_tokens or 0) <= context
        ]
        length, own_ms = max(((n, ms) for n, ms in own if ms is not None), default=(0, None))
        if own_ms is not None:
            working.append(
                line("own_prefill", row=row.id, context=context, tpot_ms=row.tpot_ms, tokens=length, prefill_ms=own_ms,
                     time_ratio=own_ms / row.tpot_ms)
            )  # fmt: skip
        need_ms = max(floor_ms, own_ms or 0.0)
        if row.tpot_ms < need_ms / 2:
            said = line(
                "recompute_refuted", row=row.id, tpot_ms=row.tpot_ms, need_ms=need_ms, context=context
            )
            against.append((need_ms / row.tpot_ms, said))
    return max(against, key=lambda one: one[0])[1] if against else None

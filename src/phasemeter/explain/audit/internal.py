"""A source against itself: do totals follow from parts, do two tables agree? No model and no hardware is needed."""

from __future__ import annotations

from phasemeter.explain.audit.claims import Agreement, Claims, Row, time_of
from phasemeter.explain.audit.verdict import Finding, Line, Verdict, line, undecidable

SUM_TOLERANCE = 0.02
"""Of a total against its parts: each is printed with two or three digits."""
_E2E_TOLERANCE = 0.05


def judge_total(row: Row) -> Finding | None:
    """Is the decode total = tokens x time per token, with n or n - 1? None where the row lacks one of them."""
    total, each, tokens = row.decode_total_ms, row.tpot_ms, row.output_tokens
    if total is None or each is None or tokens is None or tokens < 2:
        return None
    ways = {"n": tokens, "n-1": tokens - 1}
    working: list[Line] = []
    off: dict[str, float] = {}
    for name, count in ways.items():
        off[name] = total / count / each - 1.0
        working.append(
            line(
                "total_by",
                total_ms=total,
                count=count,
                each_ms=total / count,
                told_ms=each,
                off_share=abs(off[name]),
            )
        )
    fits = [name for name in ways if abs(off[name]) <= SUM_TOLERANCE]
    best = min(ways, key=lambda name: abs(off[name]))
    bound: dict[str, object] = {"off_share": off, "closest": best}
    wanted = row.divides_by
    if wanted is not None and wanted not in fits:
        return Finding(
            Verdict.FALSE,
            line("total_not_as_said", by=wanted, off_share=abs(off[wanted])),
            tuple(working),
            bound,
        )
    if not fits:
        return Finding(Verdict.FALSE, line("total_wrong", off_share=abs(off[best])), tuple(working), bound)
    key = "total_both" if len(fits) == 2 and wanted is None else "total_one"
    reason = line(
        key, by=wanted or fits[0], closest=best, n_share=abs(off["n"]), n_less_one_share=abs(off["n-1"])
    )
    return Finding(Verdict.TRUE, reason, tuple(working), bound)


def judge_e2e(row: Row) -> Finding | None:
    """Is the whole = first + decode? None where the row lacks one of them."""
    first = row.ttft_ms if row.ttft_ms is not None else row.prefill_ms
    decode = row.decode_total_ms
    if decode is None and row.tpot_ms is not None and row.output_tokens is not None:
        decode = row.tpot_ms * (row.output_tokens - 1)
    if row.e2e_ms is None or first is None or decode is None:
        return None
    parts_ms = first + decode
    off = row.e2e_ms / parts_ms - 1.0
    working = (line("e2e_parts", first_ms=first, decode_ms=decode, parts_ms=parts_ms, e2e_ms=row.e2e_ms),)
    good = abs(off) <= _E2E_TOLERANCE
    reason = line("e2e_fits" if good else "e2e_differs", off_share=abs(off))
    return Finding(Verdict.TRUE if good else Verdict.FALSE, reason, working, {"off_share": off})


def judge_agreement(claim: Agreement, claims: Claims) -> Finding:
    """Do two tables give the same for the same lengths?"""
    working: list[Line] = []
    worst, unlike = 0.0, False
    for name, other_name in zip(claim.rows, claim.other_rows, strict=True):
        rows = [placed.claim for placed in (claims.row(name), claims.row(other_name)) if placed is not None]
        told = [time_of(row, claim.metric) for row in rows if isinstance(row, Row)]
        one, other = (told[0], told[1]) if len(told) == 2 else (None, None)
        if one is None or other is None:
            return undecidable(line("missing_pair", row=name, other=other_name))
        lengths = [(row.input_tokens, row.batch or 1) for row in rows if isinstance(row, Row)]
        unlike = unlike or lengths[0] != lengths[1]
        share = max(one, other) / min(one, other) - 1.0
        worst = max(worst, share)
        working.append(line("pair", row=name, other=other_name, one=one, two=other, off_share=share))
    if unlike:
        return undecidable(line("unlike_pair"), working)
    good = worst <= claim.within_share
    reason = line(
        "tables_agree" if good else "tables_differ", off_share=worst, within_share=claim.within_share
    )
    return Finding(Verdict.TRUE if good else Verdict.FALSE, reason, tuple(working), {"off_share": worst})

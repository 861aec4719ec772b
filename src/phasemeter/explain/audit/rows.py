"""Numbers of rows against the roofline and the host: below the floor, beyond what a host adds, or between."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from phasemeter.explain.audit.chip import Pass, least_cached_tokens
from phasemeter.explain.audit.claims import Claims, Row, Setup, TimeMetric, time_of
from phasemeter.explain.audit.place import Chip, Place
from phasemeter.explain.audit.spans import Span, fitting_batch, must_wait, quick_host_ms, span_of
from phasemeter.explain.audit.tables import HostBounds, bounds
from phasemeter.explain.audit.verdict import Finding, Line, Verdict, line, undecidable


class OwnHost(Struct, frozen=True):
    """What one of the source's rows leaves to the host."""

    row: str
    host_ms: float


Quickest = dict[tuple[Setup, str, int], list[OwnHost]]
"""By set-up, metric and batch, the quickest first."""
_OWN_METRICS: tuple[TimeMetric, ...] = ("prefill", "ttft", "tpot")


def judge_number(row: Row, metric: TimeMetric, claimed: float, own: Quickest, place: Place) -> Finding:
    """The verdict on one number of one row (ms, or tokens/s); the source's other rows of the set-up (`quickest_rows`)
    may speak against it."""
    missing = _missing(row, metric)
    if missing is not None:
        return undecidable(missing)
    if place.chip is None:
        return undecidable(place.missing or line("missing_model_name"))
    span = span_of(row, metric, place.chip, place.host)
    ms = _as_ms(row, metric, claimed)
    working = [
        *_floor_lines(row, metric, span.least, place.chip),
        *_claimed_lines(metric, claimed, ms, span, place.chip),
    ]
    working += _notes(row, place.chip)
    floor_ms = span.least.floor_ms
    if ms < floor_ms * (1.0 - bounds().floor_tolerance_share):
        return _impossible(row, metric, ms, span, working, place)
    working += _host_lines(span, place.host)
    limit_ms, quickest = _own_limit(row, metric, span, own, place)
    if quickest is not None and limit_ms is not None:
        working.append(
            line(
                "own_rows",
                row=quickest.row,
                host_ms=quickest.host_ms,
                ratio=bounds().own_rows_ratio,
                most_ms=limit_ms,
            )
        )
    bound = _bound(ms, span, limit_ms)
    verdict, reason = _above_floor(row, metric, ms, span, place)
    if quickest is not None and limit_ms is not None and ms > limit_ms and verdict is not Verdict.IMPLAUSIBLE:
        verdict = Verdict.IMPLAUSIBLE
        reason = line(
            "against_own_rows", row=quickest.row, most_ms=limit_ms, claimed_ms=ms, floor_ms=floor_ms
        )
    if verdict is Verdict.UNDECIDABLE:
        bound["missing"] = reason.key
    return Finding(verdict, reason, tuple(working), bound)


def _above_floor(row: Row, metric: TimeMetric, ms: float, span: Span, place: Place) -> tuple[Verdict, Line]:
    """Of a number that is not below its floor, without the source's other rows."""
    floor_ms = span.least.floor_ms
    waits = place.chip is not None and must_wait(row, place.chip)
    if waits and metric in {"ttft", "e2e", "throughput"} and ms > span.most_chip_ms:
        return Verdict.UNDECIDABLE, line("missing_queue")
    if span.most_ms is not None and ms > span.most_ms:
        return Verdict.IMPLAUSIBLE, line(
            "above_host", most_ms=span.most_ms, claimed_ms=ms, floor_ratio=ms / floor_ms
        )
    if span.host_ms is None and ms > span.most_chip_ms:
        engine = place.setup.engine
        missing = line("missing_engine_name") if engine is None else line("missing_host", engine=engine)
        return Verdict.UNDECIDABLE, missing
    return Verdict.PLAUSIBLE, line("between", host_share=max(0.0, ms - floor_ms) / ms, floor_ms=floor_ms)


def _as_ms(row: Row, metric: TimeMetric, claimed: float) -> float:
    """Throughput becomes the time of one token of one sequence; times stay."""
    return (row.batch or 1) * 1e3 / claimed if metric == "throughput" else claimed


def _missing(row: Row, metric: TimeMetric) -> Line | None:
    if row.input_tokens is None:
        return line("missing_input_tokens")
    if metric in {"decode_total", "e2e"} and row.output_tokens is None:
        return line("missing_output_tokens")
    if metric in {"tpot", "decode_total"} and row.output_tokens == 1:
        return line("missing_second_token")
    return line("missing_batch") if metric == "throughput" and row.batch is None else None


def _floor_lines(row: Row, metric: TimeMetric, least: Pass, chip: Chip) -> list[Line]:
    lines: list[Line] = []
    if metric in {"prefill", "ttft"}:
        tokens = row.input_tokens or 1
        lines.append(
            line(
                "prefill_flops", tokens=tokens, linear_gflop=least.linear_flops / 1e9,
                attention_gflop=least.attention_flops / 1e9, attention_share=least.attention_share,
                head_gflop=least.head_flops / 1e9, gflop=least.flops / 1e9,
            )
        )  # fmt: skip
    elif metric in {"tpot", "throughput"}:
        lines.append(
            line(
                "decode_work", context=(row.input_tokens or 1) + (row.output_tokens or 0) // 2, batch=row.batch or 1,
                gflop=least.flops / 1e9, kv_bytes=chip.shape.kv_bytes_per_token(chip.dtype),
            )
        )  # fmt: skip
    else:
        lines.append(line("whole_work", gflop=least.flops / 1e9, steps=max(1, (row.output_tokens or 1) - 1)))
    lines.append(
        line("compute_time", ms=least.compute_ms, tflops=chip.peak_flops_per_s / 1e12, dtype=chip.arithmetic)
    )
    if chip.cached:
        lines.append(line("in_cache"))
    else:
        lines.append(
            line(
                "memory_time",
                mbytes=least.bytes / 1e6,
                ms=least.memory_ms,
                gbytes=chip.bandwidth_bytes_per_s / 1e9,
            )
        )
    lines.append(
        line(f"floor_{_set_by(least)}", floor_ms=least.floor_ms, hardware=chip.hardware.title, gpus=chip.gpus)
    )
    return lines


def _set_by(least: Pass) -> str:
    """Arithmetic or memory; "parts" where passes of both kinds were added up."""
    mixed = least.floor_ms > 1.001 * max(least.compute_ms, least.memory_ms)
    return "parts" if mixed else least.bound


def _claimed_lines(metric: TimeMetric, claimed: float, ms: float, span: Span, chip: Chip) -> list[Line]:
    lines: list[Line] = []
    if metric == "throughput":
        lines.append(line("throughput_ms", tokens=claimed, ms=ms))
    rate = span.least.flops / (ms / 1e3)
    lines.append(
        line(
            "implied", claimed_ms=ms, floor_ratio=ms / span.least.floor_ms, tflops=rate / 1e12,
            peak_share=rate / chip.peak_flops_per_s, gbytes=span.least.bytes / (ms / 1e3) / 1e9,
            bandwidth_share=span.least.bytes / (ms / 1e3) / chip.bandwidth_bytes_per_s,
        )
    )  # fmt: skip
    return lines


def _notes(row: Row, chip: Chip) -> list[Line]:
    """Where the row is longer than the model's positions (engines refuse it unless told otherwise), and where the
    memory does not hold its batch."""
    most, tokens = chip.shape.max_positions, (row.input_tokens or 0) + (row.output_tokens or 0)
    notes: list[Line] = []
    if most is not None and tokens > most:
        notes.append(line("beyond_positions", tokens=tokens, most_tokens=most))
    fits, batch = fitting_batch(row, chip), row.batch or 1
    if fits < batch:
        notes.append(line("batch_waits", batch=batch, fits=fits))
    return notes


def _host_lines(span: Span, host: HostBounds | None) -> list[Line]:
    if host is None or span.host_ms is None or span.most_ms is None:
        return []
    return [
        line(
            "host_range", low_ms=span.host_ms[0], high_ms=span.host_ms[1], engine=host.engine, multiple=host.multiple,
            kernel_ratio=bounds().kernel_most_ratio, chip_ms=span.most_chip_ms, most_ms=span.most_ms,
        )
    ]  # fmt: skip


def _impossible(
    row: Row, metric: TimeMetric, ms: float, span: Span, working: list[Line], place: Place
) -> Finding:
    bound = _bound(ms, span, None)
    floor_ms = span.least.floor_ms
    reason = line(
        "below_floor", claimed_ms=ms, floor_ms=floor_ms, tolerance_share=bounds().floor_tolerance_share
    )
    if metric in {"prefill", "ttft"} and place.chip is not None and row.input_tokens is not None:
        cached = least_cached_tokens(place.chip, row.input_tokens, ms)
        if cached is not None:
            reason = line(
                "below_floor_cached",
                claimed_ms=ms,
                floor_ms=floor_ms,
                cached_tokens=cached,
                tokens=row.input_tokens,
            )
            bound["least_cached_tokens"] = cached
    return Finding(Verdict.IMPOSSIBLE, reason, tuple(working), bound)


def _bound(ms: float, span: Span, own_ms: float | None) -> dict[str, object]:
    least = span.least
    return {
        "claimed_ms": ms,
        "floor_ms": least.floor_ms,
        "compute_ms": least.compute_ms,
        "memory_ms": least.memory_ms,
        "attention_share": least.attention_share,
        "host_ms": None if span.host_ms is None else list(span.host_ms),
        "most_ms": span.most_ms,
        "own_rows_most_ms": own_ms,
        "implied_tflops": least.flops / (ms / 1e3) / 1e12,
    }


def quickest_rows(claims: Claims, look_up: Callable[[Setup], Place]) -> Quickest:
    """The two rows that leave least to the host, by set-up, metric and batch; rows below their floor are left out.
    Two, so that every row finds another than itself."""
    found: dict[tuple[Setup, str, int], list[OwnHost]] = {}
    for placed in claims.placed:
        row, place = placed.claim, look_up(placed.setup)
        if not isinstance(row, Row) or place.chip is None:
            continue
        for metric in _OWN_METRICS:
            ms = time_of(row, metric)
            if ms is None or _missing(row, metric):
                continue
            least = quick_host_ms(place.host, metric) if place.host is not None else 0.0
            floor_ms = span_of(row, metric, place.chip, place.host).least.floor_ms
            if ms >= floor_ms:
                kept = found.setdefault((placed.setup, metric, row.batch or 1), [])
                kept.append(OwnHost(row.id, max(least, ms - floor_ms)))
                kept.sort(key=lambda one: one.host_ms)
                del kept[2:]
    return found


def _own_limit(
    row: Row, metric: TimeMetric, span: Span, quickest: Quickest, place: Place
) -> tuple[float | None, OwnHost | None]:
    """The most that the source's quickest other row of the metric allows, and that row; (None, None) without one."""
    rows = quickest.get((place.setup, metric, row.batch or 1), [])
    other = next((one for one in rows if one.row != row.id), None)
    if other is None:
        return None, None
    longer = 0.0
    if metric == "ttft" and place.host is not None:
        longer = place.host.multiple * place.host.seen_ms_per_input_token * (row.input_tokens or 1)
    return span.most_chip_ms + bounds().own_rows_ratio * other.host_ms + longer, other

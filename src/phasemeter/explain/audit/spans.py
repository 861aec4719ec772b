"""What one number of a row may lie between: the chip's pass alone, and slow kernels with the slowest host."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from phasemeter.explain.audit.chip import (
    Pass,
    added,
    capacity_tokens,
    decode_pass,
    decode_total_pass,
    prefill_pass,
)
from phasemeter.explain.audit.claims import Row, TimeMetric
from phasemeter.explain.audit.place import Chip
from phasemeter.explain.audit.tables import HostBounds, bounds


class Span(Struct, frozen=True):
    """What one number may lie between. `least` is the chip's pass with nothing else, `most_chip_ms` the same with slow
    kernels; `host_ms` is the host's range, None where no row of the table holds it."""

    least: Pass
    most_chip_ms: float
    host_ms: tuple[float, float] | None

    @property
    def most_ms(self) -> float | None:
        """Slow kernels and the slowest host; None without host bounds."""
        return None if self.host_ms is None else self.most_chip_ms + self.host_ms[1]


def fitting_batch(row: Row, chip: Chip) -> int:
    """How many of the row's sequences the memory holds at their mean context: the rest wait. At least 1."""
    batch, capacity = row.batch or 1, capacity_tokens(chip)
    context = max(1, (row.input_tokens or 1) + (row.output_tokens or 0) // 2)
    return batch if capacity is None else max(1, min(batch, capacity // context))


def must_wait(row: Row, chip: Chip) -> bool:
    """Whether the memory does not hold the row's whole batch at its full length, so that requests queue."""
    capacity, whole = capacity_tokens(chip), (row.input_tokens or 1) + (row.output_tokens or 0)
    return capacity is not None and (row.batch or 1) > 1 and (row.batch or 1) * whole > capacity


def span_of(row: Row, metric: TimeMetric, chip: Chip, host: HostBounds | None) -> Span:
    """Least and most of one metric of one row. The row must hold the lengths that the metric needs."""
    return _SPANS[metric](row, chip, host)


def quick_host_ms(host: HostBounds, metric: TimeMetric) -> float:
    """The least that the host adds to prefill, ttft or one token."""
    seen = {"prefill": host.prefill, "ttft": host.ttft}.get(metric, host.token)
    return seen.least_ms


def _prefill_span(row: Row, chip: Chip, host: HostBounds | None) -> Span:
    tokens, batch = row.input_tokens or 1, row.batch or 1
    host_ms = None
    if host is not None:
        high = host.prefill.seen_ms + (batch - 1) * host.seen_ms_per_sequence.prefill
        host_ms = (host.prefill.least_ms, host.multiple * high)
    least = prefill_pass(chip, tokens, 1, row.cached_tokens)
    return Span(least, _slow(prefill_pass(chip, tokens, batch, row.cached_tokens)), host_ms)


def _ttft_span(row: Row, chip: Chip, host: HostBounds | None) -> Span:
    tokens, batch = row.input_tokens or 1, row.batch or 1
    span = _prefill_span(row, chip, host)
    if host is None:
        return span
    high = host.ttft.seen_ms + tokens * host.seen_ms_per_input_token
    high += (batch - 1) * host.seen_ms_per_sequence.ttft
    return Span(span.least, span.most_chip_ms, (host.ttft.least_ms, host.multiple * high))


def _token_host_ms(row: Row, host: HostBounds) -> tuple[float, float]:
    high = host.token.seen_ms + ((row.batch or 1) - 1) * host.seen_ms_per_sequence.token
    return host.token.least_ms, host.multiple * high


def _tpot_span(row: Row, chip: Chip, host: HostBounds | None) -> Span:
    context = (row.input_tokens or 1) + (row.output_tokens or 0) // 2
    least = decode_pass(chip, context, fitting_batch(row, chip))
    most_ms = _slow(least) + _foreign_ms(row, chip) / max(1, (row.output_tokens or 2) - 1)
    return Span(least, most_ms, None if host is None else _token_host_ms(row, host))


def _decode_span(row: Row, chip: Chip, host: HostBounds | None) -> Span:
    steps = max(1, (row.output_tokens or 1) - (0 if row.divides_by == "n" else 1))
    least = decode_total_pass(chip, row.input_tokens or 1, steps, fitting_batch(row, chip))
    most_ms = _slow(least) + _foreign_ms(row, chip)
    if host is None:
        return Span(least, most_ms, None)
    low, high = _token_host_ms(row, host)
    return Span(least, most_ms, (steps * low, (row.output_tokens or 1) * high))


def _e2e_span(row: Row, chip: Chip, host: HostBounds | None) -> Span:
    first = _ttft_span(row, chip, host)
    if (row.output_tokens or 1) == 1:
        return first
    rest = _decode_span(row, chip, host)
    host_ms = None
    if first.host_ms is not None and rest.host_ms is not None:
        host_ms = (first.host_ms[0] + rest.host_ms[0], first.host_ms[1] + rest.host_ms[1])
    return Span(added([first.least, rest.least]), first.most_chip_ms + rest.most_chip_ms, host_ms)


def _throughput_span(row: Row, chip: Chip, host: HostBounds | None) -> Span:
    """Of one token a sequence, batch / rate: at least a decode step, at most its share of the whole request. Sequences
    that the memory does not hold wait, so that the steps of all of them in turn bound the rate."""
    step = _tpot_span(row, chip, host)
    waves = (row.batch or 1) / fitting_batch(row, chip)
    step = Span(_scaled(step.least, waves), waves * step.most_chip_ms, step.host_ms)
    if row.output_tokens is None or row.input_tokens is None:
        return step
    whole = _e2e_span(row, chip, host)
    tokens = row.output_tokens
    host_ms = None
    if step.host_ms is not None and whole.host_ms is not None:
        host_ms = (step.host_ms[0], whole.host_ms[1] / tokens)
    return Span(step.least, max(step.most_chip_ms, whole.most_chip_ms / tokens), host_ms)


_SPANS: dict[str, Callable[[Row, Chip, HostBounds | None], Span]] = {
    "prefill": _prefill_span,
    "ttft": _ttft_span,
    "tpot": _tpot_span,
    "decode_total": _decode_span,
    "e2e": _e2e_span,
    "throughput": _throughput_span,
}


def _foreign_ms(row: Row, chip: Chip) -> float:
    """What the prefills of the batch's other prompts may add to one sequence's decode: in a closed loop each of them is
    replaced about once while it lasts, and its steps wait."""
    others = (row.batch or 1) - 1
    return _slow(prefill_pass(chip, row.input_tokens or 1, others, row.cached_tokens)) if others else 0.0


def _scaled(one: Pass, times: float) -> Pass:
    return Pass(*(times * getattr(one, field) for field in Pass.__struct_fields__))


def _slow(one: Pass) -> float:
    return bounds().kernel_most_ratio * one.floor_ms

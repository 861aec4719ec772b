"""The cold start, kept apart from the steady state."""

from __future__ import annotations

from msgspec import Struct


class Cold(Struct, frozen=True):
    """What the first request paid. `steady_ttft_ms` is the median TTFT of measured requests of the same
    shape; `requests_to_settle` counts requests of that shape, from the run's first on, before TTFT stayed
    within 20 % (or 1 ms) of it. None where there was nothing to tell it from."""

    first_ttft_ms: float | None = None
    steady_ttft_ms: float | None = None
    requests_to_settle: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None

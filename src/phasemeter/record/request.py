"""What we intend (`Request`), and what a server says of it afterwards (`Usage`)."""

from __future__ import annotations

from msgspec import Struct, field


class Sampling(Struct, frozen=True, omit_defaults=True):
    """Sampling parameters; None leaves the engine's own default."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    ignore_eos: bool = True


class Cell(Struct, frozen=True, omit_defaults=True):
    """Where a request belongs in the plan: its shape and its place in the randomised order.

    `concurrency` is what the plan asked for, None in an open loop; there `rate_per_s` is the rate asked (None for a
    trace, which has no one rate). `block` counts interleaved repeats from 0; `warmup` requests are kept in the record
    and left out of the numbers; `anchor` marks the repeated cell in which drift shows.
    """

    input_tokens: int
    output_tokens: int
    concurrency: int | None = 1
    block: int = 0
    warmup: bool = False
    anchor: bool = False
    rate_per_s: float | None = None

    @property
    def slots(self) -> int:
        """`concurrency` of a cell that is known to be one of a closed loop."""
        if self.concurrency is None:
            raise ValueError("an open loop has no slots")
        return self.concurrency


class Request(Struct, frozen=True):
    """One intended request: a prompt (text or token ids) and how many tokens to generate; the driver knows when.

    Exactly one of `prompt` and `token_ids` is given.
    """

    id: str
    cell: Cell
    max_tokens: int
    prompt: str | None = None
    token_ids: tuple[int, ...] | None = None
    sampling: Sampling = Sampling()
    tags: dict[str, str] = field(default_factory=dict[str, str])
    extra: dict[str, object] = field(default_factory=dict[str, object])
    """Fields sent to the server untouched (for example `x_simulate`)."""
    cancel_after_tokens: int | None = None
    """Give it up on purpose once so many generated tokens have come: the outcome is then "cancelled"."""


class Usage(Struct, frozen=True, omit_defaults=True):
    """Token counts as the server reports them; None where it says nothing."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

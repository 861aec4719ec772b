"""The known truth: when a simulated engine emits each token, as a pure function.

For P prompt tokens of which C came from a cache:

    prefill   ttft_ms, or
              prefill_ms + prefill_us_per_token * (P - C) + prefill_ns_per_token_squared * (P^2 - C^2);
              plus cold_first_ms on the first request of a shape
    gap       sum over the tokens of a chunk of itl_ms + itl_per_context_token_us * (tokens before it)
    queue     the wait for a slot, then queue_ms

`schedule` gives absolute offsets from the moment a request got its slot, in integer nanoseconds: nothing adds
up rounding or lateness from token to token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Literal

import msgspec
from msgspec import Struct

from phasemeter.record.errors import InputError

_NUMBERS = (
    "queue_ms",
    "prefill_ms",
    "prefill_us_per_token",
    "prefill_ns_per_token_squared",
    "itl_ms",
    "itl_per_context_token_us",
    "cold_first_ms",
)
MOST = 1e9
"""Of every number of a truth, whatever its unit; 1e9 ms are eleven days."""
_PARTS = ("queue_ms", "prefill_ms", "prefill_us_per_token", "prefill_ns_per_token_squared")


class Jitter(Struct, frozen=True, forbid_unknown_fields=True):
    """Noise on the prefill and on every gap; give its size as `ms` or as `relative` (a share of what it is
    put on).

    uniform     the size is half the width of the interval
    normal      the size is the standard deviation
    lognormal   the size is the standard deviation; the mean stays what the truth says
    What would be negative becomes 0.
    """

    kind: Literal["none", "uniform", "normal", "lognormal"] = "none"
    ms: float | None = None
    relative: float | None = None

    def __post_init__(self) -> None:
        """Refuse a size that is missing, given twice or not a number of at least 0."""
        given = [size for size in (self.ms, self.relative) if size is not None]
        if self.kind != "none" and len(given) != 1:
            raise InputError("jitter", self.kind, "give its size, either as ms or as relative")
        for size in given:
            _check_number("jitter", size)


class Truth(Struct, frozen=True, forbid_unknown_fields=True):
    """What the simulated engine does to a request that no fault touches. Units stand in the names.

    ttft_ms             slot to first chunk; instead of queue_ms and the three prefill parts
    tokens_per_chunk    tokens in a chunk; the gap before a chunk is the sum of its tokens' times
    first_chunk_tokens  tokens in the first chunk (None: as all others). With 1 the last token always comes at
                        TTFT + (n - 1) * itl_ms, whatever tokens_per_chunk is
    slots               requests served at once; the others wait, first come first served (None: no limit)
    Raises InputError for values that cannot be.
    """

    ttft_ms: float | None = None
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    prefill_us_per_token: float = 0.0
    prefill_ns_per_token_squared: float = 0.0
    itl_ms: float = 10.0
    itl_per_context_token_us: float = 0.0
    jitter: Jitter = Jitter()
    seed: int = 0
    tokens_per_chunk: int = 1
    first_chunk_tokens: int | None = None
    cold_first_ms: float = 0.0
    slots: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name in _NUMBERS:
            _check_number(name, getattr(self, name))
        if self.ttft_ms is not None:
            _check_number("ttft_ms", self.ttft_ms)
            parts = [name for name in _PARTS if getattr(self, name)]
            if parts:
                raise InputError("ttft_ms", self.ttft_ms, f"give either ttft_ms or {', '.join(parts)}")
        for name in ("tokens_per_chunk", "first_chunk_tokens", "slots"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(name, value, "give a whole number of at least 1")

    @property
    def prefill_constant_ms(self) -> float:
        """The part of the prefill that does not depend on the prompt, without cold_first_ms."""
        return self.prefill_ms if self.ttft_ms is None else self.ttft_ms


def truth_of(table: Mapping[str, object]) -> Truth:
    """Build a truth from a table. Raises InputError for unknown keys and wrong types, naming them."""
    try:
        return msgspec.convert(dict(table), Truth)
    except msgspec.ValidationError as error:
        known = ", ".join(field.name for field in msgspec.structs.fields(Truth))
        shown = ", ".join(f"{key}={value}" for key, value in table.items())
        raise InputError("--truth", shown, f"{error}; the keys are {known}") from None


def rng_of(truth: Truth, serial: int) -> Random:
    """The random numbers of the `serial`-th request (from 0): the same for the same seed, whatever else
    runs."""
    return Random(f"{truth.seed}/{serial}")


def queue_ns(truth: Truth) -> int:
    """The constant part of the queue, nanoseconds."""
    return _ns(truth.queue_ms * 1e6)


def prefill_ns(truth: Truth, request_number: int, prompt_tokens: int, cached_tokens: int = 0) -> int:
    """The prefill without jitter, nanoseconds. `request_number` counts the requests of the same shape
    before."""
    new = prompt_tokens - cached_tokens
    squares = prompt_tokens**2 - cached_tokens**2
    return _ns(
        truth.prefill_constant_ms * 1e6
        + truth.prefill_us_per_token * 1e3 * new
        + truth.prefill_ns_per_token_squared * squares
        + (truth.cold_first_ms * 1e6 if request_number == 0 else 0.0)
    )


def schedule(
    truth: Truth,
    request_number: int,
    prompt_tokens: int,
    max_tokens: int,
    rng: Random,
    cached_tokens: int = 0,
) -> tuple[tuple[int, int], ...]:
    """(offset in ns from the slot, tokens) of every chunk; offsets never go back, tokens add up to
    `max_tokens`.

    `request_number` counts the earlier requests of the same shape (0: `cold_first_ms` applies); `rng` gives
    the jitter. Raises InputError when `max_tokens` is below 1 or more tokens are cached than the prompt has.
    """
    if max_tokens < 1:
        raise InputError("max_tokens", max_tokens, "give a whole number of at least 1")
    if not 0 <= cached_tokens <= prompt_tokens:
        raise InputError(
            "cached_tokens", cached_tokens, f"give 0 to {prompt_tokens}, the tokens of the prompt"
        )
    first = prefill_ns(truth, request_number, prompt_tokens, cached_tokens)
    offset = queue_ns(truth) + _shaken(truth.jitter, first, rng)
    done = min(truth.first_chunk_tokens or truth.tokens_per_chunk, max_tokens)
    chunks = [(offset, done)]
    while done < max_tokens:
        n = min(truth.tokens_per_chunk, max_tokens - done)
        offset += _shaken(truth.jitter, _gap_ns(truth, prompt_tokens + done, n), rng)
        done += n
        chunks.append((offset, n))
    return tuple(chunks)


def _gap_ns(truth: Truth, context: int, n: int) -> int:
    """Time of `n` tokens in a row, the first of which is generated behind `context` tokens."""
    contexts = n * context + n * (n - 1) // 2
    return _ns(n * truth.itl_ms * 1e6 + contexts * truth.itl_per_context_token_us * 1e3)


def _shaken(jitter: Jitter, base_ns: int, rng: Random) -> int:
    if jitter.kind == "none":
        return base_ns
    size_ns = jitter.ms * 1e6 if jitter.ms is not None else (jitter.relative or 0.0) * base_ns
    if jitter.kind == "uniform":
        return max(0, base_ns + _ns(rng.uniform(-size_ns, size_ns)))
    if jitter.kind == "normal":
        return max(0, base_ns + _ns(rng.gauss(0.0, size_ns)))
    if base_ns == 0:
        return 0
    # a lognormal of mean m and standard deviation s has sigma^2 = ln(1 + (s/m)^2) and mu = ln m - sigma^2 / 2
    sigma = math.sqrt(math.log1p((size_ns / base_ns) ** 2))
    return _ns(base_ns * math.exp(rng.gauss(-sigma * sigma / 2, sigma)))


def _ns(value: float) -> int:
    return round(value)


def _check_number(name: str, value: float) -> None:
    if not 0 <= value <= MOST:
        raise InputError(name, value, f"give a number from 0 to {MOST:g}")

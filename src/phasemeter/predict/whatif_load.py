"""What is simulated: the requests, and the settings of the engine that serves them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from phasemeter.predict.routing import Ticket
from phasemeter.predict.whatif_prefix import Openings
from phasemeter.record.errors import InputError

MOST_REQUESTS = 5_000_000


class Traffic(Struct, frozen=True):
    """Requests as plain sequences of one length.

    arrive_s     open loop: when each arrives, rising; None in a closed loop
    users        closed loop: so many requests in flight or in thought; the next starts when one has ended
    think_s      closed loop: pause before each request (the first ones', too); of a request with `after`: its pause
    after        the request whose end each waits for (a conversation's turn before), -1 for none; its `arrive_s` is
                 then not used. The one waited for comes earlier in the sequence
    openings     what each prompt shares with others; needs prefix caching to matter
    priority     smaller is served first, as in vLLM; matters with the priority policy alone
    """

    input_tokens: Sequence[int]
    output_tokens: Sequence[int]
    arrive_s: Sequence[float] | None = None
    users: int | None = None
    think_s: Sequence[float] | None = None
    after: Sequence[int] | None = None
    openings: Sequence[Openings] | None = None
    priority: Sequence[int] | None = None

    def ticket(self, i: int) -> Ticket:
        """What a router knows of request `i`: its output is taken as known."""
        shared = self.openings[i] if self.openings else ()
        return Ticket(
            self.input_tokens[i],
            self.output_tokens[i],
            shared[-1][0] if shared else None,
            self.priority[i] if self.priority else 0,
        )


class EngineSettings(Struct, frozen=True):
    """Settings of a continuous-batching engine under vLLM's names and, where it has them, defaults (0.32, config/
    scheduler.py; token budget and sequences as on a GPU of 70 GB and more). `kv_blocks` None: never short of memory."""

    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    block_size: int = 16
    kv_blocks: int | None = None
    watermark: float = 0.0
    reserve_full_prompt: bool = True
    prefix_caching: bool = False
    policy: str = "fcfs"


def check_settings(settings: EngineSettings) -> None:
    """Raises InputError for settings that no engine accepts."""
    for name, least in (
        ("max_num_seqs", 1),
        ("max_num_batched_tokens", 1),
        ("long_prefill_token_threshold", 0),
        ("block_size", 1),
    ):
        value: int = getattr(settings, name)
        if value < least:
            raise InputError(name, value, f"must be a whole number, {least} or more")
    if settings.max_num_batched_tokens < settings.max_num_seqs:
        raise InputError(
            "max_num_batched_tokens",
            settings.max_num_batched_tokens,
            f"a step must hold one token of each of max_num_seqs = {settings.max_num_seqs} sequences",
        )
    if settings.kv_blocks is not None and settings.kv_blocks < 1:
        raise InputError("kv_blocks", settings.kv_blocks, "must be 1 or more")
    if not 0.0 <= settings.watermark < 1.0:
        raise InputError("watermark", settings.watermark, "a share of all blocks, from 0 to below 1")
    if settings.policy not in ("fcfs", "priority"):
        raise InputError("scheduling policy", settings.policy, "use fcfs or priority")


def check_traffic(traffic: Traffic, settings: EngineSettings) -> None:
    """Raises InputError for requests that are none, or that the engine could never serve."""
    n = len(traffic.input_tokens)
    if not 1 <= n <= MOST_REQUESTS:
        raise InputError("requests", n, f"simulate from 1 to {MOST_REQUESTS}")
    for name in ("output_tokens", "arrive_s", "think_s", "after", "openings", "priority"):
        given: Sequence[object] | None = getattr(traffic, name)
        if given is not None and len(given) != n:
            raise InputError(name, f"{len(given)} values", f"there are {n} requests; give one for each")
    _check_order(traffic)
    for i, (prompt, output) in enumerate(zip(traffic.input_tokens, traffic.output_tokens, strict=True)):
        if prompt < 1 or output < 1:
            raise InputError(f"request {i}", f"{prompt} in, {output} out", "both must be 1 or more tokens")
        _check_fits(i, prompt, output, settings)
        if traffic.openings is not None and sum(length for _, length in traffic.openings[i]) > prompt:
            raise InputError(f"request {i}", "openings", f"are longer than its prompt of {prompt} tokens")


def _check_order(traffic: Traffic) -> None:
    if (traffic.arrive_s is None) == (traffic.users is None):
        raise InputError("arrive_s and users", "both or neither", "give arrivals, or users of a closed loop")
    if traffic.users is not None and traffic.users < 1:
        raise InputError("users", traffic.users, "must be 1 or more")
    if traffic.users is not None and traffic.after is not None:
        raise InputError("after", "with users", "turns of conversations need an open loop")
    for name in ("arrive_s", "think_s"):
        times: Sequence[float] | None = getattr(traffic, name)
        if times is not None and not all(math.isfinite(t) and t >= 0.0 for t in times):
            raise InputError(name, "a value", "must be 0 or more and finite, in seconds")
    if traffic.after is not None and any(not -1 <= j < i for i, j in enumerate(traffic.after)):
        raise InputError("after", "a value", "name an earlier request, or -1")
    free = traffic.after is None
    if free and traffic.arrive_s is not None and any(a > b for a, b in pairwise(traffic.arrive_s)):
        raise InputError("arrive_s", "out of order", "sort the requests by arrival")


def _check_fits(i: int, prompt: int, output: int, settings: EngineSettings) -> None:
    if not settings.chunked_prefill and prompt + output - 1 > settings.max_num_batched_tokens:
        raise InputError(
            f"request {i}",
            f"{prompt} in, {output} out",
            "is longer than max_num_batched_tokens; without chunked prefill it could never be processed",
        )
    needed = -(-(prompt + output - 1) // settings.block_size)
    if settings.kv_blocks is not None and needed > settings.kv_blocks:
        raise InputError(
            f"request {i}", f"{prompt} in, {output} out", f"needs {needed} of {settings.kv_blocks} KV blocks"
        )

"""Which of several backends takes a request, and in which order a queue gives requests out.

Policies are pure of I/O: they read a `Ticket` and the `Backend`s' counters and answer with a backend, or None where
none is healthy. One choice costs O(backends) and makes no list. Who keeps the counters (a simulation, a gateway) calls
`take` and `give_back`; a policy's own memory is a handful of attributes of its object and nothing else.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol

from msgspec import Struct

from phasemeter.record.errors import InputError

MOST_KEYS = 65_536
"""Conversations that a policy remembers; the ones longest unseen are forgotten (a router that kept them all ran out of
memory: vllm-project/production-stack issue 687)."""


class Ticket(Struct, frozen=True):
    """What a router knows of a request before it is served. `prefix` names what its prompt shares with others (a system
    prompt, a conversation); `expected_output` is a guess, `max_tokens` for want of a better one."""

    prompt_tokens: int
    expected_output: int = 0
    prefix: str | None = None
    priority: int = 0


class Backend(Struct, gc=False):
    """One backend and what is in flight on it. `bucket`: the length bucket it serves, None all of them."""

    name: str
    weight: float = 1.0
    healthy: bool = True
    bucket: int | None = None
    in_flight: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0


class Policy(Protocol):
    """One choice."""

    def choose(self, ticket: Ticket, backends: Sequence[Backend]) -> Backend | None:
        """The backend that takes `ticket`; None where none is healthy. Counters are left as they are."""
        ...


def take(backend: Backend, ticket: Ticket) -> None:
    """Count `ticket` on `backend`."""
    backend.in_flight += 1
    backend.prefill_tokens += ticket.prompt_tokens
    backend.decode_tokens += ticket.expected_output


def prefilled(backend: Backend, ticket: Ticket) -> None:
    """The prompt of `ticket` has been processed."""
    backend.prefill_tokens -= ticket.prompt_tokens


def give_back(backend: Backend, ticket: Ticket, *, was_prefilled: bool = True) -> None:
    """`ticket` has left `backend`, before or after its prompt was processed."""
    backend.in_flight -= 1
    backend.decode_tokens -= ticket.expected_output
    if not was_prefilled:
        backend.prefill_tokens -= ticket.prompt_tokens


class RoundRobin:
    """Each in turn, as often as its weight says and as evenly spread as can be (the smooth weighted round robin of
    nginx, commit 52327e0)."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}

    def choose(self, ticket: Ticket, backends: Sequence[Backend]) -> Backend | None:
        """Every healthy one gains its weight; the richest is chosen and pays for all."""
        del ticket
        best, most, total = None, -math.inf, 0.0
        for backend in backends:
            if backend.healthy and backend.weight > 0:
                total += backend.weight
                due = self._due[backend.name] = self._due.get(backend.name, 0.0) + backend.weight
                if due > most:
                    best, most = backend, due
        if best is not None:
            self._due[best.name] = most - total
        return best


class Least:
    """The least loaded by `load`, per weight; among equals each in turn."""

    def __init__(self, load: Callable[[Ticket, Backend], float]) -> None:
        self._load = load
        self._turn = 0

    def choose(self, ticket: Ticket, backends: Sequence[Backend]) -> Backend | None:
        """One pass, begun behind the last choice."""
        best, least, n = None, math.inf, len(backends)
        for i in range(self._turn, self._turn + n):
            backend = backends[i % n]
            if backend.healthy and backend.weight > 0:
                load = self._load(ticket, backend) / backend.weight
                if load < least:
                    best, least, at = backend, load, i
                    self._turn = (at + 1) % n
        return best


def requests_in_flight(ticket: Ticket, backend: Backend) -> float:
    """Load by requests, this one included."""
    del ticket
    return backend.in_flight + 1.0


class TokensInFlight:
    """Load by tokens, this request's included. Two requests of 4,096 tokens and two of 32 are not the same load
    (gateway-api-inference-extension issue 2540). `decode_price`: prompt tokens that one generated token costs."""

    def __init__(self, decode_price: float = 1.0) -> None:
        self._price = decode_price

    def __call__(self, ticket: Ticket, backend: Backend) -> float:
        """Tokens, generated ones at their price."""
        return (
            backend.prefill_tokens
            + ticket.prompt_tokens
            + self._price * (backend.decode_tokens + ticket.expected_output)
        )


class TwoChoices:
    """The less loaded of two drawn at random (Mitzenmacher 2001): nearly as even as the least loaded, and no herd runs
    to one backend when counters are old."""

    def __init__(self, seed: int = 0) -> None:
        self._draw = random.Random(f"p2c/{seed}")

    def choose(self, ticket: Ticket, backends: Sequence[Backend]) -> Backend | None:
        """Two different healthy ones where there are two."""
        usable = sum(1 for backend in backends if backend.healthy and backend.weight > 0)
        if usable == 0:
            return None
        first = self._draw.randrange(usable)
        second = first if usable == 1 else (first + 1 + self._draw.randrange(usable - 1)) % usable
        best, at = None, -1
        for backend in backends:
            if backend.healthy and backend.weight > 0:
                at += 1
                if at in (first, second) and (
                    best is None
                    or requests_in_flight(ticket, backend) / backend.weight
                    < requests_in_flight(ticket, best) / best.weight
                ):
                    best = backend
        return best


class LengthBucket:
    """Prompts of like length to the backends of their bucket. `edges`: the first length of each bucket but the first.

    A conversation that grows over an edge stays where it is until it is `hysteresis` (a share) beyond it, for its cache
    is there. Where all of a bucket carry more than `spill` times the mean of all backends, or the bucket has no healthy
    backend, the least loaded of all takes the request: a static bucket idles when the mix drifts.
    """

    def __init__(self, edges: Sequence[int], *, hysteresis: float = 0.25, spill: float = 1.5) -> None:
        if not edges or any(a >= b for a, b in itertools.pairwise(edges)) or edges[0] < 1:
            raise InputError("length buckets", list(edges), "give rising lengths in tokens, such as 512,4096")
        self._edges = tuple(edges)
        self._hysteresis, self._spill = hysteresis, spill
        self._last: OrderedDict[str, int] = OrderedDict()

    def choose(self, ticket: Ticket, backends: Sequence[Backend]) -> Backend | None:
        """The least loaded of the bucket, or of all where the bucket is too full."""
        bucket = self._bucket(ticket)
        inside = anywhere = None
        least_inside = least = math.inf
        total, weights = 0.0, 0.0
        for backend in backends:
            if not backend.healthy or backend.weight <= 0:
                continue
            load = requests_in_flight(ticket, backend) / backend.weight
            total, weights = total + backend.in_flight + 1.0, weights + backend.weight
            if load < least:
                anywhere, least = backend, load
            if backend.bucket in (None, bucket) and load < least_inside:
                inside, least_inside = backend, load
        if inside is None or least_inside > self._spill * total / weights:
            return anywhere
        return inside

    def _bucket(self, ticket: Ticket) -> int:
        now = sum(ticket.prompt_tokens >= edge for edge in self._edges)
        if ticket.prefix is None:
            return now
        before = self._last.pop(ticket.prefix, now)
        grown = now == before + 1 and ticket.prompt_tokens < self._edges[before] * (1 + self._hysteresis)
        shrunk = now == before - 1 and ticket.prompt_tokens >= self._edges[now] * (1 - self._hysteresis)
        if grown or shrunk:
            now = before
        self._last[ticket.prefix] = now
        if len(self._last) > MOST_KEYS:
            self._last.popitem(last=False)
        return now


class PrefixAffinity:
    """Requests of one prefix to one backend, as long as that has no more than `bound` times its fair share in flight:
    rendezvous hashing (Thaler and Ravishankar 1998) with bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018). A
    backend that comes or goes moves its own prefixes alone. Without a prefix: the fewest requests in flight."""

    def __init__(self, bound: float = 1.25) -> None:
        if not bound >= 1.0:
            raise InputError("bound", bound, "a share of the mean load, 1 or more, such as 1.25")
        self._bound = bound
        self._plain = Least(requests_in_flight)

    def choose(self, ticket: Ticket, backends: Sequence[Backend]) -> Backend | None:
        """The prefix's first choice that has room."""
        if ticket.prefix is None:
            return self._plain.choose(ticket, backends)
        total, weights = 1, 0.0
        for backend in backends:
            if backend.healthy and backend.weight > 0:
                total, weights = total + backend.in_flight, weights + backend.weight
        best, most = None, -math.inf
        for backend in backends:
            if not backend.healthy or backend.weight <= 0:
                continue
            if backend.in_flight >= math.ceil(self._bound * total * backend.weight / weights):
                continue
            score = -backend.weight / math.log(_unit(ticket.prefix, backend.name))
            if score > most:
                best, most = backend, score
        return best


def _unit(key: str, name: str) -> float:
    """A number in (0, 1) that the pair always has, in every process."""
    digest = blake2b(f"{key}\0{name}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 1) / (2**64 + 2)


class ShortestFirst:
    """A queue that gives out the least work first, where work is prompt tokens that the cache does not hold plus
    expected ones. Waiting counts: a request loses `aging_tokens_per_s` of its work for each second, so none starves
    (0: pure shortest first). All age alike, so the order of two never changes and a heap holds it: O(log n)."""

    def __init__(self, aging_tokens_per_s: float = 0.0) -> None:
        if not aging_tokens_per_s >= 0.0:
            raise InputError("aging", aging_tokens_per_s, "tokens a second, 0 or more")
        self._aging = aging_tokens_per_s
        self._heap: list[tuple[float, int, Ticket]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, ticket: Ticket, now_ns: int, cached_tokens: int = 0) -> None:
        """`ticket` begins to wait."""
        work = max(0, ticket.prompt_tokens - cached_tokens) + ticket.expected_output
        heapq.heappush(self._heap, (work + self._aging * now_ns * 1e-9, self._count, ticket))
        self._count += 1

    def pop(self) -> Ticket:
        """The next one; IndexError where none waits."""
        return heapq.heappop(self._heap)[2]


def policy_of(name: str, seed: int = 0, edges: Sequence[int] = (512, 4096)) -> Policy:
    """A policy by its name, one of `POLICIES`, with an empty memory. Raises InputError for another name."""
    makers: dict[str, Callable[[], Policy]] = {
        "round-robin": RoundRobin,
        "least-requests": lambda: Least(requests_in_flight),
        "p2c": lambda: TwoChoices(seed),
        "least-tokens": lambda: Least(TokensInFlight()),
        "length-bucket": lambda: LengthBucket(edges),
        "prefix-affinity": PrefixAffinity,
    }
    if name not in makers:
        raise InputError("routing policy", name, f"use one of {', '.join(POLICIES)}")
    return makers[name]()


POLICIES = ("round-robin", "least-requests", "p2c", "least-tokens", "length-bucket", "prefix-affinity")


def predicted(seconds: Callable[[Ticket, Backend], float]) -> Policy:
    """The backend that is predicted to be done with the ticket first: `seconds` says when, by whatever model it has.
    The prediction knows how fast a backend is, so weights do not divide it."""
    return Least(lambda ticket, backend: seconds(ticket, backend) * backend.weight)

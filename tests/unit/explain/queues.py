"""Queues of known answer, simulated event by event, as timelines. They share no code with what reads them."""

from __future__ import annotations

import random
from heapq import heappop, heappush

import msgspec

from phasemeter.record.engine import Outcome
from phasemeter.record.request import Cell, Usage
from phasemeter.record.timeline import Timeline
from unit.explain.builders import header, run

MS = 1_000_000


def arrivals(rate_per_s, n, seed=0, *, poisson=True):
    """Seconds."""
    rng, t, found = random.Random(seed), 0.0, []
    for _ in range(n):
        found.append(t)
        t += rng.expovariate(rate_per_s) if poisson else 1.0 / rate_per_s
    return found


def served(arrived_s, service_s, servers=1):
    """First come, first served by `servers`, each request for `service_s(i)`: (start, end) of service, seconds."""
    free = [0.0] * servers
    found = []
    for i, at in enumerate(arrived_s):
        start = max(at, heappop(free))
        end = start + service_s(i)
        heappush(free, end)
        found.append((start, end))
    return found


def request(name, cell, at_s, first_s, end_s, tokens=5, outcome=Outcome.OK):
    """Arrives, is sent at once, has its first token at `first_s` and its last at `end_s`."""
    at, first, end = (round(s * 1e9) for s in (at_s, first_s, end_s))
    gap = (end - first) // max(1, tokens - 1)
    made = outcome is Outcome.OK
    deltas = (first - at, *[gap] * (tokens - 1)) if made else ()
    return Timeline(
        id=name,
        cell=cell,
        max_tokens=tokens,
        outcome=outcome,
        arrived_ns=at,
        started_ns=at,
        connected_ns=at,
        sent_ns=at,
        end_ns=max(end, at + sum(deltas)),
        deltas_ns=deltas,
        kinds="t" * len(deltas),
        counts=(1,) * len(deltas) if made else None,
        usage=Usage(cell.input_tokens, tokens) if made else None,
        error=None if made else "broke",
    )


def md1(rate_per_s, n=2000, service_s=0.1, seed=0, *, at_s=0.0, block=0, decode_s=0.0, servers=1, bad=()):
    """An open loop at one queue: the first token comes when the service ends. Mean wait of a stable one (M/D/1):
    rho / (2 (1 - rho)) services. `bad` requests fail at their service's end."""
    cell = Cell(64, 5, concurrency=None, rate_per_s=rate_per_s, block=block)
    came = arrivals(rate_per_s, n, seed)
    return [
        request(
            f"q{rate_per_s:g}-{block}-{i}", cell, at_s + at, at_s + end, at_s + end + decode_s,
            outcome=Outcome.ERROR_IN_STREAM if i in bad else Outcome.OK,
        )
        for i, (at, (_, end)) in enumerate(zip(came, served(came, lambda _: service_s, servers), strict=True))
    ]  # fmt: skip


def closed(concurrency, n=1000, service_s=0.1, servers=4, seed=0, *, at_s=0.0, block=0, slower=0.0):
    """A closed loop: every slot sends its next request when its last has ended. Service times are exponential;
    `slower` stretches them evenly to (1 + slower) times at the end."""
    rng = random.Random(seed)
    cell = Cell(64, 5, concurrency=concurrency, block=block)
    slots, free, found = [0.0] * concurrency, [0.0] * servers, []
    for i in range(n):
        at = heappop(slots)
        start = max(at, heappop(free))
        end = start + rng.expovariate(1 / service_s) * (1 + slower * i / n)
        heappush(free, end)
        heappush(slots, end)
        found.append(
            request(f"c{concurrency}-{block}-{i}", cell, at_s + at, at_s + start + 0.001, at_s + end)
        )
    return found


def sweep(*stages):
    """Stages one after another, a second apart, as a run."""
    found, at = [], 0.0
    for stage in stages:
        shift = round(at * 1e9) - min(t.arrived_ns for t in stage)
        found += [
            msgspec.structs.replace(
                t,
                arrived_ns=t.arrived_ns + shift,
                started_ns=t.started_ns + shift,
                connected_ns=t.connected_ns + shift,
                sent_ns=t.sent_ns + shift,
                end_ns=t.end_ns + shift,
            )
            for t in stage
        ]
        at = max(t.end_ns for t in found) / 1e9 + 1.0
    return run(*found, header=header(settings={"driver": "open loop"}))

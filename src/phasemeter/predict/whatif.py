"""What if: a discrete-event simulation of continuous-batching replicas, driven by a model of their steps.

Events are a client's sends, arrivals at an engine and ends of spans of steps (`whatif_engine`), handled in order of
time; what arrives at the very moment at which a step ends is seen by the next one. A sent request is routed at once
(several replicas: a policy of `routing` chooses by the requests and tokens in flight), passes the replica's front end
(`whatif_front_end`), and waits in the engine's queue. Its tokens are there when their step ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from phasemeter.predict.routing import Backend, Policy, RoundRobin, Ticket, give_back, prefilled, take
from phasemeter.predict.steps import StepModel
from phasemeter.predict.whatif_engine import Replica
from phasemeter.predict.whatif_front_end import FrontEnd
from phasemeter.predict.whatif_load import EngineSettings, Traffic, check_settings, check_traffic
from phasemeter.predict.whatif_outcome import Ledger, Outcome, Series
from phasemeter.predict.whatif_times import DecodeTimes
from phasemeter.record.errors import InputError

MOST_REPLICAS = 1024
_SENT, _SHARED, _ARRIVED = 0, 1, 2


def simulate(
    traffic: Traffic,
    settings: EngineSettings,
    models: StepModel | Sequence[StepModel],
    *,
    replicas: int = 1,
    policy: Policy | None = None,
) -> Outcome:
    """Play `traffic` on `replicas` engines to the end of its last request. `models`: one for all, or one for each
    replica. Pure; a policy keeps what it has learnt, so give a new one. Raises InputError."""
    check_settings(settings)
    check_traffic(traffic, settings)
    if not 1 <= replicas <= MOST_REPLICAS:
        raise InputError("replicas", replicas, f"from 1 to {MOST_REPLICAS}")
    each: list[StepModel] = list(models) if isinstance(models, Sequence) else [models] * replicas
    if len(each) != replicas:
        raise InputError("models", f"{len(each)} models", f"give one, or one for each of {replicas} replicas")
    return _Simulation(traffic, settings, each, policy or RoundRobin()).play()


class _Simulation:
    """The event loop. Held together because every event touches most of it."""

    def __init__(
        self, traffic: Traffic, settings: EngineSettings, models: list[StepModel], policy: Policy
    ) -> None:
        self._traffic, self._policy = traffic, policy
        self._n = len(traffic.input_tokens)
        self._ledger = Ledger(self._n)
        times = {id(model): DecodeTimes(model) for model in models}
        self._replicas = [
            Replica(settings, model, times[id(model)], traffic, self._ledger) for model in models
        ]
        self._front_ends = [FrontEnd(model) for model in models]
        self._backends = [Backend(str(i)) for i in range(len(models))] if len(models) > 1 else []
        self._tickets: dict[int, Ticket] = {}
        self._followers = _followers(traffic)
        self._coming: list[tuple[float, int, int]] = []
        """(moment, `_SENT` or `_SHARED` or `_ARRIVED`, request; of a shared front end its replica)."""
        self._next = 0
        self._spans: list[tuple[float, int]] = []
        self._busy_s = 0.0
        self._series = Series()

    def play(self) -> Outcome:
        """All events in order."""
        self._seed()
        coming, spans = self._coming, self._spans
        while coming or spans:
            now_s = coming[0][0] if coming else spans[0][0]
            if spans and spans[0][0] < now_s:
                now_s = spans[0][0]
            ready = self._complete(now_s)
            while coming and coming[0][0] <= now_s:
                _, kind, i = heapq.heappop(coming)
                if kind == _ARRIVED:
                    self._deliver(i, now_s, ready)
                elif kind == _SENT:
                    self._send(i, now_s)
                else:
                    self._share(i, now_s)
            for which in ready:
                replica = self._replicas[which]
                if replica.begin(now_s):
                    heapq.heappush(spans, (replica.end_s, which))
            if self._series.due():
                self._sample(now_s)
        return self._outcome()

    def _complete(self, now_s: float) -> list[int]:
        """End the spans that end now; the replicas that they leave ready for another."""
        ready: list[int] = []
        spans = self._spans
        while spans and spans[0][0] <= now_s:
            end_s, which = heapq.heappop(spans)
            replica = self._replicas[which]
            if not replica.steps or replica.end_s != end_s:
                continue  # was cut
            self._busy_s += replica.end_s - replica.start_s
            ended = replica.complete()
            if self._backends:
                for i in replica.firsts:
                    prefilled(self._backends[which], self._tickets[i])
            for i in ended:
                self._left(i, end_s)
            replica.steps = 0
            ready.append(which)
        return ready

    def _deliver(self, i: int, now_s: float, ready: list[int]) -> None:
        which = self._ledger.replica[i]
        replica = self._replicas[which]
        self._ledger.arrived(i, now_s)
        replica.enqueue(i)
        if not replica.steps:
            if which not in ready:
                ready.append(which)
        elif replica.cut(now_s):
            heapq.heappush(self._spans, (replica.end_s, which))

    def _send(self, i: int, now_s: float) -> None:
        which = self._ledger.replica[i] = self._route(i) if self._backends else 0
        front_end, tokens = self._front_ends[which], self._traffic.input_tokens[i]
        if not front_end.shared:
            heapq.heappush(self._coming, (now_s + front_end.alone_s(tokens), _ARRIVED, i))
        elif front_end.enter(i, tokens, now_s):
            heapq.heappush(self._coming, (front_end.next_s, _SHARED, which))

    def _share(self, which: int, now_s: float) -> None:
        front_end = self._front_ends[which]
        if front_end.next_s != now_s:
            return  # others have come since, so it is later
        for i, rest_s in front_end.leave(now_s):
            heapq.heappush(self._coming, (now_s + rest_s, _ARRIVED, i))
        if front_end.next_s >= 0.0:
            heapq.heappush(self._coming, (front_end.next_s, _SHARED, which))

    def _route(self, i: int) -> int:
        ticket = self._tickets[i] = self._traffic.ticket(i)
        chosen = self._policy.choose(ticket, self._backends)
        if chosen is None:
            raise InputError("routing policy", "no backend", "it must choose one while all are healthy")
        take(chosen, ticket)
        return int(chosen.name)

    def _left(self, i: int, now_s: float) -> None:
        if self._backends:
            give_back(self._backends[self._ledger.replica[i]], self._tickets.pop(i))
        if self._traffic.users is not None:
            if self._next < self._n:
                self._issue(self._next, now_s)
                self._next += 1
        else:
            for j in self._followers.get(i, ()):
                self._issue(j, now_s)

    def _issue(self, i: int, now_s: float) -> None:
        """Request `i` is sent after its pause."""
        think_s = self._traffic.think_s
        issued_s = self._ledger.issued_s[i] = now_s + (think_s[i] if think_s is not None else 0.0)
        heapq.heappush(self._coming, (issued_s, _SENT, i))

    def _seed(self) -> None:
        users, arrive_s = self._traffic.users, self._traffic.arrive_s
        if arrive_s is None:
            self._next = min(self._n, users or 1)
            for i in range(self._next):
                self._issue(i, 0.0)
            return
        follow = self._traffic.after
        for i in range(self._n):
            if follow is None or follow[i] < 0:
                self._ledger.issued_s[i] = arrive_s[i]
                self._coming.append((arrive_s[i], _SENT, i))
        heapq.heapify(self._coming)

    def _sample(self, now_s: float) -> None:
        running = sum(len(replica.running) for replica in self._replicas)
        used = sum(replica.pool.blocks - replica.pool.free for replica in self._replicas)
        self._series.add((now_s, running, self._ledger.waiting, used))

    def _outcome(self) -> Outcome:
        import numpy as np

        ledger = self._ledger
        present, waiting = ledger.areas()
        issued = np.array(ledger.issued_s)
        lasted = max(ledger.ended_s) - float(issued.min())
        over = max(lasted, 1e-300)
        gaps = np.array([gap for gap, _ in ledger.gaps], dtype=np.float64)
        return Outcome(
            issued_s=issued,
            arrived_s=np.array(ledger.arrived_s),
            scheduled_s=np.array(ledger.scheduled_s),
            first_s=np.array(ledger.first_s),
            ended_s=np.array(ledger.ended_s),
            input_tokens=np.array(self._traffic.input_tokens, dtype=np.int64),
            output_tokens=np.array(self._traffic.output_tokens, dtype=np.int64),
            cached_tokens=np.array(ledger.cached, dtype=np.int64),
            preemptions=np.array(ledger.preemptions, dtype=np.int64),
            replica=np.array(ledger.replica, dtype=np.int64),
            gaps_s=gaps,
            gap_counts=np.array([count for _, count in ledger.gaps], dtype=np.int64),
            series=np.array(self._series.rows, dtype=np.float64),
            present=present / over,
            waiting=waiting / over,
            busy_ratio=self._busy_s / over / len(self._replicas),
            kv_left=sum(replica.pool.blocks - replica.pool.free for replica in self._replicas),
        )


def _followers(traffic: Traffic) -> dict[int, list[int]]:
    """Of each request those that wait for its end."""
    found: dict[int, list[int]] = {}
    for i, before in enumerate(traffic.after or ()):
        if before >= 0:
            found.setdefault(before, []).append(i)
    return found

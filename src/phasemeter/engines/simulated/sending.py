"""Sends one answer: every write at its absolute time, stamped right before it, and logged when the answer is
over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from msgspec import Struct

from phasemeter.engines.simulated.http import Connection
from phasemeter.engines.simulated.log import Entry
from phasemeter.engines.simulated.plan import Plan
from phasemeter.engines.simulated.wire import Write
from phasemeter.record.clock import Clock


class Subject(Struct, frozen=True):
    """Which request is answered, as the log names it."""

    id: str
    serial: int
    path: str
    model: str
    streaming: bool
    prompt_tokens: int
    max_tokens: int
    received_ns: int
    keep_alive: bool


class Sending:
    """One answer on its way. `over` is called once with its log entry and the time at which its slot is free.

    The time of a write is receipt or slot plus its offset: a late write does not make the next one late.
    """

    def __init__(
        self,
        subject: Subject,
        plan: Plan,
        writes: Iterator[Write],
        connection: Connection,
        clock: Clock,
        over: Callable[[Entry, int], None],
    ) -> None:
        self._subject = subject
        self._plan = plan
        self._writes = writes
        self._connection = connection
        self._clock = clock
        self._over = over
        self._start_ns: int | None = None
        self._due_ns = subject.received_ns
        self._timer: asyncio.TimerHandle | None = None
        self._planned: list[int] = []
        self._sent: list[int] = []
        self._kinds: list[str] = []
        self._tokens: list[int] = []
        self._slow_writes = 0
        self._ended = False
        self._next = next(writes)
        connection.on_lost = self._lost

    def begin(self, start_ns: int) -> None:
        """The slot is ours from `start_ns` on."""
        self._start_ns = start_ns
        asyncio.get_running_loop().call_soon(self.go_on)

    def go_on(self) -> None:
        """Send what is due, and come back for the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for _ in range(_WRITES_A_TURN):
            if self._ended:
                return
            base_ns = self._subject.received_ns if self._next.at_receipt else self._start_ns
            if base_ns is None:
                return  # waits for a slot
            self._due_ns = max(self._due_ns, base_ns + self._next.offset_ns)
            now_ns = self._clock.now_ns()
            if now_ns < self._due_ns:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later((self._due_ns - now_ns) / 1e9, self.go_on)
                return
            self._send(now_ns)
        asyncio.get_running_loop().call_soon(self.go_on)  # let the others have a turn

    def stop(self) -> None:
        """The server stops: log what was sent so far."""
        if not self._ended:
            self._end("server_stopped", self._clock.now_ns())

    def _send(self, now_ns: int) -> None:
        write = self._next
        if write.kind == "hang":
            # nothing more comes; a due time out of reach keeps the stream open until the client gives up
            self._next = Write(_NEVER_NS, b"", "hang")
            return
        if write.kind == "reset":
            self._note(write, now_ns)
            self._end(self._fault_name(), self._due_ns)
            self._connection.reset()
            return
        if write.data or write.kind != "end":
            self._note(write, now_ns)
            self._slow_writes += not self._connection.write(write.data)
        if write.kind == "end":
            self._end(self._fault_name(), self._due_ns)
            self._connection.finish(keep_alive=self._subject.keep_alive)
            return
        self._next = next(self._writes)

    def _note(self, write: Write, now_ns: int) -> None:
        self._planned.append(self._due_ns - self._subject.received_ns)
        self._sent.append(now_ns)
        self._kinds.append(write.kind)
        self._tokens.append(write.n_tokens)

    def _lost(self) -> None:
        if not self._ended:
            self._end("client_aborted", self._clock.now_ns())

    def _fault_name(self) -> str:
        return f"fault:{self._plan.faults[0]}" if self._plan.faults else "completed"

    def _end(self, outcome: str, free_ns: int) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        subject, plan = self._subject, self._plan
        planned = tuple(self._planned)
        lateness = [sent - subject.received_ns - due for sent, due in zip(self._sent, planned, strict=True)]
        entry = Entry(
            id=subject.id,
            serial=subject.serial,
            connection=self._connection.number,
            path=subject.path,
            model=subject.model,
            stream=subject.streaming,
            outcome=outcome,
            status=200,
            received_ns=subject.received_ns,
            end_ns=self._clock.now_ns(),
            prompt_tokens=subject.prompt_tokens,
            max_tokens=subject.max_tokens,
            cached_tokens=plan.usage.cached_tokens,
            start_ns=self._start_ns,
            queue_ns=None if self._start_ns is None else self._start_ns - subject.received_ns + plan.queue_ns,
            prefill_ns=plan.prefill_ns,
            decode_ns=plan.decode_ns,
            sent_tokens=sum(self._tokens),
            planned_ns=planned,
            sent_ns=tuple(self._sent),
            kinds=tuple(self._kinds),
            tokens=tuple(self._tokens),
            late_max_ns=max(lateness, default=None),
            slow_reader_writes=self._slow_writes,
            faults=plan.faults,
        )
        self._over(entry, free_ns)


_NEVER_NS = 10**18
_WRITES_A_TURN = 64

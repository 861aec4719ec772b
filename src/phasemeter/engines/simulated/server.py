"""A real server of known truth on loopback: OpenAI's API, scripted behaviour, and a log of what was sent and
when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from phasemeter.engines.simulated.admission import Place, Slots, Turn, Turns
from phasemeter.engines.simulated.api import CHAT, COMPLETIONS, ApiError, Limits, Wanted, read_body
from phasemeter.engines.simulated.http import Connection, Incoming
from phasemeter.engines.simulated.log import Entry, Log
from phasemeter.engines.simulated.plan import Plan, make_plan
from phasemeter.engines.simulated.script import Behaviour, Script, Status
from phasemeter.engines.simulated.sending import Sending, Subject
from phasemeter.engines.simulated.truth import Truth, rng_of
from phasemeter.engines.simulated.wire import Voice, answer_writes, error_body, head
from phasemeter.record.clock import Clock, MonotonicClock, anchor
from phasemeter.record.errors import InputError

BUSY_STREAMS = 8
"""Up to so many streams at once the loop spins for exact timers; with more, the cores are needed for
sending."""


class Settings(Struct, frozen=True):
    """How to serve. `faults` hold for every request, `script` goes over them, `x_simulate` over both."""

    host: str = "127.0.0.1"
    port: int = 0
    limits: Limits = Limits(models=("simulated",))
    faults: Behaviour = Behaviour()
    script: Script | None = None
    log_path: Path | None = None


async def start_server(
    truth: Truth,
    settings: Settings | None = None,
    *,
    clock: Clock | None = None,
    on_load: Callable[[int], None] | None = None,
) -> SimulatedServer:
    """Start serving on the running loop; port 0 takes a free one. `on_load` hears the number of streams.

    Raises InputError when the port is taken, the host unknown or the log file cannot be written.
    """
    server = SimulatedServer(truth, settings or Settings(), clock or MonotonicClock(), on_load)
    await server.open()
    return server


class SimulatedServer:
    """The server. `url` is the base of the API, `log` what was sent; `close` stops it and ends the log."""

    def __init__(
        self, truth: Truth, settings: Settings, clock: Clock, on_load: Callable[[int], None] | None = None
    ) -> None:
        self._truth = truth
        self._settings = settings
        self._clock = clock
        self._on_load = on_load
        self._anchor = anchor(clock)
        self._slots = Slots(truth.slots)
        self._turns = Turns(settings.faults, settings.script)
        self._connections: set[Connection] = set()
        self._connected = 0
        self._sendings: set[Sending] = set()
        self._server: asyncio.Server | None = None
        self.log = Log(settings.log_path)
        self.port = settings.port

    @property
    def url(self) -> str:
        """Base URL of the API, ending in /v1."""
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return f"http://{host}:{self.port}/v1"

    async def open(self) -> None:
        """Bind and listen. Raises InputError when that fails."""
        settings = self._settings
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._connection, settings.host, settings.port, backlog=4096
            )
        except (OSError, OverflowError) as error:
            self.log.close()
            why = getattr(error, "strerror", None) or str(error)
            raise InputError(
                "--host and --port",
                f"{settings.host} {settings.port}",
                f"cannot listen there ({why}); name another port, or 0 for a free one",
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, end every stream, flush the log. Safe to call twice."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for sending in tuple(self._sendings):
            sending.stop()
        for connection in tuple(self._connections):
            connection.close()
        await asyncio.sleep(0)  # the transports end in their next turn of the loop
        await server.wait_closed()
        self.log.close()

    def _connection(self) -> Connection:
        self._connected += 1
        connection = Connection(self._handle, self._clock, self._connected, self._connections.discard)
        self._connections.add(connection)
        return connection

    def _handle(self, request: Incoming, connection: Connection) -> None:
        try:
            self._route(request, connection)
        except ApiError as error:
            self._refuse(
                request, connection, error.status, error_body(error.status, error.message, error.param)
            )

    def _route(self, request: Incoming, connection: Connection) -> None:
        path = request.path.rstrip("/") or "/"
        if path in (COMPLETIONS, CHAT):
            _only(request, "POST")
            self._generate(path, request, connection)
        elif path in _PAGES:
            _only(request, "GET")
            kind, body = _PAGES[path](self, request)
            _answer(request, connection, 200, kind, body)
        else:
            raise ApiError(404, f"Not Found: {request.path}")

    def _generate(self, path: str, request: Incoming, connection: Connection) -> None:
        wanted = read_body(path, request.body, self._settings.limits)
        behaviour = self._turns.behaviour(wanted.own, path, wanted.model)
        if behaviour.status is not None:
            self._refuse_with(behaviour.status, request, connection)
            return
        turn = self._turns.take(wanted.ask.prompt_tokens, wanted.ask.max_tokens)
        try:
            plan = make_plan(
                self._truth, behaviour, wanted.ask, turn.of_shape, rng_of(self._truth, turn.serial)
            )
        except InputError as error:
            raise ApiError(400, str(error), "x_simulate") from None
        self._send(path, request, connection, wanted, behaviour, (turn, plan))

    def _send(
        self,
        path: str,
        request: Incoming,
        connection: Connection,
        wanted: Wanted,
        behaviour: Behaviour,
        planned: tuple[Turn, Plan],
    ) -> None:
        turn, plan = planned
        # an HTTP/1.0 client and a truncated document can only be told the end by closing
        streaming = wanted.streaming and not behaviour.not_streaming
        cut_short = not streaming and plan.end.value == "truncated"
        keep_alive = request.keep_alive and not behaviour.close_connection and not cut_short
        keep_alive = keep_alive and (request.http11 or not streaming)
        subject = Subject(
            id=request.headers.get("x-request-id") or f"sim-{turn.serial}",
            serial=turn.serial,
            path=path,
            model=wanted.model,
            streaming=wanted.streaming,
            prompt_tokens=wanted.ask.prompt_tokens,
            max_tokens=wanted.ask.max_tokens,
            received_ns=request.received_ns,
            keep_alive=keep_alive,
        )
        voice = Voice(
            id=subject.id,
            model=wanted.model,
            created_s=(self._anchor.wall_ns + request.received_ns - self._anchor.clock_ns) // 10**9,
            chat=wanted.ask.chat,
            chunked=request.http11,
            keep_alive=keep_alive,
        )

        def over(entry: Entry, free_ns: int) -> None:
            self._sendings.discard(sending)
            self._loaded()
            self.log.add(entry)
            self._slots.leave(place, free_ns)

        writes = answer_writes(plan, behaviour, voice, streaming=streaming)
        sending = Sending(subject, plan, writes, connection, self._clock, over)
        self._sendings.add(sending)
        self._loaded()
        place = Place(sending.begin)
        self._slots.enter(place, request.received_ns)
        sending.go_on()

    def _loaded(self) -> None:
        if self._on_load is not None:
            self._on_load(len(self._sendings))

    def _refuse_with(self, status: Status, request: Incoming, connection: Connection) -> None:
        body = error_body(status.code, f"status {status.code} as scripted")
        wait = status.retry_after_s
        self._refuse(
            request, connection, status.code, body, {} if wait is None else {"retry-after": f"{wait:g}"}
        )

    def _refuse(
        self,
        request: Incoming,
        connection: Connection,
        status: int,
        body: bytes,
        more: dict[str, str] | None = None,
    ) -> None:
        sent_ns = self._clock.now_ns()
        _answer(request, connection, status, "application/json", body, more)
        self.log.add(
            Entry(
                id=request.headers.get("x-request-id", ""),
                serial=-1,
                connection=connection.number,
                path=request.path,
                model="",
                stream=False,
                outcome=f"status:{status}",
                status=status,
                received_ns=request.received_ns,
                end_ns=sent_ns,
                planned_ns=(0,),
                sent_ns=(sent_ns,),
                kinds=("body",),
                tokens=(0,),
            )
        )

    def models_page(self) -> bytes:
        """`GET /v1/models`."""
        limits = self._settings.limits
        created_s = self._anchor.wall_ns // 10**9
        shape = {"object": "model", "created": created_s, "owned_by": "phasemeter"}
        context = limits.max_context_tokens
        data = [{"id": name, "max_model_len": context} | shape for name in limits.models]
        return msgspec.json.encode({"object": "list", "data": data})

    def log_page(self, query: str) -> bytes:
        """`GET /log`, with `?last=N` the last N requests. Raises ApiError."""
        last = parse_qs(query).get("last", [None])[0]
        if last is not None and not last.isdecimal():
            raise ApiError(400, "last must be a whole number", "last")
        entries = self.log.entries(None if last is None else int(last))
        return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


def _only(request: Incoming, method: str) -> None:
    if request.method != method:
        raise ApiError(405, f"{request.path} takes {method} only")


def _answer(
    request: Incoming,
    connection: Connection,
    status: int,
    kind: str,
    body: bytes,
    more: dict[str, str] | None = None,
) -> None:
    fields = {
        "content-type": kind,
        "content-length": str(len(body)),
        "connection": "keep-alive" if request.keep_alive else "close",
    }
    connection.write(head(status, fields | (more or {})) + body)
    connection.finish(keep_alive=request.keep_alive)


_Page = Callable[[SimulatedServer, Incoming], tuple[str, bytes]]
_PAGES: dict[str, _Page] = {
    "/v1/models": lambda server, _: ("application/json", server.models_page()),
    "/health": lambda _server, _request: ("text/plain", b""),
    "/version": lambda _server, _request: ("application/json", b'{"version":"phasemeter-simulate"}'),
    "/log": lambda server, request: ("application/jsonlines", server.log_page(request.query)),
}

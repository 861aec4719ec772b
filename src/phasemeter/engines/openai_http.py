"""The `openai` engine: any server that speaks the OpenAI streaming API over HTTP/1.1.

The data path, left to right: `http_request` writes the bytes, `http_pool` finds a connection, `http_wire`
stamps what comes back, `http_watch` ends what takes too long; later, `http_settle` reads the kept bytes
through `http_sse` and `http_chunks`. `http_probe` runs once, in `start`."""

from __future__ import annotations

from phasemeter.engines.http_pool import Pool
from phasemeter.engines.http_probe import Found, Probe
from phasemeter.engines.http_request import PATHS, HttpOptions, Writer, body_of, check_options
from phasemeter.engines.http_settle import HttpReply
from phasemeter.engines.http_watch import HttpTimeouts
from phasemeter.record.engine import EngineInfo
from phasemeter.record.errors import EngineError
from phasemeter.record.request import Request
from phasemeter.record.scrape import MetricsPlace

__all__ = ["HttpOptions", "HttpTimeouts", "OpenAIHttp"]


class OpenAIHttp:
    """A client of one server, for one event loop (asyncio's own or uvloop). Raises InputError for bad
    options."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._target = check_options(options)
        self._writer = Writer(self._target, options)
        self._pool = Pool(self._target.place, options.timeouts, options.clock, verify_tls=options.verify_tls)
        self._found: Found | None = None

    @property
    def info(self) -> EngineInfo:
        """What the server is; before `start` only what the user said of it."""
        if self._found is not None:
            return self._found.info
        return EngineInfo(
            kind="openai", model=self._options.model or "", url=self._target.url, api=self._options.api
        )

    async def start(self) -> None:
        """Check that the server can be reached and used, and find out what it takes (see `http_probe`).

        Raises EngineError when nothing answers there; InputError for a wrong path, a server that does not
        stream, a refused key or an unknown model."""
        if self._found is None:
            self._found = await Probe(self._pool, self._target, self._options).run()

    async def generate(self, request: Request) -> HttpReply:
        """Send one request and return when its stream has ended; `settle` parses it. Cancellation closes
        the socket."""
        if self._found is None:
            raise EngineError("the engine was not started")
        api = self._options.api
        body = body_of(request, model=self._found.info.model, api=api, accepted=self._found.accepted)
        post = self._writer.post(PATHS[api], body, request.id)
        answer = await self._pool.exchange(post, request.cancel_after_tokens)
        return HttpReply(answer, self._options.clock, self._options.api_key)

    def awaits_first(self) -> bool:
        """Whether a request in flight has yet to get its first token."""
        return self._pool.awaits_first()

    def metrics_place(self) -> MetricsPlace:
        """Where a server of this kind serves its metrics: beside /v1, with the same key."""
        options = self._options
        headers = dict(options.headers)
        if options.api_key is not None:
            headers["Authorization"] = f"Bearer {options.api_key}"
        return MetricsPlace(f"{self._target.url}/metrics", headers, options.verify_tls)

    async def close(self) -> None:
        """Close every connection. Safe to call twice."""
        await self._pool.close()

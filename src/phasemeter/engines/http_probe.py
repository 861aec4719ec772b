"""What a server is and what it takes, found out before anything is measured.

A handful of small requests, one token each, with a prompt that nobody sends twice. What makes every
request pointless (unreachable, wrong path, no stream, key refused, model unknown) raises here with one
plain line. A server that merely refuses or breaks just now does not: failed requests are data, and the run
shows them."""

from __future__ import annotations

import asyncio
import secrets
from http import HTTPStatus

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from phasemeter.engines.http_chunks import UNREADABLE, message_of
from phasemeter.engines.http_pool import Pool
from phasemeter.engines.http_request import PATHS, Accepted, HttpOptions, Target, Writer, body_of
from phasemeter.engines.http_settle import HttpReply
from phasemeter.engines.http_wire import Answer, End
from phasemeter.record.engine import GENERATED, EngineInfo, Outcome, Result
from phasemeter.record.errors import EngineError, InputError
from phasemeter.record.request import Cell, Request, Sampling

_REJECTED = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})
_PROBE_IDS = 8
_PATIENCE_S = 120.0
"""Longest wait for one answer where the user's own time-outs are longer; a cold server may compile first."""
_TRIES = 3
_PAUSE_S = 0.3
_PASSING = frozenset({Outcome.REFUSED, Outcome.RESET})
_TOLD_INSTEAD = frozenset({Outcome.REFUSED, Outcome.ERROR_IN_STREAM})
"""What a server may say inside a 200 instead of answering."""


class _Model(Struct):
    id: str
    max_model_len: int | None = None


class _Models(Struct):
    data: list[_Model] = []


class _Version(Struct):
    version: str


class Found(Struct, frozen=True):
    """The outcome of the probe."""

    info: EngineInfo
    accepted: Accepted


class Probe:
    """One look at one server."""

    def __init__(self, pool: Pool, target: Target, options: HttpOptions) -> None:
        self._pool = pool
        self._target = target
        self._options = options
        self._writer = Writer(target, options)

    async def run(self) -> Found:
        """Raises EngineError (unreachable) or InputError (cannot be used as asked)."""
        model, server = await self._model()
        accepted, details, seen = await self._accepted(model.id)
        version = await self._version()
        if server:
            details["server"] = server
        info = EngineInfo(
            kind="openai",
            model=model.id,
            version=version or server,
            url=self._target.url,
            api=self._options.api,
            takes_token_ids=accepted.token_ids,
            # taken is not yet obeyed: only an output of full length shows that, and checks look at it
            honours_ignore_eos=None if accepted.ignore_eos or not seen else False,
            max_context_tokens=model.max_model_len if (model.max_model_len or 0) > 0 else None,
            details=details,
        )
        return Found(info, accepted)

    async def _model(self) -> tuple[_Model, str | None]:
        """The model to ask for, and what the server calls itself."""
        options = self._options
        answer = await self._exchange(self._writer.get("/v1/models"))
        self._check_reached(answer)
        server = answer.header("server")
        offered = _models(answer)
        if offered is None:
            if options.model is None:
                raise self._no_list(answer)
            return _Model(options.model), server
        if options.model is None:
            if not offered:
                raise InputError(
                    "--model", "none given", f"{self._target.url} offers no model; is one loaded?"
                )
            return offered[0], server
        for model in offered:
            if model.id == options.model:
                return model, server
        names = ", ".join(model.id for model in offered[:8]) or "none"
        raise InputError("--model", options.model, f"{self._target.url} does not have it; on offer: {names}")

    def _check_reached(self, answer: Answer) -> None:
        if answer.status is None:
            error = answer.error or "no response"
            if answer.end in {End.MALFORMED, End.LOST} and not self._target.place.tls:
                error += "; is this an HTTP port, and should the URL begin with https?"
            raise EngineError(f"{self._target.url} cannot be used: {self._hidden(error)}")
        self._check_key(answer.status, message_of(answer.body()))
        if HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST:
            raise InputError(
                "--url",
                self._target.url,
                f"redirects to {answer.header('location')}; redirects are not followed, give that address",
            )

    def _check_key(self, status: int, told: str) -> None:
        if status not in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            return
        given = self._options.api_key is not None
        mend = (
            "the server refuses the key in that variable"
            if given
            else "the server wants a key; name its variable"
        )
        raise InputError(
            "--api-key-env", "given" if given else "not given", f"{mend} ({status}: {self._hidden(told)})"
        )

    def _no_list(self, answer: Answer) -> InputError:
        path = f"{self._target.base}/v1/models"
        if answer.status == HTTPStatus.NOT_FOUND:
            return InputError(
                "--url",
                self._target.url,
                f"GET {path} answered 404; give the root of /v1, or name --model if there is no list",
            )
        told = self._hidden(message_of(answer.body(), limit=120))
        return InputError(
            "--model", "none given", f"GET {path} gave no list ({answer.status}: {told}); name one"
        )

    async def _version(self) -> str | None:
        answer = await self._exchange(self._writer.get("/version"))
        if answer.status != HTTPStatus.OK:
            return None
        try:
            return msgspec.json.decode(answer.body(), type=_Version).version
        except UNREADABLE:
            return None

    async def _accepted(self, model: str) -> tuple[Accepted, dict[str, str], bool]:
        """Ask for everything at once; only a server that rejects that is asked one thing at a time."""
        usage = self._options.stream_usage
        wanted = Accepted(usage, usage, ignore_eos=True, token_ids=self._options.api == "completions")
        result = await self._ask_again(model, wanted)
        if result.status in _REJECTED:
            plain = await self._ask(model, Accepted())
            if plain.status in _REJECTED:
                raise InputError("--model", model, f"the server rejects a plain request: {plain.error}")
            if plain.outcome is not Outcome.OK:
                return Accepted(), {"probe": plain.outcome.value}, False
            accepted = await self._one_by_one(model, wanted)
            result = await self._ask(model, accepted)
        else:
            accepted = wanted
        if result.status != HTTPStatus.OK or result.outcome in _TOLD_INSTEAD:
            # refused or broken just now: nothing was learnt, so ask for no more than what every server takes
            return Accepted(include_usage=usage), {"probe": result.outcome.value}, False
        if accepted.token_ids and not _counted_ids(result):
            accepted = replace(accepted, token_ids=False)
        return accepted, _details(accepted, await self._seen(model, accepted, result)), True

    async def _seen(self, model: str, accepted: Accepted, result: Result) -> Result:
        """An answer with a token to be seen: half a character shows none, and then nobody knows whether chunks carry
        counts. Else two runs on one server would be called unlike by the chance of their first tokens."""
        for _ in range(_TRIES):
            if result.usage is None or any(emission.kind in GENERATED for emission in result.emissions):
                break
            again = await self._ask(model, accepted)
            result = again if again.outcome is Outcome.OK else result
        return result

    async def _one_by_one(self, model: str, wanted: Accepted) -> Accepted:
        found = Accepted()
        for attempt in (
            Accepted(ignore_eos=True),
            Accepted(token_ids=wanted.token_ids),
            Accepted(include_usage=wanted.include_usage, continuous_usage=wanted.continuous_usage),
            Accepted(include_usage=wanted.include_usage),
        ):
            fields = {name: True for name, value in msgspec.structs.asdict(attempt).items() if value}
            if not fields or ("include_usage" in fields and found.include_usage):
                continue
            if (await self._ask(model, attempt)).status == HTTPStatus.OK:
                found = replace(found, **fields)
        return found

    async def _ask(self, model: str, accepted: Accepted) -> Result:
        """One token from a prompt that is new each time. Raises InputError for what no later request can
        mend."""
        ids = tuple(10 + secrets.randbelow(200) for _ in range(_PROBE_IDS)) if accepted.token_ids else None
        request = Request(
            id=f"probe-{secrets.token_hex(4)}",
            cell=Cell(input_tokens=_PROBE_IDS, output_tokens=1, warmup=True),
            max_tokens=1,
            prompt=None if ids else f"{secrets.token_hex(8)} says hello",
            token_ids=ids,
            sampling=Sampling(temperature=0.0),
        )
        api = self._options.api
        body = body_of(request, model=model, api=api, accepted=accepted)
        answer = await self._exchange(self._writer.post(PATHS[api], body, request.id))
        result = HttpReply(answer, self._options.clock, self._options.api_key).settle()
        self._check_usable(result, model)
        return result

    async def _exchange(self, data: bytes) -> Answer:
        limit_s = max(_PATIENCE_S, self._options.timeouts.first_token_s or 0.0)
        try:
            async with asyncio.timeout(limit_s):
                return await self._pool.exchange(data)
        except TimeoutError:
            now_ns = self._options.clock.now_ns()
            return Answer(end=End.TIMEOUT_TOTAL, end_ns=now_ns, error=f"no answer within {limit_s:g} s")

    async def _ask_again(self, model: str, accepted: Accepted) -> Result:
        """Ask; a refusal may pass, so try a few times before giving up."""
        result = await self._ask(model, accepted)
        for _ in range(_TRIES - 1):
            if result.outcome not in _PASSING:
                break
            await asyncio.sleep(_PAUSE_S)
            result = await self._ask(model, accepted)
        return result

    def _check_usable(self, result: Result, model: str) -> None:
        url, path = self._target.url, f"{self._target.base}{PATHS[self._options.api]}"
        if result.status is None and result.outcome is Outcome.CONNECT_FAILED:
            raise EngineError(f"{url} cannot be used: {result.error}")
        if result.status is not None:
            self._check_key(result.status, result.error or "")
        if result.status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}:
            other = next(api for api in PATHS if api != self._options.api)
            raise InputError(
                "--url",
                url,
                f"POST {path} with model {model} answered {result.status} ({result.error}); "
                f"give the root under which /v1 lies, or try --api {other}",
            )
        if result.outcome is Outcome.BAD_RESPONSE:
            raise InputError("--url", url, f"POST {path} cannot be measured: {result.error}")

    def _hidden(self, text: str) -> str:
        key = self._options.api_key
        return text.replace(key, "***") if key else text


def _models(answer: Answer) -> list[_Model] | None:
    if answer.status != HTTPStatus.OK:
        return None
    try:
        return msgspec.json.decode(answer.body(), type=_Models).data
    except UNREADABLE:
        return None


def _counted_ids(result: Result) -> bool:
    """Whether the server counted our token ids as we do; one that reads the list as text counts many more."""
    told = result.usage.prompt_tokens if result.usage is not None else None
    return told is None or told == _PROBE_IDS


def _details(accepted: Accepted, result: Result) -> dict[str, str]:
    asked = ["include_usage"] * accepted.include_usage + [
        "continuous_usage_stats"
    ] * accepted.continuous_usage
    counted = any(e.n_tokens is not None for e in result.emissions if e.kind in GENERATED)
    seen = "with every chunk" if counted else "at the end" if result.usage is not None else "none"
    return {"stream_options": "+".join(asked) or "none", "usage": seen}

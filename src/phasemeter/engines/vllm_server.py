"""A vLLM server: started by us in its own environment and stopped with its whole tree, or found at a URL.

The traffic goes through `OpenAIHttp`, like that of any server; what is added here is the start, what vLLM's log tells
of it, and what our plugin (`vllm_seen`) and its spans (`vllm_spans`) tell of each request, joined by request id when
the run is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from phasemeter.engines.http_request import HttpOptions
from phasemeter.engines.http_settle import HttpReply
from phasemeter.engines.openai_http import OpenAIHttp
from phasemeter.engines.vllm_flags import check_known, check_ours, known_flags, value_of
from phasemeter.engines.vllm_install import Installed, find_vllm, mended_path, vllm_environment
from phasemeter.engines.vllm_plan import Chosen, Plan, choose_model, plan_of
from phasemeter.engines.vllm_reasons import known_reason, reason_of
from phasemeter.engines.vllm_seen import FILE_VARIABLE, STEPS_VARIABLE, SeenFile, plugin_path
from phasemeter.engines.vllm_spans import SPANS_FLAG, SpanReceiver, check_spans, spans_environment
from phasemeter.engines.vllm_startup import LogReader, StartUp
from phasemeter.launch.child import Child, Command, Death, DiedError, NotReadyError, StartError
from phasemeter.record.clock import Clock, MonotonicClock
from phasemeter.record.engine import EngineInfo, EngineStep, Outcome, SeenRequest
from phasemeter.record.errors import EngineError, InputError
from phasemeter.record.request import Cell, Request, Sampling
from phasemeter.record.scrape import MetricsPlace
from phasemeter.roofline.shape import ModelShape

KIND = "vllm"
_HOST = "127.0.0.1"
_STOP_GRACE_S = 15.0
_LAST_BREATH_S = 10.0
_REASON_LINES = 400
"""So many last lines are searched for the reason of a death; far fewer are shown."""


class VllmServerOptions(Struct, frozen=True):
    """What to serve and how.

    http         how to use the server; its `url` is "" for a server that we start
    model        hub name, model folder, or (with `config`) the name of an architecture preset
    python       the interpreter that can import vllm; None takes our own
    flags        flags of `vllm serve`, as the user gave them
    dtype        "auto", "float32", "bfloat16" or "float16"
    device       "auto", "cpu", "cuda" or "cuda:N"
    config       a Hugging Face config for a preset: it is then served with random weights
    environment  the environment variables that the server's are made from
    cache        folder for what is worth keeping between starts, or None
    log          file for what the server prints; None keeps it in a temporary one
    plugin       tell what the engine saw of each request; steps: of each engine step as well
    spans        receive its OpenTelemetry spans
    start_s      seconds to become ready
    """

    http: HttpOptions
    model: str | None = None
    python: str | None = None
    flags: tuple[str, ...] = ()
    dtype: str = "auto"
    device: str = "auto"
    config: Mapping[str, object] | None = None
    environment: Mapping[str, str] = {}
    cache: Path | None = None
    log: Path | None = None
    plugin: bool = True
    steps: bool = False
    spans: bool = False
    clock: Clock = MonotonicClock()
    start_s: float = 1800.0


class VllmServer:
    """Implements `record.engine.Engine` and `Insider`. Raises InputError for options that cannot be used."""

    def __init__(self, options: VllmServerOptions) -> None:
        self._options = options
        self._clock = options.clock
        self._http: OpenAIHttp | None = OpenAIHttp(options.http) if options.http.url else None
        self._chosen: Chosen | None = None
        if self._http is None:
            check_ours(options.flags)
            self._chosen = choose_model(options.model, options.config, options.flags)
        elif options.flags or options.python:
            given = " ".join(options.flags) or str(options.python)
            raise InputError("engine flags", given, "a server at a --url is running already; leave them out")
        elif options.spans:
            mend = "a server at a --url sends its spans where it was told to; leave it out"
            raise InputError("--engine-spans", "given", mend)
        elif options.steps:
            mend = "nobody tells the steps of a server at a --url; leave it out, or have Phasemeter start the server"
            raise InputError("--engine-steps", "given", mend)
        self._child: Child | None = None
        self._seen: SeenFile | None = None
        self._spans: SpanReceiver | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._reader = LogReader()
        self._tell: Callable[[str], None] = lambda _: None
        self._info = EngineInfo(kind=KIND, model=options.model or "", url=options.http.url or None)

    @property
    def info(self) -> EngineInfo:
        """What is served; complete after `start`. The address of a server of ours is left out: its port is another
        one in every run, and the server is gone afterwards."""
        return self._info

    @property
    def shape(self) -> ModelShape | None:
        """The model's shape, where its config.json is at hand."""
        return None if self._chosen is None else self._chosen.shape

    @property
    def startup(self) -> StartUp:
        """How long the parts of the start took; all None for a server that we did not start."""
        return self._reader.startup

    @property
    def notes(self) -> tuple[str, ...]:
        """What the run's header should say of the start; it differs from start to start, so it is no setting."""
        told = " ".join(f"{name}={value}" for name, value in self.startup.told().items())
        notes = [f"vLLM start-up: {told}"] if told else []
        if (tokens := self._reader.facts.get("kv_cache_tokens")) is not None:
            notes.append(f"vLLM KV cache: {tokens} tokens")
        return tuple(notes)

    def tell_with(self, tell: Callable[[str], None]) -> None:
        """Have `tell` called with a line now and then while the server starts."""
        self._tell = tell

    async def start(self) -> None:
        """Start the server and wait until it generates, or look at the one that runs.

        Raises InputError for what the user can mend before anything is loaded (no vLLM there, a flag it does not have,
        a port that is taken), and EngineError with the reason when the server does not come up."""
        if self._options.http.url:
            assert self._http is not None
            await self._http.start()
            self._info = replace(self._http.info, kind=KIND)
            return
        if self._child is not None:
            return
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise

    async def generate(self, request: Request) -> HttpReply:
        """Run one request. Raises EngineError once the server has died; requests under way then end as results."""
        if self._http is None:
            raise EngineError("the vLLM server has not been started, or is closed")
        child = self._child
        if child is None:
            return await self._http.generate(request)
        _check_alive(child, child.death)
        reply = await self._http.generate(request)
        if not reply.connected:
            # it listens no more: it is about to end, and its end says more than a refused connection
            _check_alive(child, await child.wait(_LAST_BREATH_S))
        return reply

    def awaits_first(self) -> bool:
        """Whether a request in flight has yet to get its first token."""
        return self._http is not None and self._http.awaits_first()

    def seen(self) -> Sequence[SeenRequest | EngineStep]:
        """What the plugin and the spans told since the last call."""
        spans = [] if self._spans is None else self._spans.read()
        return [*([] if self._seen is None else self._seen.read()), *spans]

    def metrics_place(self) -> MetricsPlace | None:
        """Where the server's /metrics is; None before the start and after the end."""
        return None if self._http is None else self._http.metrics_place()

    async def close(self) -> None:
        """Close the connections and stop the server with its whole tree. Safe to call twice."""
        http, self._http = self._http, None
        child, self._child = self._child, None
        try:
            if http is not None:
                await http.close()
        finally:
            try:
                if child is not None:
                    await child.stop(_STOP_GRACE_S)
            finally:
                spans, self._spans = self._spans, None
                if spans is not None:
                    spans.stop()
                folder, self._folder = self._folder, None
                if folder is not None:
                    folder.cleanup()

    async def _start(self) -> None:
        options, chosen = self._options, self._chosen
        assert chosen is not None
        self._folder = tempfile.TemporaryDirectory(prefix="phasemeter-vllm-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        installed = await find_vllm(options.python or sys.executable, options.environment)
        mended = mended_path(installed, folder)
        bare = vllm_environment(options.environment, paths=(mended,))
        self._tell(f"vLLM {installed.version or ''}: looking up its flags")
        known = await known_flags(installed, bare, options.cache)
        check_known(options.flags, known, installed.version)
        if options.spans:
            check_spans(options.flags, known, installed.version)
        port = _port(options.flags)
        steps = options.plugin and options.steps
        plan = plan_of(chosen, options, installed, known, folder)
        environment = vllm_environment(
            options.environment,
            paths=(plugin_path() if options.plugin else None, mended),
            more=plan.environment | self._plugin_variables(folder, steps=steps) | self._spans_variables(),
        )
        command = Command(
            argv=(
                installed.python,
                *("-m", "vllm.entrypoints.cli.main", "serve", plan.model),
                *("--host", _HOST, "--port", str(port)),
                *("--served-model-name", plan.name),
                *self._spans_flags(),
                *plan.flags,
            ),
            environment=environment,
            log=options.log or folder / "vllm.log",
        )
        self._tell(f"vLLM {installed.version or ''}: starting to serve {plan.name} (log: {command.log})")
        await self._await(command, plan, port)
        self._info = self._told(installed, plan)
        self._tell(f"vLLM generates: {', '.join(f'{k} {v}' for k, v in self._reader.startup.told().items())}")

    def _plugin_variables(self, folder: Path, *, steps: bool) -> dict[str, str]:
        if not self._options.plugin:
            return {}
        file = folder / "seen.jsonl"
        self._seen = SeenFile(file)
        return {FILE_VARIABLE: str(file), STEPS_VARIABLE: "1" if steps else "0"}

    def _spans_variables(self) -> dict[str, str]:
        return spans_environment(self._options.environment) if self._options.spans else {}

    def _spans_flags(self) -> tuple[str, ...]:
        """Its address is another one in every run, so the record holds only that there was one."""
        if not self._options.spans:
            return ()
        self._spans = SpanReceiver()
        return SPANS_FLAG, self._spans.start()

    async def _await(self, command: Command, plan: Plan, port: int) -> None:
        began_ns = self._clock.now_ns()

        def since_s() -> float:
            return (self._clock.now_ns() - began_ns) / 1e9

        self._child = await Child.start(command)
        http = OpenAIHttp(replace(self._options.http, url=f"http://{_HOST}:{port}", model=plan.name))
        self._http = http
        try:
            await self._child.await_ready(
                lambda: _generates(http, port),
                clock=self._clock,
                timeout_s=self._options.start_s,
                on_line=lambda line: self._reader.line(line, since_s()),
            )
        except DiedError as error:
            why = reason_of(error.death, self._child.tail(_REASON_LINES))
            message = f"vLLM did not start: {why} (log: {command.log})"
            raise StartError(message, error.death.tail) from None
        except CannotGenerateError as error:
            why = known_reason(self._child.tail(_REASON_LINES))
            told = str(error) if why is None else f"vLLM answers but does not generate: {why}"
            raise StartError(f"{told} (log: {command.log})", ()) from None
        except NotReadyError as error:
            raise StartError(f"vLLM is {error} (log: {command.log})", error.tail) from None
        self._reader.ready(since_s())

    def _told(self, installed: Installed, plan: Plan) -> EngineInfo:
        assert self._http is not None
        http, facts = self._http.info, self._reader.facts
        device = facts.get("device") or ("cpu" if installed.cpu else None)
        if device == "cuda" and self._options.device.startswith("cuda:"):
            device = self._options.device
        details = dict(http.details) | plan.details | ({"spans": "on"} if self._options.spans else {})
        details |= {name: facts[name] for name in ("enforce_eager", "attention") if name in facts}
        versions = dict(installed.versions)
        if version := (http.version or installed.version):
            versions["vllm"] = version
        return replace(
            http,
            kind=KIND,
            url=None,
            version=version,
            dtype=facts.get("dtype") or (None if plan.dtype == "auto" else plan.dtype),
            device=device,
            weights="random (vLLM's dummy loader)"
            if facts.get("load_format", plan.load_format) == "dummy"
            else "checkpoint",
            vocab_tokens=None if self.shape is None else self.shape.vocab,
            details=details,
            versions=versions,
        )


def _check_alive(child: Child, death: Death | None) -> None:
    if death is not None:
        raise EngineError(f"the vLLM server died: {reason_of(death, child.tail(_REASON_LINES))}")


class CannotGenerateError(EngineError):
    """The server listens and cannot make a token."""


async def _generates(http: OpenAIHttp, port: int) -> bool:
    """Whether one token comes back. False while nothing listens; CannotGenerateError when it listens and
    cannot generate."""
    if not await _listens(port):
        return False
    try:
        await http.start()
    except InputError:
        raise
    except EngineError:
        return False
    request = Request(
        id=f"ready-{secrets.token_hex(4)}",
        cell=Cell(input_tokens=1, output_tokens=1, warmup=True),
        max_tokens=1,
        prompt=f"{secrets.token_hex(4)} is ready",
        sampling=Sampling(temperature=0.0),
    )
    result = (await http.generate(request)).settle()
    if result.outcome is not Outcome.OK:
        raise CannotGenerateError(
            f"vLLM answers but does not generate ({result.outcome.value}): {result.error}"
        )
    return True


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(_HOST, port)
    except OSError:
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def _port(flags: Sequence[str]) -> int:
    """The port that the user gave, if it is free, else one that is. Raises InputError."""
    asked = value_of(flags, "--port")
    if asked is not None and not (asked.isdigit() and 0 < int(asked) < 65536):
        raise InputError("engine flag", f"--port {asked}", "give a port between 1 and 65535, or leave it out")
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((_HOST, int(asked or 0)))
        except OSError as error:
            mend = f"the port cannot be used ({error.strerror}); leave it out, or end what holds it or give another"
            raise InputError("engine flag", f"--port {asked}", mend) from None
        return int(trial.getsockname()[1])

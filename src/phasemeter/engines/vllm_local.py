"""vLLM without its HTTP server: the engine runs in a child process of vLLM's own environment (`vllm_child`),
and every request brings back what the engine core saw of it.

Against `vllm_server` with the same flags this tells the engine from the front end: no HTTP, no SSE, and the
prompt comes as token ids. What is left of a front end here is one pipe each way, vLLM's own
hand-over to the engine core, and its detokeniser.

    sent = written to the pipe --front end--> queued --queue--> scheduled --prefill--> first token
        --decode--> last

A piece is stamped when its bytes are read from the pipe, before they are parsed.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from phasemeter.engines.byte_tokenizer import ByteTokenizer, pieces
from phasemeter.engines.vllm_install import Installed, find_vllm, mended_path, vllm_environment
from phasemeter.engines.vllm_pipe import Piece, Pipe, Ready, Stats, Words, last_lines, read_piece, read_words
from phasemeter.engines.vllm_plan import Plan, choose_model, plan_of
from phasemeter.engines.vllm_reasons import reason_of
from phasemeter.launch.child import Death
from phasemeter.record.clock import Clock, MonotonicClock
from phasemeter.record.engine import (
    Emission,
    EmissionKind,
    EngineInfo,
    EngineReport,
    Outcome,
    Result,
    Settled,
)
from phasemeter.record.errors import EngineError
from phasemeter.record.request import Cell, Request, Usage
from phasemeter.roofline.shape import ModelShape

KIND = "vllm-local"
SOURCE = "vllm in process"
_CHILD = Path(__file__).with_name("vllm_child.py")
_KNOWN = frozenset({"--no-enable-prefix-caching"})
"""Of the flags that a measurement wants, the one that is the engine's and not the HTTP server's."""


class VllmLocalOptions(Struct, frozen=True):
    """What to run and how; the same as for `vllm_server`, so that the two differ in the way to the engine alone.

    model        hub name, model folder, or (with `config`) the name of an architecture preset
    python       the interpreter that can import vllm; None takes our own
    flags        vLLM's engine flags as `vllm serve` takes them (it refuses those of its HTTP server alone)
    dtype        "auto", "float32", "bfloat16" or "float16"
    device       "auto", "cpu", "cuda" or "cuda:N"
    config       a Hugging Face config for a preset: it is then run with random weights
    environment  the environment variables that the child's are made from
    log          file for what vLLM prints; None keeps it in a temporary one
    start_s      seconds to become ready
    """

    model: str | None = None
    python: str | None = None
    flags: tuple[str, ...] = ()
    dtype: str = "auto"
    device: str = "auto"
    config: Mapping[str, object] | None = None
    environment: Mapping[str, str] = {}
    log: Path | None = None
    clock: Clock = MonotonicClock()
    start_s: float = 1800.0
    plugin: bool = False
    steps: bool = False


class _Flight:
    """One request in flight: its pieces as they came."""

    __slots__ = ("done", "end", "end_ns", "pieces", "sent_ns")

    def __init__(self) -> None:
        self.sent_ns = 0
        self.pieces: list[tuple[int, Piece]] = []
        self.end: Words | None = None
        self.end_ns = 0
        self.done = asyncio.Event()


class VllmLocal:
    """Implements `record.engine.Engine` on vLLM's AsyncLLM in a child process."""

    def __init__(self, options: VllmLocalOptions) -> None:
        self._chosen = choose_model(options.model, options.config, options.flags)
        self._options = options
        self._clock = options.clock
        self._pipe: Pipe | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._log: IO[bytes] | None = None
        self._log_path = options.log
        self._numbers = itertools.count()
        self._flights: dict[int, _Flight] = {}
        self._ready: asyncio.Future[Ready] | None = None
        self._dead: str | None = None
        self._closing = False
        self._info = EngineInfo(kind=KIND, model=options.model or "", takes_token_ids=True)
        self.import_ns: int | None = None
        """Time to import vLLM, nanoseconds; None before `start`."""
        self.build_ns: int | None = None
        """Time to load, compile, capture and warm up (the log splits it), nanoseconds."""
        self.first_ns: int | None = None
        """Time of the very first request (4 tokens in, 2 out), nanoseconds; None before `start`."""

    @property
    def info(self) -> EngineInfo:
        """What runs; complete after `start`."""
        return self._info

    @property
    def shape(self) -> ModelShape | None:
        """The model's shape, where its config.json is at hand."""
        return self._chosen.shape

    @property
    def notes(self) -> tuple[str, ...]:
        """How long the parts of the start took; it differs from start to start, so it is no setting."""
        parts = {"import": self.import_ns, "build": self.build_ns, "first_request": self.first_ns}
        told = [f"{name}_s={ns / 1e9:.2f}" for name, ns in parts.items() if ns is not None]
        return (f"vLLM start-up: {' '.join(told)}",) if told else ()

    async def start(self) -> None:
        """Start the child and wait until it generates. Raises InputError when there is no vLLM or no such model,
        EngineError with the reason when it does not come up."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        await self._probe()

    async def _start(self) -> None:
        options = self._options
        self._folder = tempfile.TemporaryDirectory(prefix="phasemeter-vllm-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        installed = await find_vllm(options.python or sys.executable, options.environment)
        plan = plan_of(self._chosen, options, installed, _KNOWN, folder)
        mended = mended_path(installed, folder)
        environment = vllm_environment(options.environment, paths=(mended,), more=plan.environment)
        self._log_path = options.log or folder / "vllm.log"
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = self._log_path.open("wb")
        self._ready = asyncio.get_running_loop().create_future()
        self._pipe = Pipe(self._clock, self._heard, self._ended)
        command = [installed.python, str(_CHILD), "--model", plan.model, *plan.flags]
        await self._pipe.open(command, self._log, environment)
        try:
            ready = await asyncio.wait_for(asyncio.shield(self._ready), options.start_s)
        except TimeoutError:
            raise EngineError(f"vLLM was not ready after {options.start_s:g} s") from None
        self._info = _info(plan, installed, ready)
        self.import_ns, self.build_ns = ready.import_ns, ready.build_ns

    async def generate(self, request: Request) -> VllmReply | Settled:
        """Run one request. Cancellation aborts it in the engine and re-raises at once. Raises EngineError
        when the child has died."""
        if self._pipe is None or self._dead is not None or self._closing:
            raise EngineError(self._dead or "the vLLM engine has not been started, or is closed")
        refused = _refusal(request, self._info)
        if refused is not None:
            now_ns = self._clock.now_ns()
            return Settled(Result(Outcome.ENGINE_ERROR, end_ns=now_ns, connected_ns=now_ns, error=refused))
        number = next(self._numbers)
        flight = self._flights[number] = _Flight()
        order = _order(number, request)
        flight.sent_ns = self._pipe.send(order)
        try:
            await flight.done.wait()
        except asyncio.CancelledError:
            self._pipe.send({"op": "abort", "id": number})
            raise
        finally:
            self._flights.pop(number, None)
        return VllmReply(flight, by_ids=self._info.details.get("tokenizer") == "none")

    async def close(self) -> None:
        """End the child and its whole process group. Safe to call twice."""
        self._closing = True
        if self._pipe is not None:
            await self._pipe.close()
            self._pipe = None
        if self._log is not None:
            self._log.close()
        if self._folder is not None:
            self._folder.cleanup()

    async def _probe(self) -> None:
        """One short request, so that ready means: it generates."""
        most = self._info.vocab_tokens or 1000
        ids = tuple(i % most for i in (11, 12, 14, 15))
        started_ns = self._clock.now_ns()
        result = (await self.generate(Request("probe", Cell(4, 2), max_tokens=2, token_ids=ids))).settle()
        self.first_ns = self._clock.now_ns() - started_ns
        if result.outcome is not Outcome.OK:
            await self.close()
            raise EngineError(f"vLLM started but cannot generate: {result.error}")

    def _heard(self, stamp_ns: int, line: bytes) -> None:
        if line.startswith(b"["):
            piece = read_piece(line)
            flight = self._flights.get(piece.number)
            if flight is not None:
                flight.pieces.append((stamp_ns, piece))
            return
        words = read_words(line)
        if words.ready is not None and self._ready is not None and not self._ready.done():
            self._ready.set_result(words.ready)
        if words.dead is not None:
            self._dead = f"vLLM's engine died: {words.dead}"
        flight = self._flights.get(words.end) if words.end is not None else None
        if flight is not None:
            flight.end, flight.end_ns = words, stamp_ns
            flight.done.set()

    def _ended(self, code: int | None) -> None:
        """The child is gone: whoever waits is told why."""
        why = "the engine was closed" if self._closing else _why(code, self._log_path)
        self._dead = self._dead or why
        now_ns = self._clock.now_ns()
        for flight in self._flights.values():
            flight.end_ns = now_ns
            flight.end = Words(dead=self._dead)
            flight.done.set()
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(EngineError(why))


class VllmReply:
    """A finished stream whose ids have not been turned into text yet."""

    def __init__(self, flight: _Flight, *, by_ids: bool) -> None:
        self._flight = flight
        self._by_ids = by_ids
        self._result: Result | None = None

    def settle(self) -> Result:
        """Make emissions of the pieces (once) and return what came of the request."""
        if self._result is None:
            self._result = _result(self._flight, by_ids=self._by_ids)
        return self._result


def _result(flight: _Flight, *, by_ids: bool) -> Result:
    end = flight.end or Words(dead="the stream has no end")
    emissions = _emissions(flight, by_ids=by_ids)
    n_tokens = sum(emission.n_tokens or 0 for emission in emissions)
    outcome = _outcome(end, n_tokens)
    return Result(
        outcome=outcome,
        end_ns=flight.end_ns,
        connected_ns=flight.sent_ns,
        sent_ns=flight.sent_ns,
        first_byte_ns=emissions[0].recv_ns if emissions else None,
        emissions=emissions,
        error=None if outcome is Outcome.OK else end.dead or end.error or "vLLM ended without one token",
        finish_reason=end.finish_reason,
        usage=Usage(
            prompt_tokens=end.prompt_tokens,
            completion_tokens=n_tokens,
            cached_tokens=None if end.stats is None else end.stats.cached_tokens,
        )
        if outcome is Outcome.OK
        else None,
        report=None if end.stats is None else EngineReport(SOURCE, e2e_ns=end.e2e_ns, **_told(end.stats)),
    )


def _outcome(end: Words, n_tokens: int) -> Outcome:
    if end.dead is not None:
        return Outcome.RESET
    if end.error is not None:
        return Outcome.ENGINE_ERROR
    return Outcome.OK if n_tokens else Outcome.EMPTY_STREAM


def _told(stats: Stats) -> dict[str, int | None]:
    return msgspec.structs.asdict(stats)


def _emissions(flight: _Flight, *, by_ids: bool) -> tuple[Emission, ...]:
    """One emission a piece; without a tokenizer ids are shown as the byte tokenizer shows them."""
    if by_ids:
        whole = [i for _, piece in flight.pieces for i in piece.ids]
        shown = iter(pieces(whole, ByteTokenizer().decode))
        texts = ["".join(itertools.islice(shown, len(piece.ids))) for _, piece in flight.pieces]
    else:
        texts = [piece.text or "" for _, piece in flight.pieces]
    return tuple(
        Emission(stamp, EmissionKind.TEXT if text else EmissionKind.EMPTY, text, n_tokens=len(piece.ids))
        for (stamp, piece), text in zip(flight.pieces, texts, strict=True)
    )


def _order(number: int, request: Request) -> dict[str, object]:
    sampling = {
        name: value for name, value in msgspec.structs.asdict(request.sampling).items() if value is not None
    }
    prompt: dict[str, object] = (
        {"token_ids": request.token_ids}
        if request.token_ids is not None
        else {"prompt": request.prompt or ""}
    )
    return {"op": "generate", "id": number, "max_tokens": request.max_tokens, **prompt, **sampling}


def _refusal(request: Request, info: EngineInfo) -> str | None:
    """What vLLM would cut short or refuse, told before it is sent."""
    limit, ids = info.max_context_tokens, request.token_ids
    if ids is not None and limit is not None and len(ids) + request.max_tokens > limit:
        asked = len(ids) + request.max_tokens
        return (
            f"{len(ids)} prompt + {request.max_tokens} output tokens = {asked}, the engine's context holds "
            f"{limit} (--max-model-len)"
        )
    if ids is None and info.details.get("tokenizer") == "none":
        return "the engine runs without a tokenizer and takes token ids alone"
    return None


def _why(code: int | None, log: Path | None) -> str:
    death = Death(code)
    reason = reason_of(death, [] if log is None else last_lines(log))
    # where only the way of dying is known, the reason says it
    return f"the vLLM process {'died' if reason.startswith('it ') else death.how}: {reason}"


def _info(plan: Plan, installed: Installed, ready: Ready) -> EngineInfo:
    random = (ready.load_format or plan.load_format or "").lower() == "dummy"
    versions = installed.versions | ({"vllm": ready.version} if ready.version else {})
    return EngineInfo(
        kind=KIND,
        model=plan.name,
        version=ready.version,
        dtype=ready.dtype,
        device=ready.device,
        weights="random (vLLM's dummy loader)" if random else "checkpoint",
        takes_token_ids=True,
        honours_ignore_eos=True,
        max_context_tokens=ready.max_context_tokens,
        vocab_tokens=ready.vocab_tokens,
        details={
            "tokenizer": "none" if ready.skip_tokenizer_init else "yes",
            **plan.details,
            **ready.details,
        },
        versions=versions,
    )

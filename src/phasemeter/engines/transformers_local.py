# ruff: noqa: ANN401 - transformers' and torch's objects have no useful types
"""The model itself, in this process: prefill and decode as explicit steps through transformers, on CPU or
CUDA.

All torch work runs in one worker thread, so that the event loop stays free; requests beyond one wait for it,
and that wait is the engine's queue. Client and engine share one clock here, so their stamps reconcile to the
nanosecond:

    sent = handed over --queue--> taken --front end--> ids on the device --prefill--> first token --decode-->
    last

Text is made from ids in `settle`, when no step is being timed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from phasemeter.engines.byte_tokenizer import pieces
from phasemeter.engines.cpu import usable_cores
from phasemeter.record.clock import Clock, MonotonicClock
from phasemeter.record.engine import Emission, EmissionKind, EngineInfo, EngineReport, Outcome, Result
from phasemeter.record.errors import EngineError, InputError
from phasemeter.record.request import Request, Sampling, Usage

if TYPE_CHECKING:
    from phasemeter.engines.local_steps import Stepper, Steps
    from phasemeter.engines.local_weights import Loaded
    from phasemeter.roofline.model import ModelShape

SOURCE = "transformers"


class LocalOptions(Struct, frozen=True):
    """What to run and how.

    model         hub name, model folder, FILE.gguf, or (with `config`) the name of an architecture preset
    dtype         "auto", "float32", "bfloat16" or "float16"; "auto" takes what the device multiplies natively
    device        "auto", "cpu", "cuda" or "cuda:N"
    seed          of random weights, and of sampling where the request has none
    threads       CPU threads of one operator; None takes the physical cores that this process may use
    config        a Hugging Face config for a preset: it is then run with random weights
    allow_random  give a folder that has a config but no weights random ones
    api           "completions" (prompt text as it is) or "chat" (as one user message in the model's own
                  template)
    timeout_s     a request is stopped after the step in which so many seconds are over, its wait included
    """

    model: str
    dtype: str = "auto"
    device: str = "auto"
    seed: int = 0
    threads: int | None = None
    clock: Clock = MonotonicClock()
    config: Mapping[str, Any] | None = None
    allow_random: bool = False
    api: str = "completions"
    timeout_s: float | None = None


class TransformersLocal:
    """Implements `record.engine.Engine` on a causal LM that transformers loads."""

    def __init__(self, options: LocalOptions) -> None:
        _validate(options)
        self._options = options
        self._clock = options.clock
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="phasemeter-local")
        self._loaded: Loaded | None = None
        self._stepper: Stepper | None = None
        self._info = EngineInfo(kind="local", model=options.model, api=options.api, takes_token_ids=True)
        self.import_ns: int | None = None
        """Time to import torch and transformers, nanoseconds; None before `start`."""
        self.weights_ns: int | None = None
        """Time to read or draw the weights and put them on the device, nanoseconds; None before `start`."""

    @property
    def shape(self) -> ModelShape | None:
        """The loaded model's shape, for its floors; None before `start` and for architectures that roofline does not
        know."""
        if self._loaded is None:
            return None
        from phasemeter.roofline.model import shape_from_config

        config = self._loaded.model.config.to_dict()
        name = Path(self._options.model).name
        try:
            return shape_from_config(config, name)
        except InputError:
            return None

    @property
    def info(self) -> EngineInfo:
        """What runs; complete after `start`."""
        return self._info

    async def start(self) -> None:
        """Import the libraries and load the model. Raises InputError when the model, device or dtype cannot
        be used."""
        await asyncio.get_running_loop().run_in_executor(self._worker, self._load)

    async def generate(self, request: Request) -> LocalReply:
        """Run one request. Cancellation stops it after the current step and re-raises at once."""
        loaded, stepper = self._loaded, self._stepper
        if loaded is None or stepper is None:
            raise EngineError("the local engine has not been started, or is closed")
        stop = threading.Event()
        handed_ns = self._clock.now_ns()
        loop, limit_s = asyncio.get_running_loop(), self._options.timeout_s
        over = None if limit_s is None else loop.call_later(limit_s, stop.set)
        try:
            steps = await loop.run_in_executor(self._worker, self._run, request, stop)
        except asyncio.CancelledError:
            stop.set()
            raise
        finally:
            if over is not None:
                over.cancel()
        return LocalReply(loaded, request, steps, handed_ns)

    async def close(self) -> None:
        """Let the running step end, drop the model and give its memory back. Safe to call twice."""
        self._stepper = None
        self._loaded = None
        await asyncio.to_thread(self._worker.shutdown, wait=True, cancel_futures=True)
        _empty_gpu_cache(self._info.device)

    def _load(self) -> None:
        started_ns = self._clock.now_ns()
        try:
            import torch
            import transformers
        except ImportError as error:
            mend = f"needs torch and transformers ({error}); install phasemeter[local]"
            raise InputError("--engine", "local", mend) from None
        self.import_ns = self._clock.now_ns() - started_ns

        from phasemeter.engines import local_steps, local_weights

        options = self._options
        local_weights.quieten()
        device = local_weights.resolve_device(options.device)
        dtype = local_weights.resolve_dtype(options.dtype, device)
        threads = options.threads or usable_cores()
        torch.set_num_threads(threads)
        loading_ns = self._clock.now_ns()
        if options.config is not None:
            loaded = local_weights.load_random(options.config, options.model, dtype, device, options.seed)
        else:
            loaded = local_weights.load_checkpoint(
                options.model, dtype, device, options.seed,
                chat=options.api == "chat", allow_random=options.allow_random,
            )  # fmt: skip
        self.weights_ns = self._clock.now_ns() - loading_ns
        stepper = local_steps.Stepper(loaded, self._clock, options.seed)
        self._info = _describe(options, loaded, stepper.cache_kind, threads, _versions(torch, transformers))
        self._loaded, self._stepper = loaded, stepper

    def _run(self, request: Request, stop: threading.Event) -> Steps:
        """In the worker thread: one request to its end, failures kept as text."""
        from phasemeter.engines.local_steps import Steps

        steps = Steps(self._clock.now_ns())
        loaded, stepper = self._loaded, self._stepper
        if loaded is None or stepper is None:
            steps.error = "the engine was closed before the request's turn"
            return steps
        ids = (
            request.token_ids
            if request.token_ids is not None
            else tuple(loaded.tokenizer.encode(request.prompt or ""))
        )
        steps.prompt_tokens = len(ids)
        steps.error = _refusal(loaded, ids, request.max_tokens, request.sampling)
        if steps.error is None:
            try:
                stepper.run(steps, ids, request.sampling, _most_tokens(request), stop)
            except (RuntimeError, ValueError, IndexError) as error:  # torch's own, out of memory included
                steps.error = " ".join(str(error).split())[:300] or type(error).__name__
        if steps.error is not None:
            steps.end_ns = self._clock.now_ns()
            _empty_gpu_cache(self._info.device)
        return steps


class LocalReply:
    """A finished generation whose ids have not been turned into text yet."""

    def __init__(self, loaded: Loaded, request: Request, steps: Steps, handed_ns: int) -> None:
        self._loaded = loaded
        self._request = request
        self._steps = steps
        self._handed_ns = handed_ns
        self._result: Result | None = None

    def settle(self) -> Result:
        """Make text of the ids (once) and return what came of the request."""
        if self._result is None:
            self._result = _result(self._loaded, self._request, self._steps, self._handed_ns)
        return self._result


def _result(loaded: Loaded, request: Request, steps: Steps, handed_ns: int) -> Result:
    stamps, ids = steps.stamps_ns, steps.token_ids[: len(steps.stamps_ns)]
    texts = pieces(ids, loaded.tokenizer.decode)
    emissions = tuple(
        Emission(stamp, EmissionKind.TEXT if text else EmissionKind.EMPTY, text, n_tokens=1)
        for stamp, text in zip(stamps, texts, strict=False)
    )
    outcome, error, finish = _ending(request, steps)
    return Result(
        outcome=outcome,
        end_ns=steps.end_ns,
        connected_ns=handed_ns,
        sent_ns=handed_ns,
        first_byte_ns=stamps[0] if stamps else None,
        emissions=emissions,
        error=error,
        finish_reason=finish,
        usage=Usage(prompt_tokens=steps.prompt_tokens, completion_tokens=len(emissions), cached_tokens=0),
        report=_report(steps, handed_ns, len(emissions)),
    )


def _ending(request: Request, steps: Steps) -> tuple[Outcome, str | None, str | None]:
    """Outcome, error and finish reason."""
    n_tokens = len(steps.stamps_ns)
    if steps.error is not None:
        return Outcome.ENGINE_ERROR, steps.error, None
    if steps.stopped:
        return Outcome.OK, None, "stop"
    if n_tokens < _most_tokens(request):  # nothing else ends a request early that anybody waits for
        return Outcome.TIMEOUT_TOTAL, f"not finished in time: {n_tokens} tokens", None
    if n_tokens < request.max_tokens:
        return Outcome.CANCELLED, f"given up on purpose after {n_tokens} tokens", None
    return Outcome.OK, None, "length"


def _most_tokens(request: Request) -> int:
    """After how many tokens the generation stops at the latest: all, or those until it is given up on purpose."""
    return min(request.max_tokens, request.cancel_after_tokens or request.max_tokens)


def _report(steps: Steps, handed_ns: int, n_tokens: int) -> EngineReport:
    stamps, ready_ns = steps.stamps_ns, steps.ready_ns
    return EngineReport(
        source=SOURCE,
        queue_ns=steps.taken_ns - handed_ns,
        prefill_ns=stamps[0] - ready_ns if stamps and ready_ns is not None else None,
        decode_ns=stamps[-1] - stamps[0] if stamps else None,
        cached_tokens=0,
        n_tokens=n_tokens,
    )


def _refusal(loaded: Loaded, ids: tuple[int, ...], max_tokens: int, sampling: Sampling) -> str | None:
    """Why this request cannot be run, with the numbers; None if it can. Checked beforehand, since a bad index
    on a GPU would break the process for every later request."""
    if not ids:
        return "the prompt is empty; a prefill needs at least one token"
    if max_tokens < 1:
        return f"max_tokens is {max_tokens}; at least one token must be generated"
    limit = loaded.max_context_tokens
    if limit is not None and len(ids) + max_tokens > limit:
        asked = len(ids) + max_tokens
        return f"{len(ids)} prompt + {max_tokens} output tokens = {asked}, the model's context holds {limit}"
    wrong = next((i for i in ids if not 0 <= i < loaded.vocab_tokens), None)
    if wrong is not None:
        return f"token id {wrong} is outside the vocabulary of {loaded.vocab_tokens}"
    if (sampling.temperature or 0) < 0:
        return f"temperature {sampling.temperature} is negative"
    return None


def _validate(options: LocalOptions) -> None:
    if not options.model.strip():
        raise InputError("--model", options.model, "give a preset, hub name, model folder or .gguf file")
    if options.api not in ("completions", "chat"):
        raise InputError("--api", options.api, "use completions or chat")
    if options.api == "chat" and options.config is not None:
        raise InputError(
            "--api", "chat", "a preset has no tokenizer and so no chat template; use --api completions"
        )
    if options.threads is not None and options.threads < 1:
        raise InputError("--threads", options.threads, "use at least one thread")


def _describe(
    options: LocalOptions, loaded: Loaded, cache_kind: str, threads: int, versions: dict[str, str]
) -> EngineInfo:
    return EngineInfo(
        kind="local",
        model=options.model,
        version=f"transformers {versions['transformers']}",
        dtype=loaded.dtype,
        device=str(loaded.device),
        api=options.api,
        weights=loaded.weights,
        takes_token_ids=True,
        honours_ignore_eos=True,
        max_context_tokens=loaded.max_context_tokens,
        vocab_tokens=loaded.vocab_tokens,
        details={
            "threads": str(threads),
            "attention": loaded.attention,
            "cache": cache_kind,
            "tokenizer": loaded.tokenizer_name,
            "architecture": type(loaded.model).__name__,
        },
        versions=versions,
    )


def _versions(torch: Any, transformers: Any) -> dict[str, str]:
    found = {"torch": str(torch.__version__), "transformers": str(transformers.__version__)}
    if torch.version.cuda:
        found["cuda"] = str(torch.version.cuda)
    return found


def _empty_gpu_cache(device: str | None) -> None:
    """Give back what torch keeps in reserve, so that one request's failure does not starve the next."""
    if device is not None and device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()

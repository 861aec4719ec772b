# pyright: basic, reportMissingImports=false
# ruff: noqa: ANN401 - vLLM's objects are typed only where vLLM is installed
"""vLLM in a process of its own: started as `ENGINE_PYTHON vllm_child.py VLLM FLAGS`, it speaks JSON lines.

It runs under the engine's interpreter, where Phasemeter is not installed: nothing but the standard library
and vLLM is imported here. `vllm_local` is the other end. Standard output belongs to the protocol; what vLLM
prints goes to standard error.

    in   {"op": "generate", "id": 7, "token_ids": [...], "max_tokens": 32, ...}   {"op": "abort", "id": 7}
    out  {"ready": {...}}                                  once, when requests are taken
         [7, [1234]]  or  [7, [1234], " text"]             each piece: request, ids, text (with a tokenizer)
         {"end": 7, "finish_reason": ..., "stats": {...}}  each request; "error" where vLLM refused it
         {"dead": "why"}                                   the engine under it died

It ends when its input ends. A guard process, split off before anything is imported, ends the whole process
group as soon as nobody holds the other end of the input any more, also when this process is stuck in native
code or was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import select
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

_PIPE_BYTES = 1 << 20
_LINE_BYTES = 1 << 26
_F_SETPIPE_SZ = 1031


class Speaker:
    """Writes lines to the parent, all those of one turn of the event loop in one write."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting: list[str] = []

    def say(self, thing: object) -> None:
        """Queue one line."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append(json.dumps(thing, separators=(",", ":")))

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        data = memoryview(("\n".join(self._waiting) + "\n").encode())
        self._waiting.clear()
        while data:
            data = data[os.write(self._fd, data) :]


class Child:
    """One engine, many requests in flight."""

    def __init__(self, engine: Any, speaker: Speaker, *, has_tokenizer: bool) -> None:
        self._engine = engine
        self._speaker = speaker
        self._has_tokenizer = has_tokenizer
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def take(self, order: dict[str, Any]) -> None:
        """Carry out one line from the parent."""
        number = order["id"]
        if order["op"] == "generate":
            task = asyncio.get_running_loop().create_task(self._generate(number, order))
            self._tasks[number] = task
            task.add_done_callback(lambda done: self._ended(number, done))
        elif order["op"] == "abort" and number in self._tasks:
            self._tasks[number].cancel()

    async def _generate(self, number: int, order: dict[str, Any]) -> None:
        taken = time.monotonic_ns()  # noqa: TID251 - Phasemeter's clock is not installed here
        prompt: dict[str, Any] = (
            {"prompt_token_ids": order["token_ids"]} if "token_ids" in order else {"prompt": order["prompt"]}
        )
        last, heard = None, None
        async for out in self._engine.generate(prompt, self._params(order), f"phasemeter-{number}"):
            last = out
            piece = out.outputs[0]
            if piece.token_ids:
                heard = heard or time.monotonic_ns()  # noqa: TID251
                ids = list(piece.token_ids)
                self._speaker.say([number, ids, piece.text] if self._has_tokenizer else [number, ids])
        spent = time.monotonic_ns() - taken  # noqa: TID251
        told = {"end": number} if last is None else _end(number, last, taken, heard)
        self._speaker.say({**told, "e2e_ns": spent})

    def _params(self, order: dict[str, Any]) -> Any:
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        wanted = {name: order[name] for name in ("temperature", "top_p", "top_k", "seed") if name in order}
        return SamplingParams(
            max_tokens=order["max_tokens"],
            ignore_eos=order.get("ignore_eos", False),
            detokenize=self._has_tokenizer,
            output_kind=RequestOutputKind.DELTA,
            **wanted,
        )

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        self._tasks.pop(number, None)
        if task.cancelled():
            self._speaker.say({"end": number, "error": "aborted", "aborted": True})
            return
        error = task.exception()
        if error is None:
            return
        if getattr(self._engine, "errored", False):
            self._speaker.say({"dead": _words(error)})
        self._speaker.say({"end": number, "error": _words(error)})


def _end(number: int, out: Any, taken: int, heard: int | None) -> dict[str, Any]:
    """The last line of a request. Stamps of the engine core become durations here; what a version does not
    tell is None. `taken` and `heard` are ours: handed to vLLM, first output back."""
    stats = getattr(out, "metrics", None)
    queued, scheduled, first, last = (
        getattr(stats, name, None) or None
        for name in ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
    )
    before, after = _around((queued, scheduled, first), taken, heard)
    prompt = getattr(out, "prompt_token_ids", None)
    return {
        "end": number,
        "finish_reason": getattr(out.outputs[0], "finish_reason", None),
        "prompt_tokens": len(prompt) if prompt is not None else None,
        "stats": {
            "queue_ns": _between(queued, scheduled),
            "prefill_ns": _between(scheduled, first),
            "decode_ns": _between(first, last),
            "n_tokens": getattr(stats, "num_generation_tokens", None),
            "cached_tokens": getattr(out, "num_cached_tokens", None),
            "preemptions": getattr(stats, "num_preemptions", None),
            "before_ns": before,
            "after_ns": after,
        },
    }


def _around(
    core: tuple[float | None, float | None, float | None], taken: int, heard: int | None
) -> tuple[int | None, int | None]:
    """From `taken` until queued, and from the first token until `heard`. The core stamps with `time.monotonic`, which
    all processes of one machine share. A core elsewhere has another clock: unless every stamp is there and in its
    order, nothing is told."""
    inside = [None if stamp is None else round(stamp * 1e9) for stamp in core]
    queued, scheduled, first = inside
    if queued is None or scheduled is None or first is None or heard is None:
        return None, None
    if not taken <= queued <= scheduled <= first <= heard:
        return None, None
    return queued - taken, heard - first


def _between(early: float | None, late: float | None) -> int | None:
    return None if early is None or late is None else round((late - early) * 1e9)


def _words(error: BaseException) -> str:
    """The error and its causes on one line: vLLM wraps the reason in an exception without words."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(parts) < 4:
        parts.append(f"{type(seen).__name__}: {' '.join(str(seen).split())[:300]}".rstrip(": "))
        seen = seen.__cause__
    return "; caused by ".join(parts)


def open_engine(flags: list[str]) -> tuple[Any, dict[str, Any]]:
    """Build the engine from vLLM's own flags; what it is, as the parent is told. Inside a running loop."""
    before = time.monotonic_ns()  # noqa: TID251
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.async_llm import AsyncLLM

    imported = time.monotonic_ns()  # noqa: TID251
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="vllm (in process)"))
    args = AsyncEngineArgs.from_cli_args(parser.parse_args(flags))
    # the server's context, so that token budgets and batch limits default to what `vllm serve` takes
    engine = AsyncLLM.from_engine_args(args, usage_context=UsageContext.OPENAI_API_SERVER)
    built = time.monotonic_ns()  # noqa: TID251
    return engine, {
        "version": vllm.__version__,
        "python": sys.version.split()[0],
        "import_ns": imported - before,
        "build_ns": built - imported,
        **_facts(getattr(engine, "vllm_config", None)),
    }


def _facts(config: Any) -> dict[str, Any]:
    model = getattr(config, "model_config", None)
    vocab = getattr(model, "get_vocab_size", None)
    return {
        "dtype": str(getattr(model, "dtype", "")).removeprefix("torch.") or None,
        "max_context_tokens": getattr(model, "max_model_len", None),
        "vocab_tokens": vocab() if callable(vocab) else None,
        "skip_tokenizer_init": bool(getattr(model, "skip_tokenizer_init", False)),
        "device": _seen(config, "device_config", "device_type"),
        "load_format": _seen(config, "load_config", "load_format"),
        "details": {
            name: value
            for name, value in (
                ("enforce_eager", _seen(config, "model_config", "enforce_eager")),
                ("max_num_seqs", _seen(config, "scheduler_config", "max_num_seqs")),
                ("max_num_batched_tokens", _seen(config, "scheduler_config", "max_num_batched_tokens")),
                ("async_scheduling", _seen(config, "scheduler_config", "async_scheduling")),
                ("prefix_caching", _seen(config, "cache_config", "enable_prefix_caching")),
                ("block_size", _seen(config, "cache_config", "block_size")),
                ("kv_blocks", _seen(config, "cache_config", "num_gpu_blocks")),
                ("cudagraph_mode", _seen(config, "compilation_config", "cudagraph_mode")),
                ("tensor_parallel", _seen(config, "parallel_config", "tensor_parallel_size")),
            )
            if value is not None
        },
    }


def _seen(config: Any, part: str, name: str) -> str | None:
    value = getattr(getattr(config, part, None), name, None)
    if value is None:
        return None
    return str(getattr(value, "name", value))


async def serve(flags: list[str], orders_fd: int, speaker: Speaker) -> None:
    """Build the engine, then carry out orders until their pipe ends."""
    engine, facts = open_engine(flags)
    gc.collect()
    gc.freeze()  # as vLLM's own server does
    child = Child(engine, speaker, has_tokenizer=not facts["skip_tokenizer_init"])
    speaker.say({"ready": facts})
    orders = asyncio.StreamReader(limit=_LINE_BYTES)
    with os.fdopen(orders_fd, "rb", buffering=0) as pipe:
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), pipe)
        async for line in orders:
            child.take(json.loads(line))
    speaker.flush()
    engine.shutdown()


def guard() -> None:
    """Split off a process that ends the whole group when the other end of our input is closed."""
    parent = os.getpid()
    if os.fork():
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    watch = select.poll()
    watch.register(0, 0)  # hang-up and error alone; no byte is read here
    while os.getppid() == parent and not watch.poll(1000):
        pass
    for _ in range(100):  # time for a clean end
        if os.getppid() != parent:
            break
        select.select([], [], [], 0.1)
    os.killpg(0, signal.SIGKILL)


def _run(work: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop  # vLLM's server runs on it
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


def main() -> None:
    """Set the pipes apart and serve."""
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [
        path for path in sys.path if path != here
    ]  # our neighbours' names are not vLLM's to import
    guard()
    orders_fd, words_fd = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.fcntl(words_fd, _F_SETPIPE_SZ, _PIPE_BYTES)
    _run(serve(sys.argv[1:], orders_fd, Speaker(words_fd)))


if __name__ == "__main__":
    main()

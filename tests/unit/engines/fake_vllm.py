"""A package called vllm that has just the parts that our child uses; it is written to a folder and put on PYTHONPATH.

Its engine counts time itself: a request waits 2 ms, is prefilled in 10 ms and gives one token every 3 ms, told in
`RequestStateStats` to the microsecond, whatever the machine does meanwhile. With `--behave here` its stamps are
of this machine's clock: a request is handed over at least 5 ms before it is queued, and the first output comes at least
10 ms after it was made. With `--behave ahead` its clock is another machine's, a minute ahead.
"""

from __future__ import annotations

import os
from pathlib import Path

_FILES = {
    "vllm/__init__.py": "__version__ = '9.9'\nprint('stray words on standard output')\n",
    "vllm/engine/arg_utils.py": """
class AsyncEngineArgs:
    def __init__(self, args): self.args = args
    @staticmethod
    def add_cli_args(parser):
        for flag in ("model", "dtype", "seed", "load-format", "max-model-len", "behave", "tokenizer"):
            parser.add_argument("--" + flag)
        for flag in ("skip-tokenizer-init", "no-enable-prefix-caching"):
            parser.add_argument("--" + flag, action="store_true")
        return parser
    @classmethod
    def from_cli_args(cls, args): return cls(args)
""",
    "vllm/usage/usage_lib.py": "class UsageContext:\n    OPENAI_API_SERVER = 'server'\n",
    "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser\n",
    "vllm/sampling_params.py": """
class RequestOutputKind:
    DELTA = 1
class SamplingParams:
    def __init__(self, **wanted): self.__dict__.update(wanted)
""",
    "vllm/v1/engine/async_llm.py": """
import asyncio, os, sys, time
from types import SimpleNamespace as Some

class AsyncLLM:
    errored = False
    def __init__(self, args):
        self.args = args
        if args.behave == "out-of-memory":
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        self.vllm_config = Some(
            model_config=Some(dtype="torch.float32", max_model_len=int(args.max_model_len or 100),
                              get_vocab_size=lambda: 500, skip_tokenizer_init=args.skip_tokenizer_init),
            load_config=Some(load_format=args.load_format or "auto"))
    @classmethod
    def from_engine_args(cls, args, usage_context):
        assert usage_context == "server"
        return cls(args.args)
    async def generate(self, prompt, params, request_id):
        behave = self.args.behave
        ids = prompt.get("prompt_token_ids") or [1] * len(prompt["prompt"])
        if ids[0] == 13:
            raise ValueError("that prompt brings bad luck")
        if ids[0] == 66:
            os._exit(7)
        if ids[0] == 67:
            self.errored = True
            raise RuntimeError("engine core gone") from MemoryError("no room")
        stats = Some(num_generation_tokens=0, queued_ts=5.0, scheduled_ts=5.002, first_token_ts=0.0, last_token_ts=0.0)
        if behave in ("here", "ahead"):
            await asyncio.sleep(0.005)
            queued = time.monotonic() + (60.0 if behave == "ahead" else 0.0)
            await asyncio.sleep(0.022)  # 2 in the queue, 10 of prefill, 10 until the output is back
            stats.queued_ts, stats.scheduled_ts = queued, queued + 0.002
        if behave != "old":
            stats.num_preemptions = 1
        cached = {} if behave == "older" else {"num_cached_tokens": 4}
        for i in range(params.max_tokens):
            await asyncio.sleep(0.001)
            stats.num_generation_tokens = i + 1
            stats.last_token_ts = stats.queued_ts + 0.012 + 0.003 * i
            if i == 0:
                stats.first_token_ts = stats.queued_ts + 0.012
            last = i + 1 == params.max_tokens
            text = chr(97 + i % 26) if params.detokenize else ""
            yield Some(prompt_token_ids=ids, metrics=None if behave == "older" else stats,
                       outputs=[Some(token_ids=[97 + i % 26], text=text, finish_reason="length" if last else None)],
                       **cached)
    def shutdown(self): pass
""",
}


def write_fake_vllm(folder: Path) -> dict[str, str]:
    """Write the package below `folder`; the environment in which a child finds it."""
    for name, text in _FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(folder).parents:
            if str(parent) != ".":
                (folder / parent / "__init__.py").touch()
        path.write_text(text)
    return {**os.environ, "PYTHONPATH": str(folder)}

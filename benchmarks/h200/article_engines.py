"""The model folder that both ways of running share, and the two engines."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from phasemeter.engines.http_request import HttpOptions
from phasemeter.engines.vllm_local import VllmLocal, VllmLocalOptions
from phasemeter.engines.vllm_model import write_model
from phasemeter.engines.vllm_server import VllmServer, VllmServerOptions
from phasemeter.record.clock import Clock
from phasemeter.record.engine import Engine
from phasemeter.roofline.presets import preset_config

MODEL = "ernie-4.5-0.3b"
TINY_CONFIG: dict[str, object] = {
    "model_type": "ernie4_5",
    "architectures": ["Ernie4_5ForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 2048,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
START_S = 280.0


def model_folder(options: argparse.Namespace, folder: Path) -> Path:
    """A config.json and a tokenizer with one token for every id; vLLM draws random weights for it."""
    model = folder / ("tiny-ernie" if options.tiny else MODEL)
    write_model(model, TINY_CONFIG if options.tiny else preset_config(MODEL))
    return model


def flags_of(options: argparse.Namespace, *, eager: bool) -> tuple[str, ...]:
    """vLLM's flags, the same for both ways. On a CPU the toy runs eagerly throughout: compiling needs a toolchain."""
    flags = ["--load-format", "dummy", "--no-enable-prefix-caching"]
    flags += ["--max-model-len", "512" if options.tiny else "8192"]
    if eager or options.device == "cpu":
        flags.append("--enforce-eager")
    return tuple(flags)


def open_local(options: argparse.Namespace, model: Path, log: Path, clock: Clock, *, eager: bool) -> Engine:
    """vLLM's engine class in a child process."""
    return VllmLocal(
        VllmLocalOptions(
            model=str(model),
            python=options.engine_python,
            flags=flags_of(options, eager=eager),
            dtype=_dtype(options),
            clock=clock,
            log=log,
            environment=environment_of(options),
            start_s=START_S,
        )
    )


def environment_of(options: argparse.Namespace) -> dict[str, str]:
    """Nothing is asked of a hub; a CPU gets a small cache."""
    settings = {"HF_HUB_OFFLINE": "1", "VLLM_DO_NOT_TRACK": "1", "VLLM_NO_USAGE_STATS": "1"}
    if options.device == "cpu":
        settings["VLLM_CPU_KVCACHE_SPACE"] = "1"
    return {**os.environ, **settings}


def _dtype(options: argparse.Namespace) -> str:
    return "float32" if options.device == "cpu" else "bfloat16"


def open_http(options: argparse.Namespace, model: Path, log: Path, clock: Clock, *, eager: bool) -> Engine:
    """`vllm serve`, through HTTP, with our plugin in it."""
    engine = VllmServer(
        VllmServerOptions(
            http=HttpOptions(url="", model=model.name, api="completions", clock=clock),
            model=str(model),
            python=options.engine_python,
            flags=flags_of(options, eager=eager),
            dtype=_dtype(options),
            environment=environment_of(options),
            log=log,
            clock=clock,
            start_s=START_S,
        )
    )
    engine.tell_with(lambda line: print(line, file=sys.stderr, flush=True))
    return engine

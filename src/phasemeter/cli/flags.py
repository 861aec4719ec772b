"""Options that several commands share."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from phasemeter.engines.spec import EngineSpec
from phasemeter.measure.lengths import parse_counts
from phasemeter.measure.plan import Grid, check_grid
from phasemeter.record.errors import InputError
from phasemeter.record.request import Sampling

F = TypeVar("F", bound=Callable[..., object])

ENGINE_CHOICES = ("local", "vllm", "vllm-local", "openai", "simulated")
_IN_VLLMS_ENVIRONMENT = frozenset({"vllm", "vllm-local"})


MOST_TIMEOUT_S = 1e7
"""About four months."""


class FiniteRange(click.FloatRange):
    """A number in a range; NaN, which compares with nothing, is in none."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As `FloatRange` does it; infinity and NaN are refused."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number


def _all(function: F, options: list[Callable[[F], F]]) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def engine_flags(function: F) -> F:
    """What is measured."""
    return _all(
        function,
        [
            click.option(
                "--engine",
                type=click.Choice(ENGINE_CHOICES),
                default="local",
                show_default=True,
                help="local: transformers in this process. vllm: a vLLM server, started here or (--url) running. "
                "vllm-local: vLLM's engine class in a child process, without HTTP. "
                "openai: any OpenAI-compatible server. "
                "simulated: known timing, in this process.",
            ),
            click.option(
                "--model",
                help="Preset, hub name, directory (local, vllm) or FILE.gguf (local); model name (openai).",
            ),
            click.option("--url", help="Address of a running server, with or without /v1 (openai, vllm)."),
            click.option(
                "--api",
                type=click.Choice(("completions", "chat")),
                default="completions",
                show_default=True,
                help="Which API of the server; completions takes exact token ids where the server does.",
            ),
            click.option(
                "--api-key-env", metavar="NAME", help="Environment variable that holds the API key."
            ),
            click.option(
                "--dtype",
                default="auto",
                show_default=True,
                help="Number format of an engine started here: auto, float32, bfloat16 or float16.",
            ),
            click.option(
                "--device",
                default="auto",
                show_default=True,
                help="Device of an engine started here: auto, cpu, cuda or cuda:N.",
            ),
            click.option(
                "--engine-python",
                metavar="PATH",
                help="Python of vLLM's own environment. [default: this one]",
            ),
            click.option("--engine-steps", is_flag=True, help="Record each step of the engine, too (vllm)."),
            click.option(
                "--engine-spans",
                is_flag=True,
                help="Record what the engine's OpenTelemetry spans tell of each request, too (vllm).",
            ),
            click.option(
                "--engine-plugin/--no-engine-plugin",
                default=True,
                show_default=True,
                help="Record what the engine saw of each request, by a plugin given to it (vllm).",
            ),
            click.argument("engine_arguments", metavar="[-- ENGINE FLAGS]", nargs=-1),
            click.option("--threads", type=click.IntRange(1, 1024), help="CPU threads of the local engine."),
            click.option(
                "--hardware",
                metavar="NAME",
                help="Hardware of a remote server, for its floors (see `phasemeter hardware`).",
            ),
            click.option(
                "--model-shape",
                metavar="NAME|config.json",
                help="Shape of a remote server's model, for its floors (see `phasemeter models`).",
            ),
            click.option("--insecure", is_flag=True, help="Do not verify the server's TLS certificate."),
            click.option(
                "--temperature",
                type=FiniteRange(min=0),
                help="Sampling; unset leaves the engine's own (local: greedy).",
            ),
            click.option("--top-p", type=FiniteRange(0, 1, min_open=True), help="Nucleus sampling."),
            click.option(
                "--top-k", type=click.IntRange(0, 2**31 - 1), help="Sample among the K likeliest tokens."
            ),
            click.option(
                "--timeout-s",
                type=FiniteRange(0, MOST_TIMEOUT_S, min_open=True),
                default=600.0,
                show_default=True,
                help="Give a request up after so many seconds.",
            ),
            click.option(
                "--scrape-s",
                type=FiniteRange(0, MOST_TIMEOUT_S),
                default=1.0,
                show_default=True,
                help="Sample the gauges of a server's /metrics so often; 0 takes no samples (vllm, openai).",
            ),
            click.option(
                "--truth",
                metavar="KEY=VALUE",
                multiple=True,
                help="Setting of the simulated engine, such as ttft_ms=50.",
            ),
        ],
    )


def grid_flags(function: F) -> F:
    """Which shapes, how often."""
    return _all(
        function,
        [
            click.option(
                "--input-tokens",
                default="64,128,256",
                show_default=True,
                metavar="N,N,...",
                help="Prompt lengths, exact.",
            ),
            click.option(
                "--output-tokens",
                default="32",
                show_default=True,
                metavar="N,N,...",
                help="Generated lengths; lists cross.",
            ),
            click.option(
                "--concurrency",
                default="1",
                show_default=True,
                metavar="N,N,...",
                help="Requests in flight (closed loop); lists cross.",
            ),
            click.option(
                "--repeats",
                type=int,
                default=5,
                show_default=True,
                help="Interleaved blocks; each visits every shape once in its own random order.",
            ),
            click.option(
                "--requests",
                type=click.IntRange(min=1),
                metavar="M",
                help="Requests a shape and block. [default: 1, or two a slot]",
            ),
            click.option(
                "--paired", is_flag=True, help="Read input and output lists side by side, not crossed."
            ),
            click.option(
                "--seed",
                type=click.IntRange(-(2**63), 2**63 - 1),
                default=0,
                show_default=True,
                help="Seed of the order and of random weights; prompts differ from run to run whatever the seed.",
            ),
            click.option(
                "--warmup",
                default="auto",
                show_default=True,
                metavar="auto|N",
                help="Warm-up rounds a shape; auto: until its times settle.",
            ),
        ],
    )


def lang_flag(function: F) -> F:
    """Language of prose."""
    option = click.option(
        "--lang",
        type=click.Choice(("en", "zh")),
        default="en",
        show_default=True,
        help="Language of the prose.",
    )
    return option(function)


def json_flag(function: F) -> F:
    """Results as JSON, alone on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON alone on stdout.")(function)


def engine_spec(options: dict[str, object]) -> EngineSpec:
    """The engine part of a command's options, checked. Raises InputError."""
    kind = text_of(options, "engine") or "local"
    url, model = text_of(options, "url"), text_of(options, "model")
    if kind == "openai" and url is None:
        raise InputError(
            "--url", "none", "--engine openai needs the server's address, such as http://127.0.0.1:8000"
        )
    if kind == "local" and model is None:
        raise InputError(
            "--model",
            "none",
            "--engine local needs a model: a preset such as ernie-4.5-0.3b, "
            "a directory, a hub name or a FILE.gguf",
        )
    if kind not in {"openai", "vllm"} and url is not None:
        raise InputError("--url", url, f"--engine {kind} takes no address; use --engine openai")
    _check_vllm(kind, options)
    seed = options.get("seed")
    timeout = options.get("timeout_s")
    threads = options.get("threads")
    return EngineSpec(
        kind=kind,
        model=model,
        url=url,
        api=text_of(options, "api") or "completions",
        api_key=_api_key(text_of(options, "api_key_env")),
        dtype=text_of(options, "dtype") or "auto",
        device=text_of(options, "device") or "auto",
        seed=seed if isinstance(seed, int) else 0,
        threads=threads if isinstance(threads, int) else None,
        timeout_s=timeout if isinstance(timeout, float) else 600.0,
        connect_timeout_s=number_of(options, "connect_timeout_s") or 10.0,
        first_token_timeout_s=number_of(options, "first_token_timeout_s"),
        gap_timeout_s=number_of(options, "gap_timeout_s"),
        verify_tls=not options.get("insecure"),
        truth=_truth(options.get("truth")),
        engine_python=_engine_python(kind, text_of(options, "engine_python")),
        engine_flags=_engine_arguments(kind, options.get("engine_arguments")),
        engine_plugin=bool(options.get("engine_plugin", True)),
        engine_steps=bool(options.get("engine_steps")),
        engine_spans=bool(options.get("engine_spans")),
        environment=dict(os.environ) if kind in _IN_VLLMS_ENVIRONMENT else {},
        cache=str(_cache_folder()) if kind == "vllm" else None,
    )


def _check_vllm(kind: str, options: dict[str, object]) -> None:
    steps, plugin = options.get("engine_steps"), options.get("engine_plugin", True)
    if steps and kind != "vllm":
        raise InputError("--engine-steps", "given", f"--engine {kind} tells no steps; leave it out")
    if options.get("engine_spans") and kind != "vllm":
        raise InputError("--engine-spans", "given", f"--engine {kind} sends no spans; leave it out")
    if steps and not plugin:
        raise InputError(
            "--engine-steps", "given", "the plugin tells the steps; leave --no-engine-plugin out"
        )
    if kind == "vllm" and options.get("threads") is not None:
        raise InputError(
            "--threads",
            str(options["threads"]),
            "is for --engine local; set VLLM_CPU_OMP_THREADS_BIND for vLLM",
        )


def _engine_python(kind: str, path: str | None) -> str | None:
    if path is not None and kind not in _IN_VLLMS_ENVIRONMENT:
        raise InputError(
            "--engine-python", path, f"--engine {kind} has no environment of its own; leave it out"
        )
    return path


def _engine_arguments(kind: str, given: object) -> tuple[str, ...]:
    words = tuple(str(word) for word in given) if isinstance(given, tuple) else ()  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if words and kind not in _IN_VLLMS_ENVIRONMENT:
        raise InputError("engine flags", " ".join(words), f"--engine {kind} takes none; leave them out")
    if words and not words[0].startswith("-"):
        raise InputError(
            "engine flags", words[0], "write -- and then vLLM's own flags, such as -- --max-num-seqs 8"
        )
    return words


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "phasemeter"


def grid_of(options: dict[str, object]) -> Grid:
    """The grid part of a command's options, checked. Raises InputError."""
    warmup = text_of(options, "warmup") or "auto"
    if warmup != "auto" and not re.fullmatch("[0-9]{1,4}", warmup):
        raise InputError("--warmup", warmup, "give auto or a number of rounds, 0 to 9999")
    repeats, requests, seed = options.get("repeats"), options.get("requests"), options.get("seed")
    grid = Grid(
        input_tokens=parse_counts(text_of(options, "input_tokens") or "", "--input-tokens"),
        output_tokens=parse_counts(text_of(options, "output_tokens") or "", "--output-tokens"),
        concurrency=parse_counts(text_of(options, "concurrency") or "", "--concurrency", most=100_000),
        repeats=repeats if isinstance(repeats, int) else 5,
        requests=requests if isinstance(requests, int) else None,
        seed=seed if isinstance(seed, int) else 0,
        warmup=None if warmup == "auto" else int(warmup),
        paired=bool(options.get("paired")),
        sampling=Sampling(
            temperature=number_of(options, "temperature"),
            top_p=number_of(options, "top_p"),
            top_k=top_k if isinstance(top_k := options.get("top_k"), int) else None,
        ),
    )
    check_grid(grid)
    return grid


def scrape_every(options: dict[str, object]) -> float:
    """Seconds between two samples of a server's gauges; 0 for none."""
    every_s = number_of(options, "scrape_s")
    return 1.0 if every_s is None else every_s


def text_of(options: dict[str, object], name: str) -> str | None:
    """A text option; None where it was not given."""
    value = options.get(name)
    return value if isinstance(value, str) and value else None


def number_of(options: dict[str, object], name: str) -> float | None:
    """A number option; None where it was not given."""
    value = options.get(name)
    return value if isinstance(value, float) else None


def _api_key(name: str | None) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name)
    if not key:
        raise InputError(
            "--api-key-env", name, "that environment variable is not set; export it or name another"
        )
    return key


def _truth(pairs: object) -> dict[str, object]:
    settings: dict[str, object] = {}
    for pair in pairs if isinstance(pairs, tuple) else ():  # pyright: ignore[reportUnknownVariableType]
        key, sign, value = str(pair).partition("=")  # pyright: ignore[reportUnknownArgumentType]
        if not sign:
            raise InputError("--truth", str(pair), "write KEY=VALUE, for example ttft_ms=50")  # pyright: ignore[reportUnknownArgumentType]
        try:
            settings[key.strip()] = int(value) if value.strip().lstrip("+-").isdigit() else float(value)
        except ValueError:
            settings[key.strip()] = value.strip()
    return settings

"""The clients: what each is called with, what it needs and where its account of the turn lies.

The peers' commands are those of their own documentation for a closed loop with a fixed number of requests; each runs in
an environment of its own, whose path is given. Every one of them streams chat completions unless asked otherwise.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import seen
from msgspec import Struct


class Turn(Struct, frozen=True):
    """One client against one server, once."""

    url: str
    api: str
    concurrency: int
    requests: int
    input_tokens: int
    output_tokens: int
    folder: Path
    tokenizer: Path
    workers: int | None = None
    stagger_ms: float | None = None


class Client(Struct, frozen=True):
    """One tool. `program` is looked for under its environment's folder."""

    name: str
    program: str
    command: Callable[[str, Turn], list[str]]
    read: Callable[[Path], seen.Seen]
    distribution: str
    version_of: str
    """The package whose version is shown."""


def _ours(program: str, turn: Turn) -> list[str]:
    command = [
        program,
        "measure",
        "--engine",
        "openai",
        "--url",
        turn.url,
        "--api",
        turn.api,
        "--repeats",
        "1",
    ]
    command += ["--input-tokens", str(turn.input_tokens), "--output-tokens", str(turn.output_tokens)]
    command += ["--concurrency", str(turn.concurrency), "--requests", str(turn.requests), "--warmup", "0"]
    if turn.workers is not None:
        command += ["--workers", str(turn.workers)]
    return [*command, "--out", str(turn.folder / "run.jsonl")]


def _aiperf(program: str, turn: Turn) -> list[str]:
    # 0.13.0 fails with HF_HUB_OFFLINE=1: it takes an absolute path for the name of a repository
    kind = "chat" if turn.api == "chat" else "completions"
    command = [
        program,
        "profile",
        "--model",
        "truth",
        "--url",
        turn.url,
        "--endpoint-type",
        kind,
        "--streaming",
    ]
    command += ["--tokenizer", str(turn.tokenizer), "--use-server-token-count", "--random-seed", "1"]
    command += ["--concurrency", str(turn.concurrency), "--request-count", str(turn.requests)]
    command += ["--isl", str(turn.input_tokens), "--osl", str(turn.output_tokens)]
    command += [
        "--extra-inputs",
        "ignore_eos:true",
        "--ui",
        "none",
        "--no-server-metrics",
        "--no-gpu-telemetry",
    ]
    return [*command, "--output-artifact-dir", str(turn.folder)]


def _guidellm(program: str, turn: Turn) -> list[str]:
    request = "" if turn.api == "chat" else ",request_format=/v1/completions"
    command = ["env", "HF_HUB_OFFLINE=1", program, "run"]
    command += ["--backend", f"kind=openai_http,target={turn.url},model=truth{request}"]
    command += ["--profile", f"kind=concurrent,streams={turn.concurrency}"]
    command += ["--constraint", f"kind=max_requests,count={turn.requests}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={turn.tokenizer}"]
    tokens = f"prompt_tokens={turn.input_tokens},output_tokens={turn.output_tokens}"
    command += ["--data", f"kind=synthetic_text,{tokens}"]
    return [
        *command,
        "--output",
        f"kind=json,path={turn.folder / 'result.json'}",
        "--disable-console-interactive",
    ]


def _bench_flags(turn: Turn) -> list[str]:
    backend = "openai-chat" if turn.api == "chat" else "openai"
    flags = [
        "--backend",
        backend,
        "--base-url",
        turn.url,
        "--model",
        "truth",
        "--tokenizer",
        str(turn.tokenizer),
    ]
    flags += ["--dataset-name", "random", "--random-input-len", str(turn.input_tokens)]
    flags += ["--random-output-len", str(turn.output_tokens), "--num-prompts", str(turn.requests)]
    flags += ["--max-concurrency", str(turn.concurrency), "--ignore-eos", "--save-result", "--save-detailed"]
    flags += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,99"]
    return [*flags, "--result-dir", str(turn.folder), "--result-filename", "result.json"]


def _vllm(program: str, turn: Turn) -> list[str]:
    path = "/v1/chat/completions" if turn.api == "chat" else "/v1/completions"
    return ["env", "HF_HUB_OFFLINE=1", program, "bench", "serve", "--endpoint", path, *_bench_flags(turn)]


def _vllm_rs(program: str, turn: Turn) -> list[str]:
    return [program, "bench", "serve", *_bench_flags(turn)]


CLIENTS = {
    client.name: client
    for client in (
        Client("phasemeter", "bin/phasemeter", _ours, seen.seen_by_us, "phasemeter", "phasemeter"),
        Client("vllm-rs", "**/site-packages/vllm/vllm-rs", _vllm_rs, seen.seen_by_vllm, "vllm", "vllm"),
        Client("vllm", "bin/vllm", _vllm, seen.seen_by_vllm, "vllm", "vllm"),
        Client("aiperf", "bin/aiperf", _aiperf, seen.seen_by_aiperf, "aiperf", "aiperf"),
        Client("guidellm", "bin/guidellm", _guidellm, seen.seen_by_guidellm, "guidellm", "guidellm"),
    )
}


def program_of(client: Client, environment: Path) -> Path | None:
    """The tool's program in its environment, or None when it is not there."""
    return next(iter(sorted(environment.glob(client.program))), None)


def version_in(client: Client, environment: Path) -> str | None:
    """The version that is installed in that environment."""
    ask = f"from importlib.metadata import version; print(version({client.version_of!r}))"
    told = subprocess.run([str(environment / "bin/python"), "-c", ask], capture_output=True, text=True)
    return told.stdout.strip() or None

"""A tiny ERNIE with random weights on a real vLLM (CPU), for the live tests of what the server saw."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from phasemeter.engines.vllm_seen import FILE_VARIABLE, STEPS_VARIABLE, plugin_path

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = 512


def vllm_python() -> Path:
    """The interpreter of vLLM's environment; skips the test where there is none."""
    told = os.environ.get("PHASEMETER_TEST_VLLM_PYTHON")
    for place in (ROOT / ".venv-vllm" / "bin" / "python", Path(told) if told else None):
        if place is not None and place.exists():
            return place
    pytest.skip("no .venv-vllm/bin/python and PHASEMETER_TEST_VLLM_PYTHON is not set")


def write_model(folder: Path) -> Path:
    """A config of 4 small layers and a byte-level tokenizer of 2,048 entries."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["Ernie4_5ForCausalLM"],
        "model_type": "ernie4_5",
        "vocab_size": 2048,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "use_bias": False,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    specials = ["<pad>", "<s>", "</s>"]
    names = [*specials, *_byte_letters()]
    names += [f"w{i}" for i in range(2048 - len(names))]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i, name in enumerate(specials)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {name: i for i, name in enumerate(names)},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "pad_token": "<pad>",
                "model_max_length": 4096,
                "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
            }
        )
    )
    return folder


def _byte_letters() -> list[str]:
    """The 256 letters that stand for bytes in a byte-level vocabulary (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in plain else next(spare)) for byte in range(256)]


class Server:
    """A running server: where it is, and the file its plugin writes."""

    def __init__(self, url: str, model: str, seen: Path, log: Path, process: subprocess.Popen) -> None:
        self.url, self.model, self.seen, self.log, self.process = url, model, seen, log, process

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            return answer.read().decode()


@contextmanager
def serving(folder: Path, *flags: str, python: Path | None = None, seen: str | None = None):
    """Start vLLM on the tiny model, wait until it generates, and stop its whole group at the end."""
    python = python or vllm_python()
    model = folder / "model"
    if not model.exists():
        write_model(model)
    name = folder / "name"
    info = name / "vllm-0.32.0+cpu.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n")
    plugin = plugin_path()
    assert plugin is not None
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    file, log = folder / "seen.jsonl", folder / "server.log"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(plugin), str(name)]),
        FILE_VARIABLE: seen or str(file),
        STEPS_VARIABLE: "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_DO_NOT_TRACK": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }
    command = [str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--load-format", "dummy"]
    command += ["--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", "tiny", "--max-model-len", str(CONTEXT)]
    command += ["--enable-logging-iteration-details", *flags]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_leave_us_a_core,
        )
    try:
        server = Server(f"http://127.0.0.1:{port}", "tiny", file, log, process)
        _wait(server)
        yield server
    finally:
        _stop(process)


def _leave_us_a_core() -> None:
    """vLLM's threads spin while they wait. On two cores they starve a client beside them, which then gets a whole
    answer in two or three pieces, 100 to 270 ms late."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:-1] or cores)


def _wait(server: Server, limit_s: float = 400.0) -> None:
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1}).encode()
    ask = urllib.request.Request(
        f"{server.url}/v1/completions", data=body, headers={"Content-Type": "application/json"}
    )
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if server.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(ask, timeout=60):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
    tail = server.log.read_text(errors="replace").splitlines()[-25:]
    pytest.fail("vLLM did not come up:\n" + "\n".join(tail))


def _stop(process: subprocess.Popen) -> None:
    for sign, limit_s in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        if process.poll() is not None:
            break
        os.killpg(process.pid, sign)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            continue
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # an engine core that outlived its parent

"""`vllm serve`: FAKE_MODE names what happens. What it was started with is written to FAKE_TOLD."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from vllm.entrypoints.launchers.cli_args import make_arg_parser

MODE = os.environ.get("FAKE_MODE", "serve")
KEPT = ("PYTHONPATH", "HF_HUB_OFFLINE", "VLLM_CPU_KVCACHE_SPACE", "VLLM_DO_NOT_TRACK", "VLLM_API_KEY",
        "PHASEMETER_VLLM_FILE", "PHASEMETER_VLLM_STEPS", "CUDA_VISIBLE_DEVICES",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")  # fmt: skip


class Api(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    name = "none"

    def log_message(self, *args: object) -> None:
        pass

    def answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/version":
            self.answer(200, {"version": "0.32.0"})
        elif self.path == "/v1/models":
            self.answer(200, {"data": [{"id": self.name, "max_model_len": 4096}]})
        else:
            self.answer(404, {"error": {"message": "no"}})

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if MODE == "broken":
            self.answer(500, {"error": {"message": "the fake engine is dead"}})
            return
        if MODE == "untraced":  # 0.32 without the OpenTelemetry packages that it was asked to use
            say("ERROR [async_llm.py:906] AttributeError: type object 'Any' has no attribute 'SERVER'")
            self.answer(500, {"error": {"message": "EngineCore encountered an issue"}})
            return
        if order["prompt"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if (
            order["prompt"] == "fade"
        ):  # as vLLM does when its engine process has died: listen no more, end later
            self.server.socket.close()
            threading.Thread(target=fade).start()
            self.answer(500, {"error": {"message": "EngineCore encountered an issue"}})
            self.close_connection = True
            return
        count = len(order["prompt"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for n in range(1, order["max_tokens"] + 1):
            last = "length" if n == order["max_tokens"] else None
            usage = {"prompt_tokens": count, "completion_tokens": n, "total_tokens": count + n}
            chunk = {"choices": [{"index": 0, "text": "x", "finish_reason": last}], "usage": usage}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        if file := os.environ.get("PHASEMETER_VLLM_FILE"):
            line = {"type": "request", "engine_ns": time.monotonic_ns(), "queue_ns": 5, "prefill_ns": 7,
                    "request_id": f"cmpl-{self.headers['X-Request-Id']}-0", "generated_tokens": 1}  # fmt: skip
            with Path(file).open("a") as out:
                out.write(json.dumps(line) + "\n")


def fade() -> None:
    time.sleep(0.7)
    print(
        "ERROR 12-01 01:32:24 [x.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: None)",
        flush=True,
    )
    os._exit(0)


def say(text: str) -> None:
    print(f"(EngineCore pid=7) INFO 12-01 00:50:05 [core.py:1] {text}", flush=True)


def die(text: str) -> None:
    print(f"(EngineCore pid=7) ERROR 12-01 00:50:06 [core.py:2] {text}", file=sys.stderr, flush=True)
    print("RuntimeError: Engine core initialization failed. See root cause above.", file=sys.stderr)
    sys.exit(1)


def main() -> None:
    importlib.metadata.version("vllm")
    parser = argparse.ArgumentParser(prog="main.py")
    commands = parser.add_subparsers(dest="subparser")
    make_arg_parser(commands.add_parser("serve"))
    # as vLLM's own parser does: --max_num_seqs=8 is --max-num-seqs=8
    words = [word.replace("_", "-") if word.startswith("--") else word for word in sys.argv[1:]]
    args = parser.parse_args(words)
    if told := os.environ.get("FAKE_TOLD"):
        kept = {name: os.environ.get(name) for name in KEPT}
        Path(told).write_text(json.dumps({"argv": sys.argv[1:], "environment": kept, "pid": os.getpid()}))
    if MODE == "oom":
        die("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    if MODE == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    say("Initializing a V1 LLM engine (v0.32.0) with config: model='m', dtype=torch.float32, max_seq_len=4096, "
        "load_format=dummy, enforce_eager=True, device_config=cpu, quantization=None")  # fmt: skip
    say("Initializing model took 0.42 seconds")
    say("init engine (profile, create kv cache, warmup model) took 2.50 s")
    if MODE == "hang":
        time.sleep(600)
    Api.name = args.served_model_name
    with ThreadingHTTPServer((args.host, args.port), Api) as server:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        server.serve_forever()


if __name__ == "__main__":
    main()

"""A real `phasemeter simulate` process, one request to it, and what must hold for every answer and log
line."""

from __future__ import annotations

import itertools
import json
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from golden.reader import Answer, Client

MS = 1_000_000
SRC = Path(__file__).resolve().parents[2] / "src"
START = "from phasemeter.cli.simulate import command; command()"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
NOISE_NS = 500 * MS
"""How late things may come when others keep the cores busy. What must be exact is checked without it: the
plan, the order, and that nothing comes before its time."""


class Server:
    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, "--json", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={"PYTHONPATH": str(SRC), "PATH": "/usr/bin:/bin"},
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first, self.process.communicate()
        told = json.loads(first)
        assert told["url"] == f"http://127.0.0.1:{told['port']}/v1"
        assert told["pid"] == self.process.pid
        self.port = told["port"]

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=20)
        return self.process.returncode, err.decode()

    def log(self) -> list[dict]:
        client = Client(self.port)
        body = client.get("/log").body
        client.close()
        return [json.loads(line) for line in body.splitlines()]

    def entry(self, name: str, wait_s: float = 3.0) -> dict:
        until = time.monotonic() + wait_s
        while True:
            found = [line for line in self.log() if line["id"] == name]
            if found or time.monotonic() > until:
                assert len(found) == 1, (name, found)
                return found[0]
            time.sleep(0.02)


_serial = iter(range(10_000))


def ask(
    server: Server,
    path: str = COMPLETIONS,
    *,
    timeout_s: float = 10.0,
    max_tokens: int = 6,
    ask_usage: bool = True,
    **simulate: object,
) -> tuple[Answer, dict]:
    """One streamed request on a connection of its own, and the server's log of it."""
    name = f"golden-{next(_serial)}"
    body: dict[str, object] = {
        "model": "simulated",
        "max_tokens": max_tokens,
        "stream": True,
        "x_simulate": simulate,
    }
    body |= (
        {"prompt": [1, 2, 3, 4]}
        if path == COMPLETIONS
        else {"messages": [{"role": "user", "content": "grüß"}]}
    )
    if ask_usage:
        body["stream_options"] = {"include_usage": True}
    client = Client(server.port)
    answer = client.post(path, body, {"X-Request-Id": name}, timeout_s)
    client.close()
    return answer, server.entry(name)


def sends(entry: dict, *kinds: str) -> list[tuple[int, int, int]]:
    """(planned offset, stamp, tokens) of the log's writes of these kinds."""
    rows = zip(entry["kinds"], entry["planned_ns"], entry["sent_ns"], entry["tokens"], strict=True)
    return [(planned, sent, tokens) for kind, planned, sent, tokens in rows if kind in kinds]


def check_log(entry: dict) -> None:
    """Nothing is sent before its time, nothing out of order, and lateness stays small."""
    late = [s - entry["received_ns"] - p for p, s in zip(entry["planned_ns"], entry["sent_ns"], strict=True)]
    assert min(late) >= 0
    assert max(late) == entry["late_max_ns"]
    assert entry["sent_ns"] == sorted(entry["sent_ns"])
    assert entry["planned_ns"] == sorted(entry["planned_ns"])
    assert statistics.median(late) < NOISE_NS
    assert sum(entry["tokens"]) == entry["sent_tokens"]


def check_stamps(answer: Answer, entry: dict, *kinds: str) -> None:
    """Every piece was received after it was sent, and soon."""
    sent = sends(entry, *kinds)
    received = answer.content()
    assert len(received) == len(sent)
    delays = [r - s for (r, _), (_, s, _) in zip(received, sent, strict=True)]
    assert min(delays) >= 0
    assert statistics.median(delays) < NOISE_NS
    gaps = [b - a for (a, _), (b, _) in itertools.pairwise(received)]
    sent_gaps = [b - a for (_, a, _), (_, b, _) in itertools.pairwise(sent)]
    if gaps:
        assert statistics.median(abs(g - s) for g, s in zip(gaps, sent_gaps, strict=True)) < NOISE_NS

"""Calibrate a client: compare what it measures with what `phasemeter simulate` says that it sent.

    phasemeter simulate --port 8765 --ttft-ms 50 --itl-ms 10
    python examples/calibrate_client.py http://127.0.0.1:8765

Put your own client in the place of `my_client`. Both sides stamp with `time.monotonic_ns()`, which is one
clock for the whole machine on Linux and macOS, so client and server must run on the same one.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from urllib.parse import urlsplit

REQUESTS, TOKENS = 10, 40


def my_client(host: str, name: str) -> list[int]:
    """One streamed request; the stamp of every event with text in it. This is the client under test."""
    connection = http.client.HTTPConnection(host, timeout=30)
    body = {"prompt": "hello " * 20, "max_tokens": TOKENS, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"X-Request-Id": name})
    response = connection.getresponse()
    stamps = []
    while line := response.readline():
        now_ns = time.monotonic_ns()
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"]:
            stamps.append(now_ns)
    connection.close()
    return stamps


def main(url: str) -> None:
    host = urlsplit(url).netloc
    measured = {f"calibrate-{time.monotonic_ns()}-{i}": [] for i in range(REQUESTS)}
    for name in measured:
        measured[name] = my_client(host, name)
    connection = http.client.HTTPConnection(host, timeout=30)
    connection.request("GET", f"/log?last={REQUESTS}")
    log = {entry["id"]: entry for entry in map(json.loads, connection.getresponse().read().splitlines())}
    connection.close()
    late_us: list[float] = []
    for name, stamps in measured.items():
        entry = log[name]
        sent = [t for t, n in zip(entry["sent_ns"], entry["tokens"], strict=True) if n]
        if len(sent) != len(stamps):
            sys.exit(f"{name}: the server sent {len(sent)} chunks, the client saw {len(stamps)}")
        late_us += [(seen - t) / 1e3 for seen, t in zip(stamps, sent, strict=True)]
    late_us.sort()
    p50, p99 = late_us[len(late_us) // 2], late_us[len(late_us) * 99 // 100]
    print(f"{len(late_us)} chunks: the client stamps {p50:.0f} us (p50), {p99:.0f} us (p99) after the send")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8765")

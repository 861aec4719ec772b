"""The oracle of the golden tests: a raw-socket HTTP server that plays a script and keeps a log of what it
really did.

It shares no code with the product and knows nothing of event loops: plain sockets, one thread a
connection, its own check of the request's HTTP. A script is a list of `(due_ms, bytes)`, absolute from the
moment the request's last byte was read; stamps are `time.monotonic_ns`, taken right after each `sendall`.
Tests compare with this log, never with the script: on a busy machine a send may be late, and then the
client must say so."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

RESET = object()
"""In a script in place of bytes: send a RST instead of closing."""
CLOSE = object()
"""In a script in place of bytes: close now."""

SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
LAST_CHUNK = b"0\r\n\r\n"


@dataclass
class Seen:
    """One request as the oracle saw it, and what was sent for it and when."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    received_ns: int
    sent: list[tuple[int, bytes]] = field(default_factory=list)
    closed_by_client: bool = False

    @property
    def json(self) -> dict:
        return json.loads(self.body)


Script = list[tuple[float, object]]
Answerer = Callable[[Seen], Script]


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    """One HTTP chunk."""
    return b"%x%s\r\n%s\r\n" % (len(data), extension, data)


def event(payload: object, end: bytes = b"\n") -> bytes:
    """One server-sent event; `end` is the line end."""
    text = payload if isinstance(payload, bytes) else json.dumps(payload, ensure_ascii=False).encode()
    return b"data: " + text + end + end


def chat(content: object = None, **more: object) -> dict:
    """A chat chunk. `role`, `reasoning`, `finish`, `usage`, `tool_calls` go where they belong."""
    delta: dict = {}
    for name in ("role", "reasoning", "reasoning_content", "tool_calls"):
        if name in more:
            delta[name] = more[name]
    if content is not None or more.get("null_content"):
        delta["content"] = content
    out: dict = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": more.get("finish")}],
    }
    if "usage" in more:
        out["usage"] = {"prompt_tokens": 5, "completion_tokens": more["usage"], "total_tokens": 5}
    return out


def text(content: str, finish: str | None = None, **more: object) -> dict:
    """A completions chunk."""
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": "m",
        "choices": [{"index": 0, "text": content, "finish_reason": finish}],
        **more,
    }


def usage_chunk(completion: int, prompt: int = 5, **more: object) -> dict:
    """The last chunk of `include_usage`: no choices, only counts."""
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "choices": [],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        },
        **more,
    }


def stream(events: list[tuple[float, object]], *, done: bool = True, end: bool = True) -> Script:
    """A chunked event stream: each (due_ms, payload) one event in one chunk; head with the first."""
    script: Script = [(0, SSE_HEAD)]
    script += [(due, chunk(event(payload))) for due, payload in events]
    last = events[-1][0] if events else 0
    tail = (chunk(event(b"[DONE]")) if done else b"") + (LAST_CHUNK if end else b"")
    if tail:
        script.append((last, tail))
    return script


def whole(status: str, body: bytes, *headers: str, kind: str = "application/json") -> Script:
    """A response with a Content-Length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return [(0, "\r\n".join(lines).encode() + b"\r\n\r\n" + body)]


def models(*names: str, **more: object) -> Script:
    """The answer to GET /v1/models."""
    data = [{"id": name, "object": "model", **more} for name in names]
    return whole("200 OK", json.dumps({"object": "list", "data": data}).encode())


class Oracle:
    """Serves on a free port of loopback until closed. `answer` gives the script of each request to `path`s
    that generate; the model list and a well-behaved reply to probes (max_tokens 1) come by themselves
    unless `raw`. `slow_read_s` waits that long before it reads a body above 100 kB."""

    def __init__(
        self,
        answer: Answerer,
        *,
        raw: bool = False,
        tls: ssl.SSLContext | None = None,
        slow_read_s: float = 0.0,
    ) -> None:
        self._answer = answer
        self._raw = raw
        self._tls = tls
        self._slow_read_s = slow_read_s
        self.seen: list[Seen] = []
        self.faults: list[str] = []
        self.connections = 0
        self.open_now = 0
        self.open_peak = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        if slow_read_s:  # inherited by each connection: a client's long body cannot vanish into our kernel
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stop.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(5)
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        assert not self.faults, self.faults

    @property
    def measured(self) -> list[Seen]:
        """Requests that are no probe and no look at the model list."""
        return [s for s in self.seen if s.method == "POST" and s.json.get("max_tokens") != 1]

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self.connections += 1
                number = self.connections
                self._sockets.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock, number), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, number: int) -> None:
        with self._lock:
            self.open_now += 1
            self.open_peak = max(self.open_peak, self.open_now)
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            pending = b""
            while not self._stop.is_set():
                seen, pending = self._read(sock, pending, number)
                if seen is None or not self._play(sock, seen, self._script(seen)):
                    return
        except OSError:
            return  # the client went away: an outcome that tests look for in the log
        finally:
            with self._lock:
                self.open_now -= 1
            with contextlib.suppress(OSError):
                sock.close()

    def _script(self, seen: Seen) -> Script:
        if not self._raw:
            if seen.path.endswith("/models"):
                return models("m", max_model_len=4096)
            if seen.method == "GET":
                return whole("404 Not Found", b'{"detail":"Not Found"}')
            if seen.json.get("max_tokens") == 1:
                first = text("a", usage={"prompt_tokens": 8, "completion_tokens": 1})
                if seen.path.endswith("/chat/completions"):
                    first = chat("a", usage=1)
                return stream([(0, first), (0, chat(finish="length", usage=1)), (0, usage_chunk(1, 8))])
        return self._answer(seen)

    def _read(self, sock: socket.socket, data: bytes, number: int) -> tuple[Seen | None, bytes]:
        while b"\r\n\r\n" not in data:
            more = sock.recv(65536)
            if not more:
                if data:
                    self.faults.append(f"connection closed inside a request head: {data[:80]!r}")
                return None, b""
            data += more
        head, _, rest = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, path, version = self._request_line(lines[0])
        headers = self._headers(lines[1:])
        if version != "HTTP/1.1" or "host" not in headers:
            self.faults.append(f"no HTTP/1.1 with a Host: {lines[0]!r}")
        length = int(headers.get("content-length", "0"))
        if length > 100_000:
            time.sleep(self._slow_read_s)
        body = bytearray(rest)
        while len(body) < length:
            more = sock.recv(1 << 20)
            if not more:
                return None, b""
            body += more
        seen = Seen(method, path, headers, bytes(body[:length]), number, time.monotonic_ns())
        with self._lock:
            self.seen.append(seen)
        return seen, bytes(body[length:])

    def _request_line(self, line: str) -> tuple[str, str, str]:
        parts = line.split(" ")
        if len(parts) != 3 or parts[0] not in {"GET", "POST"} or not parts[1].startswith("/"):
            self.faults.append(f"bad request line {line!r}")
            return "GET", "/", "HTTP/1.1"
        return parts[0], parts[1], parts[2]

    def _headers(self, lines: list[str]) -> dict[str, str]:
        headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip() or name.lower() in headers:
                self.faults.append(f"bad or doubled header {line!r}")
            headers[name.lower()] = value.strip()
        return headers

    def _play(self, sock: socket.socket, seen: Seen, script: Script) -> bool:
        """Send each piece when it is due; whether the connection may carry another request."""
        keep = True
        for due_ms, data in script:
            if not self._wait_until(sock, seen, seen.received_ns + int(due_ms * 1e6)):
                return False
            if data is RESET:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            if data is CLOSE:
                return False
            assert isinstance(data, bytes)
            if data:
                sock.sendall(data)
                seen.sent.append((time.monotonic_ns(), data))
            if b"connection: close" in data.lower() or data.startswith(b"HTTP/1.0"):
                keep = False
        return keep

    def _wait_until(self, sock: socket.socket, seen: Seen, due_ns: int) -> bool:
        while (left_ns := due_ns - time.monotonic_ns()) > 0:
            if left_ns > 30e6:  # long waits notice that the client has left
                sock.settimeout(min(left_ns / 1e9 - 0.01, 0.2))
                try:
                    gone = sock.recv(1, socket.MSG_PEEK if self._tls is None else 0) == b""
                except TimeoutError:
                    gone = False
                except OSError:
                    gone = True
                finally:
                    sock.settimeout(None)
                if gone or self._stop.is_set():
                    seen.closed_by_client = gone
                    return False
            else:
                time.sleep(left_ns / 1e9)
        return True

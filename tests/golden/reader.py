"""An independent reader of HTTP and server-sent events: plain sockets and the standard library, nothing of
Phasemeter.

It stamps every `recv` before it looks at the bytes, and takes HTTP's chunks and SSE's events apart by itself.
"""

from __future__ import annotations

import json
import select
import socket
import time
from dataclasses import dataclass, field


@dataclass
class Event:
    """One SSE event: when its last byte was received, and its data; `comment` for a comment."""

    t_ns: int
    data: str
    comment: bool = False

    def json(self):
        return json.loads(self.data)


@dataclass
class Answer:
    sent_ns: int
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    """Every recv: stamp and raw bytes."""
    body: bytes = b""
    events: list[Event] = field(default_factory=list)
    ended: str = "open"
    """complete, closed (end of file before the answer's own end), reset, or timeout"""

    def content(self) -> list[tuple[int, str]]:
        """(stamp, text) of every event whose choice holds generated text, also the text ""; no role, no
        finish."""
        found = []
        for event in self.events:
            if event.comment or not event.data.startswith("{"):
                continue
            try:
                choices = event.json().get("choices") or []
            except ValueError:
                continue
            for choice in choices:
                if "text" in choice:
                    text = choice["text"] if choice["finish_reason"] is None or choice["text"] else None
                else:
                    delta = choice["delta"]
                    text = (
                        None
                        if "role" in delta
                        else next(
                            (delta[k] for k in ("content", "reasoning", "reasoning_content") if k in delta),
                            None,
                        )
                    )
                if text is not None:
                    found.append((event.t_ns, text))
        return found

    def text(self) -> str:
        return "".join(text for _, text in self.content())

    def done(self) -> bool:
        return any(event.data == "[DONE]" for event in self.events)

    def usages(self) -> list[dict]:
        return [
            event.json()["usage"]
            for event in self.events
            if event.data.startswith("{") and '"usage"' in event.data and event.json().get("usage")
        ]


class Client:
    """One connection."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.left = b""

    def close(self) -> None:
        self.sock.close()

    def post(
        self, path: str, body: dict | bytes, headers: dict | None = None, timeout_s: float = 10.0
    ) -> Answer:
        return self.exchange(request_bytes("POST", path, body, headers), timeout_s)

    def get(self, path: str) -> Answer:
        return self.exchange(request_bytes("GET", path, b""), 10.0)

    def exchange(self, raw: bytes, timeout_s: float = 10.0) -> Answer:
        self.sock.sendall(raw)
        return self.read(Answer(time.monotonic_ns()), timeout_s)

    def read(self, answer: Answer, timeout_s: float = 10.0) -> Answer:
        """Read one answer; bytes behind it stay for the next."""
        parser = Parser(answer)
        until = time.monotonic() + timeout_s
        data, self.left = self.left, b""
        stamp = time.monotonic_ns()
        while True:
            if data:
                answer.reads.append((stamp, data))
                if parser.feed(stamp, data):
                    self.left = parser.rest
                    answer.ended = "complete"
                    return answer
            ready, _, _ = select.select([self.sock], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                answer.ended = "timeout"
                return answer
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                answer.ended = "reset"
                return answer
            stamp = time.monotonic_ns()
            if not data:
                answer.ended = "complete" if parser.until_close else "closed"
                return answer


class Parser:
    """Feeds bytes into an Answer; `feed` returns True when the answer is complete."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.raw = b""
        self.rest = b""
        self.text = b""
        self.in_body = False
        self.until_close = False
        self.need: int | None = None

    def feed(self, stamp: int, data: bytes) -> bool:
        self.raw += data
        if not self.in_body:
            if b"\r\n\r\n" not in self.raw:
                return False
            self._head()
        return self._body(stamp)

    def _head(self) -> None:
        head, _, self.raw = self.raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.answer.status = int(lines[0].split(" ")[1])
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.answer.headers[name.strip().lower()] = value.strip()
        self.in_body = True
        self.chunked = self.answer.headers.get("transfer-encoding") == "chunked"
        length = self.answer.headers.get("content-length")
        self.need = None if length is None else int(length)
        self.until_close = not self.chunked and self.need is None

    def _body(self, stamp: int) -> bool:
        if self.need is not None:
            if len(self.raw) < self.need:
                return False
            self.answer.body, self.rest = self.raw[: self.need], self.raw[self.need :]
            return True
        if not self.chunked:
            self.answer.body += self.raw
            self._events(stamp, self.raw)
            self.raw = b""
            return False
        while b"\r\n" in self.raw:
            size_line, _, after = self.raw.partition(b"\r\n")
            size = int(size_line, 16)
            if len(after) < size + 2:
                return False
            assert after[size : size + 2] == b"\r\n", "an HTTP chunk does not end where it says"
            chunk, self.raw = after[:size], after[size + 2 :]
            if size == 0:
                self.rest = self.raw
                return True
            self.answer.body += chunk
            self._events(stamp, chunk)
        return False

    def _events(self, stamp: int, data: bytes) -> None:
        self.text += data
        while True:
            ends = [(self.text.find(e), e) for e in (b"\n\n", b"\r\n\r\n") if e in self.text]
            if not ends:
                return
            at, end = min(ends)
            block, self.text = self.text[:at], self.text[at + len(end) :]
            line = block.decode("utf-8")
            if line.startswith(":"):
                self.answer.events.append(Event(stamp, line[1:].strip(), comment=True))
            else:
                assert line.startswith("data: "), line
                self.answer.events.append(Event(stamp, line[len("data: ") :]))


def request_bytes(method: str, path: str, body: dict | bytes, headers: dict | None = None) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"Host": "127.0.0.1", "Content-Length": str(len(data)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data

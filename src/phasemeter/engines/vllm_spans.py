"""What a vLLM server saw of each request, as its OpenTelemetry spans tell it.

vLLM started with `--otlp-traces-endpoint` sends one span `llm_request` for each request that finished. `SpanReceiver`
is the other end: an OTLP/HTTP receiver on 127.0.0.1, in a thread, for as long as the server runs. The names of the
attributes are vLLM's own (`vllm/tracing/utils.py`), durations in them are seconds.
"""

from __future__ import annotations

import math
import sys
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

from phasemeter.engines.otlp_wire import DamagedError, Span, Value, spans_of_json, spans_of_protobuf
from phasemeter.engines.vllm_flags import given
from phasemeter.engines.vllm_seen import our_id
from phasemeter.record.engine import EngineReport, SeenRequest
from phasemeter.record.errors import InputError

SOURCE = "vllm otel spans"
SPANS_FLAG = "--otlp-traces-endpoint"
"""The vLLM flag that names the receiver."""

_NAME = "llm_request"
_PATH = "/v1/traces"
_PROTOBUF, _JSON = "application/x-protobuf", "application/json"
_READERS = {_PROTOBUF: spans_of_protobuf, _JSON: spans_of_json}
_MOST_BYTES = 64 << 20
_IDLE_S = 30.0
_POLL_S = 0.1


def check_spans(flags: Sequence[str], known: frozenset[str], version: str | None) -> None:
    """Raises InputError when this vLLM sends no spans, or was told by the user to send them elsewhere."""
    if SPANS_FLAG not in known:
        mend = f"vLLM {version or 'there'} has no {SPANS_FLAG}; leave it out"
        raise InputError("--engine-spans", "given", mend)
    if given(flags, SPANS_FLAG):
        mend = "--engine-spans gives vLLM an endpoint of its own; leave one of the two out"
        raise InputError("engine flag", SPANS_FLAG, mend)


def spans_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Variables that have a server send every span to a receiver of ours, soon and without a proxy, whatever the
    user's own say of another collector. The default delay of 5 s would outlast a short run."""
    direct = ",".join(filter(None, (base.get("no_proxy") or base.get("NO_PROXY"), "127.0.0.1")))
    return {
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "none",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_SDK_DISABLED": "false",
        "OTEL_TRACES_SAMPLER": "always_on",
        "no_proxy": direct,
        "NO_PROXY": direct,
    }


class SpanReceiver:
    """Takes spans at POST /v1/traces and keeps those of requests until they are read. `damaged` counts the bodies that
    were refused."""

    def __init__(self) -> None:
        self.damaged = 0
        self._lock = Lock()
        self._found: list[SeenRequest] = []
        self._sequences: Counter[str] = Counter()
        self._known: set[str] = set()
        self._server: _Server | None = None
        self._thread: Thread | None = None

    def start(self) -> str:
        """Listen on a free port of 127.0.0.1; the URL to send spans to."""
        if self._server is None:
            self._server = _Server(self)
            self._thread = Thread(
                target=self._server.serve_forever, args=(_POLL_S,), name="otlp receiver", daemon=True
            )
            self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}{_PATH}"

    def read(self) -> list[SeenRequest]:
        """What came since the last call; also after `stop`."""
        with self._lock:
            found, self._found = self._found, []
        return found

    def stop(self) -> None:
        """Listen no more. Safe to call twice."""
        server, self._server = self._server, None
        thread, self._thread = self._thread, None
        if server is not None:
            server.shutdown()
            server.server_close()
        if thread is not None:
            thread.join()

    def take(self, body: bytes, kind: str, encoding: str) -> None:
        """Keep what one body tells. Raises DamagedError, and nothing of that body is kept then."""
        try:
            spans = _READERS[kind](_plain(body, encoding))
        except DamagedError:
            with self._lock:
                self.damaged += 1
            raise
        with self._lock:
            for span in spans:
                self._keep(span)

    def _keep(self, span: Span) -> None:
        name = span.attributes.get("gen_ai.request.id")
        if span.name != _NAME or not isinstance(name, str) or span.id in self._known:
            return
        if span.id:  # a sender that missed our answer sends the same span again
            self._known.add(span.id)
        request = our_id(name)
        index = self._sequences[request]
        self._sequences[request] += 1
        # No engine_ns: a span's end is wall-clock time, and an engine's steps lie on its monotonic clock.
        self._found.append(SeenRequest(request, report_of(span.attributes), index=index))


def report_of(attributes: Mapping[str, Value]) -> EngineReport:
    """A span's attributes as a report. A request that never got a token has no prefill and no decode: vLLM then takes
    differences of stamps that were never set."""
    tokens = _count(attributes.get("gen_ai.usage.completion_tokens"))
    prefill_ns = _of_seconds(attributes.get("gen_ai.latency.time_in_model_prefill"))
    decode_ns = _of_seconds(attributes.get("gen_ai.latency.time_in_model_decode"))
    return EngineReport(
        source=SOURCE,
        queue_ns=_of_seconds(attributes.get("gen_ai.latency.time_in_queue")),
        prefill_ns=None if tokens == 0 else prefill_ns,
        decode_ns=None if tokens == 0 else decode_ns,
        e2e_ns=_of_seconds(attributes.get("gen_ai.latency.e2e")),
        n_tokens=tokens,
    )


def _of_seconds(value: Value | None) -> int | None:
    if value is None or isinstance(value, str | bool) or not math.isfinite(value) or value < 0:
        return None
    return round(value * 1e9)


def _count(value: Value | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _plain(body: bytes, encoding: str) -> bytes:
    if encoding in {"", "identity"}:
        return body
    unpacker = zlib.decompressobj(wbits=31)  # gzip only
    try:
        plain = unpacker.decompress(body, _MOST_BYTES)
    except zlib.error:
        raise DamagedError("the body is no gzip") from None
    if not unpacker.eof or unpacker.unused_data:
        raise DamagedError("the gzip body is cut, too large, or followed by something")
    return plain


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, receiver: SpanReceiver) -> None:
        self.receiver = receiver
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as its parent has it
        """A sender that went away is nothing to tell; anything else is a fault of ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    timeout = _IDLE_S
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        """One export."""
        status, why = self._refused()
        kind = self._kind()
        if not status:
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length)
            try:
                if len(body) < length:
                    raise DamagedError("the body is cut")
                self.server.receiver.take(body, kind, self._encoding())
            except DamagedError as error:
                status, why = 400, str(error)
        self._answer(status or 200, kind, why)

    def log_message(self, format: str, *args: object) -> None:
        """Standard error belongs to the command."""

    def _refused(self) -> tuple[int, str]:
        """Status and reason for what cannot even be read; (0, "") when it can."""
        length = self.headers.get("Content-Length")
        if self.path.partition("?")[0] != _PATH:
            return 404, f"spans are taken at {_PATH}"
        if self._kind() not in _READERS:
            return 415, f"send {_PROTOBUF} or {_JSON}"
        if self._encoding() not in {"", "identity", "gzip"}:
            return 415, "send it plain or as gzip"
        if length is None:
            return 411, "say its length"
        if not (length.isascii() and length.isdigit()):
            return 400, "Content-Length is no number"
        if len(length) > 18 or int(length) > _MOST_BYTES:
            return 413, f"at most {_MOST_BYTES} bytes"
        return 0, ""

    def _kind(self) -> str:
        return (self.headers.get("Content-Type") or "").partition(";")[0].strip().lower()

    def _encoding(self) -> str:
        return (self.headers.get("Content-Encoding") or "").strip().lower()

    def _answer(self, status: int, kind: str, why: str) -> None:
        """An empty answer is an ExportTraceServiceResponse without any complaint."""
        ok = status == 200
        body = why.encode() if not ok else b"{}" if kind == _JSON else b""
        self.send_response(status)
        self.send_header("Content-Type", kind if ok else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

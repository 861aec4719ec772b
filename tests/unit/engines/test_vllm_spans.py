"""OTLP bodies made by hand (protobuf by an encoder of the test's own, JSON as text) and the receiver on loopback."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import struct
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phasemeter.engines.otlp_wire import DamagedError, Span, spans_of_json, spans_of_protobuf
from phasemeter.engines.vllm_spans import SpanReceiver, check_spans, report_of, spans_environment
from phasemeter.record.engine import EngineReport, SeenRequest
from phasemeter.record.errors import InputError

PROTOBUF = "application/x-protobuf"


def varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n % 128 + 128)
        n //= 128
    return bytes([*out, n])


def part(number: int, data: bytes) -> bytes:
    return varint(number * 8 + 2) + varint(len(data)) + data


def attribute(key: str, value: bytes) -> bytes:
    return part(9, part(1, key.encode()) + part(2, value))


def double(x: float) -> bytes:
    return b"\x21" + struct.pack("<d", x)


def integer(n: int) -> bytes:
    return b"\x18" + varint(n % 2**64)


def text(s: str) -> bytes:
    return part(1, s.encode())


def span(name: str = "llm_request", span_id: bytes = b"\x01" * 8, **told: bytes) -> bytes:
    ids = part(1, b"\xab" * 16) + part(2, span_id)
    times = b"\x39" + struct.pack("<Q", 1_000) + b"\x41" + struct.pack("<Q", 3_000)
    kind, flags = b"\x30\x02", b"\x85\x01" + struct.pack("<I", 257)  # fields 6 and 16: passed over
    values = b"".join(attribute("gen_ai." + key.replace("__", "."), value) for key, value in told.items())
    return ids + part(5, name.encode()) + kind + times + values + flags


def export(*spans: bytes) -> bytes:
    scope = part(1, part(1, b"vllm")) + b"".join(part(2, s) for s in spans)
    return part(1, part(1, part(1, b"resource")) + part(2, scope) + part(3, b"schema"))


WHOLE = {
    "request__id": text("cmpl-r-000001-0"),
    "latency__time_in_queue": double(0.002),
    "latency__time_in_model_prefill": double(0.010),
    "latency__time_in_model_decode": double(0.0305),
    "latency__e2e": double(0.05),
    "usage__completion_tokens": integer(9),
}
REPORT = EngineReport(
    "vllm otel spans",
    queue_ns=2_000_000,
    prefill_ns=10_000_000,
    decode_ns=30_500_000,
    e2e_ns=50_000_000,
    n_tokens=9,
)


def body_of_json(**changed: object) -> bytes:
    values = [
        {"key": "gen_ai.request.id", "value": {"stringValue": "chatcmpl-r-000002"}},
        {"key": "gen_ai.latency.time_in_queue", "value": {"doubleValue": 0.002}},
        {"key": "gen_ai.latency.time_in_model_prefill", "value": {"doubleValue": 0.01}},
        {"key": "gen_ai.latency.time_in_model_decode", "value": {"doubleValue": 0.0305}},
        {"key": "gen_ai.latency.e2e", "value": {"doubleValue": 0.05}},
        {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "9"}},
        {"key": "a.list", "value": {"arrayValue": {"values": []}}},
    ]
    one = {"name": "llm_request", "traceId": "AB", "spanId": "01", "startTimeUnixNano": "1000",
           "endTimeUnixNano": 3000, "attributes": values, "kind": 2} | changed  # fmt: skip
    return json.dumps({"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": [one]}]}]}).encode()


def test_every_kind_of_value_is_read():
    one = span(
        "other", a=text("é"), b=b"\x10\x01", c=integer(-5), d=double(-0.5), e=part(7, b"raw"), f=part(5, b"")
    )
    values = {"gen_ai.a": "é", "gen_ai.b": True, "gen_ai.c": -5, "gen_ai.d": -0.5}
    assert spans_of_protobuf(export(one)) == [Span("other", "ab" * 16 + "01" * 8, 1000, 3000, values)]
    assert spans_of_protobuf(b"") == []


def test_json_says_the_same():
    [one] = spans_of_json(body_of_json())
    assert (one.name, one.id, one.start_ns, one.end_ns) == ("llm_request", "ab01", 1000, 3000)
    assert report_of(one.attributes) == REPORT


def test_what_is_missing_is_none_and_what_makes_no_sense_too():
    assert report_of({}) == EngineReport("vllm otel spans")
    odd = {"gen_ai.latency.time_in_queue": -1.0, "gen_ai.latency.e2e": float("nan"),
           "gen_ai.latency.time_in_model_prefill": "1", "gen_ai.latency.time_in_model_decode": True,
           "gen_ai.usage.completion_tokens": 2.5}  # fmt: skip
    assert report_of(odd) == EngineReport("vllm otel spans")
    never = {"gen_ai.latency.time_in_model_prefill": 5.0, "gen_ai.latency.time_in_model_decode": 5.0}
    assert report_of(never | {"gen_ai.usage.completion_tokens": 0}) == EngineReport(
        "vllm otel spans", n_tokens=0
    )


@pytest.mark.parametrize("end", range(1, len(export(span(**WHOLE)))))
def test_a_body_that_is_cut_anywhere_is_refused(end):
    with pytest.raises(DamagedError):
        spans_of_protobuf(export(span(**WHOLE))[:end])


@pytest.mark.parametrize(
    "junk",
    [b"\xff" * 11, b"\x00\x00", b"\x0b", b"\x0c", export(part(5, b"\xff\xfe")), b"\x0a\xff\xff\xff\xff\x7f", b"{}"],
)  # fmt: skip
def test_junk_protobuf_is_refused(junk):
    with pytest.raises(DamagedError):
        spans_of_protobuf(junk)


@pytest.mark.parametrize(
    "junk",
    [b"", b"[]", b"{", b"\xff", b'{"resourceSpans": 1}', b"[" * 100_000, body_of_json(startTimeUnixNano="soon"),
     body_of_json(attributes=[{"key": "k", "value": {"intValue": "x"}}])],
)  # fmt: skip
def test_junk_json_is_refused(junk):
    with pytest.raises(DamagedError):
        spans_of_json(junk)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_spans_or_damaged(data):
    for read in (spans_of_protobuf, spans_of_json):
        with contextlib.suppress(DamagedError):
            assert isinstance(read(data), list)


@pytest.fixture
def receiver():
    made = SpanReceiver()
    made.start()
    yield made
    made.stop()


def post(receiver: SpanReceiver, body: bytes, kind: str = PROTOBUF, path: str = "", **headers: str):
    where = urlsplit(receiver.start())  # a second start only tells where it is
    client = http.client.HTTPConnection(where.netloc, timeout=10)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    client.request("POST", path or where.path, body, {"Content-Type": kind, **names})
    answer = client.getresponse()
    told = answer.status, answer.read()
    client.close()
    return told


def test_spans_are_received_once_and_joined_by_our_id(receiver):
    assert receiver.start().startswith("http://127.0.0.1:")
    body = export(span(**WHOLE), span("load_model", b"\x02" * 8, **WHOLE), span(span_id=b"\x03" * 8))
    assert post(receiver, body) == (200, b"")
    assert post(receiver, body) == (200, b"")  # sent again
    assert receiver.read() == [SeenRequest("r-000001", REPORT)]
    assert receiver.read() == []
    zipped = gzip.compress(body_of_json())
    assert post(receiver, zipped, "application/json; charset=utf-8", Content_Encoding="gzip") == (200, b"{}")
    assert receiver.read() == [SeenRequest("r-000002", REPORT)]
    # a second sequence of the first request
    post(receiver, export(span(span_id=b"\x04" * 8, **WHOLE)))
    assert receiver.read() == [SeenRequest("r-000001", REPORT, index=1)]


def test_what_cannot_be_read_is_answered_and_the_next_is_taken(receiver):
    good = export(span(**WHOLE))
    for body, kind, path, headers, status in (
        (b"\xff" * 40, PROTOBUF, "", {}, 400),
        (b"no json", "application/json", "", {}, 400),
        (good, PROTOBUF, "", {"Content_Encoding": "gzip"}, 400),
        (gzip.compress(good)[:-4], PROTOBUF, "", {"Content_Encoding": "gzip"}, 400),
        (gzip.compress(good) + b"more", PROTOBUF, "", {"Content_Encoding": "gzip"}, 400),
        (gzip.compress(bytes(65 << 20)), PROTOBUF, "", {"Content_Encoding": "gzip"}, 400),
        (good, PROTOBUF, "", {"Content_Encoding": "br"}, 415),
        (good, "text/plain", "", {}, 415),
        (good, PROTOBUF, "/v1/logs", {}, 404),
        (b"", PROTOBUF, "", {"Content_Length": "many"}, 400),
        (b"", PROTOBUF, "", {"Content_Length": str(1 << 40)}, 413),
    ):
        assert post(receiver, body, kind, path, **headers)[0] == status, (body[:20], kind, headers)
    assert receiver.damaged == 6
    assert receiver.read() == []
    assert post(receiver, good)[0] == 200
    assert len(receiver.read()) == 1


def test_a_sender_that_hangs_up_harms_nobody(receiver, capfd):
    where = urlsplit(receiver.start())
    with socket.create_connection((where.hostname, where.port)) as client:
        head = f"POST /v1/traces HTTP/1.1\r\nContent-Type: {PROTOBUF}\r\nContent-Length: 99\r\n\r\n"
        client.sendall(head.encode() + b"\x0a")
    assert post(receiver, export(span(**WHOLE)))[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_stop_frees_the_port_and_keeps_what_came():
    receiver = SpanReceiver()
    where = urlsplit(receiver.start())
    post(receiver, export(span(**WHOLE)))
    receiver.stop()
    receiver.stop()
    assert len(receiver.read()) == 1
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((where.hostname, where.port), timeout=5)


def test_a_version_without_spans_and_a_second_endpoint_are_told():
    known = frozenset({"--otlp-traces-endpoint"})
    check_spans(("--max-num-seqs", "8"), known, "0.32.0")
    with pytest.raises(InputError, match="0.1 has no --otlp-traces-endpoint"):
        check_spans((), frozenset(), "0.1")
    with pytest.raises(InputError, match="one of the two"):
        check_spans(("--otlp_traces_endpoint=x",), known, "0.32.0")


def test_the_users_proxy_is_passed_by_on_loopback():
    assert spans_environment({})["no_proxy"] == "127.0.0.1"
    assert spans_environment({"NO_PROXY": "here"})["no_proxy"] == "here,127.0.0.1"

"""The server on the test's own loop, as other tests and programs host it."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from phasemeter.engines.simulated.api import Limits
from phasemeter.engines.simulated.faults import parse_faults
from phasemeter.engines.simulated.log import lateness_ns
from phasemeter.engines.simulated.server import Settings, start_server
from phasemeter.engines.simulated.truth import Jitter, Truth, rng_of, schedule
from phasemeter.record.errors import InputError

MS = 1_000_000


def raw(body, version="1.1", path="/v1/completions"):
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/{version}\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


async def exchange(port, data):
    """Send, and read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_the_log_holds_the_schedule_of_the_seed():
    truth = Truth(ttft_ms=5, itl_ms=2, jitter=Jitter("normal", ms=1.0), seed=11)
    server = await start_server(truth, Settings(faults=parse_faults(["close_connection"])))
    for _ in range(2):
        await exchange(server.port, raw({"prompt": [7, 7, 7], "max_tokens": 9, "stream": True}))
    await server.close()
    await server.close()
    entries = server.log.entries()
    for serial, entry in enumerate(entries):
        planned = schedule(truth, serial, 3, 9, rng_of(truth, serial))
        assert entry.planned_ns[1:10] == tuple(offset for offset, _ in planned)
    assert entries[0].planned_ns != entries[1].planned_ns
    late = lateness_ns(entries)
    assert (len(late), late[0] >= 0) == (sum(len(e.sent_ns) for e in entries), True)


async def test_http_1_0_gets_no_chunks_and_an_end_by_closing():
    server = await start_server(Truth(ttft_ms=1, itl_ms=1))
    answer = await exchange(server.port, raw({"prompt": "a", "max_tokens": 2, "stream": True}, version="1.0"))
    await server.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")


async def test_closing_ends_streams_and_logs_them(tmp_path):
    log = tmp_path / "sent.jsonl"
    server = await start_server(Truth(ttft_ms=0, itl_ms=1), Settings(log_path=log))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(raw({"prompt": "a", "max_tokens": 100_000, "stream": True}))
    await reader.readuntil(b"data: ")
    await server.close()
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readuntil(b"[DONE]")
    writer.close()
    line = json.loads(log.read_text())
    assert line["outcome"] == "server_stopped"
    assert line["sent_tokens"] == sum(line["tokens"]) >= 1


async def test_zero_times_free_the_slot_at_once():
    server = await start_server(
        Truth(ttft_ms=0, itl_ms=0, slots=1), Settings(faults=parse_faults(["close_connection"]))
    )
    body = raw({"prompt": "a", "max_tokens": 500, "stream": True})
    answers = await asyncio.wait_for(asyncio.gather(*(exchange(server.port, body) for _ in range(20))), 20)
    await server.close()
    assert all(answer.count(b'"text":') == 501 for answer in answers)  # 500 tokens and the finish
    assert {entry.sent_tokens for entry in server.log.entries()} == {500}


async def test_a_slow_reader_shows_in_the_log():
    server = await start_server(
        Truth(ttft_ms=0, itl_ms=0), Settings(faults=parse_faults(["close_connection"]))
    )
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", server.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
    writer.write(raw({"prompt": "a", "max_tokens": 30_000, "stream": True}))
    while not server.log.entries():
        await asyncio.sleep(0.05)
    while await reader.read(1 << 20):
        pass
    writer.close()
    await writer.wait_closed()
    await server.close()
    (entry,) = server.log.entries()
    assert entry.sent_tokens == 30_000
    assert entry.slow_reader_writes > 0


async def test_limits_models_and_template_tokens():
    limits = Limits(("a", "b"), template_tokens=10, max_context_tokens=20)
    server = await start_server(
        Truth(ttft_ms=0), Settings(limits=limits, faults=parse_faults(["close_connection"]))
    )

    async def chat(text, tokens):
        body = {"model": "b", "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
        return json.loads(
            (await exchange(server.port, raw(body, path="/v1/chat/completions"))).split(b"\r\n\r\n")[1]
        )

    assert (await chat("abc", 7))["usage"]["prompt_tokens"] == 13
    refused = asyncio.create_task(
        exchange(server.port, raw({"prompt": "a" * 19, "max_tokens": 2}, version="1.0"))
    )
    assert b"maximum context length is 20 tokens" in await refused
    models = json.loads(server.models_page())
    assert [(m["id"], m["max_model_len"]) for m in models["data"]] == [("a", 20), ("b", 20)]
    await server.close()


async def test_a_port_in_use_and_an_unknown_host_are_input_errors():
    server = await start_server(Truth())
    with pytest.raises(InputError, match="cannot listen"):
        await start_server(Truth(), Settings(port=server.port))
    with pytest.raises(InputError, match="cannot listen"):
        await start_server(Truth(), Settings(host="no.such.host.invalid"))
    await server.close()

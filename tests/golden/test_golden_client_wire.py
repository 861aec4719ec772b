"""Golden: framing, connections and sends, as a raw socket at the other end sees them."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from golden.golden_client import assert_same_times, kinds, one, request, tokens, with_engine
from golden.oracle import CLOSE, LAST_CHUNK, SSE_HEAD, Oracle, Script, Seen, chat, chunk, event, stream, text
from phasemeter.engines.openai_http import HttpTimeouts, OpenAIHttp
from phasemeter.record.engine import Outcome, Result
from phasemeter.record.errors import EngineError

PLAIN_HEAD = b"Content-Type: text/event-stream\r\n"
TWO = [event(chat("a")), event(chat("b", finish="stop")) + event(b"[DONE]")]
GOOD = stream([(10, chat("a")), (20, chat("b", finish="stop"))])


async def _twice(engine: OpenAIHttp) -> list[Result]:
    return [(await engine.generate(request(f"r{i}"))).settle() for i in range(2)]


def test_connections_are_reused() -> None:
    """Load 27: five requests and the probe on one connection."""

    async def use(engine: OpenAIHttp) -> list[Result]:
        return [(await engine.generate(request(f"r{i}"))).settle() for i in range(5)]

    with Oracle(lambda _: GOOD) as oracle:
        results = with_engine(oracle, use)
        assert oracle.connections == 1
        assert [s.headers["x-request-id"] for s in oracle.measured] == [f"r{i}" for i in range(5)]
    assert [r.reused_connection for r in results] == [True] * 5
    assert all(r.outcome is Outcome.OK for r in results)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_101_streams_are_really_open_at_once(loop: str) -> None:
    """Load 24: no limit of ours queues a request."""

    async def use(engine: OpenAIHttp) -> list[Result]:
        replies = await asyncio.gather(*(engine.generate(request(f"r{i}")) for i in range(101)))
        return [reply.settle() for reply in replies]

    script = stream([(1500, chat("a")), (1520, chat("b", finish="stop"))])
    with Oracle(lambda _: script) as oracle:
        results = with_engine(oracle, use, loop=loop)
        assert oracle.open_peak >= 101
        assert max(s.received_ns for s in oracle.measured) < min(s.sent[1][0] for s in oracle.measured)
        by_id = {s.headers["x-request-id"]: s for s in oracle.measured}
    assert [r.outcome for r in results] == [Outcome.OK] * 101
    assert [len(tokens(r)) for r in results] == [2] * 101
    late_ms = sorted((tokens(r)[0].recv_ns - by_id[f"r{i}"].sent[1][0]) / 1e6 for i, r in enumerate(results))
    assert late_ms[50] < 40


def test_server_that_closes_each_connection() -> None:
    head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    script = [(0, head), (10, chunk(TWO[0])), (30, chunk(TWO[1]) + LAST_CHUNK)]
    with Oracle(lambda _: script) as oracle:
        results = with_engine(oracle, _twice)
        assert oracle.connections == 2  # the first came with the probe
        assert_same_times(results[1], oracle.measured[1], [1, 2, 2])
    assert [r.outcome for r in results] == [Outcome.OK] * 2
    assert [r.reused_connection for r in results] == [True, False]


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
def test_body_that_ends_with_the_connection(version: bytes) -> None:
    script = [(0, version + b" 200 OK\r\n" + PLAIN_HEAD + b"\r\n"), (20, TWO[0]), (40, TWO[1]), (120, CLOSE)]
    with Oracle(lambda _: script) as oracle:
        result = one(oracle)
        assert_same_times(result, oracle.measured[0], [1, 2, 2])
    assert result.outcome is Outcome.OK
    assert result.end_ns >= oracle.measured[0].received_ns + 120e6
    with Oracle(lambda _: [*script[:2], (40, CLOSE)]) as oracle:
        assert one(oracle).outcome is Outcome.TRUNCATED


def test_content_length_body() -> None:
    length = str(sum(map(len, TWO))).encode()
    head = b"HTTP/1.1 200 OK\r\n" + PLAIN_HEAD + b"Content-Length: " + length + b"\r\n\r\n"
    with Oracle(lambda _: [(0, head), (20, TWO[0]), (40, TWO[1])]) as oracle:
        results = with_engine(oracle, _twice)
        assert_same_times(results[0], oracle.measured[0], [1, 2, 2])
        assert oracle.connections == 1
    assert [r.outcome for r in results] == [Outcome.OK] * 2
    with Oracle(lambda _: [(0, head), (20, TWO[0]), (40, CLOSE)]) as oracle:
        assert one(oracle).outcome is Outcome.RESET


def test_chunk_extensions_and_trailers() -> None:
    script = [
        (0, SSE_HEAD),
        (20, chunk(TWO[0], b";ext=1")),
        (40, chunk(TWO[1], b';a="b"')),
        (40, b"0\r\nX-Checksum: 1\r\n\r\n"),
    ]
    with Oracle(lambda _: script) as oracle:
        results = with_engine(oracle, _twice)
        assert_same_times(results[1], oracle.measured[1], [1, 2, 2])
        assert oracle.connections == 1
    assert [r.outcome for r in results] == [Outcome.OK] * 2


def test_100_continue_is_not_the_response() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    script = [(0, interim), (50, b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"), (100, SSE_HEAD)]
    script += [(110, chunk(TWO[0])), (120, chunk(TWO[1]) + LAST_CHUNK)]
    with Oracle(lambda _: script) as oracle:
        result = one(oracle)
        seen = oracle.measured[0]
    assert result.outcome is Outcome.OK
    assert result.status == 200
    assert abs(result.first_byte_ns - seen.sent[2][0]) < 40e6
    assert_same_times(result, seen, [3, 4, 4])


def test_head_and_body_split_anywhere() -> None:
    whole = SSE_HEAD + chunk(TWO[0]) + chunk(TWO[1]) + LAST_CHUNK
    script = [(i // 20, whole[i : i + 1]) for i in range(len(whole))]
    first = len(SSE_HEAD) + chunk(TWO[0]).index(b"\n\n") + 1
    last = len(SSE_HEAD + chunk(TWO[0])) + chunk(TWO[1]).rindex(b"\n\n") + 1
    finish = len(SSE_HEAD + chunk(TWO[0])) + chunk(TWO[1]).index(b"\n\n") + 1
    with Oracle(lambda _: script) as oracle:
        result = one(oracle)
        seen = oracle.measured[0]
    assert kinds(result) == ["text", "text", "done"]
    assert_same_times(result, seen, [first, finish, last])
    assert abs(result.first_byte_ns - seen.sent[0][0]) < 40e6


def test_a_kept_connection_that_died_is_replaced_once() -> None:
    """Serving 17: no byte of a response came, so it goes out again; the stamps are the later ones."""

    def answer(seen: Seen) -> Script:
        return [(60, CLOSE)] if seen.connection == 1 else GOOD

    with Oracle(answer) as oracle:
        result = one(oracle)
        assert [s.connection for s in oracle.measured] == [1, 2]
        assert_same_times(result, oracle.measured[1], [1, 2, 3])
        assert result.connected_ns - oracle.measured[0].received_ns > 55e6
    assert result.outcome is Outcome.OK
    assert result.reused_connection is False


def test_a_fresh_connection_is_not_tried_again() -> None:
    with Oracle(lambda _: [(0, CLOSE)]) as oracle:
        result = one(oracle)
        assert len(oracle.measured) == 2
    assert result.outcome is Outcome.RESET
    assert result.reused_connection is False


def test_nothing_is_sent_twice_after_the_first_byte() -> None:
    with Oracle(lambda _: [(0, b"HTTP/1.1 2"), (20, CLOSE)]) as oracle:
        result = one(oracle)
        assert len(oracle.measured) == 1
    assert result.outcome is Outcome.RESET


def test_an_old_idle_connection_is_not_used() -> None:
    """Serving 17: servers close after 5 s idle; at 4 s we do not trust the connection any more."""

    class Skipping:
        skip_ns = 0

        def now_ns(self) -> int:
            return time.monotonic_ns() + self.skip_ns

    clock = Skipping()

    async def use(engine: OpenAIHttp) -> list[bool | None]:
        reused = []
        for skip_s in (0, 3.5, 4.5):
            clock.skip_ns += int(skip_s * 1e9)
            reused.append((await engine.generate(request())).settle().reused_connection)
        return reused

    with Oracle(lambda _: GOOD) as oracle:
        assert with_engine(oracle, use, clock=clock) == [True, True, False]
        assert oracle.connections == 2


def test_50_000_token_ids() -> None:
    """Load 21."""
    ask = request(prompt=None, token_ids=tuple(range(10_000, 60_000)))
    with Oracle(lambda _: stream([(20, text("a")), (40, text("b", "stop"))])) as oracle:
        result = one(oracle, ask=ask, api="completions")
        seen = oracle.measured[0]
    assert seen.json["prompt"] == list(range(10_000, 60_000))
    assert result.outcome is Outcome.OK
    assert result.connected_ns <= result.sent_ns <= seen.received_ns + 40e6
    assert_same_times(result, seen, [1, 2, 3])


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_body_the_kernel_cannot_hold_is_sent_when_its_last_byte_left(loop: str) -> None:
    """24 MB against a server that starts to read after 250 ms."""
    ask = request(prompt="word " * 4_800_000)
    events = [(20, text("a")), (40, text("b", "stop"))]
    with Oracle(lambda _: stream(events), slow_read_s=0.25) as oracle:
        result = one(oracle, ask=ask, api="completions", loop=loop)
        seen = oracle.measured[0]
    assert len(seen.json["prompt"]) == len(ask.prompt)
    assert result.outcome is Outcome.OK
    assert result.sent_ns - result.connected_ns > 0.2e9
    assert result.sent_ns <= seen.received_ns + 40e6
    assert len(tokens(result)) == 2  # what the kernels hold between us is no longer ours to see


def test_early_refusal_of_a_long_prompt() -> None:
    """A server may answer before it has read the body; then SENT was never reached."""
    body = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlong"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        from phasemeter.engines.http_pool import Place, Pool
        from phasemeter.record.clock import MonotonicClock

        async def main() -> tuple[int | None, int | None]:
            pool = Pool(Place("127.0.0.1", listener.getsockname()[1]), HttpTimeouts(), MonotonicClock())
            loop = asyncio.get_running_loop()

            def serve() -> socket.socket:
                sock, _ = listener.accept()
                sock.recv(100)
                sock.sendall(body)
                return sock

            served = loop.run_in_executor(None, serve)
            answer = await pool.exchange(b"POST / HTTP/1.1\r\n\r\n" + b"x" * 30_000_000)
            await pool.close()
            (await served).close()
            return answer.status, answer.sent_ns

        assert asyncio.run(main()) == (413, None)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-subj",
                "/CN=127.0.0.1",
            ),
            *("-keyout", str(folder / "both.pem"), "-out", str(folder / "cert.pem")),
        ],
        check=True,
        capture_output=True,
    )
    with (folder / "both.pem").open("ab") as both:
        both.write((folder / "cert.pem").read_bytes())
    return folder / "both.pem"


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_tls(certificate: Path, loop: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with Oracle(lambda _: GOOD, tls=context) as oracle:
        result = one(oracle, loop=loop, verify_tls=False)
        seen = oracle.measured[0]
        assert oracle.connections == 1
    assert result.outcome is Outcome.OK
    assert_same_times(result, seen, [1, 2, 3])
    with (
        Oracle(lambda _: GOOD, tls=context) as oracle,
        pytest.raises(EngineError, match="certificate is not trusted"),
    ):
        one(oracle, loop=loop)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_long_prompt_over_tls(certificate: Path, loop: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    ask = request(prompt="word " * 100_000)
    with Oracle(lambda _: GOOD, tls=context, slow_read_s=0.25) as oracle:
        result = one(oracle, ask=ask, loop=loop, verify_tls=False)
        seen = oracle.measured[0]
    assert result.outcome is Outcome.OK
    assert seen.json["messages"][0]["content"] == ask.prompt
    assert result.connected_ns < result.sent_ns <= seen.received_ns + 40e6


def test_https_to_a_plain_port() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(EngineError, match=r"TLS failed"),
    ):
        asyncio.run(_start_and_close_against(listener))


async def _start_and_close_against(listener: socket.socket) -> None:
    from phasemeter.engines.openai_http import HttpOptions

    def serve() -> None:
        sock, _ = listener.accept()
        sock.recv(4096)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        sock.close()

    served = asyncio.get_running_loop().run_in_executor(None, serve)
    engine = OpenAIHttp(HttpOptions(url=f"https://127.0.0.1:{listener.getsockname()[1]}", model="m"))
    try:
        await engine.start()
    finally:
        await engine.close()
        await served


def test_connect_timeout() -> None:
    """A full accept queue answers no SYN."""
    from phasemeter.engines.http_pool import Place, Pool
    from phasemeter.engines.http_wire import End
    from phasemeter.record.clock import MonotonicClock

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    port = listener.getsockname()[1]
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", port))

    async def main() -> End:
        pool = Pool(Place("127.0.0.1", port), HttpTimeouts(connect_s=0.3), MonotonicClock())
        answer = await pool.exchange(b"GET / HTTP/1.1\r\n\r\n")
        await pool.close()
        return answer.end

    try:
        assert asyncio.run(main()) is End.TIMEOUT_CONNECT
    finally:
        for filler in fillers:
            filler.close()
        listener.close()

"""A stream given up on purpose: by tokens, however the bytes are cut, and the socket closed."""

from __future__ import annotations

import asyncio

import pytest

from phasemeter.engines.http_request import HttpOptions
from phasemeter.engines.openai_http import OpenAIHttp
from phasemeter.record.engine import Outcome, Result
from phasemeter.record.request import Cell, Request

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHAT_OPENING = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
MODELS = b'{"object":"list","data":[{"id":"m","max_model_len":4096}]}'


def token(n: int, usage: int | None = None) -> bytes:
    told = b"" if usage is None else b',"usage":{"completion_tokens":%d}' % usage
    return b'data: {"choices":[{"text":"t%d","delta":{"content":"t%d"}}]%s}\n\n' % (n, n, told)


class Site:
    """A server whose streams never end: `pieces` and then a token for ever; counts connections that we closed."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces
        self.closed = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        size = int(line.partition(b":")[2])
                body = await reader.readexactly(size)
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(MODELS), MODELS))
                elif b'"max_tokens":64' not in body:  # the client's own questions at the start
                    writer.write(HEAD + _chunk(token(0)) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
                else:
                    writer.write(HEAD)
                    for piece in self.pieces:
                        writer.write(_chunk(piece))
                        await asyncio.sleep(0.005)
                    while not reader.at_eof():
                        await asyncio.sleep(0.005)
                    self.closed += 1
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed += 1
        finally:
            writer.close()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def given_up(pieces: list[bytes], after: int, api: str = "completions") -> tuple[Result, Site]:
    site = Site(pieces)

    async def main() -> Result:
        server = await asyncio.start_server(site.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        engine = OpenAIHttp(HttpOptions(url=f"http://127.0.0.1:{port}", api=api))  # type: ignore[arg-type]
        await engine.start()
        request = Request("r", Cell(4, 64), 64, prompt="hello", cancel_after_tokens=after)
        async with asyncio.timeout(20):
            reply = await engine.generate(request)
            while not site.closed:
                await asyncio.sleep(0.005)
        await engine.close()
        server.close()
        return reply.settle()

    return asyncio.run(main()), site


def whole_and_cut(stream: bytes) -> list[list[bytes]]:
    return [[stream], [stream[i : i + 7] for i in range(0, len(stream), 7)]]


@pytest.mark.parametrize("pieces", whole_and_cut(b"".join(token(i) for i in range(5))))
def test_the_socket_is_closed_after_the_asked_number_of_tokens(pieces):
    result, site = given_up(pieces, 3)
    assert result.outcome is Outcome.CANCELLED
    assert result.error is not None
    assert result.error.startswith("given up on purpose after")
    assert sum(e.text.startswith("t") for e in result.emissions) >= 3
    assert site.closed >= 1


def test_cut_pieces_end_at_exactly_that_token():
    stream = b"".join(token(i) for i in range(5))
    result, _ = given_up([stream[i : i + 7] for i in range(0, len(stream), 7)], 3)
    assert [e.text for e in result.emissions] == ["t0", "t1", "t2"]


def test_an_opening_chunk_is_no_token_and_a_told_count_is_believed():
    result, _ = given_up([CHAT_OPENING, token(0), token(1), token(2)], 2, api="chat")
    assert [e.text for e in result.emissions if e.text] == ["t0", "t1"]
    result, _ = given_up([token(0, usage=4), token(1, usage=8), token(2, usage=12)], 8)
    assert [e.text for e in result.emissions] == ["t0", "t1"]
    assert sum(e.n_tokens or 0 for e in result.emissions) == 8


def test_a_request_that_is_shorter_is_not_given_up():
    result, _ = given_up([token(0), b"data: [DONE]\n\n"], 8)
    assert result.outcome is Outcome.OK

"""The end of a stream and its newest data, found in pieces cut anywhere; host names that do not resolve."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.engines.http_pool import Place, Pool
from phasemeter.engines.http_watch import HttpTimeouts, Watch, _newest_data_ns, ends_with_done
from phasemeter.engines.http_wire import End, Wire
from phasemeter.record.clock import ManualClock


@given(st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r", b"\n", b""]), st.integers(1, 30))
def test_done_is_found_however_it_is_cut(end: bytes, size: int) -> None:
    body = b'data: {"a":1}\n\ndata: [DONE]' + end
    assert ends_with_done([body[i : i + size] for i in range(0, len(body), size)])


@pytest.mark.parametrize(
    "body", [b"", b"data: [DON", b'data: {"c":"data: [DONE]"}\n\n', b"data: [DONE]\n\ndata: {}"]
)
def test_what_is_no_end(body: bytes) -> None:
    assert not ends_with_done([body])


def _wire(*pieces: bytes) -> Wire:
    wire = Wire(lambda: 0, lambda _: None)
    wire.pieces = list(pieces)
    wire.stamps_ns = [10 * (i + 1) for i in range(len(pieces))]
    return wire


def test_newest_data() -> None:
    wire = _wire(b"data: a\n\n", b": c\n\n", b"data: b", b"bb\n\n: c\n", b": d\n\n")
    assert _newest_data_ns(wire, 0) == 40
    assert _newest_data_ns(wire, 4) is None
    assert _newest_data_ns(_wire(b"data: a\n\n", b"data: dripping", b" on"), 0) == 30
    assert _newest_data_ns(_wire(b": c\n\n"), 0) is None


async def test_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fail)
    pool = Pool(Place("no.such.host", 80), HttpTimeouts(), ManualClock())
    answer = await pool.exchange(b"")
    await pool.close()
    assert answer.end is End.CONNECT_FAILED
    assert answer.error == "the host name no.such.host cannot be resolved (Name or service not known)"


async def test_impossible_host_name() -> None:
    pool = Pool(Place("a" * 70 + ".example", 80), HttpTimeouts(), ManualClock())
    answer = await pool.exchange(b"")
    await pool.close()
    assert answer.end is End.CONNECT_FAILED


async def test_somebody_awaits_a_first_token() -> None:
    watch = Watch(HttpTimeouts(), ManualClock())
    assert not watch.awaits_first()
    opened, under_way = _wire(b"data: role\n\n"), _wire(b"data: role\n\n", b"data: a\n\n")
    watch.add(under_way, 0)
    assert not watch.awaits_first()
    watch.add(opened, 0)
    assert watch.awaits_first()
    watch.discard(opened)
    assert not watch.awaits_first()
    watch.stop()

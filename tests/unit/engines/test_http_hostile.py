"""What a server may send to break its reader: a failed request at the worst, never an exception."""

from __future__ import annotations

import pytest

from phasemeter.engines.http_request import target_of
from phasemeter.engines.http_settle import settle
from phasemeter.engines.http_wire import Answer, End
from phasemeter.record.clock import ManualClock
from phasemeter.record.engine import Outcome, Result
from phasemeter.record.errors import InputError

DEEP = b"[" * 100_000 + b"]" * 100_000
TOKEN = b'data: {"choices":[{"text":"a"%s}]%s}\n\n'
DONE = b"data: [DONE]\n\n"


def _settled(*pieces: bytes, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Result:
    stamps = [1000 + i for i in range(len(pieces))]
    answer = Answer(
        end=End.COMPLETE, end_ns=5000, status=status, headers=headers, stamps_ns=stamps, pieces=list(pieces)
    )
    return settle(answer, ManualClock())


@pytest.mark.parametrize("data", [DEEP, b'{"zz":' + DEEP + b',"choices":[]}'])
def test_brackets_without_end_are_a_bad_event(data: bytes) -> None:
    result = _settled(TOKEN % (b"", b""), b"data: " + data + b"\n\n", DONE)
    assert result.outcome is Outcome.BAD_RESPONSE


def test_brackets_without_end_in_an_error_are_an_error() -> None:
    result = _settled(b'{"error":' * 5000 + b"1" + b"}" * 5000, status=500)
    assert result.outcome is Outcome.HTTP_ERROR
    assert result.error is not None
    assert len(result.error) <= 300


@pytest.mark.parametrize(
    "times", [b'"prompt_ms":1e308', b'"prompt_ms":1e300', b'"predicted_n":1%s' % (b"0" * 40)]
)
def test_times_without_measure_are_no_report(times: bytes) -> None:
    timings = b',"timings":{"predicted_ms":2,%s}' % times
    result = _settled(TOKEN % (b"", b""), TOKEN % (b',"finish_reason":"length"', timings), DONE)
    assert result.outcome is Outcome.OK
    assert result.report is None


def test_usage_without_measure_is_a_bad_event() -> None:
    usage = b',"usage":{"completion_tokens":1%s}' % (b"0" * 40)
    assert _settled(TOKEN % (b"", usage), DONE).outcome is Outcome.BAD_RESPONSE


def test_a_compressed_stream_is_told_as_such() -> None:
    result = _settled(b"\x1f\x8b\x08\x00garbage", headers=(("content-encoding", "gzip"),))
    assert result.outcome is Outcome.BAD_RESPONSE
    assert result.error == "the server compressed the stream (gzip) although it was asked not to"


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://bücher.example:80", "xn--bcher-kva.example"),
        ("http://例え.example:8000", "xn--r8jz45g.example:8000"),
    ],
)
def test_a_host_name_beyond_ascii_goes_into_the_head_as_dns_has_it(url: str, authority: str) -> None:
    assert target_of(url).authority == authority


@pytest.mark.parametrize(
    "url", ["http://h:0", "http://a..b", f"http://{'a' * 70}.example", "http://\x1b.example", "http://a b"]
)
def test_hosts_and_ports_that_cannot_be(url: str) -> None:
    with pytest.raises(InputError, match="--url"):
        target_of(url)

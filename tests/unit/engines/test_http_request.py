"""URLs, options and request bytes."""

from __future__ import annotations

import json

import pytest

from phasemeter.engines.http_request import Accepted, HttpOptions, Writer, body_of, check_options, target_of
from phasemeter.engines.http_watch import HttpTimeouts
from phasemeter.record.errors import InputError
from phasemeter.record.request import Cell, Request, Sampling


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "base"),
    [
        ("http://h", "h", 80, False, ""),
        ("http://h:8000/", "h", 8000, False, ""),
        ("http://h:8000/v1", "h", 8000, False, ""),
        ("http://h:8000/v1///", "h", 8000, False, ""),
        ("https://h/a/b/v1/", "h", 443, True, "/a/b"),
        ("https://h/a//", "h", 443, True, "/a"),
        ("http://[::1]:9/v1", "::1", 9, False, ""),
        (" http://h:1 ", "h", 1, False, ""),
        ("http://h/v12", "h", 80, False, "/v12"),
    ],
)
def test_urls(url: str, host: str, port: int, tls: bool, base: str) -> None:
    target = target_of(url)
    assert (target.place.host, target.place.port, target.place.tls, target.base) == (host, port, tls, base)


def test_authority() -> None:
    assert target_of("http://[::1]:9/v1").authority == "[::1]:9"
    assert target_of("https://h:443").url == "https://h"
    assert target_of("http://h:443/x").url == "http://h:443/x"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:8000",
        "ftp://h",
        "http://",
        "http://h?x=1",
        "http://h#f",
        "http://h:99999",
        "http://h/v1/completions",
        "http://h/ü",
    ],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(InputError, match="--url") as caught:
        target_of(url)
    assert "\n" not in str(caught.value)


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(InputError, match="--api-key-env") as caught:
        target_of("http://me:hunter2@h:8000/v1")
    assert "hunter2" not in str(caught.value)
    assert "me" not in str(caught.value).split("//", 1)[1].split("@")[0]


@pytest.mark.parametrize(
    "more",
    [
        {"api": "responses"},
        {"api_key": ""},
        {"api_key": "a b"},
        {"api_key": "a\r\nX: y"},
        {"headers": {"X": "a\r\nY: b"}},
        {"headers": {"X Y": "a"}},
        {"headers": {"Content-Length": "5"}},
        {"timeouts": HttpTimeouts(total_s=0.0)},
        {"timeouts": HttpTimeouts(inter_token_s=-1.0)},
        {"timeouts": HttpTimeouts(first_token_s=float("nan"))},
    ],
)
def test_bad_options(more: dict) -> None:
    with pytest.raises(InputError):
        check_options(HttpOptions(url="http://h", **more))


def test_the_key_is_in_no_text_of_the_options() -> None:
    options = HttpOptions(url="http://h", api_key="s3cret")
    assert "s3cret" not in repr(options) + str(options) + str(options.__rich_repr__())


def test_head() -> None:
    options = HttpOptions(url="http://h:8000/p/v1", api_key="k", headers={"X-A": "b"})
    data = Writer(target_of(options.url), options).post("/v1/completions", b"{}", "a\r\nEvil: 1")
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /p/v1/completions HTTP/1.1"
    assert {"Host: h:8000", "Authorization: Bearer k", "X-A: b", "Content-Length: 2"} <= set(lines)
    assert "X-Request-Id: a%0D%0AEvil:%201" in lines
    assert body == b"{}"


def _request(**more: object) -> Request:
    fields: dict = {"prompt": "hi", "max_tokens": 4} | more
    return Request(id="r", cell=Cell(input_tokens=1, output_tokens=4), **fields)


def test_body_holds_only_what_was_asked_for() -> None:
    body = json.loads(body_of(_request(), model="m", api="chat", accepted=Accepted()))
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 4,
        "stream": True,
    }
    all_of_it = Accepted(include_usage=True, continuous_usage=True, ignore_eos=True, token_ids=True)
    body = json.loads(
        body_of(
            _request(sampling=Sampling(temperature=0.0, ignore_eos=False)),
            model="m",
            api="completions",
            accepted=all_of_it,
        )
    )
    assert body == {
        "model": "m",
        "prompt": "hi",
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": 0.0,
    }


def test_extra_fields_go_last() -> None:
    body = json.loads(
        body_of(_request(extra={"max_tokens": 9, "x": [1]}), model="m", api="chat", accepted=Accepted())
    )
    assert (body["max_tokens"], body["x"]) == (9, [1])


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_token_ids_where_nobody_takes_them(api: str) -> None:
    with pytest.raises(InputError, match="token_ids"):
        body_of(_request(prompt=None, token_ids=(1, 2)), model="m", api=api, accepted=Accepted())

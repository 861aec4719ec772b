"""Golden: what `start` finds out about a server, and the one line it says when the server cannot be used."""

from __future__ import annotations

import json
import socket

import pytest

from golden.golden_client import one, request, with_engine
from golden.oracle import Oracle, Script, Seen, chat, models, stream, text, usage_chunk, whole
from phasemeter.engines.openai_http import HttpOptions, OpenAIHttp
from phasemeter.record.engine import EngineInfo, Outcome
from phasemeter.record.errors import EngineError, InputError

KEY = "sk-very-secret-1234"


async def _info(engine: OpenAIHttp) -> EngineInfo:
    return engine.info


def _picky(*, rejects: set[str], ids_as_text: bool = False, status: str = "400 Bad Request"):
    """A server that rejects the named fields."""

    def answer(seen: Seen) -> Script:
        if seen.method == "GET":
            return models("m") if seen.path == "/v1/models" else whole("404 Not Found", b"")
        body = seen.json
        fields = set(body) | {f"stream_options.{name}" for name in body.get("stream_options", {})}
        if isinstance(body.get("prompt"), list):
            fields.add("token_ids")
        bad = fields & rejects
        if bad:
            return whole(
                status, json.dumps({"error": {"message": f"unknown field {sorted(bad)[0]}"}}).encode()
            )
        counted = 30 if ids_as_text and "token_ids" in fields else 8
        events: list = [(0, text("a")), (0, text("", "length"))]
        if "stream_options.include_usage" in fields:
            events.append((0, usage_chunk(1, counted)))
        return stream(events)

    return answer


@pytest.mark.parametrize(
    ("rejects", "asked", "ids", "eos"),
    [
        (set(), "include_usage+continuous_usage_stats", True, None),
        ({"stream_options.continuous_usage_stats"}, "include_usage", True, None),
        ({"stream_options"}, "none", True, None),
        ({"ignore_eos"}, "include_usage+continuous_usage_stats", True, False),
        ({"token_ids"}, "include_usage+continuous_usage_stats", False, None),
        ({"stream_options.continuous_usage_stats", "token_ids", "ignore_eos"}, "include_usage", False, False),
    ],
)
def test_the_server_is_asked_only_for_what_it_takes(
    rejects: set[str], asked: str, ids: bool, eos: bool | None
) -> None:
    with Oracle(_picky(rejects=rejects), raw=True) as oracle:
        info = with_engine(oracle, _info, api="completions")
        result = one(oracle, api="completions")
        probes = [s for s in oracle.seen if s.method == "POST" and s.json["max_tokens"] == 1]
    assert result.outcome is Outcome.OK
    assert info.details["stream_options"] == asked
    assert info.details["usage"] == ("none" if asked == "none" else "at the end")
    assert info.takes_token_ids is ids
    assert info.honours_ignore_eos is eos
    prompts = [json.dumps(p.json["prompt"]) for p in probes]
    assert len(set(prompts)) == len(prompts)


def test_a_server_that_reads_ids_as_text_takes_none() -> None:
    with Oracle(_picky(rejects=set(), ids_as_text=True), raw=True) as oracle:
        assert with_engine(oracle, _info, api="completions").takes_token_ids is False


def test_a_first_token_without_a_text_leaves_no_doubt_whether_chunks_are_counted() -> None:
    """A token that is half a character comes as nothing but a finish reason; another one is asked for."""
    told = {"prompt_tokens": 8, "completion_tokens": 1}
    asked = 0

    def answer(seen: Seen) -> Script:
        nonlocal asked
        if seen.method == "GET":
            return models("m") if seen.path == "/v1/models" else whole("404 Not Found", b"")
        asked += 1
        return stream([(0, text("" if asked == 1 else "a", "length", usage=told)), (0, usage_chunk(1, 8))])

    with Oracle(answer, raw=True) as oracle:
        info = with_engine(oracle, _info, api="completions")
    assert info.details["usage"] == "with every chunk"
    assert asked == 2


def test_usage_not_asked_for() -> None:
    with Oracle(_picky(rejects=set()), raw=True) as oracle:
        info = with_engine(oracle, _info, api="completions", stream_usage=False)
        assert all("stream_options" not in s.json for s in oracle.seen if s.method == "POST")
    assert info.details["stream_options"] == "none"


def test_what_the_server_says_of_itself() -> None:
    def answer(seen: Seen) -> Script:
        if seen.path == "/pre/v1/models":
            return models("first", "second", max_model_len=8192)
        if seen.path == "/pre/version":
            return whole("200 OK", b'{"version":"0.32.0"}')
        return stream([(0, text("a")), (0, text("", "length"))])

    with Oracle(answer, raw=True) as oracle:
        info = with_engine(oracle, _info, url=f"{oracle.url}/pre/v1//", api="completions", api_key=KEY)
        assert all(s.headers["authorization"] == f"Bearer {KEY}" for s in oracle.seen)
        assert all(s.headers["accept-encoding"] == "identity" for s in oracle.seen)
        assert all(s.headers["user-agent"].startswith("phasemeter/") for s in oracle.seen)
    assert (info.model, info.version, info.max_context_tokens) == ("first", "0.32.0", 8192)
    assert info.url == f"{oracle.url}/pre"
    assert KEY not in repr(info)


@pytest.mark.parametrize("told", [0, -5])
def test_a_context_that_cannot_be_is_not_known(told: int) -> None:
    def answer(seen: Seen) -> Script:
        if seen.path == "/v1/models":
            return models("m", max_model_len=told)
        return stream([(0, text("a")), (0, text("", "length"))])

    with Oracle(answer, raw=True) as oracle:
        assert with_engine(oracle, _info, api="completions").max_context_tokens is None


def test_the_request_as_the_server_gets_it() -> None:
    from phasemeter.record.request import Sampling

    ask = request(
        "run 1/ä",
        prompt=None,
        token_ids=(5, 6, 7),
        max_tokens=3,
        sampling=Sampling(temperature=0.5, top_p=0.9, top_k=4, seed=7),
        extra={"x_simulate": {"ttft_ms": 5}},
    )
    with Oracle(lambda _: stream([(0, text("a", "length"))])) as oracle:
        one(oracle, ask=ask, api="completions", headers={"X-Team": "blue"})
        seen = oracle.measured[0]
    assert seen.json == {
        "model": "m",
        "prompt": [5, 6, 7],
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "seed": 7,
        "ignore_eos": True,
        "x_simulate": {"ttft_ms": 5},
    }
    assert seen.headers["x-request-id"] == "run%201/%C3%A4"
    assert seen.headers["x-team"] == "blue"
    assert seen.headers["accept"] == "text/event-stream"


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Oracle(lambda _: []) as oracle, pytest.raises(EngineError, match="connection refused"):
        with_engine(oracle, _info, url=f"http://127.0.0.1:{port}")


def test_not_http() -> None:
    with (
        Oracle(lambda _: [(0, b"220 smtp.example ESMTP\r\n")], raw=True) as oracle,
        pytest.raises(EngineError, match="not an HTTP/1 response"),
    ):
        with_engine(oracle, _info)


@pytest.mark.parametrize("model", [None, "m"])
def test_wrong_path(model: str | None) -> None:
    with (
        Oracle(lambda _: whole("404 Not Found", b'{"detail":"Not Found"}'), raw=True) as oracle,
        pytest.raises(InputError, match=r"--url: .*/wrong/v1/.* answered 404.*root") as caught,
    ):
        with_engine(oracle, _info, url=f"{oracle.url}/wrong", model=model)
    assert "\n" not in str(caught.value)


def test_no_model_list_but_a_model_named() -> None:
    def answer(seen: Seen) -> Script:
        return (
            whole("404 Not Found", b"") if seen.method == "GET" else stream([(0, chat("a", finish="length"))])
        )

    with Oracle(answer, raw=True) as oracle:
        assert with_engine(oracle, _info, model="mine").model == "mine"


def test_unknown_model() -> None:
    with (
        Oracle(lambda _: models("alpha", "beta"), raw=True) as oracle,
        pytest.raises(InputError, match=r"--model: gamma: .* on offer: alpha, beta"),
    ):
        with_engine(oracle, _info, model="gamma")


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
@pytest.mark.parametrize("at", ["GET", "POST"])
@pytest.mark.parametrize("key", [None, KEY])
def test_key_refused(status: str, at: str, key: str | None) -> None:
    def answer(seen: Seen) -> Script:
        if seen.method == at:
            return whole(status, f'{{"error":{{"message":"bad key {key}"}}}}'.encode())
        return models("m")

    with Oracle(answer, raw=True) as oracle, pytest.raises(InputError, match="--api-key-env") as caught:
        with_engine(oracle, _info, api_key=key)
    assert KEY not in str(caught.value)


def test_a_server_that_does_not_stream() -> None:
    def answer(seen: Seen) -> Script:
        return models("m") if seen.method == "GET" else whole("200 OK", b'{"choices":[{"text":"a"}]}')

    with Oracle(answer, raw=True) as oracle, pytest.raises(InputError, match="cannot be measured"):
        with_engine(oracle, _info)


def test_plain_request_rejected() -> None:
    with (
        Oracle(_picky(rejects={"model"}), raw=True) as oracle,
        pytest.raises(InputError, match="rejects a plain request: unknown field model"),
    ):
        with_engine(oracle, _info)


def test_a_server_that_is_busy_at_the_start_is_still_measured() -> None:
    def answer(seen: Seen) -> Script:
        return (
            models("m")
            if seen.method == "GET"
            else whole("503 Service Unavailable", b"busy", "Retry-After: 1")
        )

    with Oracle(answer, raw=True) as oracle:
        info = with_engine(oracle, _info)
        result = one(oracle)
    assert info.details["probe"] == "refused"
    assert info.honours_ignore_eos is None
    assert result.outcome is Outcome.REFUSED


def test_key_never_reaches_an_error_of_the_record() -> None:
    with Oracle(lambda _: whole("500 Oops", f"you sent {KEY}".encode(), kind="text/plain")) as oracle:
        result = one(oracle, api_key=KEY)
    assert result.error == "you sent ***"


def test_token_ids_over_chat_are_refused_plainly() -> None:
    with Oracle(lambda _: []) as oracle, pytest.raises(InputError, match="chat API takes text only"):
        one(oracle, ask=request(prompt=None, token_ids=(1, 2)))


async def test_not_started() -> None:
    with pytest.raises(EngineError, match="not started"):
        await OpenAIHttp(HttpOptions(url="http://127.0.0.1:1")).generate(request())


def test_a_refusal_that_passes_does_not_spoil_the_probe() -> None:
    refused: list[Seen] = []

    def answer(seen: Seen) -> Script:
        if seen.method == "POST" and len(refused) < 2:
            refused.append(seen)
            return whole("429 Too Many Requests", b"busy")
        return _picky(rejects=set())(seen)

    with Oracle(answer, raw=True) as oracle:
        info = with_engine(oracle, _info, api="completions")
    assert "probe" not in info.details
    assert info.takes_token_ids

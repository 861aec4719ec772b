"""From a `Request` to the bytes of an HTTP request, and from a user's URL to the server's root."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct, field

from phasemeter import __version__
from phasemeter.engines.http_pool import Place
from phasemeter.engines.http_watch import HttpTimeouts
from phasemeter.record.clock import Clock, MonotonicClock
from phasemeter.record.errors import InputError
from phasemeter.record.request import Request

Api = Literal["chat", "completions"]

PATHS: dict[str, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "expect"})


class HttpOptions(Struct, frozen=True):
    """How to reach and use an OpenAI-style server.

    url           http or https, with or without /v1 and trailing slashes; no user:password in it
    model         None takes the first one that the server offers
    api_key       the secret itself; it is sent as a bearer token and appears nowhere else
    stream_usage  ask for token counts in the stream (`stream_options`)
    """

    url: str
    model: str | None = None
    api: Api = "completions"
    api_key: str | None = None
    clock: Clock = field(default_factory=MonotonicClock)
    timeouts: HttpTimeouts = HttpTimeouts()
    headers: dict[str, str] = field(default_factory=dict[str, str])
    verify_tls: bool = True
    stream_usage: bool = True

    def __repr__(self) -> str:
        return f"HttpOptions(url={self.url!r}, model={self.model!r}, api={self.api!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("url", self.url), ("model", self.model), ("api", self.api)]


class Target(Struct, frozen=True):
    """A server's root: `base` is the path in front of /v1, without a trailing slash."""

    place: Place
    base: str

    @property
    def authority(self) -> str:
        """Host and port as in a Host header."""
        host = f"[{self.place.host}]" if ":" in self.place.host else self.place.host
        usual = 443 if self.place.tls else 80
        return host if self.place.port == usual else f"{host}:{self.place.port}"

    @property
    def url(self) -> str:
        """The root as a URL."""
        return f"{'https' if self.place.tls else 'http'}://{self.authority}{self.base}"


class Accepted(Struct, frozen=True):
    """Which fields beyond the plain API this server takes, as the probe found out."""

    include_usage: bool = False
    continuous_usage: bool = False
    ignore_eos: bool = False
    token_ids: bool = False


def target_of(url: str) -> Target:
    """The server's root from what the user gave. Raises InputError, which never repeats a password."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise InputError(
            "--url", _safe(url), "is no URL; give for example http://127.0.0.1:8000/v1"
        ) from None
    if "@" in parts.netloc:
        raise InputError(
            "--url", _safe(url), "holds a user or password; name the key's variable with --api-key-env"
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InputError("--url", url, "must begin with http:// or https:// and name a host")
    if parts.query or parts.fragment:
        raise InputError("--url", url, "must not have a query or fragment; give the server's root")
    base = parts.path.rstrip("/")
    for path in PATHS.values():
        if base.endswith(path):
            raise InputError("--url", url, f"leave {path} out; choose it with --api")
    if re.search(r"[^!-~]", base):
        raise InputError("--url", url, "has characters in its path that must be percent-encoded")
    if port == 0:
        raise InputError("--url", url, "port 0 is no port that a server can have; give 1 to 65535")
    tls = parts.scheme == "https"
    place = Place(_ascii_host(parts.hostname, url), port or (443 if tls else 80), tls)
    return Target(place, base.removesuffix("/v1").rstrip("/"))


def _ascii_host(host: str, url: str) -> str:
    """The name as DNS and a Host header hold it (IDNA, RFC 3490)."""
    try:
        ascii_host = host if ":" in host else host.encode("idna").decode("ascii")
    except UnicodeError:
        raise InputError("--url", url, f"{host} is no host name") from None
    if not re.fullmatch(r"[!-~]+", ascii_host):
        raise InputError("--url", url, "has characters in its host name that no name can have")
    return ascii_host


def check_options(options: HttpOptions) -> Target:
    """Validate everything that would go into a request head. Raises InputError, never with the key in it."""
    if options.api not in PATHS:
        raise InputError("--api", options.api, f"must be one of {', '.join(PATHS)}")
    if options.api_key is not None and not re.fullmatch(r"[!-~]+", options.api_key):
        raise InputError(
            "--api-key-env", "(hidden)", "the key is empty or holds a space, line end or non-ASCII character"
        )
    for name, value in options.headers.items():
        if not _TOKEN.fullmatch(name) or re.search(r"[^\t -~]", value):
            raise InputError(
                "header", name, "is no header name, or its value has characters that HTTP does not allow"
            )
        if name.lower() in _OURS:
            raise InputError("header", name, "is set by the client itself and cannot be changed")
    for name, seconds in msgspec.structs.asdict(options.timeouts).items():
        if seconds is not None and not seconds > 0:
            raise InputError(name, seconds, "must be greater than zero, or none")
    return target_of(options.url)


class Writer:
    """Writes request bytes; everything that is the same in each request is put together once."""

    def __init__(self, target: Target, options: HttpOptions) -> None:
        self._base = target.base
        lines = [
            f"Host: {target.authority}",
            f"User-Agent: phasemeter/{__version__}",
            "Accept-Encoding: identity",
        ]
        if options.api_key is not None:
            lines.append(f"Authorization: Bearer {options.api_key}")
        lines += [f"{name}: {value}" for name, value in options.headers.items()]
        self._same = "\r\n".join(lines)

    def get(self, path: str) -> bytes:
        """A GET of `path` (given from /v1 on, or any other at the root)."""
        return f"GET {self._base}{path} HTTP/1.1\r\n{self._same}\r\nAccept: application/json\r\n\r\n".encode(
            "latin-1"
        )

    def post(self, path: str, body: bytes, request_id: str) -> bytes:
        """A POST of a JSON body that asks for an event stream."""
        head = (
            f"POST {self._base}{path} HTTP/1.1\r\n{self._same}\r\nAccept: text/event-stream\r\n"
            f"Content-Type: application/json\r\nX-Request-Id: {quote(request_id, safe=_ID_SAFE)}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("latin-1") + body


_ID_SAFE = "!#$&'()*+,/:;=?@[]"


def body_of(request: Request, *, model: str, api: str, accepted: Accepted) -> bytes:
    """The JSON body of one streaming request. `request.extra` is put in last and untouched.

    Raises InputError when the prompt cannot be said in this API (token ids over chat, or to a server that
    does not take them): the plan should have looked at `EngineInfo.takes_token_ids`."""
    body: dict[str, object] = {"model": model}
    if api == "chat":
        body["messages"] = [{"role": "user", "content": _text(request, "the chat API takes text only")}]
    elif request.token_ids is not None and accepted.token_ids:
        body["prompt"] = request.token_ids
    else:
        body["prompt"] = _text(request, "this server does not take token ids")
    body["max_tokens"] = request.max_tokens
    body["stream"] = True
    if accepted.include_usage:
        body["stream_options"] = {"include_usage": True} | (
            {"continuous_usage_stats": True} if accepted.continuous_usage else {}
        )
    sampling = request.sampling
    for name in ("temperature", "top_p", "top_k", "seed"):
        value = getattr(sampling, name)
        if value is not None:
            body[name] = value
    if sampling.ignore_eos and accepted.ignore_eos:
        body["ignore_eos"] = True
    return msgspec.json.encode(body | request.extra)


def _text(request: Request, why: str) -> str:
    if request.prompt is None:
        raise InputError("token_ids", f"request {request.id}", f"{why}; give a text prompt")
    return request.prompt


def _safe(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//***@", url)

"""Read a server's /metrics over one kept connection. It blocks, so it belongs in a thread; what a server or a network
does wrong is None, never an error: a run does not end because nobody serves metrics."""

from __future__ import annotations

import http.client
import ssl
from urllib.parse import urlsplit

from phasemeter.record.scrape import MetricsPlace

MOST_BYTES = 8 << 20
TIMEOUT_S = 2.0
_OK = 200


class MetricsPage:
    """One page at one place. Its methods are for one thread at a time."""

    def __init__(self, place: MetricsPlace, timeout_s: float = TIMEOUT_S) -> None:
        self._place = place
        self._timeout_s = timeout_s
        self._path = urlsplit(place.url).path or "/"
        self._held: http.client.HTTPConnection | None = None

    def read(self, query: str = "") -> bytes | None:
        """The page, or None. A kept connection that the server has closed meanwhile is replaced once."""
        again = self._held is not None
        try:
            return self._asked(query)
        except (OSError, http.client.HTTPException):
            self.close()
        if not again:
            return None
        try:
            return self._asked(query)
        except (OSError, http.client.HTTPException):
            self.close()
            return None

    def close(self) -> None:
        """Let the connection go. Safe to call twice."""
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def _asked(self, query: str) -> bytes | None:
        if self._held is None:
            self._held = self._connection()
        path = f"{self._path}?{query}" if query else self._path
        self._held.request("GET", path, headers={"Accept": "text/plain", **self._place.headers})
        answer = self._held.getresponse()
        body = answer.read(MOST_BYTES)
        if answer.status != _OK or len(body) == MOST_BYTES:
            self.close()  # the rest of it is not worth reading
            return None
        return body

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._place.url)
        host = parts.hostname or ""
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, parts.port, timeout=self._timeout_s)
        context = ssl.create_default_context()
        if not self._place.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(host, parts.port, timeout=self._timeout_s, context=context)

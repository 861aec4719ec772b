"""Events: a request's life as it is told to live sinks (progress bar, live window). Sinks are plain callables."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct


class Kind(StrEnum):
    """What happened. ARRIVED is the intended arrival, not the send."""

    ARRIVED = "arrived"
    STARTED = "started"
    CONNECTED = "connected"
    SENT = "sent"
    FIRST_BYTE = "first_byte"
    TOKENS = "tokens"
    FINISHED = "finished"
    FAILED = "failed"
    ABORTED = "aborted"


class By(StrEnum):
    """Who saw it."""

    CLIENT = "client"
    GATEWAY = "gateway"


class Event(Struct, frozen=True):
    """One thing that happened to one request; `n` counts tokens for TOKENS, else 0. `t_ns` is when it happened: an
    event may be handed over later than that (replies are parsed after their stream), never with another stamp."""

    t_ns: int
    request: str
    kind: Kind
    by: By = By.CLIENT
    n: int = 0


Observer = Callable[[Event], None]

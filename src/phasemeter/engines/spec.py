"""What the user asked for, as one frozen struct that every engine's opener reads its part of."""

from __future__ import annotations

from msgspec import Struct


class EngineSpec(Struct, frozen=True, omit_defaults=True):
    """The engine flags of the command line. None leaves the engine's own default. `api_key` is the secret itself, read
    by the command from the variable that `--api-key-env` names; it is never written anywhere."""

    kind: str
    model: str | None = None
    url: str | None = None
    api: str = "completions"
    api_key: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    seed: int = 0
    threads: int | None = None
    timeout_s: float = 600.0
    first_token_timeout_s: float | None = None
    verify_tls: bool = True
    truth: dict[str, object] = {}
    """Settings of the simulated engine (see `engines.simulated.truth`)."""

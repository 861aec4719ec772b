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
    connect_timeout_s: float | None = 10.0
    first_token_timeout_s: float | None = None
    gap_timeout_s: float | None = None
    verify_tls: bool = True
    truth: dict[str, object] = {}
    """Settings of the simulated engine (see `engines.simulated.truth`)."""
    engine_python: str | None = None
    """Interpreter of the engine's own environment; None is ours."""
    engine_flags: tuple[str, ...] = ()
    """Flags for the engine itself, as they were given."""
    engine_log: str | None = None
    """File for what a started engine prints; None keeps it in a temporary one."""
    engine_plugin: bool = True
    """Have our plugin tell what the engine saw of each request, where the engine takes one."""
    engine_steps: bool = False
    """Have it tell each step as well."""
    engine_spans: bool = False
    """Receive the engine's OpenTelemetry spans, where it sends any."""
    environment: dict[str, str] = {}
    """The environment variables that a started engine's are made from; they may hold secrets and are never written."""
    cache: str | None = None
    """Folder for what is worth keeping from start to start."""

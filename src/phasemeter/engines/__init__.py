"""Make one request happen. An engine is one file here and one entry in `ENGINES`; it knows nothing of load or files.

Engines are imported when they are opened: the HTTP client is not needed to run a local model, nor torch to reach a
server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from phasemeter.engines.spec import EngineSpec
from phasemeter.record.clock import Clock
from phasemeter.record.engine import Engine
from phasemeter.record.errors import InputError


def open_engine(spec: EngineSpec, clock: Clock) -> Engine:
    """The engine that `spec` asks for, not started yet. Raises InputError when the spec cannot be used."""
    opener = ENGINES.get(spec.kind)
    if opener is None:
        raise InputError(
            "--engine", spec.kind, f"there is no such engine; choose one of {', '.join(ENGINES)}"
        )
    return opener(spec, clock)


def _local(spec: EngineSpec, clock: Clock) -> Engine:
    from phasemeter.engines.transformers_local import LocalOptions, TransformersLocal
    from phasemeter.roofline.model import find_preset

    if spec.model is None:
        raise InputError("--model", "none", "name a preset, a directory, a hub name or a FILE.gguf")
    # A hub name asks for that checkpoint; only a bare preset name asks for the architecture with random weights.
    by_name = "/" not in spec.model and not Path(spec.model).exists()
    preset = find_preset(spec.model) if by_name else None
    return TransformersLocal(
        LocalOptions(
            model=spec.model if preset is None else preset.name,
            dtype=spec.dtype,
            device=spec.device,
            seed=spec.seed,
            threads=spec.threads,
            clock=clock,
            config=None if preset is None else preset.config,
            api=spec.api,
        )
    )


def _openai(spec: EngineSpec, clock: Clock) -> Engine:
    from phasemeter.engines.http_request import HttpOptions
    from phasemeter.engines.http_watch import HttpTimeouts
    from phasemeter.engines.openai_http import OpenAIHttp

    if spec.url is None:
        raise InputError("--url", "none", "give the server's address, such as http://127.0.0.1:8000")
    return OpenAIHttp(
        HttpOptions(
            url=spec.url,
            model=spec.model,
            api="chat" if spec.api == "chat" else "completions",
            api_key=spec.api_key,
            clock=clock,
            timeouts=HttpTimeouts(first_token_s=spec.first_token_timeout_s, total_s=spec.timeout_s),
            verify_tls=spec.verify_tls,
        )
    )


def _simulated(spec: EngineSpec, clock: Clock) -> Engine:
    from phasemeter.engines.simulated.engine import SimulatedEngine
    from phasemeter.engines.simulated.truth import truth_of

    return SimulatedEngine(truth_of(spec.truth), clock, model=spec.model or "simulated")


ENGINES: dict[str, Callable[[EngineSpec, Clock], Engine]] = {
    "local": _local,
    "openai": _openai,
    "simulated": _simulated,
}

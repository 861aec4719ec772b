"""Make one request happen. An engine is one file here and one entry in `ENGINES`; it knows nothing of load or files.

Engines are imported when they are opened: the HTTP client is not needed to run a local model, nor torch to reach a
server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from phasemeter.engines.spec import EngineSpec
from phasemeter.record.clock import Clock
from phasemeter.record.engine import Engine
from phasemeter.record.errors import InputError

if TYPE_CHECKING:
    from phasemeter.engines.http_request import HttpOptions
    from phasemeter.roofline.presets import Preset


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

    if spec.model is None:
        raise InputError("--model", "none", "name a preset, a directory, a hub name or a FILE.gguf")
    preset = _preset(spec.model)
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
            timeout_s=spec.timeout_s,
        )
    )


def _preset(model: str) -> Preset | None:
    """The preset that `--model` asks for. A hub name asks for that checkpoint; only a bare preset name asks for the
    architecture with random weights."""
    from phasemeter.roofline.model import find_preset

    return find_preset(model) if "/" not in model and not Path(model).exists() else None


def _openai(spec: EngineSpec, clock: Clock) -> Engine:
    from phasemeter.engines.openai_http import OpenAIHttp

    if spec.url is None:
        raise InputError("--url", "none", "give the server's address, such as http://127.0.0.1:8000")
    return OpenAIHttp(_http_options(spec, clock, spec.url))


def _http_options(spec: EngineSpec, clock: Clock, url: str) -> HttpOptions:
    from phasemeter.engines.http_request import HttpOptions
    from phasemeter.engines.http_watch import HttpTimeouts

    return HttpOptions(
        url=url,
        model=spec.model,
        api="chat" if spec.api == "chat" else "completions",
        api_key=spec.api_key,
        clock=clock,
        timeouts=HttpTimeouts(
            connect_s=spec.connect_timeout_s,
            first_token_s=spec.first_token_timeout_s,
            inter_token_s=spec.gap_timeout_s,
            total_s=spec.timeout_s,
        ),
        verify_tls=spec.verify_tls,
    )


def _vllm(spec: EngineSpec, clock: Clock) -> Engine:
    from phasemeter.engines.vllm_server import VllmServer, VllmServerOptions

    preset = None if spec.model is None or spec.url is not None else _preset(spec.model)
    return VllmServer(
        VllmServerOptions(
            http=_http_options(spec, clock, spec.url or ""),
            model=spec.model if preset is None else preset.name,
            python=spec.engine_python,
            flags=spec.engine_flags,
            dtype=spec.dtype,
            device=spec.device,
            config=None if preset is None else preset.config,
            environment=spec.environment,
            cache=None if spec.cache is None else Path(spec.cache),
            log=None if spec.engine_log is None else Path(spec.engine_log),
            plugin=spec.engine_plugin,
            steps=spec.engine_steps,
            spans=spec.engine_spans,
            clock=clock,
        )
    )


def _vllm_local(spec: EngineSpec, clock: Clock) -> Engine:
    from phasemeter.engines.vllm_local import VllmLocal, VllmLocalOptions

    preset = None if spec.model is None else _preset(spec.model)
    return VllmLocal(
        VllmLocalOptions(
            model=spec.model if preset is None else preset.name,
            python=spec.engine_python,
            flags=spec.engine_flags,
            dtype=spec.dtype,
            device=spec.device,
            config=None if preset is None else preset.config,
            environment=spec.environment,
            log=None if spec.engine_log is None else Path(spec.engine_log),
            clock=clock,
        )
    )


def _simulated(spec: EngineSpec, clock: Clock) -> Engine:
    from phasemeter.engines.simulated.engine import SimulatedEngine
    from phasemeter.engines.simulated.truth import truth_of

    return SimulatedEngine(truth_of(spec.truth), clock, model=spec.model or "simulated")


ENGINES: dict[str, Callable[[EngineSpec, Clock], Engine]] = {
    "local": _local,
    "vllm": _vllm,
    "vllm-local": _vllm_local,
    "openai": _openai,
    "simulated": _simulated,
}

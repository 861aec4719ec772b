"""Why a vLLM server did not come up or died, in plain words, from its last lines.

Every pattern was read in the log or the source of vLLM 0.32; the same texts stand in 0.26. The first rule that finds
its text wins, so what causes other errors stands first.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from phasemeter.launch.child import Death

_RULES: tuple[tuple[str, str], ...] = (
    (r"unrecognized arguments: (.+)", "it does not know the flag {0}"),
    (r"error: argument (\S+?): (.+)", "the flag {0} cannot be read: {1}"),
    (r"error: (ambiguous option: .+)", "a flag cannot be read: {0}"),
    (
        # 0.32 takes any tracing for OpenTelemetry, comes up without its packages, and breaks on its first request
        r"OpenTelemetry is not available|type object 'Any' has no attribute 'SERVER'",
        "it was asked for OpenTelemetry spans and lacks the packages: install opentelemetry-sdk and "
        "opentelemetry-exporter-otlp in vLLM's environment, or leave --engine-spans (--otlp-traces-endpoint) out",
    ),
    (
        r"Address already in use|address already in use",
        "the port is taken by another process; leave --port out or free it",
    ),
    (
        r"No package metadata was found for vllm",
        "the distribution name vllm is missing in that environment; reinstall vLLM there",
    ),
    (
        r"Model architectures (\[[^\]]*\]) are not supported",
        "this vLLM does not know the model's architecture {0}",
    ),
    (
        r"model type `([^`]+)` but Transformers does not recognize",
        "that environment's transformers does not know the model type {0}",
    ),
    (
        r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len \(([^)]*)\)",
        "--max-model-len {0} is over the model's limit ({1})",
    ),
    (
        r"([\d.]+ GiB) KV cache is needed, which is larger than the available KV cache memory \(([^)]*)\)",
        "the KV cache is too small for one request of full length: {0} needed, {1} there; give a shorter "
        "--max-model-len, or more memory (--gpu-memory-utilization; on a CPU VLLM_CPU_KVCACHE_SPACE)",
    ),
    (
        r"No available memory for the cache blocks",
        "no memory is left for the KV cache; give a higher --gpu-memory-utilization or a smaller model",
    ),
    (
        r"Free memory on device (.+?) on startup is less than desired GPU memory utilization \(([^)]*)\)",
        "the GPU's free memory {0} is less than what vLLM is to take ({1}); end other processes on it, or give a "
        "lower --gpu-memory-utilization",
    ),
    (
        r"CUDA out of memory|torch\.OutOfMemoryError|OutOfMemoryError: (?:CUDA|HIP)",
        "the GPU ran out of memory; give a lower --gpu-memory-utilization or --max-num-seqs, or a smaller model",
    ),
    (
        r"DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|^MemoryError",
        "the machine ran out of memory; take a smaller model or a smaller VLLM_CPU_KVCACHE_SPACE",
    ),
    (
        r"Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver|no NVIDIA GPU detected"
        r"|CUDA driver initialization failed|No platform detected",
        "there is no GPU that this vLLM can use; on a machine without one it takes the CPU build (docs/vllm.md)",
    ),
    (
        r"Repo id must be in the form|Cannot find an appropriate cached snapshot folder|is not a valid model identifier"
        r"|Repository Not Found|does not appear to have a file named config\.json|LocalEntryNotFoundError",
        "the model was not found: no such folder, and no model of that name in the hub or its cache",
    ),
    (
        r"You are trying to access a gated repo|GatedRepoError",
        "the model is gated and no token grants access",
    ),
    (
        r"no kernel image is available for execution",
        "this vLLM was not built for this GPU's generation",
    ),
    (
        r"Worker proc (\S+) died unexpectedly",
        "its worker process {0} ended: it crashed, or was killed, perhaps by the system for want of memory",
    ),
    (r"EngineDeadError|EngineCore (?:encountered|died|failed)", "its engine process broke"),
)
_ERROR = re.compile(r"(?:^|\s|\))((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)): (.+)")
_BORING = re.compile(r"root cause|See stack trace|EngineDeadError|validation errors? for")
_SIGNALS = {
    signal.SIGKILL: "it was killed by SIGKILL: by the system for want of memory, or by someone",
    signal.SIGILL: "illegal instruction: this build of vLLM does not fit this CPU",
    signal.SIGSEGV: "it crashed (SIGSEGV)",
    signal.SIGABRT: "it crashed (SIGABRT)",
    signal.SIGTERM: "it was stopped by SIGTERM from outside",
    signal.SIGINT: "it was stopped by SIGINT from outside",
}


def reason_of(death: Death | None, lines: Sequence[str]) -> str:
    """The reason in one plain sentence. `lines` are the log's last ones (more than are shown: what is said first is
    often the cause)."""
    known = known_reason(lines)
    if known is not None:
        return known
    if death is not None and death.code is not None and death.code < 0:
        signals = {int(number): text for number, text in _SIGNALS.items()}
        return signals.get(-death.code, f"it {death.how}")
    named = _named(lines)
    if named is not None:
        return named
    return f"it {death.how}" if death is not None else "no reason is to be found in its log"


def known_reason(lines: Sequence[str]) -> str | None:
    """The reason that a rule finds in the log's last lines; None where there is none, as in a server that is well."""
    for pattern, plain in _RULES:
        for line in lines:
            found = re.search(pattern, line)
            if found is not None and not (pattern.startswith("EngineDead") and _named(lines)):
                return plain.format(*(group or "" for group in found.groups()))
    return None


def _named(lines: Sequence[str]) -> str | None:
    """The last line that names an error and says something."""
    for line in reversed(lines):
        found = _ERROR.search(line)
        if found is not None and not _BORING.search(line):
            return f"{found[1].rpartition('.')[2]}: {found[2][:300]}"
    return None

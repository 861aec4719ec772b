"""A vLLM stat logger that writes one JSON line for every finished request, and for every step when asked.

It runs in vLLM's API server process, where an exception in `record` would end the server: so whatever goes
wrong here switches this logger off, with one line in vLLM's log. Only the standard library is used. vLLM does
not call the structs it hands over stable, so every field is looked up by name, and a field that is not there
is left out of the line. Known to work with vLLM 0.26 and 0.32.

    PHASEMETER_VLLM_FILE   a file to append to, or unix:PATH of a datagram socket; not set: nothing is written
    PHASEMETER_VLLM_STEPS  1 adds a line for every engine step
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import sys
import time

try:
    from vllm.v1.metrics.loggers import StatLoggerBase
except ImportError:  # a vLLM without this interface asks for no base class either
    StatLoggerBase = object

__version__ = "0.1.0"
__all__ = ["PhasemeterStatLogger"]

FORMAT = 1
FILE = "PHASEMETER_VLLM_FILE"
STEPS = "PHASEMETER_VLLM_STEPS"

_log = logging.getLogger("vllm.plugins.phasemeter")

_SECONDS = {
    "queue_ns": "queued_time",
    "prefill_ns": "prefill_time",
    "decode_ns": "decode_time",
    "inference_ns": "inference_time",
    "e2e_ns": "e2e_latency",
}
_COUNTS = {
    "prompt_tokens": "num_prompt_tokens",
    "generated_tokens": "num_generation_tokens",
    "cached_tokens": "num_cached_tokens",
    "preemptions": "num_preemptions",
}
_SCHEDULER = {
    "running": "num_running_reqs",
    "waiting": "num_waiting_reqs",
    "deferred": "num_skipped_waiting_reqs",
    "kv_usage_ratio": "kv_cache_usage",
}
_DETAILS = {
    "prefill_requests": "num_ctx_requests",
    "prefill_tokens": "num_ctx_tokens",
    "decode_requests": "num_generation_requests",
    "decode_tokens": "num_generation_tokens",
}


class PhasemeterStatLogger(StatLoggerBase):  # type: ignore[misc, valid-type]
    """One for every engine. Does nothing unless the environment names a file or a socket."""

    def __init__(self, vllm_config: object = None, engine_index: int = 0, *_: object, **__: object) -> None:
        self._out: _File | _Socket | None = None
        self._steps = False
        self._engine_index = engine_index
        try:
            place = os.environ.get(FILE)  # noqa: TID251
            if not place:
                return
            self._steps = os.environ.get(STEPS, "") not in {"", "0"}  # noqa: TID251
            self._out = _Socket(place[5:]) if place.startswith("unix:") else _File(place)
            start = {
                "vllm": _vllm_version(),
                "plugin": __version__,
                "pid": os.getpid(),
                "engine_index": engine_index,
            }
            self._out.write(_line("start", time.monotonic_ns(), start))  # noqa: TID251
        except Exception as error:  # noqa: BLE001 - see the module's text
            self._give_up(error)

    def record(
        self,
        scheduler_stats: object = None,
        iteration_stats: object = None,
        mm_cache_stats: object = None,
        engine_idx: int | None = None,
        *_: object,
        **__: object,
    ) -> None:
        """Called by vLLM after every step; `iteration_stats` is None for a step that brought out no token, and
        `engine_idx` numbers the engine cores of one server (data parallelism)."""
        if self._out is None:
            return
        try:
            engine_ns = time.monotonic_ns()  # noqa: TID251
            index = self._engine_index if engine_idx is None else engine_idx
            finished = getattr(iteration_stats, "finished_requests", None) or ()
            if self._steps and scheduler_stats is not None:
                step = _step(scheduler_stats, iteration_stats, len(finished))
                self._out.write(_line("step", engine_ns, step | {"engine_index": index}))
            for stats in finished:
                self._out.write(_line("request", engine_ns, _request(stats) | {"engine_index": index}))
        except Exception as error:  # noqa: BLE001 - see the module's text
            self._give_up(error)

    def log_engine_initialized(self) -> None:
        """Nothing to say: the first line was written when the logger was made."""

    def log(self, *_: object, **__: object) -> None:
        """Nothing is held back, so there is nothing to do every few seconds."""

    def record_sleep_state(self, *_: object, **__: object) -> None:
        """Of no interest here."""

    def record_admission_rejection(self, *_: object, **__: object) -> None:
        """The client sees its own refusals."""

    def _give_up(self, error: Exception) -> None:
        out, self._out = self._out, None
        _log.warning(
            "phasemeter: nothing more is written about requests (%s: %s); the server is not affected",
            type(error).__name__,
            error,
        )
        if out is not None:
            out.close()


# A later vLLM may ask for one more method; a logger without it is still a good logger.
if getattr(PhasemeterStatLogger, "__abstractmethods__", None):
    PhasemeterStatLogger.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


class _File:
    """Appends whole lines. O_NONBLOCK: a pipe that nobody reads must not hold up the server."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._fd = os.open(path, flags, 0o644)

    def write(self, line: bytes) -> None:
        written = os.write(self._fd, line)
        if written != len(line):
            raise OSError(errno.ENOSPC, "a line was cut, the disk may be full")

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _Socket:
    """Sends each line as one datagram."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(0)
        self._lost = 0
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise

    def write(self, line: bytes) -> None:
        if self._lost:
            line = b'{"lost":%d,' % self._lost + line[1:]
        try:
            self._socket.send(line)
        except (BlockingIOError, InterruptedError):
            self._lost += 1
        else:
            self._lost = 0

    def close(self) -> None:
        self._socket.close()


def _request(stats: object) -> dict[str, object]:
    told: dict[str, object] = {}
    request_id = getattr(stats, "request_id", None)
    if request_id is not None:
        told["request_id"] = str(request_id)
    for name, field in _SECONDS.items():
        seconds = _number(stats, field)
        if seconds is not None:
            told[name] = round(seconds * 1e9)
    told |= _picked(stats, _COUNTS)
    reason = getattr(stats, "finish_reason", None)
    if reason is not None:
        told["finish_reason"] = str(reason)
    return told


def _step(scheduler: object, iteration: object, finished: int) -> dict[str, object]:
    told = _picked(scheduler, _SCHEDULER)
    details = getattr(scheduler, "iteration_details", None)
    if details is not None and not getattr(details, "is_dummy", False):
        told |= _picked(details, _DETAILS)
        elapsed_ms = _number(details, "elapsed_ms")
        if elapsed_ms is not None:
            told["duration_ns"] = round(elapsed_ms * 1e6)
    if iteration is not None:
        told |= _picked(iteration, {"out_tokens": "num_generation_tokens"})
        firsts = getattr(iteration, "time_to_first_tokens_iter", None)
        if firsts is not None:
            told["first_tokens"] = len(firsts)
        told["finished"] = finished
    return told


def _picked(source: object, names: dict[str, str]) -> dict[str, object]:
    found = {name: _number(source, field) for name, field in names.items()}
    return {name: value for name, value in found.items() if value is not None}


def _number(source: object, field: str) -> float | int | None:
    value = getattr(source, field, None)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        return None
    return value


def _line(kind: str, engine_ns: int, told: dict[str, object]) -> bytes:
    whole = {"v": FORMAT, "type": kind, "engine_ns": engine_ns, **told}
    return json.dumps(whole, separators=(",", ":")).encode() + b"\n"


def _vllm_version() -> str | None:
    return getattr(sys.modules.get("vllm"), "__version__", None)

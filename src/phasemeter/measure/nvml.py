# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# ruff: noqa: ANN401 - the bindings have no types
"""What NVIDIA's management library tells of the GPUs: names and limits once, clocks and power while a run
goes on.

A machine without the driver has no GPUs as far as this is concerned; a value that a card does not tell is
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from phasemeter.record.run import Gpu


def gpus() -> tuple[Gpu, ...]:
    """Every GPU that NVML lists, in its order (torch's `cuda:N` follows it unless CUDA_VISIBLE_DEVICES says
    other)."""
    with _nvml() as nvml:
        if nvml is None:
            return ()
        driver = _asked(nvml, nvml.nvmlSystemGetDriverVersion)
        count = _asked(nvml, nvml.nvmlDeviceGetCount) or 0
        handles = [_asked(nvml, nvml.nvmlDeviceGetHandleByIndex, i) for i in range(count)]
        return tuple(_gpu(nvml, handle, driver) for handle in handles if handle is not None)


def sample_gpu(index: int) -> dict[str, float]:
    """One reading of a GPU: `gpu_power_w`, `gpu_clock_sm_mhz`, `gpu_memory_used_bytes`,
    `gpu_utilisation_ratio` (share of the last sampling period, up to a second, with any kernel running) and
    `gpu_temperature_c`. Empty without one."""
    with _nvml() as nvml:
        if nvml is None:
            return {}
        handle = _asked(nvml, nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            return {}
        memory = _asked(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        rates = _asked(nvml, nvml.nvmlDeviceGetUtilizationRates, handle)
        readings = {
            "gpu_power_w": _scaled(_asked(nvml, nvml.nvmlDeviceGetPowerUsage, handle), 1e-3),
            "gpu_clock_sm_mhz": _scaled(
                _asked(nvml, nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM), 1.0
            ),
            "gpu_memory_used_bytes": None if memory is None else float(memory.used),
            "gpu_utilisation_ratio": None if rates is None else rates.gpu / 100,
            "gpu_temperature_c": _scaled(
                _asked(nvml, nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU), 1.0
            ),
        }
        return {name: value for name, value in readings.items() if value is not None}


@contextmanager
def nvml_held() -> Generator[None]:
    """Keep the library initialised, so that readings inside of it are quick. Does nothing without one."""
    with _nvml():
        yield


def _gpu(nvml: Any, handle: Any, driver: object) -> Gpu:
    memory = _asked(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(
        name=_text(_asked(nvml, nvml.nvmlDeviceGetName, handle)) or "unknown",
        memory_bytes=None if memory is None else int(memory.total),
        driver=_text(driver),
        uuid=_text(_asked(nvml, nvml.nvmlDeviceGetUUID, handle)),
        clock_max_mhz=_asked(nvml, nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
        power_limit_w=_scaled(_asked(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, handle), 1e-3),
    )


@contextmanager
def _nvml() -> Generator[Any]:
    """The library, initialised; None where there is no package, no driver or no permission. Initialising is
    counted by NVML itself, so nested and repeated use is cheap and safe."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        with suppress(pynvml.NVMLError):  # the driver may have gone away; there is nothing left to close then
            pynvml.nvmlShutdown()


def _asked(nvml: Any, question: Callable[..., Any], *given: object) -> Any:
    """The answer, or None where the card or the driver does not know it."""
    try:
        return question(*given)
    except nvml.NVMLError:
        return None


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else float(value) * factor


def _text(value: object) -> str | None:
    # Older bindings return bytes.
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    return value if isinstance(value, str) else None

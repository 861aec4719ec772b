from __future__ import annotations

import platform
import subprocess
import sys
import types

import msgspec
import pytest

from phasemeter.measure import environment, nvml
from phasemeter.record.run import Machine


def put(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_fingerprint_describes_this_machine_and_survives_the_file():
    machine = environment.fingerprint(["msgspec", "no-such-distribution"])
    assert machine.host
    assert machine.cpu
    assert machine.cores >= 1
    assert machine.python.endswith(platform.python_version())
    assert machine.versions == {"msgspec": msgspec.__version__}
    assert msgspec.json.decode(msgspec.json.encode(machine), type=Machine) == machine


TWO_CPUS = "model name : A CPU @ 3 GHz\nflags : fpu hypervisor\n\nmodel name : B\nflags : fpu\n"


def test_cpu_name_and_hypervisor_from_cpuinfo(tmp_path):
    put(
        tmp_path,
        "proc/cpuinfo",
        TWO_CPUS,
    )
    assert environment.cpu_name(tmp_path) == "A CPU @ 3 GHz"
    assert environment.virtualised(tmp_path) is True
    put(tmp_path, "proc/cpuinfo", "model name : A CPU\nflags : fpu\n")
    assert environment.virtualised(tmp_path) is False


@pytest.mark.skipif(platform.system() == "Darwin", reason="macOS answers through sysctl")
def test_what_the_os_does_not_tell_is_none(tmp_path):
    assert environment.virtualised(tmp_path) is None
    assert environment.memory_bytes(tmp_path) is None


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("memory.max", "max", 1024 * 1000),
        ("memory.max", "512000", 512000),
        ("memory.max", "9999999999", 1024 * 1000),
        ("memory/memory.limit_in_bytes", "9223372036854771712", 1024 * 1000),
        ("memory/memory.limit_in_bytes", "300000", 300000),
    ],
)
def test_a_cgroup_limit_below_the_installed_memory_wins(tmp_path, file, text, expected):
    put(tmp_path, "proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\n")
    put(tmp_path, f"sys/fs/cgroup/{file}", text)
    assert environment.memory_bytes(tmp_path) == expected


def test_importing_the_fingerprint_loads_nothing_heavy():
    code = (
        "import sys; import phasemeter.measure.environment, phasemeter.measure.ceilings, "
        "phasemeter.engines.transformers_local; "
        "print([m for m in ('torch', 'numpy', 'transformers', 'pynvml') if m in sys.modules])"
    )
    path = next(p for p in sys.path if p.endswith("src"))
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {path!r}); {code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"


class FakeError(Exception):
    pass


class FakeNvml(types.ModuleType):
    """The part of the bindings that we call, for one card whose power reading is not supported."""

    NVMLError = FakeError
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self):
        super().__init__("pynvml")
        self.open = 0

    def nvmlInit(self):  # noqa: N802
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self):  # noqa: N802
        return b"570.1"

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if index != 0:
            raise FakeError
        return "card"

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return "NVIDIA Test"

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return "GPU-1"

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return types.SimpleNamespace(total=80, used=20)

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        return types.SimpleNamespace(gpu=25)

    def nvmlDeviceGetPowerUsage(self, handle):  # noqa: N802
        raise FakeError

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):  # noqa: N802
        return 700_000

    def nvmlDeviceGetClockInfo(self, handle, kind):  # noqa: N802
        return 1980

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):  # noqa: N802
        return 1980

    def nvmlDeviceGetTemperature(self, handle, kind):  # noqa: N802
        return 41


def test_a_gpu_is_described_and_sampled_and_the_library_closed(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    (gpu,) = nvml.gpus()
    assert (gpu.name, gpu.memory_bytes, gpu.driver, gpu.uuid) == ("NVIDIA Test", 80, "570.1", "GPU-1")
    assert (gpu.clock_max_mhz, gpu.power_limit_w) == (1980, 700.0)
    # What the card does not tell is absent, never 0.
    assert nvml.sample_gpu(0) == {
        "gpu_clock_sm_mhz": 1980.0,
        "gpu_memory_used_bytes": 20.0,
        "gpu_utilisation_ratio": 0.25,
        "gpu_temperature_c": 41.0,
    }
    assert nvml.sample_gpu(7) == {}
    assert fake.open == 0


def test_without_driver_or_package_there_are_no_gpus(monkeypatch):
    class NoDriver(FakeNvml):
        def nvmlInit(self):  # noqa: N802
            raise FakeError

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver())
    assert nvml.gpus() == ()
    assert nvml.sample_gpu(0) == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.gpus() == ()
    assert nvml.sample_gpu(0) == {}

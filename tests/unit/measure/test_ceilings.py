from __future__ import annotations

import sys

import pytest

from phasemeter.measure import ceilings
from phasemeter.record.clock import ManualClock, MonotonicClock
from phasemeter.record.errors import InputError
from phasemeter.roofline.hardware import Ceilings, better, effective


@pytest.fixture
def small(monkeypatch):
    """The same kernels on buffers that a unit test can afford."""
    monkeypatch.setattr(ceilings, "_CPU_BUFFER_BYTES", 64 << 20)
    monkeypatch.setattr(ceilings, "_CPU_SHAPES", ((64, 128, 128), (128, 128, 128)))
    monkeypatch.setattr(ceilings, "_LAUNCHES", 50)


def test_the_best_repeat_counts_and_the_first_call_does_not():
    clock = ManualClock()
    took_ns = iter([5, 40, 30, 50, 1])
    calls = []

    def kernel():
        calls.append(None)
        clock.advance_to(clock.now_ns() + next(took_ns))

    best_s = ceilings._best_timer(clock, lambda: None)(kernel, 100e-9)
    assert best_s == pytest.approx(30e-9)  # the first, of 5 ns, is left out
    assert len(calls) == 4  # 5 + 40 + 30 + 50 is past the share


def test_the_timer_waits_for_the_device_inside_the_time():
    clock = ManualClock()
    best_s = ceilings._best_timer(clock, lambda: clock.advance_to(clock.now_ns() + 70))(lambda: None, 1e-9)
    assert best_s == pytest.approx(70e-9)


def test_cpu_ceilings_through_torch_make_a_machine(small):
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    found = ceilings.measure_ceilings("cpu", ["fp32", "bf16", "int4"], MonotonicClock(), 0.05, threads=1)
    assert set(found.gemm_flops_per_s) == {"float32", "bfloat16"}  # int4 cannot be multiplied: absent, not 0
    assert found.threads == 1
    assert found.launch_ns is not None
    assert found.launch_ns > 0
    assert "torch" in found.method
    assert found.device.startswith("CPU ")
    assert torch.get_num_threads() == threads
    machine = effective(None, found)
    assert machine.kind == "cpu"
    assert machine.memory_bandwidth_bytes_per_s > 1e8


def test_numpy_measures_where_torch_is_absent(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    found = ceilings.measure_ceilings("auto", ["float32", "bfloat16"], MonotonicClock(), 0.05)
    assert "numpy" in found.method
    assert set(found.gemm_flops_per_s) == {"float32"}
    assert found.launch_ns is None
    assert effective(None, found).memory_bandwidth_bytes_per_s > 1e8
    with pytest.raises(InputError, match=r"phasemeter\[local\]"):
        ceilings.measure_ceilings("cuda", ["float32"], MonotonicClock(), 0.05)


@pytest.mark.parametrize(
    ("device", "dtype", "budget_s"), [("cpu", "float33", 1), ("tpu", "float32", 1), ("cpu", "float32", 0)]
)
def test_bad_input_is_one_line(device, dtype, budget_s):
    pytest.importorskip("torch")
    with pytest.raises(InputError) as caught:
        ceilings.measure_ceilings(device, [dtype], MonotonicClock(), budget_s)
    assert "\n" not in str(caught.value)


def test_the_better_of_two_measurements_is_the_ceiling():
    one = Ceilings("CPU x", "m1", 10.0, None, {"float32": 5.0}, launch_ns=30.0, threads=2)
    two = Ceilings("CPU x", "m2", 8.0, 7.0, {"float32": 6.0, "bfloat16": 9.0}, launch_ns=20.0, threads=2)
    joined = better(one, two)
    assert joined == Ceilings(
        "CPU x", "m1", 10.0, 7.0, {"float32": 6.0, "bfloat16": 9.0}, launch_ns=20.0, threads=2
    )
    with pytest.raises(InputError):
        better(one, Ceilings("GPU y", "m"))

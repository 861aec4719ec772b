from __future__ import annotations

import msgspec
import pytest

from phasemeter.record.errors import InputError
from phasemeter.roofline.dtypes import BYTES_PER_ELEMENT, canonical_dtype, element_bytes
from phasemeter.roofline.hardware import (
    Ceilings,
    all_hardware,
    arithmetic_dtype,
    effective,
    find_hardware,
    match_hardware,
    peak_flops_per_s,
)

MIB = 2**20


def test_every_row_has_a_source_and_sane_rates() -> None:
    names = [row.name for row in all_hardware()]
    assert len(names) == len(set(names)) >= 40
    for row in all_hardware():
        assert len(row.source) > 20, row.name
        assert "float32" in row.peak_flops_per_s, row.name
        assert set(row.peak_flops_per_s) <= set(BYTES_PER_ELEMENT), row.name
        assert all(1e11 < peak < 1e16 for peak in row.peak_flops_per_s.values()), row.name
        assert 1e10 < row.memory_bandwidth_bytes_per_s < 1e13, row.name


def test_no_two_rows_answer_to_one_name() -> None:
    for row in all_hardware():
        for name in (row.name, row.title, *row.aliases):
            assert find_hardware(name) is row
            assert find_hardware(f" {name.upper()} ") is row


@pytest.mark.parametrize(
    ("name", "bfloat16", "bandwidth", "memory"),
    [
        ("a100-40gb-sxm", 312e12, 1555e9, 40),
        ("a100-40gb-pcie", 312e12, 1555e9, 40),
        ("a100-80gb-sxm", 312e12, 2039e9, 80),
        ("a100-80gb-pcie", 312e12, 1935e9, 80),
        ("h100-sxm", 989e12, 3350e9, 80),
        ("h200", 989e12, 4800e9, 141),
        ("b200", 2250e12, 7700e9, 180),
        ("l40s", 362e12, 864e9, 48),
        ("l4", 121e12, 300e9, 24),
        ("a10g", 70e12, 600e9, 24),
        ("a10", 125e12, 600e9, 24),
        ("rtx-4090", 165.2e12, 1008e9, 24),
        ("mi300x", 1307.4e12, 5300e9, 192),
    ],
)
def test_datasheet_figures(name: str, bfloat16: float, bandwidth: float, memory: int) -> None:
    row = find_hardware(name)
    assert row.peak_flops_per_s["bfloat16"] == bfloat16
    assert row.memory_bandwidth_bytes_per_s == bandwidth
    assert row.memory_bytes == memory * 2**30


def test_cpu_peaks_are_cores_times_clock_times_flops_a_cycle() -> None:
    epyc = find_hardware("AMD EPYC 9654")
    assert epyc.peak_flops_per_s["float32"] == pytest.approx(96 * 3.55e9 * 32, rel=1e-4)
    assert epyc.memory_bandwidth_bytes_per_s == 12 * 4800e6 * 8
    xeon = find_hardware("xeon-8480plus")
    assert xeon.peak_flops_per_s["bfloat16"] == pytest.approx(56 * 3.8e9 * 1024, rel=1e-4)
    pi = find_hardware("raspberry-pi-5")
    assert pi.peak_flops_per_s["float32"] == pytest.approx(4 * 2.4e9 * 16)


@pytest.mark.parametrize(
    ("reported", "mib", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-40gb-sxm"),
        ("A100-SXM4-40GB", 40536, "a100-40gb-sxm"),
        ("NVIDIA A100-PCIE-40GB", 40960, "a100-40gb-pcie"),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100-80gb-sxm"),
        ("NVIDIA A100 80GB PCIe", 81920, "a100-80gb-pcie"),
        ("NVIDIA H100 80GB HBM3", 81559, "h100-sxm"),
        ("NVIDIA H100 PCIe", 81559, "h100-pcie"),
        ("NVIDIA H200", 143771, "h200"),
        ("NVIDIA B200", 183359, "b200"),
        ("NVIDIA L4", 23034, "l4"),
        ("NVIDIA A10G", 23028, "a10g"),
        ("Tesla T4", 15360, "t4"),
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090"),
        ("AMD EPYC 9654 96-Core Processor", None, "epyc-9654"),
        ("AMD EPYC 7763 64-Core Processor", None, "epyc-7763"),
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", None, "xeon-8375c"),
        ("Intel(R) Xeon(R) Platinum 8480+", None, "xeon-8480plus"),
        ("13th Gen Intel(R) Core(TM) i7-13700H", None, "core-i7-13700h"),
        ("AMD Ryzen 7 7840U w/ Radeon  780M Graphics", None, "ryzen-7-7840u"),
        ("Apple M2", None, "apple-m2"),
        ("Apple M2", 8192, "apple-m2"),
        ("Raspberry Pi 5 Model B Rev 1.0", None, "raspberry-pi-5"),
    ],
)
def test_names_that_drivers_report(reported: str, mib: int | None, expected: str) -> None:
    row = match_hardware(reported, None if mib is None else mib * MIB)
    assert row is not None
    assert row.name == expected


@pytest.mark.parametrize(
    ("reported", "mib"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864),
        ("NVIDIA A100-SXM4-40GB", 4864),
        ("NVIDIA RTX 9999", None),
        ("AMD EPYC", None),
        ("Intel(R) Xeon(R) Processor @ 2.60GHz", None),
        ("", None),
        ("NVIDIA", None),
    ],
)
def test_an_unknown_device_is_none_never_a_guess(reported: str, mib: int | None) -> None:
    assert match_hardware(reported, None if mib is None else mib * MIB) is None


@pytest.mark.parametrize(
    ("typed", "hint"), [("A100", "a100-40gb-sxm"), ("rtx-4080", "rtx-4090"), ("h20", "h200")]
)
def test_an_unknown_name_suggests_near_ones(typed: str, hint: str) -> None:
    with pytest.raises(InputError, match=hint) as caught:
        find_hardware(typed)
    assert caught.value.field == "hardware"


@pytest.mark.parametrize("typed", ["", "???", "zzzzqqq"])
def test_a_name_near_nothing_points_to_the_list(typed: str) -> None:
    with pytest.raises(InputError, match="phasemeter hardware"):
        find_hardware(typed)


def test_a_missing_rate_says_what_the_chip_has() -> None:
    with pytest.raises(InputError, match="float32, float16, int8"):
        peak_flops_per_s(find_hardware("t4"), "bfloat16")


def test_arithmetic_falls_back_to_a_format_the_chip_has() -> None:
    assert arithmetic_dtype(find_hardware("h200"), "bf16") == "bfloat16"
    assert arithmetic_dtype(find_hardware("t4"), "bfloat16") == "float16"
    assert arithmetic_dtype(find_hardware("epyc-7763"), "bfloat16") == "float32"
    assert arithmetic_dtype(find_hardware("raspberry-pi-5"), "bfloat16") == "float32"
    only = msgspec.structs.replace(find_hardware("h200"), kind="cpu", peak_flops_per_s={"float64": 1e12})
    assert arithmetic_dtype(only, "bfloat16") == "bfloat16"


def test_measured_values_replace_the_datasheet() -> None:
    h200 = find_hardware("h200")
    ceilings = Ceilings(
        device="cuda:0",
        method="1 GiB copy, 8192 GEMM",
        read_bandwidth_bytes_per_s=4.0e12,
        copy_bandwidth_bytes_per_s=4.19e12,
        gemm_flops_per_s={"bf16": 700e12},
    )
    here = effective(h200, ceilings)
    assert here.name == "h200 (measured)"
    assert here.memory_bandwidth_bytes_per_s == 4.19e12
    assert here.peak_flops_per_s["bfloat16"] == 700e12
    assert here.peak_flops_per_s["float8"] == h200.peak_flops_per_s["float8"]
    assert "1 GiB copy" in here.source


def test_nothing_measured_leaves_the_datasheet() -> None:
    h200 = find_hardware("h200")
    assert effective(h200, None) is h200
    assert effective(h200, Ceilings(device="cuda:0", method="none", launch_ns=4000.0)) is h200


def test_a_machine_in_no_table_can_be_measured() -> None:
    measured = Ceilings(
        device="cpu", method="STREAM", read_bandwidth_bytes_per_s=1e10, gemm_flops_per_s={"float32": 1e11}
    )
    here = effective(None, measured)
    assert (here.name, here.kind) == ("cpu (measured)", "cpu")
    assert here.memory_bandwidth_bytes_per_s == 1e10
    gpu = effective(None, msgspec.structs.replace(measured, device="cuda:0"))
    assert gpu.kind == "gpu"


def test_too_little_measured_is_refused() -> None:
    with pytest.raises(InputError, match="hardware"):
        effective(None, None)
    with pytest.raises(InputError, match="measured"):
        effective(None, Ceilings(device="cpu", method="m", read_bandwidth_bytes_per_s=1e10))
    with pytest.raises(InputError, match="measured"):
        effective(None, Ceilings(device="cpu", method="m", gemm_flops_per_s={"float32": 1e11}))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_measurement_is_refused(bad: float) -> None:
    h200 = find_hardware("h200")
    with pytest.raises(InputError, match="positive"):
        effective(h200, Ceilings(device="d", method="m", read_bandwidth_bytes_per_s=bad))
    with pytest.raises(InputError, match="positive"):
        effective(h200, Ceilings(device="d", method="m", gemm_flops_per_s={"float32": bad}))


def test_dtype_names() -> None:
    assert canonical_dtype("torch.bfloat16") == "bfloat16"
    assert canonical_dtype("BF16") == "bfloat16"
    assert canonical_dtype("half") == "float16"
    assert element_bytes("int4") == 0.5 + 2 / 128
    with pytest.raises(InputError, match="bfloat16") as caught:
        canonical_dtype("bfloat61", "kv_dtype")
    assert caught.value.field == "kv_dtype"
    with pytest.raises(InputError, match="float32"):
        canonical_dtype("")

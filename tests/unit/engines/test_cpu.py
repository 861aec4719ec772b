from __future__ import annotations

from pathlib import Path

import pytest

from phasemeter.engines import cpu


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_features_are_those_that_matter_in_a_fixed_order(tmp_path):
    put(tmp_path, "proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu avx512_bf16 sse2 avx2 avx512f\n")
    assert cpu.cpu_features(tmp_path) == ("avx2", "avx512f", "avx512_bf16")
    assert cpu.has_bf16_units(tmp_path)


def test_arm_names_are_translated(tmp_path):
    put(tmp_path, "proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd sve bf16\n")
    assert cpu.cpu_features(tmp_path) == ("neon", "arm_bf16", "sve")


def test_avx512_alone_has_no_bf16_units(tmp_path):
    put(tmp_path, "proc/cpuinfo", "flags : avx2 avx512f\n")
    assert not cpu.has_bf16_units(tmp_path)


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000", None), ("150000 100000", 1.5), ("nonsense", None), ("50000 0", None)]
)
def test_quota_of_cgroup_v2(tmp_path, text, quota):
    put(tmp_path, "sys/fs/cgroup/cpu.max", text)
    assert cpu.cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(("limit", "quota"), [("-1", None), ("300000", 3.0)])
def test_quota_of_cgroup_v1(tmp_path, limit, quota):
    put(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", limit)
    put(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert cpu.cpu_quota(tmp_path) == quota


def allow(monkeypatch, cpus):
    monkeypatch.setattr(cpu, "_allowed_cpus", lambda: frozenset(cpus))


def test_smt_siblings_count_once(tmp_path, monkeypatch):
    allow(monkeypatch, range(4))
    for i, pair in enumerate(("0,2", "1,3", "0,2", "1,3")):
        put(tmp_path, f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list", pair)
    assert cpu.usable_cores(tmp_path) == 2


def test_a_quota_below_the_cores_wins_and_is_rounded_up(tmp_path, monkeypatch):
    allow(monkeypatch, range(8))
    put(tmp_path, "sys/fs/cgroup/cpu.max", "250000 100000")
    assert cpu.usable_cores(tmp_path) == 3
    put(tmp_path, "sys/fs/cgroup/cpu.max", "10000 100000")
    assert cpu.usable_cores(tmp_path) == 1


def test_affinity_limits_the_cores(tmp_path, monkeypatch):
    allow(monkeypatch, {5})
    assert cpu.usable_cores(tmp_path) == 1

"""The vLLM plugin, against stats objects shaped like those of 0.26 and 0.32."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import socket
import subprocess
import sys
import tomllib
import types
import zipfile
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, make_dataclass
from enum import IntEnum
from pathlib import Path

import pytest

from phasemeter.engines.vllm_seen import plugin_path, plugin_source, plugin_version, write_plugin

ROOT = Path(__file__).parents[3]
PLUGIN = ROOT / "plugins" / "phasemeter-vllm"


class StatLoggerBase(ABC):
    """The interface of vLLM 0.26 to 0.32, and one method that a later version might ask for."""

    @abstractmethod
    def __init__(self, vllm_config, engine_index=0): ...

    @abstractmethod
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...

    @abstractmethod
    def log_engine_initialized(self): ...

    @abstractmethod
    def asked_for_by_a_later_version(self): ...


class FinishReason(IntEnum):
    STOP = 0
    LENGTH = 1

    def __str__(self):
        return self.name.lower()


FINISHED_026 = {
    "finish_reason": FinishReason.LENGTH,
    "request_id": "cmpl-run1-000012-0",
    "e2e_latency": 0.5,
    "num_prompt_tokens": 64,
    "num_generation_tokens": 32,
    "max_tokens_param": 32,
    "queued_time": 0.001,
    "prefill_time": 0.02,
    "inference_time": 0.42,
    "decode_time": 0.4,
    "mean_time_per_output_token": 0.0129,
    "is_corrupted": False,
    "num_cached_tokens": 16,
}
FINISHED_032 = FINISHED_026 | {"num_preemptions": 1}


def finished(fields, **changes):
    values = fields | changes
    return make_dataclass("FinishedRequestStats", list(values))(**values)


@dataclass
class Details:
    iteration_index: int = 7
    num_ctx_requests: int = 1
    num_ctx_tokens: int = 128
    num_generation_requests: int = 3
    num_generation_tokens: int = 3
    elapsed_ms: float = 12.5
    is_dummy: bool = False


@dataclass
class SchedulerStats:
    num_running_reqs: int = 4
    num_waiting_reqs: int = 2
    num_skipped_waiting_reqs: int = 0
    kv_cache_usage: float = 0.25
    iteration_details: Details | None = None


@dataclass
class IterationStats:
    num_generation_tokens: int = 4
    time_to_first_tokens_iter: list = field(default_factory=lambda: [0.1])
    finished_requests: list = field(default_factory=list)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch):
    """The module as it is when loaded beside vLLM."""
    loggers = types.ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = StatLoggerBase  # type: ignore[attr-defined]
    top = types.ModuleType("vllm")
    top.__version__ = "0.32.0"  # type: ignore[attr-defined]
    for name, module in {
        "vllm": top,
        "vllm.v1": types.ModuleType("vllm.v1"),
        "vllm.v1.metrics": types.ModuleType("vllm.v1.metrics"),
        "vllm.v1.metrics.loggers": loggers,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("PHASEMETER_VLLM_FILE", raising=False)
    monkeypatch.delenv("PHASEMETER_VLLM_STEPS", raising=False)
    return load()


def load():
    path = PLUGIN / "src" / "phasemeter_vllm" / "__init__.py"
    spec = importlib.util.spec_from_file_location("phasemeter_vllm", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_is_a_stat_logger_of_vllm_whatever_else_a_later_version_asks_for(plugin):
    assert issubclass(plugin.PhasemeterStatLogger, StatLoggerBase)
    plugin.PhasemeterStatLogger(object(), 0).log_engine_initialized()


def test_without_its_variable_it_writes_nothing(plugin, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    logger = plugin.PhasemeterStatLogger(None, 0)
    logger.record(SchedulerStats(), IterationStats(finished_requests=[finished(FINISHED_032)]), None, 0)
    assert list(tmp_path.iterdir()) == []
    assert caplog.records == []


@pytest.mark.parametrize(("fields", "preemptions"), [(FINISHED_026, None), (FINISHED_032, 1)])
def test_a_finished_request_is_one_line_with_what_this_version_knows(
    plugin, tmp_path, monkeypatch, fields, preemptions
):
    file = tmp_path / "seen.jsonl"
    monkeypatch.setenv("PHASEMETER_VLLM_FILE", str(file))
    logger = plugin.PhasemeterStatLogger(vllm_config=None, engine_index=3)
    stats = IterationStats(finished_requests=[finished(fields)])
    logger.record(SchedulerStats(), stats, mm_cache_stats=None, engine_idx=3)
    start, request = lines(file)
    assert start["type"] == "start"
    assert start["vllm"] == "0.32.0"
    assert start["pid"] == os.getpid()
    told = {
        "v": 1,
        "type": "request",
        "request_id": "cmpl-run1-000012-0",
        "queue_ns": 1_000_000,
        "prefill_ns": 20_000_000,
        "decode_ns": 400_000_000,
        "inference_ns": 420_000_000,
        "e2e_ns": 500_000_000,
        "prompt_tokens": 64,
        "generated_tokens": 32,
        "cached_tokens": 16,
        "finish_reason": "length",
        "engine_index": 3,
    }
    if preemptions is not None:
        told["preemptions"] = preemptions
    assert {key: value for key, value in request.items() if key != "engine_ns"} == told
    assert request["engine_ns"] >= start["engine_ns"]


def test_fields_that_are_missing_or_no_numbers_are_left_out(plugin, tmp_path, monkeypatch):
    file = tmp_path / "seen.jsonl"
    monkeypatch.setenv("PHASEMETER_VLLM_FILE", str(file))
    odd = types.SimpleNamespace(
        queued_time=None, prefill_time="soon", decode_time=float("nan"), request_id=None
    )
    plugin.PhasemeterStatLogger().record(None, types.SimpleNamespace(finished_requests=[odd]))
    assert set(lines(file)[1]) == {"v", "type", "engine_ns", "engine_index"}


def test_steps_only_when_asked_and_in_the_same_stamp_as_the_request_that_ended(plugin, tmp_path, monkeypatch):
    file = tmp_path / "seen.jsonl"
    monkeypatch.setenv("PHASEMETER_VLLM_FILE", str(file))
    scheduler = SchedulerStats(iteration_details=Details())
    stats = IterationStats(finished_requests=[finished(FINISHED_032)])
    plugin.PhasemeterStatLogger().record(scheduler, stats)
    assert [line["type"] for line in lines(file)] == ["start", "request"]
    monkeypatch.setenv("PHASEMETER_VLLM_STEPS", "1")
    file.unlink()
    plugin.PhasemeterStatLogger().record(scheduler, stats)
    _, step, request = lines(file)
    assert step["engine_ns"] == request["engine_ns"]
    assert {key: step[key] for key in ("prefill_tokens", "decode_tokens", "duration_ns", "running")} == {
        "prefill_tokens": 128,
        "decode_tokens": 3,
        "duration_ns": 12_500_000,
        "running": 4,
    }
    assert (step["out_tokens"], step["first_tokens"], step["finished"]) == (4, 1, 1)


def test_a_step_without_details_or_output_holds_what_is_known(plugin, tmp_path, monkeypatch):
    file = tmp_path / "seen.jsonl"
    monkeypatch.setenv("PHASEMETER_VLLM_FILE", str(file))
    monkeypatch.setenv("PHASEMETER_VLLM_STEPS", "1")
    logger = plugin.PhasemeterStatLogger()
    logger.record(SchedulerStats(), None)
    logger.record(SchedulerStats(iteration_details=Details(is_dummy=True)), None)
    logger.record(None, None)
    _, first, dummy = lines(file)
    assert first["waiting"] == 2
    assert "prefill_tokens" not in first
    assert "out_tokens" not in first
    assert "prefill_tokens" not in dummy


class Broken:
    @property
    def finished_requests(self):
        raise RuntimeError("the interface changed")


def test_an_unexpected_interface_switches_it_off_with_one_line(plugin, tmp_path, monkeypatch, caplog):
    file = tmp_path / "seen.jsonl"
    monkeypatch.setenv("PHASEMETER_VLLM_FILE", str(file))
    logger = plugin.PhasemeterStatLogger()
    with caplog.at_level(logging.INFO):
        logger.record(None, Broken())
        logger.record(None, Broken())
        logger.record(None, IterationStats(finished_requests=[finished(FINISHED_032)]))
    assert len(caplog.records) == 1
    assert "the interface changed" in caplog.text
    assert [line["type"] for line in lines(file)] == ["start"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_switches_it_off(plugin, monkeypatch, caplog):
    monkeypatch.setenv("PHASEMETER_VLLM_FILE", "/dev/full")
    logger = plugin.PhasemeterStatLogger()
    logger.record(None, IterationStats(finished_requests=[finished(FINISHED_032)]))
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text


def test_a_line_that_the_disk_cuts_switches_it_off(plugin, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PHASEMETER_VLLM_FILE", str(tmp_path / "seen.jsonl"))
    logger = plugin.PhasemeterStatLogger()
    monkeypatch.setattr(plugin.os, "write", lambda fd, data: len(data) - 1)
    for _ in range(2):
        logger.record(None, IterationStats(finished_requests=[finished(FINISHED_032)]))
    assert len(caplog.records) == 1
    assert "cut" in caplog.text


def test_a_place_that_cannot_be_opened_switches_it_off(plugin, tmp_path, monkeypatch, caplog):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # nobody reads it: opening must not wait
    for place in (tmp_path / "no" / "folder", pipe, f"unix:{tmp_path / 'nobody'}"):
        caplog.clear()
        monkeypatch.setenv("PHASEMETER_VLLM_FILE", str(place))
        logger = plugin.PhasemeterStatLogger()
        logger.record(None, IterationStats(finished_requests=[finished(FINISHED_032)]))
        assert len(caplog.records) == 1, place


def test_a_socket_gets_the_lines_and_a_slow_listener_is_told_what_it_lost(
    plugin, tmp_path, monkeypatch, caplog
):
    path = tmp_path / "socket"
    stats = IterationStats(finished_requests=[finished(FINISHED_032)])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        monkeypatch.setenv("PHASEMETER_VLLM_FILE", f"unix:{path}")
        logger = plugin.PhasemeterStatLogger()
        for _ in range(2000):  # many times more than the queue of a datagram socket holds
            logger.record(None, stats)
        listener.settimeout(0)
        got = []
        while True:
            try:
                got.append(json.loads(listener.recv(65536)))
            except BlockingIOError:
                break
        assert got[0]["type"] == "start"
        assert 1 < len(got) < 2000
        logger.record(None, stats)
        last = json.loads(listener.recv(65536))
        assert last["lost"] == 2001 - len(got)
        assert last["type"] == "request"
    assert caplog.records == []
    logger.record(None, stats)
    logger.record(None, stats)
    assert len(caplog.records) == 1  # the listener has gone


def test_several_servers_may_share_a_file(plugin, tmp_path, monkeypatch):
    file = tmp_path / "seen.jsonl"
    monkeypatch.setenv("PHASEMETER_VLLM_FILE", str(file))
    first, second = plugin.PhasemeterStatLogger(None, 0), plugin.PhasemeterStatLogger(None, 1)
    for i in range(50):
        for logger in (first, second):
            logger.record(
                None, IterationStats(finished_requests=[finished(FINISHED_032, num_prompt_tokens=i)])
            )
    assert sum(line["type"] == "request" for line in lines(file)) == 100


def test_the_copy_that_ships_in_phasemeter_is_the_plugin():
    assert plugin_source() == (PLUGIN / "src" / "phasemeter_vllm" / "__init__.py").read_text("utf-8")


def test_the_project_says_what_the_written_metadata_say(tmp_path):
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    write_plugin(tmp_path, plugin_source())
    points = (
        tmp_path / f"phasemeter_vllm-{plugin_version(plugin_source())}.dist-info/entry_points.txt"
    ).read_text()
    [(group, entries)] = project["entry-points"].items()
    assert points == f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
    assert project["dependencies"] == []
    assert project["name"] == "phasemeter-vllm"


FIND = """
from importlib.metadata import entry_points
[point] = entry_points(group="vllm.stat_logger_plugins")
print(point.name, point.load().__name__, point.dist.version)
"""


def found_from(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-S", "-c", FIND],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_a_server_finds_it_on_its_path_without_an_installation(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    folder = plugin_path()
    assert folder is not None
    assert folder.is_relative_to(tmp_path)
    assert found_from(folder) == f"phasemeter PhasemeterStatLogger {plugin_version(plugin_source())}"
    assert plugin_path() == folder
    (folder / "phasemeter_vllm" / "__init__.py").write_text("broken")
    assert plugin_path() == folder
    assert found_from(folder).startswith("phasemeter PhasemeterStatLogger")
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_a_home_that_cannot_be_written_gets_a_temporary_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "file")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = plugin_path()
    assert folder is not None
    assert folder.parent == tmp_path
    assert found_from(folder).startswith("phasemeter PhasemeterStatLogger")


def test_entry_points_find_it_after_a_plain_pip_install(tmp_path):
    """From a wheel, which pip unpacks without a network and without a build backend."""
    version = plugin_version(plugin_source())
    content, target = tmp_path / "content", tmp_path / "target"
    write_plugin(content, plugin_source())
    info = content / f"phasemeter_vllm-{version}.dist-info"
    (info / "WHEEL").write_text(
        "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    names = [p.relative_to(content).as_posix() for p in content.rglob("*") if p.is_file()]
    record = f"{info.name}/RECORD"
    (content / record).write_text("".join(f"{name},,\n" for name in [*names, record]))
    wheel = tmp_path / f"phasemeter_vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in [*names, record]:
            archive.write(content / name, name)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True, capture_output=True)
    assert found_from(target) == f"phasemeter PhasemeterStatLogger {version}"

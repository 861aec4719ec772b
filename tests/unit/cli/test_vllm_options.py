"""What the command line makes of the options of `--engine vllm`."""

from __future__ import annotations

import click
import pytest

from phasemeter.cli.flags import engine_flags, engine_spec
from phasemeter.engines.spec import EngineSpec
from phasemeter.record.errors import InputError


def spec_of(*args: str) -> EngineSpec:
    @click.command()
    @engine_flags
    def command(**options: object) -> EngineSpec:
        return engine_spec(options)

    spec = command.main(list(args), standalone_mode=False)
    assert isinstance(spec, EngineSpec)
    return spec


def test_what_follows_two_dashes_is_the_engines_as_it_stands(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("VLLM_SOMETHING", "1")
    spec = spec_of(
        "--engine",
        "vllm",
        "--model",
        "m",
        "--engine-python",
        "py",
        "--",
        "--max-num-seqs",
        "8",
        "-O3",
        "--help",
    )
    assert spec.engine_flags == ("--max-num-seqs", "8", "-O3", "--help")
    assert spec.engine_python == "py"
    assert spec.environment["VLLM_SOMETHING"] == "1"
    assert spec.cache == str(tmp_path / "phasemeter")
    assert (spec.engine_plugin, spec.engine_steps, spec.engine_spans) == (True, False, False)


def test_a_running_server_has_an_address():
    assert spec_of("--engine", "vllm", "--url", "http://127.0.0.1:1").url == "http://127.0.0.1:1"


def test_other_engines_get_neither_flags_nor_the_environment():
    assert spec_of("--engine", "simulated").environment == {}
    assert spec_of("--engine", "simulated").cache is None


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--engine", "simulated", "--", "--x"], "engine flags: --x"),
        (["--engine", "simulated", "stray"], "engine flags: stray"),
        (["--engine", "vllm", "--model", "m", "stray"], "write --"),
        (["--engine", "simulated", "--engine-python", "py"], "--engine-python: py"),
        (["--engine", "simulated", "--engine-steps"], "--engine-steps"),
        (["--engine", "simulated", "--engine-spans"], "--engine-spans"),
        (["--engine", "vllm", "--model", "m", "--engine-steps", "--no-engine-plugin"], "--engine-steps"),
        (["--engine", "vllm", "--model", "m", "--threads", "2"], "--threads: 2"),
    ],
)
def test_what_does_not_go_together_is_told(args, told):
    with pytest.raises(InputError, match=told):
        spec_of(*args)

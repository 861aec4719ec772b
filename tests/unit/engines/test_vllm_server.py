"""The start, the use and the end of a vLLM server, with a package that stands in for vLLM (`fake_site`)."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest

from phasemeter.engines import open_engine
from phasemeter.engines.spec import EngineSpec
from phasemeter.engines.vllm_server import VllmServer
from phasemeter.launch.child import StartError
from phasemeter.record.clock import MonotonicClock
from phasemeter.record.engine import Insider, Outcome
from phasemeter.record.errors import EngineError, InputError
from phasemeter.record.request import Cell, Request

SITE = Path(__file__).with_name("fake_site")
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 300}  # fmt: skip


def spec(tmp_path: Path, *flags: str, mode: str = "serve", **more: object) -> EngineSpec:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(SITE),
        "FAKE_MODE": mode,
        "FAKE_TOLD": str(tmp_path / "told.json"),
        "FAKE_COUNT": str(tmp_path / "count"),
        "VLLM_API_KEY": "secret",
    }
    wanted = EngineSpec(
        kind="vllm",
        model="ernie-4.5-0.3b",
        engine_python=sys.executable,
        engine_flags=flags,
        engine_log=str(tmp_path / "engine.log"),
        environment=environment,
        cache=str(tmp_path / "cache"),
    )
    return msgspec.structs.replace(wanted, **more)


def engine_of(wanted: EngineSpec) -> VllmServer:
    engine = open_engine(wanted, MonotonicClock())
    assert isinstance(engine, VllmServer)
    return engine


def request(prompt: str | None = None, name: str = "r-000001") -> Request:
    ids = (5, 6, 7) if prompt is None else None
    return Request(id=name, cell=Cell(3, 4), max_tokens=4, prompt=prompt, token_ids=ids)


def told(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "told.json").read_text())


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_preset_is_served_measured_and_stopped(tmp_path):
    engine = engine_of(spec(tmp_path, "--enforce-eager", "--max_num_seqs=8"))
    lines: list[str] = []
    engine.tell_with(lines.append)
    await engine.start()
    result = (await engine.generate(request())).settle()
    assert result.outcome is Outcome.OK
    assert sum(e.n_tokens or 0 for e in result.emissions) == 4

    info = engine.info
    assert (info.kind, info.model, info.version, info.dtype, info.device) == (
        "vllm", "ernie-4.5-0.3b", "0.32.0", "float32", "cpu",
    )  # fmt: skip
    assert info.url is None
    assert info.weights is not None
    assert info.weights.startswith("random")
    assert info.max_context_tokens == 4096
    assert info.vocab_tokens == 103424
    assert info.takes_token_ids
    assert info.details["prefix_caching"] == "off, by Phasemeter's default"
    assert "--max_num_seqs=8" in info.details["flags"]
    assert "tokenizer" not in info.details["flags"]
    assert engine.startup.load_s == 0.42
    assert engine.startup.engine_s == 2.5
    assert engine.startup.first_token_s is not None
    assert any("engine_s=2.50" in note for note in engine.notes)
    assert any("generates" in line for line in lines)

    assert isinstance(engine, Insider)
    seen = [line for line in engine.seen() if line.request == "r-000001"]
    assert [line.report.prefill_ns for line in seen] == [7]
    assert engine.seen() == []

    argv = told(tmp_path)["argv"]
    assert argv[:1] == ["serve"]
    assert argv[-2:] == ["--enforce-eager", "--max_num_seqs=8"]
    for flags in (["--load-format", "dummy"], ["--host", "127.0.0.1"], ["--served-model-name", "ernie-4.5-0.3b"],
                  ["--max-model-len", "auto"]):  # fmt: skip
        at = argv.index(flags[0])
        assert argv[at : at + 2] == flags
    assert {"--enable-per-request-metrics", "--no-enable-prefix-caching"} <= set(argv)
    assert json.loads((Path(argv[1]) / "config.json").read_text())["vocab_size"] == 103424
    environment = told(tmp_path)["environment"]
    assert environment["HF_HUB_OFFLINE"] == environment["VLLM_DO_NOT_TRACK"] == "1"
    assert environment["VLLM_API_KEY"] is None
    assert environment["PHASEMETER_VLLM_STEPS"] == "0"

    await engine.close()
    await engine.close()
    assert gone(told(tmp_path)["pid"])
    assert not os.path.exists(argv[1])  # noqa: ASYNC240, PTH110
    assert "Initializing a V1 LLM engine" in (tmp_path / "engine.log").read_text()
    with pytest.raises(EngineError, match="closed"):
        await engine.generate(request())


async def test_flags_are_looked_up_once_a_version(tmp_path):
    for _ in range(2):
        with pytest.raises(InputError, match="did you mean --max-num-seqs"):
            await engine_of(spec(tmp_path, "--max-nun-seqs", "8")).start()
    assert (tmp_path / "count").read_text() == "built\n"
    assert not (tmp_path / "told.json").exists()


async def test_a_version_without_a_flag_of_ours_is_started_without_it(tmp_path):
    wanted = spec(tmp_path, "--enable-prefix-caching", engine_steps=True, engine_plugin=False)
    wanted.environment["FAKE_VERSION"] = "old"
    engine = engine_of(wanted)
    await engine.start()
    argv = told(tmp_path)["argv"]
    assert "--enable-per-request-metrics" not in argv
    assert "--no-enable-prefix-caching" not in argv
    assert engine.info.details["prefix_caching"] == "on, as asked"
    assert engine.info.details["plugin"] == "off"
    assert engine.seen() == []
    assert told(tmp_path)["environment"]["PHASEMETER_VLLM_FILE"] is None
    await engine.close()


async def test_steps_ask_the_engine_for_what_they_need(tmp_path):
    engine = engine_of(spec(tmp_path, engine_steps=True))
    await engine.start()
    assert "--enable-logging-iteration-details" in told(tmp_path)["argv"]
    assert told(tmp_path)["environment"]["PHASEMETER_VLLM_STEPS"] == "1"
    await engine.close()


@pytest.mark.parametrize("what", ["steps", "spans"])
def test_what_a_server_at_a_url_does_not_tell_is_refused(what):
    with pytest.raises(InputError, match=f"--engine-{what}"):
        open_engine(
            EngineSpec(kind="vllm", url="http://127.0.0.1:1", **{f"engine_{what}": True}), MonotonicClock()
        )


async def test_spans_are_received_while_the_server_runs(tmp_path):
    engine = engine_of(spec(tmp_path, engine_spans=True))
    await engine.start()
    argv = told(tmp_path)["argv"]
    url = argv[argv.index("--otlp-traces-endpoint") + 1]
    assert told(tmp_path)["environment"]["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "http/protobuf"
    assert engine.info.details["spans"] == "on"
    assert url not in engine.info.details["flags"]
    values = [{"key": "gen_ai.request.id", "value": {"stringValue": "cmpl-r-9-0"}},
              {"key": "gen_ai.latency.time_in_queue", "value": {"doubleValue": 0.5}}]  # fmt: skip
    spans = [{"name": "llm_request", "attributes": values}]
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    ask = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with await asyncio.to_thread(urllib.request.urlopen, ask, timeout=10) as answer:
        assert answer.status == 200
    [line] = [line for line in engine.seen() if line.request == "r-9"]
    assert (line.report.source, line.report.queue_ns) == ("vllm otel spans", 500_000_000)
    await engine.close()
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(urllib.request.urlopen, ask, timeout=10)


async def test_spans_that_nobody_would_send_are_refused(tmp_path):
    wanted = spec(tmp_path, engine_spans=True)
    wanted.environment["FAKE_VERSION"] = "old"
    with pytest.raises(InputError, match="has no --otlp-traces-endpoint"):
        await engine_of(wanted).start()
    with pytest.raises(InputError, match="--engine-spans"):
        engine_of(EngineSpec(kind="vllm", url="http://127.0.0.1:1", engine_spans=True))


async def test_a_folder_without_weights_and_tokenizer_is_served_with_random_ones(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    engine = engine_of(spec(tmp_path, model=str(folder)))
    await engine.start()
    argv = told(tmp_path)["argv"]
    assert argv[1] == str(folder)
    words = json.loads((Path(argv[argv.index("--tokenizer") + 1]) / "tokenizer.json").read_text())
    assert len(words["model"]["vocab"]) == 300
    assert engine.info.model == "tiny"
    assert engine.shape is not None
    assert engine.shape.layers == 2
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    await engine.close()


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("oom", "the GPU ran out of memory"),
        ("killed", "killed by SIGKILL: by the system for want of memory"),
    ],
)
async def test_a_death_at_the_start_is_told_with_its_reason_and_last_lines(tmp_path, mode, why):
    engine = engine_of(spec(tmp_path, mode=mode))
    with pytest.raises(StartError, match=why) as caught:
        await engine.start()
    assert str(tmp_path / "engine.log") in str(caught.value)
    assert gone(told(tmp_path)["pid"])
    if mode == "oom":
        assert any("Tried to allocate" in line for line in caught.value.tail)


async def test_a_flag_value_that_vllm_refuses_is_told(tmp_path):
    engine = engine_of(spec(tmp_path, "--max-num-seqs", "many"))
    with pytest.raises(
        StartError, match=r"the flag --max-num-seqs cannot be read: invalid int value: 'many'"
    ):
        await engine.start()


async def test_a_server_that_answers_but_does_not_generate_is_not_ready(tmp_path):
    engine = engine_of(spec(tmp_path, mode="broken"))
    with pytest.raises(EngineError, match="does not generate .*the fake engine is dead"):
        await engine.start()
    assert gone(told(tmp_path)["pid"])


async def test_why_a_server_cannot_generate_is_read_in_its_log(tmp_path):
    engine = engine_of(spec(tmp_path, mode="untraced"))
    with pytest.raises(
        StartError, match="does not generate: .*lacks the packages: install opentelemetry-sdk"
    ):
        await engine.start()
    assert gone(told(tmp_path)["pid"])


async def test_a_start_that_is_given_up_leaves_nothing(tmp_path):
    engine = engine_of(spec(tmp_path, mode="hang"))
    starting = asyncio.create_task(engine.start())
    async with asyncio.timeout(30):
        while not (tmp_path / "told.json").exists():
            await asyncio.sleep(0.05)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert gone(told(tmp_path)["pid"])


async def test_a_death_in_the_middle_is_an_engine_error_of_the_next_request(tmp_path):
    engine = engine_of(spec(tmp_path, api="completions"))
    await engine.start()
    result = (await engine.generate(request("kill"))).settle()
    assert result.outcome is not Outcome.OK

    async def until_told() -> None:
        while True:
            assert (await engine.generate(request())).settle().outcome is not Outcome.OK
            await asyncio.sleep(0.05)

    with pytest.raises(EngineError, match="SIGKILL"):
        await asyncio.wait_for(until_told(), 20)
    await engine.close()


async def test_a_server_that_only_listens_no_more_is_given_time_to_say_why(tmp_path):
    engine = engine_of(spec(tmp_path))
    await engine.start()
    assert (await engine.generate(request("fade"))).settle().outcome is Outcome.HTTP_ERROR

    async def until_told() -> None:
        # one that the system still took before the door closed may be hung up on: a result like any other
        while True:
            assert (await engine.generate(request())).settle().outcome is Outcome.RESET

    with pytest.raises(EngineError, match="its worker process VllmWorker-0 ended"):
        await asyncio.wait_for(until_told(), 20)
    await engine.close()


async def test_a_port_that_is_taken_is_told_before_anything_is_loaded(tmp_path):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        port = held.getsockname()[1]
        with pytest.raises(InputError, match=f"--port {port}.*in use"):
            await engine_of(spec(tmp_path, "--port", str(port))).start()
    assert not (tmp_path / "told.json").exists()


@pytest.mark.parametrize(
    "flags", [("--api-key", "x"), ("--host=0.0.0.0",), ("--dtype", "half"), ("--model", "m")]
)
def test_flags_that_are_ours_are_refused(tmp_path, flags):
    with pytest.raises(InputError, match="engine flag"):
        engine_of(spec(tmp_path, *flags))


@pytest.mark.parametrize("model", [None, " ", "/no/such/folder", "./nothing"])
def test_models_that_cannot_be(tmp_path, model):
    with pytest.raises(InputError, match="--model"):
        engine_of(spec(tmp_path, model=model))


async def test_interpreters_that_cannot_be(tmp_path):
    with pytest.raises(InputError, match=r"--engine-python.*docs/vllm\.md"):
        await engine_of(spec(tmp_path, engine_python=str(tmp_path / "python"))).start()
    wanted = spec(tmp_path)
    wanted.environment.pop("PYTHONPATH")
    with pytest.raises(InputError, match=r"--engine-python.*cannot import vllm"):
        await engine_of(wanted).start()


async def test_a_cpu_build_has_no_gpu(tmp_path):
    with pytest.raises(InputError, match="built for CPUs"):
        await engine_of(spec(tmp_path, device="cuda:1")).start()


async def test_a_running_server_is_used_by_its_address_and_left_alone(tmp_path):
    started = engine_of(spec(tmp_path))
    await started.start()
    argv = told(tmp_path)["argv"]
    url = f"http://127.0.0.1:{argv[argv.index('--port') + 1]}"
    with pytest.raises(InputError, match="running already"):
        engine_of(spec(tmp_path, "--max-num-seqs", "8", url=url))
    found = engine_of(EngineSpec(kind="vllm", url=url))
    await found.start()
    assert (found.info.kind, found.info.model, found.info.version) == ("vllm", "ernie-4.5-0.3b", "0.32.0")
    assert found.info.url == url
    assert (await found.generate(request())).settle().outcome is Outcome.OK
    assert found.seen() == []
    assert found.notes == ()
    await found.close()
    assert (await started.generate(request())).settle().outcome is Outcome.OK
    await started.close()

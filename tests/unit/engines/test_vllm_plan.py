from __future__ import annotations

import json

import pytest
from msgspec import Struct

from phasemeter.engines import vllm_plan
from phasemeter.engines.vllm_install import Installed, mended_path, vllm_environment
from phasemeter.engines.vllm_plan import choose_model, plan_of
from phasemeter.record.errors import InputError

KNOWN = frozenset(
    {"--enable-per-request-metrics", "--no-enable-prefix-caching", "--enable-logging-iteration-details"}
)
GPU = Installed(python="py", where="site/vllm", version="0.26.0", cpu=False)
CPU = Installed(python="py", where="site/vllm", version="0.32.0+cpu", cpu=True, mend="0.32.0+cpu")


class Asked(Struct, frozen=True):
    flags: tuple[str, ...] = ()
    dtype: str = "auto"
    device: str = "auto"
    environment: dict[str, str] = {}
    plugin: bool = True
    steps: bool = False


def test_a_gpu_build_is_started_as_its_users_start_it(tmp_path):
    asked = Asked(("--port", "8123", "--max-num-seqs", "64"), device="cuda:1")
    plan = plan_of(choose_model("baidu/ERNIE-4.5-0.3B-PT", None, asked.flags), asked, GPU, KNOWN, tmp_path)
    assert plan.model == plan.name == "baidu/ERNIE-4.5-0.3B-PT"
    assert plan.flags == (
        "--enable-per-request-metrics",
        "--no-enable-prefix-caching",
        "--max-num-seqs",
        "64",
    )
    assert plan.environment == {"CUDA_VISIBLE_DEVICES": "1"}
    assert plan.dtype == "auto"
    assert plan.load_format is None
    assert "8123" not in plan.details["flags"]


@pytest.mark.parametrize(("units", "dtype"), [(True, "auto"), (False, "float32")])
def test_a_cpu_without_bfloat16_units_gets_float32(tmp_path, monkeypatch, units, dtype):
    monkeypatch.setattr(vllm_plan, "has_bf16_units", lambda: units)
    chosen = choose_model("org/name", None, ())
    plan = plan_of(chosen, Asked(), CPU, KNOWN, tmp_path)
    assert plan.dtype == dtype
    assert ("float32" in plan.flags) is not units
    assert plan.environment == {"VLLM_CPU_KVCACHE_SPACE": "2"}
    assert plan_of(chosen, Asked(dtype="bfloat16"), CPU, KNOWN, tmp_path).dtype == "bfloat16"


def test_what_the_user_chose_is_left_alone(tmp_path):
    flags = ("--max-model-len=100", "--disable-log-stats", "--no-enable-prefix-caching", "--load-format", "dummy",
             "--served-model-name", "mine")  # fmt: skip
    asked = Asked(flags, dtype="float32", environment={"VLLM_CPU_KVCACHE_SPACE": "7"})
    chosen = choose_model("org/name", None, flags)
    plan = plan_of(chosen, asked, CPU, KNOWN, tmp_path)
    assert chosen.random
    assert plan.name == "mine"
    assert plan.flags == ("--dtype", "float32", *flags[:-2])
    assert plan.environment == {}
    assert plan.load_format == "dummy"
    assert plan.details["prefix_caching"] == "off, as asked"


@pytest.mark.parametrize(("device", "installed"), [("cpu", GPU), ("cuda", CPU), ("cuda:0", CPU)])
def test_a_device_that_this_build_does_not_have(tmp_path, device, installed):
    with pytest.raises(InputError, match="--device"):
        plan_of(choose_model("org/name", None, ()), Asked(device=device), installed, KNOWN, tmp_path)


def test_a_folder_with_weights_and_tokenizer_is_a_checkpoint(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(InputError, match=r"config\.json"):
        choose_model(str(folder), None, ())
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 300}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    assert choose_model(str(folder), None, ()).random
    (folder / "model-00001-of-00002.safetensors").touch()
    (folder / "tokenizer.json").touch()
    chosen = choose_model(str(folder), None, ())
    assert not chosen.random
    plan = plan_of(chosen, Asked(dtype="float32"), GPU, frozenset(), tmp_path)
    assert plan.flags == ("--dtype", "float32")
    assert plan.environment == {"HF_HUB_OFFLINE": "1"}
    assert plan.details["prefix_caching"] == "vLLM's default"


def test_the_missing_name_is_mended_only_where_it_is_missing(tmp_path):
    assert mended_path(GPU, tmp_path) is None
    path = mended_path(CPU, tmp_path)
    assert path is not None
    assert (path / "vllm-0.32.0+cpu.dist-info" / "METADATA").read_text().splitlines()[1] == "Name: vllm"


def test_the_servers_environment(tmp_path):
    base = {"PYTHONPATH": "theirs", "VLLM_API_KEY": "secret", "HOME": "h"}
    made = vllm_environment(base, paths=(None, tmp_path), more={"X": "1"})
    assert made["PYTHONPATH"].split(":") == [str(tmp_path), "theirs"]
    assert made["HOME"] == "h"
    assert made["X"] == made["VLLM_DO_NOT_TRACK"] == made["VLLM_NO_USAGE_STATS"] == "1"
    assert "VLLM_API_KEY" not in made
    assert "PYTHONPATH" not in vllm_environment({})

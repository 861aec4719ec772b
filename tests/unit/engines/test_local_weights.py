from __future__ import annotations

import json

import pytest

from phasemeter.engines.transformers_local import LocalOptions, TransformersLocal
from phasemeter.record.errors import InputError
from phasemeter.record.request import Cell, Request

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from phasemeter.engines import local_random, local_weights  # noqa: E402

TINY = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 500,
    "max_position_embeddings": 64,
}
CPU = torch.device("cpu")


def random_state(config=TINY, seed=0, dtype=torch.float32):
    model = local_random.random_model(local_weights.hf_config(config, "tiny"), "tiny", dtype, CPU, seed)
    return model, model.state_dict()


def test_random_weights_depend_on_the_seed_alone(monkeypatch):
    monkeypatch.setattr(local_random, "_BLOCK", 1000)
    monkeypatch.setattr(local_random, "usable_cores", lambda: 1)
    _, one = random_state()
    monkeypatch.setattr(local_random, "usable_cores", lambda: 3)
    _, three = random_state()
    _, other = random_state(seed=1)
    assert all(torch.equal(one[name], three[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


def test_random_weights_are_spread_as_the_config_says():
    model, state = random_state(TINY | {"initializer_range": 0.05})
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "lm_head.weight"):
        assert state[name].std().item() == pytest.approx(0.05, rel=0.05)
        assert abs(state[name].mean().item()) < 0.005
    assert torch.equal(state["model.norm.weight"], torch.ones(64))
    assert not model.training


def test_two_matrices_never_hold_the_same_numbers():
    _, state = random_state()
    q = [state[f"model.layers.{i}.self_attn.q_proj.weight"] for i in (0, 1)]
    assert not torch.equal(q[0], q[1])


def test_tied_embeddings_stay_one_matrix():
    model, _ = random_state(TINY | {"tie_word_embeddings": True})
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    assert model.lm_head.weight.std().item() > 0.01


@pytest.mark.parametrize("kind", ["gpt2", "qwen3", "gemma3_text", "mamba", "bloom", "qwen2_moe", "ernie4_5"])
def test_buffers_that_no_weight_file_holds_are_right(kind):
    small: dict[str, object] = {
        "model_type": kind, "vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if kind not in ("gpt2", "bloom"):
        small |= {"intermediate_size": 128, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 4}
    if kind == "mamba":
        small |= {"state_size": 8}
    config = local_weights.hf_config(small, kind)
    model = local_random.random_model(config, kind, torch.float32, CPU, 0)
    plain = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    buffers = dict(plain.named_buffers())
    assert dict(model.named_buffers()).keys() == buffers.keys()
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in model.named_buffers())
    with torch.inference_mode():
        assert torch.isfinite(model(input_ids=torch.tensor([[5, 6, 7]])).logits).all()


def folder(tmp_path, config=TINY):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


async def started(**options):
    engine = TransformersLocal(
        LocalOptions(**({"dtype": "float32", "device": "cpu", "threads": 1} | options))
    )
    try:
        await engine.start()
    except InputError:
        await engine.close()
        raise
    return engine


async def test_a_checkpoint_folder_is_read_and_called_so(tmp_path):
    model, state = random_state(seed=3)
    model.save_pretrained(tmp_path)
    engine = await started(model=str(tmp_path))
    loaded = engine._loaded.model.state_dict()
    assert engine.info.weights == "checkpoint"
    assert all(torch.equal(state[name], loaded[name]) for name in state)
    request = Request(id="r", cell=Cell(3, 2), max_tokens=2, token_ids=(1, 2, 3))
    assert len((await engine.generate(request)).settle().emissions) == 2
    await engine.close()


async def test_half_a_checkpoint_does_not_pass_for_a_whole_one(tmp_path):
    from safetensors.torch import save_file

    folder(tmp_path)
    _, state = random_state()
    state.pop("model.layers.1.mlp.up_proj.weight")
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lacks 1 tensors \(model\.layers\.1\.mlp\.up_proj"):
        await started(model=str(tmp_path))


async def test_a_folder_without_weights_runs_only_when_random_ones_are_allowed(tmp_path):
    folder(tmp_path)
    with pytest.raises(InputError, match="holds no weights"):
        await started(model=str(tmp_path))
    engine = await started(model=str(tmp_path), allow_random=True, seed=4)
    assert engine.info.weights == "random, seed 4"
    await engine.close()


@pytest.mark.parametrize(
    ("text", "says"),
    [("{broken", "not a valid JSON"), ("{}", "model_type"), (json.dumps({"model_type": "zzz"}), "zzz")],
)
async def test_an_unreadable_config_is_one_line(tmp_path, text, says):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        await started(model=str(tmp_path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("name", "content"), [("model.safetensors", b"xx"), ("x.gguf", b"GGUFxxxx"), ("y.gguf", b"")]
)
async def test_damaged_weights_are_one_line(tmp_path, name, content):
    if name == "model.safetensors":
        folder(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        await started(model=str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["./none", "none.gguf", "a/b/c", "x" * 300, "two words"])
async def test_a_name_that_can_be_no_model_asks_no_hub(name):
    with pytest.raises(InputError) as caught:
        await started(model=name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cached", "raised"), [(True, False), (False, True)], ids=["in the cache", "nowhere"]
)
def test_a_hub_that_is_away_leaves_the_local_cache(monkeypatch, cached, raised):
    import huggingface_hub

    def away(*_given, **_named):
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", away)
    monkeypatch.setattr(
        huggingface_hub, "try_to_load_from_cache", lambda *_: "config.json" if cached else None
    )
    if raised:
        with pytest.raises(InputError, match="hub cannot be asked"):
            local_weights._locate("org/model")
    else:
        assert local_weights._locate("org/model") == ("org/model", {"local_files_only": True})


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": "zzz"},
        {"model_type": "t5"},
        {"model_type": "llama", "hidden_size": "wide"},
        {"model_type": "llama", "num_attention_heads": 0},
    ],
)
async def test_a_config_that_is_no_causal_model_is_one_line(config):
    with pytest.raises(InputError) as caught:
        await started(model="preset", config=config)
    assert "\n" not in str(caught.value)


async def test_weights_larger_than_the_memory_are_refused_before_they_are_made():
    with pytest.raises(InputError, match=r"take \d+\.\d GB in float32"):
        await started(model="preset", config=TINY | {"vocab_size": 10**9})


@pytest.mark.parametrize("device", ["mps", "cuda:x", "cpu:0", "tpu"])
def test_unknown_devices(device):
    with pytest.raises(InputError, match="use auto, cpu, cuda"):
        local_weights.resolve_device(device)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="--device cpu"):
        local_weights.resolve_device("cuda")
    assert local_weights.resolve_device("auto") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match="cuda:0 to cuda:1"):
        local_weights.resolve_device("cuda:2")
    assert local_weights.resolve_device("cuda:1") == torch.device("cuda", 1)
    assert local_weights.resolve_device("auto") == torch.device("cuda", 0)


@pytest.mark.parametrize(("units", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_dtype_on_a_cpu_follows_its_units(monkeypatch, units, expected):
    monkeypatch.setattr(local_weights, "has_bf16_units", lambda: units)
    assert local_weights.resolve_dtype("auto", CPU) is expected


@pytest.mark.parametrize(
    ("major", "expected"), [(9, torch.bfloat16), (8, torch.bfloat16), (7, torch.float16)]
)
def test_auto_dtype_on_a_gpu_follows_its_generation(monkeypatch, major, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (major, 0))
    assert local_weights.resolve_dtype("auto", torch.device("cuda", 0)) is expected


def test_named_dtypes():
    assert local_weights.resolve_dtype("float16", CPU) is torch.float16
    with pytest.raises(InputError, match="bfloat16"):
        local_weights.resolve_dtype("int3", CPU)

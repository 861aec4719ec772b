"""Which model a vLLM server serves, with which flags and variables: the user's, and ours where this vLLM has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from phasemeter.engines.cpu import has_bf16_units
from phasemeter.engines.vllm_flags import given, name_of, value_of
from phasemeter.engines.vllm_install import Installed
from phasemeter.engines.vllm_model import write_model, write_tokenizer
from phasemeter.engines.vllm_seen import STEPS_FLAG
from phasemeter.record.errors import InputError
from phasemeter.roofline.model import load_shape, shape_from_config
from phasemeter.roofline.shape import ModelShape

_METRICS = "--enable-per-request-metrics"
_PREFIX_ON, _PREFIX_OFF = "--enable-prefix-caching", "--no-enable-prefix-caching"
_CPU_CACHE_GIB = "2"
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "tekken.json")
# They differ between runs of the same thing, or name it only.
_NOT_TOLD = frozenset({"--port", "--served-model-name"})


class Chosen(Struct, frozen=True):
    """The model as it was asked for. `random` says that there are no weights, `folder` is a local one."""

    name: str
    folder: Path | None = None
    config: Mapping[str, object] | None = None
    shape: ModelShape | None = None
    random: bool = False
    tokenizer: bool = True


class Plan(Struct, frozen=True):
    """What is started: `flags` are ours and then the user's, `details` goes into the record."""

    model: str
    name: str
    flags: tuple[str, ...]
    environment: dict[str, str]
    details: dict[str, str]
    dtype: str
    load_format: str | None


class Wishes(Protocol):
    """The part of the engine's options that a plan is made from."""

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of `vllm serve`, as the user gave them."""
        ...

    @property
    def dtype(self) -> str:
        """Number format, or "auto"."""
        ...

    @property
    def device(self) -> str:
        """Device, or "auto"."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that the server's are made from."""
        ...

    @property
    def plugin(self) -> bool:
        """Whether our plugin tells what the engine saw."""
        ...

    @property
    def steps(self) -> bool:
        """Whether it tells each step."""
        ...


def choose_model(model: str | None, config: Mapping[str, object] | None, flags: Sequence[str]) -> Chosen:
    """Look at what `--model` names. Raises InputError."""
    if model is None or not model.strip():
        raise InputError("--model", model or "none", "--engine vllm needs a preset, a folder or a hub name")
    dummy = value_of(flags, "--load-format") == "dummy"
    if config is not None:
        return Chosen(
            model, config=config, shape=shape_from_config(dict(config), model), random=True, tokenizer=False
        )
    path = Path(model).expanduser()
    if not path.is_dir():
        if path.is_absolute() or model.startswith((".", "~")):
            raise InputError("--model", model, "there is no such folder; vLLM serves a folder or a hub name")
        return Chosen(model, random=dummy)
    shape = load_shape(str(path))  # raises when the folder holds no config.json
    weights = any(next(path.glob(pattern), None) is not None for pattern in _WEIGHTS)
    tokenizer = any((path / name).exists() for name in _TOKENIZERS) or given(flags, "--tokenizer")
    return Chosen(
        name=path.resolve().name,
        folder=path.resolve(),
        shape=shape,
        random=dummy or not weights,
        tokenizer=tokenizer,
    )


def plan_of(
    chosen: Chosen, wishes: Wishes, installed: Installed, known: frozenset[str], folder: Path
) -> Plan:
    """What to start. A preset's config.json and tokenizer are written under `folder`; a folder of the user's without a
    tokenizer gets one there, too. Raises InputError for a device that this vLLM does not have."""
    _check_device(wishes.device, installed)
    user, flags = wishes.flags, list[str]()
    if chosen.random and not given(user, "--load-format"):
        flags += ["--load-format", "dummy"]
    if not chosen.tokenizer and chosen.folder is not None and chosen.shape is not None:
        write_tokenizer(folder / "tokenizer", chosen.shape.vocab)
        flags += ["--tokenizer", str(folder / "tokenizer")]
    dtype = _dtype(wishes.dtype, installed)
    if dtype != "auto":
        flags += ["--dtype", dtype]
    flags += _measured(user, known)
    if wishes.plugin and wishes.steps and STEPS_FLAG in known and not given(user, STEPS_FLAG):
        flags.append(STEPS_FLAG)
    if installed.cpu and not given(user, "--max-model-len"):
        flags += ["--max-model-len", "auto"]  # as long as the small cache of a CPU allows
    details = {"flags": _shown(flags, user), "prefix_caching": _prefix_caching(flags, user)}
    details["plugin"] = "off" if not wishes.plugin else "requests and steps" if wishes.steps else "requests"
    return Plan(
        model=_served(chosen, folder),
        name=value_of(user, "--served-model-name") or chosen.name,
        flags=(*flags, *_without(user, _NOT_TOLD)),
        environment=_environment(chosen, wishes, installed),
        details=details,
        dtype=dtype,
        load_format=value_of((*flags, *user), "--load-format"),
    )


def _measured(user: Sequence[str], known: frozenset[str]) -> list[str]:
    """What a measurement wants: the engine's own times in the stream, and no prompt answered from a cache."""
    flags: list[str] = []
    if _METRICS in known and not given(user, _METRICS, f"--no-{_METRICS[2:]}", "--disable-log-stats"):
        flags.append(_METRICS)
    if _PREFIX_OFF in known and not given(user, _PREFIX_ON, _PREFIX_OFF):
        flags.append(_PREFIX_OFF)
    return flags


def _prefix_caching(flags: Sequence[str], user: Sequence[str]) -> str:
    if given(user, _PREFIX_ON, _PREFIX_OFF):
        return "on, as asked" if given(user, _PREFIX_ON) else "off, as asked"
    return "off, by Phasemeter's default" if given(flags, _PREFIX_OFF) else "vLLM's default"


def _dtype(asked: str, installed: Installed) -> str:
    """float32 on a CPU without bfloat16 units, where vLLM's own choice would be emulated and many times slower."""
    if asked == "auto" and installed.cpu and not has_bf16_units():
        return "float32"
    return asked


def _check_device(device: str, installed: Installed) -> None:
    if device == "auto":
        return
    if device == "cpu" and not installed.cpu:
        raise InputError(
            "--device", device, "this vLLM is built for GPUs; name the interpreter of a CPU build"
        )
    if device.startswith("cuda") and installed.cpu:
        raise InputError(
            "--device", device, "this vLLM is built for CPUs; name the interpreter of a GPU build"
        )


def _served(chosen: Chosen, folder: Path) -> str:
    if chosen.config is not None:
        write_model(folder / "model", chosen.config)
        return str(folder / "model")
    return chosen.name if chosen.folder is None else str(chosen.folder)


def _environment(chosen: Chosen, wishes: Wishes, installed: Installed) -> dict[str, str]:
    more: dict[str, str] = {}
    if chosen.folder is not None or chosen.config is not None:
        more["HF_HUB_OFFLINE"] = "1"  # all is at hand: nothing shall be asked of a hub
    if installed.cpu and "VLLM_CPU_KVCACHE_SPACE" not in wishes.environment:
        more["VLLM_CPU_KVCACHE_SPACE"] = _CPU_CACHE_GIB
    _, _, index = wishes.device.partition(":")
    if index:
        more["CUDA_VISIBLE_DEVICES"] = index
    return more


def _shown(flags: Sequence[str], user: Sequence[str]) -> str:
    """Flags for the record, without what differs between runs of the same thing (paths made for this run, the port)."""
    return " ".join((*_without(flags, {"--tokenizer"}), *_without(user, _NOT_TOLD)))


def _without(flags: Sequence[str], names: set[str] | frozenset[str]) -> list[str]:
    kept: list[str] = []
    skipping = False
    for token in flags:
        name = name_of(token)
        if name is not None:
            skipping = name in names
        if not skipping:
            kept.append(token)
    return kept

# ruff: noqa: ANN401 - transformers' and torch's objects have no useful types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false
"""Get a causal language model ready to run: from the hub, a directory, a GGUF file, or an architecture alone.

An architecture without weights gets seeded random ones. They cost what real ones cost (the arithmetic and the
memory traffic do not depend on the values), so they are good for timing and for nothing else, and
`Loaded.weights` says so. Import this module freely; torch and transformers are loaded by the first call.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from phasemeter.engines.byte_tokenizer import ByteTokenizer
from phasemeter.engines.cpu import has_bf16_units
from phasemeter.engines.local_random import random_model, said
from phasemeter.record.errors import InputError

if TYPE_CHECKING:
    import torch

DTYPES = ("auto", "float32", "bfloat16", "float16")
_WEIGHT_FILES = ("*.safetensors", "*.bin", "*.gguf")
_HUB_TIMEOUT_S = 10.0
_LONGEST_NAME = 255


class Tokenizer(Protocol):
    """The two directions that the engine needs."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, special tokens included where the model wants them."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids, special tokens left out."""
        ...


class Loaded(Struct, frozen=True):
    """A model ready to run. `model` is a transformers PreTrainedModel in eval mode on `device`."""

    model: Any
    device: Any
    dtype: str
    tokenizer: Tokenizer
    tokenizer_name: str
    weights: str
    eos_ids: frozenset[int]
    vocab_tokens: int
    max_context_tokens: int | None
    attention: str


class _HubTokenizer:
    """A transformers tokenizer; with `chat`, prompts are wrapped as one user message by the model's own
    template."""

    def __init__(self, inner: Any, *, chat: bool) -> None:
        self._inner = inner
        self._chat = chat

    def encode(self, text: str) -> list[int]:
        if not self._chat:
            return list(self._inner(text)["input_ids"])
        message = [{"role": "user", "content": text}]
        shown = self._inner.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        return list(self._inner(shown, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._inner.decode(list(ids), skip_special_tokens=True))


def quieten() -> None:
    """Keep the libraries' own messages off stderr: what a user must know is in our errors and in the run's
    header."""
    import logging

    from huggingface_hub.utils import disable_progress_bars
    from transformers.utils import logging as hf_logging

    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    _silence_gguf_bar()
    for module in (
        "torch",
        "transformers",
        "huggingface_hub",
        "gguf",
        "accelerate",
        r"phasemeter\.engines\.local_",
    ):
        warnings.filterwarnings("ignore", module=module)


def _no_bar(items: Iterable[Any], **_: object) -> Iterable[Any]:
    return items


def _silence_gguf_bar() -> None:
    # transformers draws this one bar with tqdm directly, past its own switch.
    from transformers import modeling_gguf_pytorch_utils as reading

    if hasattr(reading, "tqdm"):
        setattr(reading, "tqdm", _no_bar)  # noqa: B010 - a name that the module does not export


def resolve_device(name: str) -> torch.device:
    """The torch device for `name`; "auto" is the first GPU where torch sees one, else the CPU.

    Raises InputError for an unknown name and for a GPU that is not there.
    """
    import torch

    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not (kind == "cuda" and index.isdecimal())):
        raise InputError("--device", name, "use auto, cpu, cuda or cuda:N")
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = "no GPU is visible to its driver" if torch.version.cuda else "this torch was built without CUDA"
        raise InputError(
            "--device", name, f"{why}; use --device cpu, or install a CUDA build of torch on a GPU machine"
        )
    count = torch.cuda.device_count()
    if int(index or 0) >= count:
        raise InputError("--device", name, f"this machine has {count} GPU(s); use cuda:0 to cuda:{count - 1}")
    return torch.device("cuda", int(index or 0))


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """The number format of weights and arithmetic. "auto": bfloat16 where the device multiplies it natively,
    else float16 on a GPU and float32 on a CPU (decision 004 has the measurements). Raises InputError for
    another name."""
    import torch

    if name not in DTYPES:
        raise InputError("--dtype", name, f"use one of {', '.join(DTYPES)}")
    if name != "auto":
        return getattr(torch, name)
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        return torch.bfloat16 if major >= 8 else torch.float16
    return torch.bfloat16 if has_bf16_units() else torch.float32


def load_random(
    config: Mapping[str, Any], name: str, dtype: torch.dtype, device: torch.device, seed: int
) -> Loaded:
    """An architecture, given as a Hugging Face config, with seeded random weights and a byte-level
    tokenizer."""
    model = random_model(hf_config(config, name), name, dtype, device, seed)
    return _loaded(model, device, ByteTokenizer(), "bytes", f"random, seed {seed}")


def load_checkpoint(
    name: str, dtype: torch.dtype, device: torch.device, seed: int, *, chat: bool, allow_random: bool
) -> Loaded:
    """A hub name, a directory, or a GGUF file.

    A directory with a config but no weights gets random ones if `allow_random`. Raises InputError, in one
    line, for what cannot be found, read or run.
    """
    from transformers import AutoConfig

    place, extra = _locate(name)
    config = _guarded(name, lambda: AutoConfig.from_pretrained(place, **extra))
    if Path(place).is_dir() and not extra and not _has_weights(Path(place)):
        if not allow_random:
            raise InputError(
                "--model",
                name,
                "holds no weights (*.safetensors, *.bin or *.gguf); add them, or allow random ones",
            )
        model, weights = random_model(config, name, dtype, device, seed), f"random, seed {seed}"
    else:
        model, weights = _read_weights(name, place, config, dtype, extra), "checkpoint"
    tokenizer, tokenizer_name = _tokenizer(name, place, extra, chat=chat)
    model = _guarded(name, lambda: model.to(device).eval())
    return _loaded(model, device, tokenizer, tokenizer_name, weights)


def hf_config(config: Mapping[str, Any], name: str) -> Any:
    """A transformers config object from its mapping. Raises InputError when an architecture or field is not
    known."""
    from transformers import AutoConfig

    fields = dict(config)
    kind = fields.pop("model_type", None)
    if not isinstance(kind, str):
        raise InputError(
            "--model", name, "its config has no model_type; give a complete Hugging Face config.json"
        )
    return _guarded(name, lambda: AutoConfig.for_model(kind, **fields))


def _locate(name: str) -> tuple[str, dict[str, Any]]:
    """Folder or hub name to load from, and what `from_pretrained` must be told beside it."""
    if len(name.encode()) > _LONGEST_NAME:
        raise InputError("--model", name, "is too long for a file or hub name")
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError("--model", name, "there is no such file")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if (path / "config.json").is_file():
            return str(path), {}
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return str(path), {"gguf_file": files[0].name}
        raise InputError(
            "--model", name, "has no config.json; give a Hugging Face model folder or a single .gguf file"
        )
    if path.exists() or name.count("/") > 1 or name.startswith((".", "/", "~")):
        raise InputError(
            "--model", name, "is no model folder, .gguf file, hub name or preset; see `phasemeter models`"
        )
    return name, _ask_hub(name)


def _ask_hub(name: str) -> dict[str, Any]:
    """Fail within seconds for a model that the hub does not have or that cannot be fetched: transformers
    alone would try again for 23 s. Returns how to load it: from the local cache alone where the hub is
    away."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        HfApi().model_info(name, timeout=_HUB_TIMEOUT_S)
    except GatedRepoError:
        mend = "needs an accepted licence on the hub; accept it there, then log in with `hf auth login`"
        raise InputError("--model", name, mend) from None
    except RepositoryNotFoundError:
        mend = "is not on the hub and is no preset; see `phasemeter models`"
        raise InputError("--model", name, mend) from None
    except HFValidationError:
        raise InputError("--model", name, "is no model folder, .gguf file, hub name or preset") from None
    # The hub client's base error is that of its HTTP library, whichever it was built on.
    except HfHubHTTPError.__bases__ as error:  # pyright: ignore[reportGeneralTypeIssues]
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return {"local_files_only": True}
        why = f"is no preset or folder, and the hub cannot be asked ({type(error).__name__})"
        raise InputError("--model", name, f"{why}; give a folder or .gguf file") from None
    return {}


def _has_weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in _WEIGHT_FILES)


def _read_weights(name: str, place: str, config: Any, dtype: torch.dtype, extra: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM

    given = {"config": config, "dtype": dtype, "output_loading_info": True} | extra
    model, found = _guarded(name, lambda: AutoModelForCausalLM.from_pretrained(place, **given))
    # transformers fills what is missing with random numbers; half a checkpoint must not pass for a whole one.
    missing = sorted(found["missing_keys"])
    if missing:
        mend = f"the checkpoint lacks {len(missing)} tensors ({missing[0]}, ...); fetch it again"
        raise InputError("--model", name, mend)
    return model


def _tokenizer(name: str, place: str, extra: dict[str, Any], *, chat: bool) -> tuple[Tokenizer, str]:
    from transformers import AutoTokenizer

    folder = Path(place)
    if folder.is_dir() and not extra and not any(folder.glob("*token*")):
        if chat:
            raise InputError(
                "--api", "chat", "the model has no tokenizer and so no chat template; use --api completions"
            )
        return ByteTokenizer(), "bytes"
    inner = _guarded(name, lambda: AutoTokenizer.from_pretrained(place, **extra))
    if chat and not inner.chat_template:
        raise InputError("--api", "chat", "the model's tokenizer has no chat template; use --api completions")
    return _HubTokenizer(inner, chat=chat), type(inner).__name__


def _loaded(model: Any, device: Any, tokenizer: Tokenizer, tokenizer_name: str, weights: str) -> Loaded:
    text = model.config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None)
    eos = model.generation_config.eos_token_id if model.generation_config is not None else None
    eos = text.eos_token_id if eos is None else eos
    ids = [] if eos is None else eos if isinstance(eos, list) else [eos]
    return Loaded(
        model=model,
        device=device,
        dtype=str(model.dtype).removeprefix("torch."),
        tokenizer=tokenizer,
        tokenizer_name=tokenizer_name,
        weights=weights,
        eos_ids=frozenset(ids),
        vocab_tokens=int(model.get_input_embeddings().num_embeddings),
        max_context_tokens=limit if isinstance(limit, int) else None,
        attention=str(model.config._attn_implementation),
    )


def _guarded(name: str, load: Callable[[], Any]) -> Any:
    """Run one call into the libraries; what they raise for a bad model becomes one line."""
    import torch
    from huggingface_hub.errors import HfHubHTTPError, StrictDataclassError
    from safetensors import SafetensorError

    try:
        return load()
    except torch.OutOfMemoryError:
        raise InputError(
            "--model", name, "does not fit into the GPU's free memory; use a smaller model or --device cpu"
        ) from None
    except (
        OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError, ImportError, AssertionError,
        ArithmeticError, struct.error, SafetensorError, StrictDataclassError, HfHubHTTPError,
    ) as error:  # fmt: skip
        raise InputError("--model", name, f"transformers cannot load it: {said(error)}") from None

# ruff: noqa: ANN401 - transformers' and torch's objects have no useful types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Seeded random weights for an architecture, quickly and the same whatever the number of threads.

Each matrix is filled in blocks, every block by its own generator (torch's normal_ runs on one core
otherwise). The rest (norms, biases, odd parameters) is initialised by the architecture's own rule.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phasemeter.engines.cpu import read_text, usable_cores
from phasemeter.record.errors import InputError

if TYPE_CHECKING:
    import torch

_BLOCK = 1 << 22
_STD = 0.02
_LINE = 240
_MEMINFO = Path("/proc/meminfo")


def random_model(config: Any, name: str, dtype: torch.dtype, device: torch.device, seed: int) -> Any:
    """A causal LM of this config on `device`, every weight drawn from `seed`.

    Raises InputError when transformers has no such causal LM, when its config is unusable, or when the
    weights would not fit into the free memory.
    """
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    try:
        with torch.device("meta"):
            skeleton = AutoModelForCausalLM.from_config(config, dtype=dtype)
        _check_memory(skeleton, name, dtype, device)
        # Built for real, not on "meta": buffers that no weight file holds (rotary frequencies, masks) come
        # out right.
        with torch.device(device), no_init_weights():
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    except (
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        ImportError,
        AssertionError,
        ArithmeticError,
        RuntimeError,
    ) as error:
        raise InputError("--model", name, f"transformers cannot build it: {said(error)}") from None
    model.tie_weights()
    std = getattr(config.get_text_config(), "initializer_range", None) or _STD
    _fill(_matrices(model), seed, std)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        model.init_weights()
    return model.eval()


def said(error: BaseException) -> str:
    """What a library's error says, as one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LINE else f"{text[: _LINE - 3]}..."


def _matrices(model: Any) -> list[torch.Tensor]:
    """The weights worth filling in blocks, each once although tied, and marked so that `init_weights` leaves
    them."""
    import torch

    found: dict[int, torch.Tensor] = {}
    for module in model.modules():
        if not (
            isinstance(module, (torch.nn.Linear, torch.nn.Embedding))
            or type(module).__name__.endswith("Experts")
        ):
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.ndim >= 2:
                parameter._is_hf_initialized = True  # pyright: ignore[reportAttributeAccessIssue]
                found[id(parameter)] = parameter.detach()
    return list(found.values())


def _fill(matrices: list[torch.Tensor], seed: int, std: float) -> None:
    blocks = [block for matrix in matrices for block in matrix.view(-1).split(_BLOCK)]
    threads = 1 if blocks and blocks[0].device.type == "cuda" else usable_cores()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(_fill_block, blocks, range(len(blocks)), repeat(seed), repeat(std)))


def _fill_block(block: torch.Tensor, index: int, seed: int, std: float) -> None:
    import torch

    generator = torch.Generator(block.device).manual_seed((seed * 1_000_003 + index) % 2**63)
    block.normal_(0.0, std, generator=generator)


def _check_memory(skeleton: Any, name: str, dtype: torch.dtype, device: torch.device) -> None:
    needed = sum(parameter.numel() * parameter.element_size() for parameter in skeleton.parameters())
    free = _free_bytes(device)
    if free is not None and needed > free:
        text = str(dtype).removeprefix("torch.")
        raise InputError(
            "--model", name,
            f"its weights take {needed / 1e9:.1f} GB in {text}, {free / 1e9:.1f} GB are free on {device}; "
            "use a smaller model, a shorter dtype or another device",
        )  # fmt: skip


def _free_bytes(device: torch.device) -> int | None:
    import torch

    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in (read_text(_MEMINFO) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None

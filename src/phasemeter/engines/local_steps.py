# ruff: noqa: ANN401 - transformers' and torch's objects have no useful types
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""One request on a loaded model: a prefill step, then decode steps, each stamped after the device has
finished.

`generate()` of transformers is never used: it runs both phases in one call, and subtracting two calls of it
counts the prefill twice. Here prefill is one forward over the whole prompt with logits for its last position
only, and a decode step is one forward of one token; the key/value cache carries everything between them.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from phasemeter.engines.local_weights import Loaded
from phasemeter.record.clock import Clock
from phasemeter.record.request import Sampling

if TYPE_CHECKING:
    import torch


class Steps:
    """What has happened so far; filled by the worker step by step, so that a failure keeps the steps before
    it.

    taken_ns    the worker took the request
    ready_ns    the prompt's ids were on the device: prefill starts
    stamps_ns   one stamp a generated token, after the device was synchronised
    end_ns      the loop ended
    """

    def __init__(self, taken_ns: int) -> None:
        self.taken_ns = taken_ns
        self.ready_ns: int | None = None
        self.stamps_ns: list[int] = []
        self.token_ids: list[int] = []
        self.end_ns: int = taken_ns
        self.prompt_tokens: int | None = None
        self.stopped = False
        self.error: str | None = None


class Stepper:
    """Runs requests on one model, one after another, in the thread that calls it."""

    def __init__(self, loaded: Loaded, clock: Clock, seed: int) -> None:
        self._loaded = loaded
        self._clock = clock
        self._seed = seed
        names = inspect.signature(loaded.model.forward).parameters
        # transformers renamed the argument in 5.20 or so; older ones know only the long name.
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._keep: dict[str, Any] = {"logits_to_keep": 1} if "logits_to_keep" in names else {}
        self.cache_kind = "static" if getattr(loaded.model, "_can_compile_fullgraph", False) else "dynamic"

    def run(
        self, steps: Steps, ids: Sequence[int], sampling: Sampling, max_tokens: int, stop: threading.Event
    ) -> None:
        """Prefill `ids` and decode up to `max_tokens` tokens into `steps`. `stop` ends it after the current
        step. What torch raises (out of memory, for one) comes through; the steps before it are kept."""
        import torch

        choose = _chooser(sampling, self._generator(sampling))
        eos = frozenset[int]() if sampling.ignore_eos else self._loaded.eos_ids
        chosen: list[torch.Tensor] = []
        with torch.inference_mode():
            cache = self._cache(len(ids) + max_tokens - 1)
            token = torch.tensor([list(ids)], dtype=torch.long, device=self._loaded.device)
            self._synchronise()
            steps.ready_ns = self._clock.now_ns()
            try:
                while len(chosen) < max_tokens and not stop.is_set():
                    token = choose(self._forward(token, cache))
                    self._synchronise()
                    steps.stamps_ns.append(self._clock.now_ns())
                    chosen.append(token)
                    # After the stamp: reading the id back is the price of looking for the end of the text.
                    if eos and int(token) in eos:
                        steps.stopped = True
                        break
            finally:
                steps.end_ns = self._clock.now_ns()
                steps.token_ids = [int(t) for t in chosen]

    def _forward(self, token: torch.Tensor, cache: Any) -> torch.Tensor:
        given = {self._cache_name: cache} | self._keep
        return self._loaded.model(input_ids=token, use_cache=True, **given).logits[:, -1, :]

    def _cache(self, n_tokens: int) -> Any:
        """A fresh cache for one request. Static where the architecture takes it: a dynamic one copies all
        keys and values at every step, which looks like attention growing with context (decision 004)."""
        from transformers import DynamicCache, StaticCache

        config = self._loaded.model.config
        if self.cache_kind == "static":
            return StaticCache(config=config, max_cache_len=n_tokens)
        return DynamicCache(config=config)

    def _generator(self, sampling: Sampling) -> torch.Generator:
        import torch

        seed = self._seed if sampling.seed is None else sampling.seed
        return torch.Generator(self._loaded.device).manual_seed(seed)

    def _synchronise(self) -> None:
        if self._loaded.device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._loaded.device)


def _chooser(sampling: Sampling, generator: torch.Generator) -> Callable[[torch.Tensor], torch.Tensor]:
    """From last-position logits (1, vocab) to the next token (1, 1), on the device. Greedy at temperature
    None or 0."""
    import torch

    temperature = sampling.temperature
    if not temperature:
        return lambda logits: logits.argmax(-1, keepdim=True)

    def draw(logits: torch.Tensor) -> torch.Tensor:
        shaped = logits.float() / temperature
        if sampling.top_k:
            least = shaped.topk(min(sampling.top_k, shaped.shape[-1])).values[:, -1:]
            shaped = shaped.masked_fill(shaped < least, -torch.inf)
        probabilities = shaped.softmax(-1)
        if sampling.top_p is not None and sampling.top_p < 1:
            probabilities = _nucleus(probabilities, sampling.top_p)
        return torch.multinomial(probabilities, 1, generator=generator)

    return draw


def _nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the likeliest tokens whose sum first reaches `top_p`; the likeliest one always stays."""
    ordered, order = probabilities.sort(descending=True)
    ordered[(ordered.cumsum(-1) - ordered) >= top_p] = 0
    ordered[:, 0].clamp_(min=1e-30)
    kept = probabilities.new_zeros(probabilities.shape)
    return kept.scatter_(-1, order, ordered)

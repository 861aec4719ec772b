"""A fitted model as a simulation asks it: what a step of any mix of prompts and sequences costs.

A step of prompts alone is the prefill fit at its tokens and pairs; a step of sequences alone is the decode fit. A mixed
step reads the weights once and pays the host once: it is the step of its prompts, the decoding tokens among them, plus
what the sequences add to a decode step beyond its constant part (their cache traffic and their own host time). It is
never less than either alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from phasemeter.explain.roof import Roof
from phasemeter.predict.features import work_features
from phasemeter.predict.phase import PhaseFit
from phasemeter.record.errors import InputError
from phasemeter.roofline.work import Batch, Item, work


class PlayedSteps:
    """Implements `steps.StepModel`. Where the model's work is linear in tokens, pairs and context (no experts, no
    sliding window) its constants are taken once; else every different step is worked out, and remembered."""

    def __init__(
        self,
        *,
        prefill: PhaseFit,
        decode: PhaseFit,
        front_end: PhaseFit | None,
        roof: Roof | None,
        budget_tokens: int,
    ) -> None:
        self._prefill, self._decode, self._front_end = prefill.fitted, decode.fitted, front_end
        self._roof, self._budget = roof, budget_tokens
        self._linear = roof is None or not (roof.shape.experts or roof.shape.sliding_layers)
        self._unit = _units(roof)
        self._decode_alone = lru_cache(maxsize=65536)(self._decode_s)

    def step_s(self, prefill: Sequence[tuple[int, int]], decode: tuple[int, int] = (0, 0)) -> float:
        """Seconds of one step; see `steps.StepModel`."""
        sequences, context = decode
        if sequences < 0 or context < 0 or any(new < 1 or before < 0 for new, before in prefill):
            raise InputError(
                "step", f"{list(prefill)[:3]}, {decode}", "give counts of tokens, none below zero"
            )
        if not prefill and sequences == 0:
            raise InputError("step", "empty", "give prompts or sequences to process")
        if not prefill:
            return self._decode_alone(sequences, context)
        if sequences == 0:
            return self._prefill_s(prefill, 0)
        alone = self._decode_alone(sequences, context)
        constant = self._decode_alone(1, 1)
        together = self._prefill_s(prefill, sequences) + max(0.0, alone - constant)
        return max(together, alone)

    def front_end_s(self, input_tokens: int) -> float:
        """Seconds outside of queue and steps; 0 where no engine told them apart from prefill."""
        if self._front_end is None:
            return 0.0
        return self._front_end.fitted.seconds(
            {"one": 1.0, "input": float(input_tokens), "others": 0.0, "batch_input": 0.0}
        )

    def _prefill_s(self, chunks: Sequence[tuple[int, int]], riders: int) -> float:
        tokens = riders
        pairs = cached = 0
        for new, before in chunks:
            tokens += new
            pairs += new * before + new * (new + 1) // 2
            cached += before
        found = {
            "one": 1.0,
            "sequences": len(chunks) - 1.0,
            "tokens": float(tokens),
            "full": 0.0,  # a second step is a step of its own here
            "others": len(chunks) - 1.0,
            "input": float(tokens),
            "batch_input": float(tokens),
            "turns": 0.0,
            "output": 0.0,
        }
        if self._linear:
            found |= self._scaled(tokens, pairs, cached, len(chunks))
        else:
            assert self._roof is not None
            items = (*(Item(*chunk) for chunk in chunks), *(Item(1, 0) for _ in range(riders)))
            found |= work_features(work(self._roof.shape, Batch(items), self._roof.dtype), self._roof)
        return self._prefill.seconds(found)

    def _decode_s(self, sequences: int, context: int) -> float:
        found = {"one": 1.0, "sequences": float(sequences), "foreign": 0.0, "foreign_pairs": 0.0}
        rows = max(0, context - sequences)
        if self._linear:
            scaled = self._scaled(sequences, context, rows, sequences)
            scaled["compute"] += scaled.pop("attention") if self._roof is not None else 0.0
            scaled["kv"] = scaled["kv"] if self._roof is not None else float(context)
            found |= scaled
        else:
            assert self._roof is not None
            each = max(0, rows // sequences)
            items = (Item(1, each),) * sequences
            found |= work_features(work(self._roof.shape, Batch(items), self._roof.dtype), self._roof)
            found["compute"] += found.pop("attention")
        return self._decode.seconds(found)

    def _scaled(self, tokens: int, pairs: int, cached: int, samples: int) -> dict[str, float]:
        unit = self._unit
        return {
            "memory": unit["weights"] + unit["write"] * tokens,
            "compute": unit["token"] * tokens + unit["sample"] * samples,
            "attention": unit["pair"] * pairs,
            "kv": unit["row"] * cached,
        }


def _units(roof: Roof | None) -> dict[str, float]:
    """What one token, pair, sample, row and the weights cost at the ceilings, taken from two probes of `work`."""
    if roof is None:
        return {"weights": 1.0, "write": 0.0, "token": 1.0, "sample": 0.0, "pair": 1.0, "row": 1.0}

    def at(new: int, context: int, samples: int) -> dict[str, float]:
        return work_features(work(roof.shape, Batch((Item(new, context),), samples), roof.dtype), roof)

    one, two, sampled, far = at(2, 0, 1), at(3, 0, 1), at(2, 0, 2), at(2, 1, 1)
    token = two["compute"] - one["compute"]
    sample = sampled["compute"] - one["compute"]
    write = two["memory"] - one["memory"]
    return {
        "write": write,
        "weights": one["memory"] - 2 * write,
        "token": token,
        "sample": sample,
        "pair": (far["attention"] - one["attention"]) / 2,
        "row": far["kv"] - one["kv"],
    }

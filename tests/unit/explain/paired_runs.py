"""Runs of known effect for the tests of comparison: lognormal latencies with a mood for every block."""

from __future__ import annotations

import msgspec
import numpy as np

from phasemeter.record.request import Cell, Usage
from unit.explain.builders import header, run, timeline


def made_run(
    run_id,
    seed,
    *,
    scale=1.0,
    shapes=((64, 5),),
    blocks=6,
    per_block=4,
    mood=0.0,
    noise=0.1,
    concurrency=1,
    drift=0.0,
    header_changes=None,
    **changes,
):
    """A run whose TTFT (50 ms) and gaps (10 ms) are `scale` times as long. `mood` is the standard deviation of each
    block's own factor in logarithms, `noise` that of each request, `drift` the whole run's own factor."""
    rng = np.random.default_rng(seed)
    whole = np.exp(rng.normal(0.0, drift)) if drift else 1.0
    made, at = [], 0.0
    for block in range(blocks):
        factor = scale * whole * np.exp(rng.normal(0.0, mood))
        for input_tokens, output_tokens in shapes:
            cell = Cell(input_tokens, output_tokens, concurrency=concurrency, block=block)
            for _ in range(per_block):
                longer = input_tokens / 64 * factor
                gaps = 10.0 * factor * np.exp(rng.normal(0.0, noise, output_tokens - 1))
                first = 50.0 * longer * np.exp(rng.normal(0.0, noise))
                fields = {"cell": cell, "max_tokens": output_tokens} | changes
                if "usage" not in changes:
                    fields["usage"] = Usage(prompt_tokens=input_tokens, completion_tokens=output_tokens)
                made.append(
                    timeline(f"r{len(made)}", at=at, late=0.0, first=first, gaps=tuple(gaps), **fields)
                )
                at += first + gaps.sum() + 10.0
    own = header(run_id=run_id, **(header_changes or {}))
    return run(*made, header=msgspec.structs.replace(own, planned=len(made)), name=f"{run_id}.jsonl")

"""A fitted model of known truth, for what is built on fitted models."""

from __future__ import annotations

from phasemeter.predict.features import Query
from phasemeter.predict.model import SCHEMA, FittedModel, fit_cells
from unit.predict.made_cells import ROOF, cell, decode_cells, prefill_cells


def fitted(noise: float = 0.0, roof=ROOF) -> FittedModel:
    """Llama-3.1-8B on an H200; the front end takes 3 ms, of which each request beside costs 0.5 ms."""
    front = [
        cell("front_end", Query(n, 16, batch), 0.003 + 1e-6 * n + 5e-4 * (batch - 1))
        for n in (16, 64, 256, 1024, 4096)
        for batch in (1, 4, 16)
    ]
    cells = [*prefill_cells(noise=noise), *decode_cells(noise=noise), *front]
    phases, notes = fit_cells(cells, roof)
    return FittedModel(
        schema=SCHEMA,
        phasemeter="0",
        machine="NVIDIA H200",
        engine="vllm",
        engine_version="0",
        model="llama-3.1-8b",
        dtype="bfloat16",
        settings={},
        runs=("a",),
        budget_tokens=8192,
        phases=phases,
        roof=roof,
        notes=notes,
    )

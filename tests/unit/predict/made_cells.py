"""Cells of a machine of known truth: a host that costs so many milliseconds, kernels that reach a share of the H200."""

from __future__ import annotations

import math
import random

from phasemeter.explain.roof import Roof
from phasemeter.predict.features import Cell, Query, features
from phasemeter.predict.forms import Form, Term
from phasemeter.roofline.hardware import find_hardware
from phasemeter.roofline.presets import load_shape

ROOF = Roof("datasheet", find_hardware("h200"), load_shape("llama-3.1-8b"), "bfloat16", "bfloat16")
PREFILL = Form(
    "truth", (Term("one"), Term("memory", "roof"), Term("compute", "roof"), Term("attention", "gpu")), p=1.5
)
PREFILL_TRUTH = (0.004, 1.5, 1.6, 2.2)
DECODE = Form("truth", (Term("one"), Term("sequences"), Term("memory", "gpu"), Term("kv", "gpu")))
DECODE_TRUTH = (0.002, 20e-6, 1.25, 1.8)
LENGTHS = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def cell(phase, query, seconds, *, noise=0.0, repeats=5, seed=0):
    """One cell whose repeats scatter log-normally around `seconds`."""
    rng = random.Random(f"{seed}{phase}{query}")
    return Cell(phase, query, tuple(seconds * math.exp(rng.gauss(0.0, noise)) for _ in range(repeats)))


def prefill_cells(*, noise=0.0, lengths=LENGTHS, seed=0, roof=ROOF):
    """Single prompts by length."""
    return [
        cell("prefill", q, truth(PREFILL, PREFILL_TRUTH, "prefill", q, roof), noise=noise, seed=seed)
        for q in (Query(n, 16) for n in lengths)
    ]


def decode_cells(*, noise=0.0, batches=BATCHES, seed=0, phase="decode"):
    """Decode steps by batch at two lengths; the answers are long, so that foreign prefill is next to nothing."""
    return [
        cell(phase, q, truth(DECODE, DECODE_TRUTH, phase, q, ROOF), noise=noise, seed=seed)
        for n in (512, 4096, 16384)
        for q in (Query(n, 4096, batch) for batch in batches)
    ]


def truth(form, coefficients, phase, query, roof):
    return form.seconds(coefficients, form.rows(features(phase, query, roof)))

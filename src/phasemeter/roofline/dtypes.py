"""Names of number formats and how many bytes one element takes.

Quantised formats (`float8`, `int8`, `int4`) are applied by engines to the layers' matrices only: embedding,
head, norms and biases stay at two bytes.
"""

from __future__ import annotations

import difflib

from phasemeter.record.errors import InputError

# int4: 0.5 byte and one float16 scale for every group of 128 weights (the AWQ and GPTQ default): 0.5 + 2/128.
BYTES_PER_ELEMENT: dict[str, float] = {
    "float32": 4.0,
    "tf32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "float8": 1.0,
    "int8": 1.0,
    "int4": 0.515625,
}

QUANTISED = frozenset({"float8", "int8", "int4"})

_ALIASES: dict[str, str] = {
    "fp32": "float32",
    "float": "float32",
    "f32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "f16": "float16",
    "half": "float16",
    "fp8": "float8",
    "float8_e4m3fn": "float8",
    "float8_e4m3": "float8",
    "float8_e5m2": "float8",
    "fp8_e4m3": "float8",
    "fp8_e5m2": "float8",
    "w8a8": "int8",
    "w4": "int4",
    "w4a16": "int4",
}


def canonical_dtype(name: str, field: str = "dtype") -> str:
    """The one name used here for a number format: "bf16", "torch.bfloat16" and "BFloat16" are all "bfloat16".

    Raises InputError for a name that is not known, with the nearest known ones.
    """
    text = name.strip().lower().removeprefix("torch.")
    known = _ALIASES.get(text, text)
    if known in BYTES_PER_ELEMENT:
        return known
    near = difflib.get_close_matches(text, [*BYTES_PER_ELEMENT, *_ALIASES], n=3, cutoff=0.5)
    raise InputError(field, name, f"use one of {', '.join(near or BYTES_PER_ELEMENT)}")


def element_bytes(name: str, field: str = "dtype") -> float:
    """Bytes of one element (for `int4` with its share of the group scale). Raises InputError if unknown."""
    return BYTES_PER_ELEMENT[canonical_dtype(name, field)]


def unquantised_bytes(name: str, field: str = "dtype") -> float:
    """Bytes of one weight that quantisation leaves alone (embedding, head, norms, biases, router)."""
    known = canonical_dtype(name, field)
    return 2.0 if known in QUANTISED else BYTES_PER_ELEMENT[known]

"""A folder that vLLM can serve without any weights: a preset's config.json and a byte-level tokenizer.

Ids 0 to 255 are bytes and every id above shows as a placeholder such as `⟨1234⟩`, as in `byte_tokenizer`: nobody shall
take the output of random weights for language. No id is special, so that nothing ends a stream early.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from phasemeter.engines.byte_tokenizer import BYTES
from phasemeter.record.errors import InputError

_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_model(folder: Path, config: Mapping[str, object]) -> None:
    """Write config.json and a tokenizer. Raises InputError when `config` does not name `vocab_size`."""
    vocab_tokens = config.get("vocab_size")
    if not isinstance(vocab_tokens, int):
        raise InputError("vocab_size", vocab_tokens, "a model's config must name its number of tokens")
    write_tokenizer(folder, vocab_tokens)
    (folder / "config.json").write_text(json.dumps(dict(config), indent=1), "utf-8")


def write_tokenizer(folder: Path, vocab_tokens: int) -> None:
    """Write tokenizer.json and tokenizer_config.json, with a plain chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(vocab_tokens), ensure_ascii=False), "utf-8")
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": _TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def tokenizer(vocab_tokens: int) -> dict[str, object]:
    """A tokenizer.json of the `tokenizers` library with `vocab_tokens` ids: byte-level BPE without one merge."""
    letters = _letters()
    vocab = {letters[byte]: byte for byte in range(min(BYTES, vocab_tokens))}
    vocab |= {f"⟨{token}⟩": token for token in range(BYTES, vocab_tokens)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": [],
        },
    }


def _letters() -> list[str]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2's table): printable ones stand for
    themselves, the others for the code points from 256 on."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(BYTES, 2 * BYTES))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(BYTES)]

"""A tokenizer directory that every peer can load offline: one token a word, `w0` to `w999`.

The peers count and make prompts with a tokenizer of the Hugging Face form. The truth server counts words, so with this
one all of them mean the same by a token. A word that it does not know (GuideLLM's are natural ones) becomes `w0`.
"""

from __future__ import annotations

import json
from pathlib import Path

WORDS = 1000
_SPECIAL = ("<s>", "</s>")
_TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def write_tokenizer(folder: Path) -> Path:
    """Write tokenizer.json, tokenizer_config.json and config.json into `folder`, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {word: i for i, word in enumerate((*_SPECIAL, *(f"w{i}" for i in range(WORDS))))}
    special = [
        {"id": i, "content": word, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i, word in enumerate(_SPECIAL)
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 1_000_000,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "</s>",
        "chat_template": _TEMPLATE,
    }
    # some peers look for a model's config beside its tokenizer
    model = {"model_type": "llama", "vocab_size": len(vocabulary), "max_position_embeddings": 1_000_000}
    for name, content in (("tokenizer", tokenizer), ("tokenizer_config", config), ("config", model)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    return folder

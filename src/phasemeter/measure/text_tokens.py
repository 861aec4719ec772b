# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Count text as the model's own tokenizer does, where that is on this machine.

A directory with a tokenizer.json needs the library `tokenizers` alone; anything else is opened by transformers, from
its local files: nothing is downloaded.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from phasemeter.measure.prompts import PAD_LETTERS, WORDS
from phasemeter.record.errors import InputError

_FIELD = "--tokenizer"


_LEAST_WORDS = 16


class TextTokens:
    """A tokenizer as far as prompts need it. A text of `words` with a space between has `extra_tokens` (BOS, and a
    first word without a space before it) and `tokens_a_word` for each, whichever they are; letters at its end are a
    token each where `tokens_a_word` is more than one. All of this is tried on every pair of words. Raises InputError
    for a tokenizer that splits our words unevenly."""

    def __init__(self, name: str, encode: Callable[[str], Sequence[int]]) -> None:
        self.name = name
        self._encode = encode
        self.words, self.tokens_a_word, self.extra_tokens = self._even_words()

    def count(self, text: str) -> int:
        """Tokens of `text`, those that every prompt is given (BOS) included."""
        return len(self._encode(text))

    def _even_words(self) -> tuple[tuple[str, ...], int, int]:
        """The words that cost the same wherever they stand, the cheapest first, with their cost and the extra."""
        opening = self.count(WORDS[0])
        groups: dict[tuple[int, int], list[str]] = {}
        for word in WORDS:
            key = self.count(f"{WORDS[0]} {word}") - opening, self.count(word)
            groups.setdefault(key, []).append(word)
        for (cost, alone), words in sorted(groups.items(), key=lambda group: (group[0][0], -len(group[1]))):
            if cost >= 1 and len(words) >= _LEAST_WORDS and self._proven(words, cost, alone):
                return tuple(words), cost, alone - cost
        raise InputError(
            _FIELD,
            self.name,
            "it splits our words unevenly; leave it out, lengths are then learnt from the server",
        )

    def _proven(self, words: list[str], cost: int, alone: int) -> bool:
        pairs = " ".join(f"{a} {b}" for a in words for b in words)
        whole = self.count(pairs) == alone + cost * (2 * len(words) ** 2 - 1)
        start = f"{words[0]} {words[1]}"
        return whole and all(
            self.count(start + PAD_LETTERS[:n]) == self.count(start) + n
            for n in range(1, min(cost, len(PAD_LETTERS)))
        )


@lru_cache(maxsize=4)
def open_tokenizer(name: str) -> TextTokens:
    """The tokenizer of a model's directory or GGUF file, or of a name in the local cache. Raises InputError when it is
    not there or its library is not installed."""
    folder = Path(name)
    file = folder if folder.name == "tokenizer.json" else folder / "tokenizer.json"
    try:
        local = file.is_file()
    except OSError as error:  # a name that no file can have
        raise InputError(_FIELD, name, f"it cannot be read ({error})") from error
    if local:
        return TextTokens(name, _from_file(file))
    return TextTokens(name, _from_transformers(name))


def _from_file(file: Path) -> Callable[[str], Sequence[int]]:
    tokenizers = _library("tokenizers", str(file))
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the only class that this library raises for a file that is none
        raise InputError(_FIELD, str(file), f"the file cannot be used ({error})") from error
    tokenizer.no_truncation()
    return lambda text: tokenizer.encode(text).ids


def _from_transformers(name: str) -> Callable[[str], Sequence[int]]:
    transformers = _library("transformers", name)
    try:
        file = Path(name)
        where, inside = (str(file.parent), {"gguf_file": file.name}) if file.suffix == ".gguf" else (name, {})
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, local_files_only=True, **inside)
    except (OSError, ValueError, LookupError, TypeError, ImportError, struct.error) as error:
        why = str(error).strip().splitlines() or [""]
        raise InputError(
            _FIELD, name, f"no usable tokenizer of that name is on this machine ({why[0][:80]})"
        ) from error
    return lambda text: tokenizer(text, verbose=False)["input_ids"]


def _library(name: str, asked: str) -> Any:  # noqa: ANN401 - a module without types
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            _FIELD, asked, f"counting tokens needs the library {name}; install phasemeter[local]"
        ) from error

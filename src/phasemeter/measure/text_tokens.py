# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Count text as the model's own tokenizer does, where that is on this machine.

A directory with a tokenizer.json needs the library `tokenizers` alone; anything else is opened by transformers, from
its local files: nothing is downloaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from phasemeter.measure.prompts import WORDS
from phasemeter.record.errors import InputError

_FIELD = "--tokenizer"


class TextTokens:
    """A tokenizer as far as prompts need it. `words` are the words that are one token each wherever they stand after a
    space, whatever stands beside them; `extra_tokens` what a text of such words has beyond one a word (BOS)."""

    def __init__(self, name: str, encode: Callable[[str], Sequence[int]]) -> None:
        self.name = name
        self._encode = encode
        self.words = self._single(WORDS)
        self.extra_tokens = self._extra() if self.words else 0

    def count(self, text: str) -> int:
        """Tokens of `text`, those that every prompt is given (BOS) included."""
        return len(self._encode(text))

    def _single(self, words: Sequence[str]) -> tuple[str, ...]:
        """The words that keep their one token in every pair; empty when there are too few to tell prompts apart."""
        one = self.count(words[0])
        kept = [word for word in words if self.count(f"{words[0]} {word}") == one + 1]
        pairs = [f"{a} {b}" for a in kept for b in kept]
        text = " ".join(pairs)
        whole = bool(kept) and self.count(text) - self.count(kept[0]) == 2 * len(pairs) - 1
        return tuple(kept) if whole and len(kept) >= 16 else ()

    def _extra(self) -> int:
        return self.count(f"{self.words[0]} {self.words[1]}") - 2


@lru_cache(maxsize=4)
def open_tokenizer(name: str) -> TextTokens:
    """The tokenizer of a model's directory, or of a name that is in the local cache. Raises InputError when it is not
    there or its library is not installed."""
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
    tokenizers = _library("tokenizers")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the only class that this library raises for a file that is none
        raise InputError(_FIELD, str(file), f"the file cannot be used ({error})") from error
    tokenizer.no_truncation()
    return lambda text: tokenizer.encode(text).ids


def _from_transformers(name: str) -> Callable[[str], Sequence[int]]:
    transformers = _library("transformers")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = str(error).strip().splitlines() or [""]
        raise InputError(
            _FIELD, name, f"no tokenizer of that name is on this machine ({why[0][:120]})"
        ) from error
    return lambda text: tokenizer(text, verbose=False)["input_ids"]


def _library(name: str) -> Any:  # noqa: ANN401 - a module without types
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            _FIELD, name, f"counting tokens needs the library {name}; install phasemeter[local]"
        ) from error

"""The text of a simulated answer: token i is always the same visible word, so that a lost or doubled one
shows."""

from __future__ import annotations

_WORDS = [
    "time",
    "flows",
    "from",
    "the",
    "first",
    "byte",
    "to",
    "the",
    "last",
    "and",
    "every",
    "token",
    "has",
    "its",
    "own",
    "moment",
    "in",
    "the",
    "stream",
    "so",
    "we",
    "count",
    "them",
    "one",
    "after",
    "another",
    "while",
    "the",
    "cache",
    "grows",
    "longer",
    "with",
    "each",
    "step",
    "that",
    "the",
    "model",
    "takes",
]
_CHARACTERS = "预填充解码首个词元🚀延迟流式输出🙂缓存带宽時間きもち한국어😀"


def token_text(token: int, *, wide: bool = False) -> str:
    """The text of the `token`-th token of an answer (from 0); `wide`: three- and four-byte characters in
    UTF-8."""
    if wide:
        return _CHARACTERS[token % len(_CHARACTERS)]
    return (" " if token else "") + _WORDS[token % len(_WORDS)]


def chunk_text(first: int, n: int, *, wide: bool = False) -> str:
    """The text of `n` tokens from the `first`-th on."""
    return "".join(token_text(token, wide=wide) for token in range(first, first + n))

"""Prompts of an exact length that no prefix cache can answer.

Every prompt opens with a number of its own, spelt in tokens (or words) of the vocabulary, so that two prompts differ
within the first block of any prefix cache. The numbers count up inside a run and start at a place drawn from the run's
salt (its id), so that a second run with the same seed against the same warm server meets no prompt of the first.

Where the API takes token ids the length is exact by construction. Where it takes text only, the length is found by
asking: `TextLengths` starts from one word a token and corrects by what the server's usage says.
"""

from __future__ import annotations

import random

from msgspec import Struct

from phasemeter.record.errors import InputError

# Four-letter words, each a single token with its space in the usual English vocabularies, and five bytes in a
# byte-level one: so tokens are affine in the number of words for either.
_WORDS = """
time year work life hand part case week area home side head fact game room line city name team idea body back face door
term news love form role land plan tree star road blue fire wind snow gold king ship farm bird fish milk salt rain lake
hill moon wave iron wood desk book page card song play film test tool seat
"""
WORDS = tuple(_WORDS.split())

_SERIAL_DIGITS = 4
_SAFE_LOW, _SAFE_HIGH = 100, 1000
"""Token ids that exist in every vocabulary that we know, used when its size is not known."""


def token_ids(n_tokens: int, serial: int, salt: str, vocab_tokens: int | None = None) -> tuple[int, ...]:
    """`n_tokens` token ids, unique by `serial` from the first tokens on. Ids lie above the usual special tokens and
    below the vocabulary's end; with an unknown vocabulary they stay in a range that all have."""
    if n_tokens < 1:
        raise InputError("--input-tokens", n_tokens, "a prompt needs at least one token")
    if vocab_tokens is None:
        low, high = _SAFE_LOW, _SAFE_HIGH
    else:
        low = min(_SAFE_HIGH, vocab_tokens // 4)
        high = vocab_tokens - max(0, min(2000, vocab_tokens // 16))
    draw = random.Random(f"{salt}/{serial}")
    span = high - low
    head = [low + digit for digit in _digits(serial, salt, span, min(_SERIAL_DIGITS, n_tokens))]
    return tuple(head + [draw.randrange(low, high) for _ in range(n_tokens - len(head))])


def text(n_words: int, pad_characters: int, serial: int, salt: str) -> str:
    """`n_words` words and `pad_characters` letters, unique by `serial` from the first words on."""
    draw = random.Random(f"{salt}/{serial}")
    head = [WORDS[digit] for digit in _digits(serial, salt, len(WORDS), min(_SERIAL_DIGITS, n_words))]
    words = head + [draw.choice(WORDS) for _ in range(n_words - len(head))]
    return " ".join(words) + "".join(draw.choice("bcdfgh") for _ in range(pad_characters))


def _digits(serial: int, salt: str, base: int, places: int) -> list[int]:
    """The prompt's own number in `base`, least significant digit first: neighbours in the plan differ at once."""
    number = random.Random(f"start/{salt}").randrange(base**places) + serial
    return [number // base**place % base for place in range(places)]


class TextSize(Struct, frozen=True):
    """How to write one length as text."""

    words: int
    pad_characters: int = 0


class TextLengths:
    """Finds, for each wanted length, the number of words that the server counts as exactly that many tokens."""

    def __init__(self) -> None:
        self._seen: list[tuple[TextSize, int]] = []

    def size(self, n_tokens: int) -> TextSize:
        """The best size known for `n_tokens`."""
        for size, tokens in reversed(self._seen):
            if tokens == n_tokens:
                return size
        fit = self._line()
        if fit is None:
            return TextSize(words=max(1, n_tokens))
        slope, offset = fit
        words = max(1, int((n_tokens - offset) // slope))
        pad = max(0, round(n_tokens - offset - slope * words)) if words > 1 else 0
        # One word a token: a remainder can only be noise of the fit, and padding would glue onto the last word.
        return TextSize(words=words, pad_characters=pad if slope > 1.5 else 0)

    def learn(self, size: TextSize, prompt_tokens: int) -> None:
        """Note that the server counted `prompt_tokens` for a prompt of `size`."""
        self._seen.append((size, prompt_tokens))

    def _line(self) -> tuple[float, float] | None:
        """Tokens a word, and tokens that a template or BOS adds, from the two most different sizes seen."""
        plain = sorted((size.words, tokens - size.pad_characters) for size, tokens in self._seen)
        if not plain:
            return None
        (w0, t0), (w1, t1) = plain[0], plain[-1]
        if w1 == w0:
            slope = 1.0 if t0 < 2 * w0 else max(1.0, round(t0 / w0))
            return slope, t0 - slope * w0
        slope = (t1 - t0) / (w1 - w0)
        if slope <= 0:
            return None
        slope = round(slope) if abs(slope - round(slope)) < 0.02 else slope
        return slope, t1 - slope * w1

"""Prompts of an exact length that share with others what they are to share, and nothing else.

Every prompt's own part opens with a number of its own, spelt in tokens (or words) of the vocabulary, so that two
prompts differ within the first block of any prefix cache. The numbers count up inside a run and start at a place drawn
from the run's salt (its id), so that a second run with the same seed against the same warm server meets no prompt of
the first. What prompts share is the opening of an endless text, which its name and the salt determine.

Random numbers are the raw output of PCG64, which numpy keeps the same from version to version: every process makes the
same prompts, a million tokens in some hundredths of a second.

Where the API takes token ids the length is exact by construction. Where it takes text only, the length is found by
asking: `TextLengths` starts from one word a token and corrects by what the server's usage says.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.record.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Four-letter words, each a single token with its space in the usual English vocabularies, and five bytes in a
# byte-level one: so tokens are affine in the number of words for either.
_WORDS = """
time year work life hand part case week area home side head fact game room line city name team idea body back face door
term news love form role land plan tree star road blue fire wind snow gold king ship farm bird fish milk salt rain lake
hill moon wave iron wood desk book page card song play film test tool seat
"""
WORDS = tuple(_WORDS.split())
PAD_LETTERS = "bcdfgh"

_SERIAL_DIGITS = 4
_SAFE_LOW, _SAFE_HIGH = 100, 1000
"""Token ids that exist in every vocabulary that we know, used when its size is not known."""


class Part(Struct, frozen=True):
    """The first `tokens` (or words) of the endless text `name`."""

    name: str
    tokens: int


def token_ids(
    n_tokens: int, serial: int, salt: str, vocab_tokens: int | None = None, parts: Sequence[Part] = ()
) -> tuple[int, ...]:
    """`n_tokens` token ids: those of `parts` one after another, then the prompt's own, unique by `serial` from their
    first on. Ids lie above the usual special tokens and below the vocabulary's end; with an unknown vocabulary they
    stay in a range that all have. Parts are cut where they would be longer than the prompt."""
    if n_tokens < 1:
        raise InputError("--input-tokens", n_tokens, "a prompt needs at least one token")
    low, high = _range(vocab_tokens)
    return tuple(low + i for i in _numbers(n_tokens, high - low, serial, salt, parts))


def text(
    n_words: int,
    pad_characters: int,
    serial: int,
    salt: str,
    parts: Sequence[Part] = (),
    words: Sequence[str] = WORDS,
) -> str:
    """`n_words` of `words` with a space between, and `pad_characters` letters at the end: the words of `parts` (which
    count words here) one after another, then the prompt's own, unique by `serial` from their first on."""
    draw = random.Random(f"{salt}/{serial}")
    shown = " ".join([words[i] for i in _numbers(n_words, len(words), serial, salt, parts)])
    return shown + "".join(draw.choice(PAD_LETTERS) for _ in range(pad_characters))


def _range(vocab_tokens: int | None) -> tuple[int, int]:
    """The ids in use: the first, and the one after the last."""
    if vocab_tokens is None:
        return _SAFE_LOW, _SAFE_HIGH
    return min(_SAFE_HIGH, vocab_tokens // 4), vocab_tokens - max(0, min(2000, vocab_tokens // 16))


def _numbers(n: int, base: int, serial: int, salt: str, parts: Sequence[Part]) -> list[int]:
    """`n` numbers below `base`: the parts', then a serial number in digits, then numbers of this serial's own."""
    numbers: list[int] = []
    for part in parts:
        shared = _drawn(f"{salt}/text/{part.name}", min(part.tokens, n - len(numbers)), base)
        numbers += shared.tolist()
    left = n - len(numbers)
    if left:
        numbers += _digits(serial, salt, base, min(_SERIAL_DIGITS, left))
        numbers += _drawn(f"{salt}/{serial}", n - len(numbers), base).tolist()
    return numbers


def _drawn(name: str, n: int, base: int) -> NDArray[np.uint64]:
    """The first `n` of the endless row of numbers below `base` that `name` determines; evenly spread to one part in
    2**32 / base."""
    import numpy as np

    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=16).digest(), "little")
    raw = np.random.PCG64(seed).random_raw(max(0, n))
    return (raw >> np.uint64(32)) * np.uint64(base) >> np.uint64(32)


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

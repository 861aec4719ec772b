"""A tokenizer for models that come without one, so that a preset can be run and its output be seen.

Ids 0 to 255 are bytes. An id above that has no text: it is shown as a placeholder such as `⟨1234⟩`, so that
nobody takes the output of random weights for language.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

BYTES = 256
_REPLACEMENT = "\ufffd"


class ByteTokenizer:
    """UTF-8 bytes as token ids; every other id is a visible placeholder."""

    def encode(self, text: str) -> list[int]:
        """One id a byte of the text in UTF-8."""
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD, ids above 255 placeholders."""
        parts: list[str] = []
        run = bytearray()
        for token in ids:
            if 0 <= token < BYTES:
                run.append(token)
                continue
            parts += (run.decode("utf-8", errors="replace"), f"⟨{token}⟩")
            run.clear()
        parts.append(run.decode("utf-8", errors="replace"))
        return "".join(parts)


def pieces(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """The text that each token adds, one entry a token; "" while a character is still incomplete.

    A token's text depends on its neighbours (a leading blank, a character split over tokens), so each step
    decodes a short window with and without the new token and takes the difference. What stays incomplete is
    given to the last token, so that the pieces always join to the decoded whole.
    """
    texts: list[str] = []
    window, shown = 0, 0
    for end in range(1, len(ids) + 1):
        before = decode(ids[window:shown])
        after = decode(ids[window:end])
        held = after.endswith(_REPLACEMENT) and end < len(ids)
        if held or len(after) <= len(before):
            texts.append("")
            continue
        texts.append(after[len(before) :])
        window, shown = shown, end
    return texts

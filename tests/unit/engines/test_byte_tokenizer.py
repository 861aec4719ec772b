from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phasemeter.engines.byte_tokenizer import ByteTokenizer, pieces


def test_text_round_trips_through_its_utf8_bytes():
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode("héllo 北京 🙂")
    assert ids == list("héllo 北京 🙂".encode())
    assert tokenizer.decode(ids) == "héllo 北京 🙂"


def test_ids_without_text_are_visible_placeholders():
    assert ByteTokenizer().decode([104, 105, 1234, 33]) == "hi⟨1234⟩!"
    assert ByteTokenizer().decode([256]) == "⟨256⟩"


def test_a_character_split_over_tokens_comes_with_its_last_byte():
    ids = list("a北".encode())
    assert pieces(ids, ByteTokenizer().decode) == ["a", "", "", "北"]


def test_a_character_that_never_completes_is_shown_at_the_end():
    ids = list("a北".encode())[:-1]
    assert pieces(ids, ByteTokenizer().decode) == ["a", "", "\ufffd"]


@given(st.text(max_size=20), st.lists(st.integers(0, 2000), max_size=30))
def test_pieces_join_to_the_whole_one_a_token(text: str, extra: list[int]):
    ids = [*text.encode("utf-8", errors="ignore"), *extra]
    decode = ByteTokenizer().decode
    found = pieces(ids, decode)
    assert len(found) == len(ids)
    assert "".join(found) == decode(ids)


def test_a_leading_blank_that_depends_on_the_neighbour_is_kept():
    # Like SentencePiece: the first word of what is decoded loses its blank.
    words = ["▁the", "▁cat", "s", "▁sat"]

    def decode(ids):
        return "".join(words[i] for i in ids).replace("▁", " ").removeprefix(" ")

    assert pieces([0, 1, 2, 3], decode) == ["the", " cat", "s", " sat"]

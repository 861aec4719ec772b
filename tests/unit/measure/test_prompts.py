"""Prompts: exact, unique from their first tokens on, different in every run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.measure.prompts import WORDS, TextLengths, TextSize, text, token_ids
from phasemeter.record.errors import InputError


@given(st.integers(1, 300), st.integers(0, 10**6), st.none() | st.integers(256, 200_000))
def test_ids_are_exact_and_inside_the_vocabulary(n_tokens, serial, vocab):
    ids = token_ids(n_tokens, serial, "run", vocab)
    assert len(ids) == n_tokens
    assert all(0 <= i < (vocab or 1000) for i in ids)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=40, unique=True))
def test_no_two_prompts_of_a_run_share_their_first_block(serials):
    heads = {token_ids(64, serial, "run", 2048)[:4] for serial in serials}
    assert len(heads) == len(serials)
    texts = {" ".join(text(64, 0, serial, "run").split()[:4]) for serial in serials}
    assert len(texts) == len(serials)


def test_a_second_run_with_the_same_seed_meets_no_cached_prompt():
    """Same plan, same server, other run: no prompt may open alike (vllm #52884: the cache was what was measured)."""
    first = {token_ids(64, serial, "run-a", 103_424)[:16] for serial in range(200)}
    second = {token_ids(64, serial, "run-b", 103_424)[:16] for serial in range(200)}
    assert not first & second


def test_prompts_are_the_runs_own_and_reproducible():
    assert token_ids(32, 5, "a") == token_ids(32, 5, "a")
    assert text(9, 2, 5, "a") == text(9, 2, 5, "a")


def test_no_tokens_are_refused():
    with pytest.raises(InputError, match="at least one token"):
        token_ids(0, 0, "a")


def test_words_are_all_one_length():
    assert {len(word) for word in WORDS} == {4}
    assert len(text(10, 3, 0, "a")) == 10 * 5 - 1 + 3


@pytest.mark.parametrize("template", [0, 1, 9, 31])
@pytest.mark.parametrize("bytes_a_token", [None, 1])
def test_text_lengths_are_found_by_asking(template, bytes_a_token):
    """Word tokenizers and byte tokenizers with a chat template: every length is met within four questions."""

    def count(size: TextSize) -> int:
        shown = text(size.words, size.pad_characters, 3, "a")
        return template + (len(shown) if bytes_a_token else len(shown.split()))

    lengths = TextLengths()
    for wanted in (64, 128, 333, 512, 2048):
        for _ in range(4):
            size = lengths.size(wanted)
            got = count(size)
            lengths.learn(size, got)
            if got == wanted:
                break
        assert got == wanted
        assert count(lengths.size(wanted)) == wanted


def test_a_length_below_the_template_stays_as_near_as_it_gets():
    lengths = TextLengths()
    for _ in range(3):
        size = lengths.size(4)
        lengths.learn(size, 31 + size.words)
    assert lengths.size(4).words == 1

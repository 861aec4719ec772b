"""From items to requests: exact by ids and by the model's tokenizer, near by learning; shared where asked, else not."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.engines.vllm_model import write_tokenizer
from phasemeter.measure.item import Item, Prefix, Turn
from phasemeter.measure.load import Stage
from phasemeter.measure.prompts import WORDS, Part, text, token_ids
from phasemeter.measure.requests import OWN_END_TOKENS, ItemMaker
from phasemeter.measure.text_tokens import open_tokenizer
from phasemeter.measure.workload import open_workload, parse_workload
from phasemeter.record.engine import EngineInfo
from phasemeter.record.errors import InputError
from phasemeter.record.request import Cell, Sampling

BY_IDS = EngineInfo(kind="openai", model="m", takes_token_ids=True, vocab_tokens=32_000)
BY_TEXT = EngineInfo(kind="openai", model="m")
CELL = Cell(1, 1)


def maker(info: EngineInfo = BY_IDS, run: str = "run", **keys) -> ItemMaker:
    return ItemMaker(info, run, Sampling(temperature=0.0), **keys)


@pytest.fixture(scope="session")
def word_tokenizer(tmp_path_factory) -> str:
    """A byte-level BPE in GPT-2's manner that knows our words, and puts a BOS in front."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("words")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["<s>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    text = " ".join(f"{a} {b}" for a in WORDS[:60] for b in WORDS[:60])  # four words are left unknown
    made.train_from_iterator([text], trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )
    made.save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory) -> str:
    pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("bytes") / "model"
    write_tokenizer(folder, 2048)
    return str(folder)


@given(
    st.integers(1, 400),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 200)), max_size=3),
    st.integers(0, 10**9),
)
def test_ids_are_exact_and_open_with_their_parts(n, parts, serial):
    shared = [Part(name, tokens) for name, tokens in parts]
    ids = token_ids(n, serial, "run", 32_000, shared)
    assert len(ids) == n
    at = 0
    for part in shared:
        alone = token_ids(500, 1, "run", 32_000, [Part(part.name, 300)])
        length = min(part.tokens, n - at)
        assert ids[at : at + length] == alone[:length]
        at += length
    other = token_ids(n, serial + 1, "run", 32_000, shared)
    assert ids[:at] == other[:at]
    assert at == n or ids[at] != other[at]


def test_shared_openings_are_the_runs_own():
    part = [Part("system", 64)]
    first, second = (token_ids(64, 0, run, 32_000, part) for run in ("run-a", "run-b"))
    assert not set(pairwise(first)) & set(pairwise(second))


def test_numbers_are_spread_over_the_whole_vocabulary():
    ids = token_ids(200_000, 0, "run", 32_000)
    low, high = 1000, 30_000
    assert (min(ids), max(ids)) == (low, high - 1)
    counts = [0] * 10
    for i in ids:
        counts[(i - low) * 10 // (high - low)] += 1
    assert all(abs(c - 20_000) < 4 * 20_000**0.5 for c in counts)


def test_another_process_makes_the_same_prompt():
    code = (
        "from phasemeter.measure.prompts import *; p = [Part('x', 40)]\n"
        "print(hash(token_ids(3000, 5, 'run', 32_000, p)), text(60, 3, 5, 'run', p))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    part = [Part("x", 40)]
    expected = f"{hash(token_ids(3000, 5, 'run', 32_000, part))} {text(60, 3, 5, 'run', part)}\n"
    assert run.stdout == expected


def test_a_request_is_what_its_item_says():
    item = Item(7, 100, 9, turn=Turn("0/c", 2), prefix=Prefix("0/c", 100), tags={"a": "b"})
    request = maker(extra={"x": 1}).make(item, Cell(100, 9, concurrency=None, rate_per_s=2.0))
    assert (request.id, request.max_tokens, len(request.token_ids or ())) == ("run-000007", 9, 100)
    assert request.tags == {"a": "b", "conversation": "0/c", "turn": "2"}
    assert request.sampling.ignore_eos
    assert request.extra == {"x": 1}
    own = maker().make(Item(8, 3, None, prompt="What is it?", ignore_eos=False), CELL)
    assert (own.prompt, own.token_ids, own.max_tokens) == ("What is it?", None, OWN_END_TOKENS)
    assert own.sampling == Sampling(temperature=0.0, ignore_eos=False)


def test_words_that_cost_the_same_everywhere_are_found(word_tokenizer, byte_tokenizer):
    found = open_tokenizer(word_tokenizer)
    assert 16 <= len(found.words) < 64
    assert found.tokens_a_word == 1
    assert found.extra_tokens >= 1  # BOS; the first word has no space before it
    by_bytes = open_tokenizer(byte_tokenizer)
    assert (by_bytes.words, by_bytes.tokens_a_word, by_bytes.extra_tokens) == (WORDS, 5, -1)


@pytest.mark.parametrize("n", [4, 16, 17, 128, 1000, 50_000])
def test_text_is_exact_by_the_models_tokenizer(n, word_tokenizer, byte_tokenizer):
    for folder in (word_tokenizer, byte_tokenizer):
        prompt = maker(BY_TEXT, tokenizer=folder).make(Item(3, n, 1), CELL).prompt
        assert open_tokenizer(folder).count(prompt or "") == n


def test_text_shares_its_openings_to_the_token(word_tokenizer):
    import tokenizers

    encode = tokenizers.Tokenizer.from_file(f"{word_tokenizer}/tokenizer.json").encode
    chain = (Prefix("system", 40), Prefix("talk", 60))
    first, second, third = (
        encode(maker(BY_TEXT, tokenizer=word_tokenizer).make(item, CELL).prompt or "").ids
        for item in (
            Item(0, 150, 1, chain=chain),
            Item(1, 150, 1, chain=chain),
            Item(2, 150, 1, prefix=Prefix("system", 40)),
        )
    )
    assert [len(ids) for ids in (first, second, third)] == [150] * 3
    assert _common(first, second) == 100
    assert _common(first, third) in (40, 41)  # the next word may be the same by chance


def _common(a, b) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), len(a))


def test_what_the_server_puts_in_front_is_learnt(word_tokenizer):
    """A chat template of 23 tokens: after one answer every length is met, with or without a tokenizer here."""
    known = open_tokenizer(word_tokenizer)
    for made in (maker(BY_TEXT, tokenizer=word_tokenizer), maker(BY_TEXT)):
        for asked in (200, 300, 200):
            prompt = made.make(Item(0, asked, 1), CELL).prompt or ""
            counted = 23 + (known.count(prompt) if made._tokenizer else len(prompt.split()))
            made.learn(asked, counted)
        for asked in (64, 777):
            prompt = made.make(Item(1, asked, 1), CELL).prompt or ""
            assert 23 + (known.count(prompt) if made._tokenizer else len(prompt.split())) == asked


def test_a_text_of_its_own_is_as_long_as_it_is_with_the_template(word_tokenizer):
    made = maker(BY_TEXT, tokenizer=word_tokenizer)
    made.learn(100, 123)
    request = made.make(Item(0, 3, 5, prompt="What is it?"), Cell(3, 5))
    assert (request.prompt, request.cell.input_tokens) == ("What is it?", 26)


def test_a_workload_becomes_requests_of_its_lengths():
    spec = parse_workload("conversations:turns=5,input=uniform:1:90,output=8,system=50")
    made = maker()
    for item in islice(open_workload(spec, 1).items(Stage(concurrency=1), 0), 40):
        assert len(made.make(item, CELL).token_ids or ()) == item.input_tokens


@pytest.mark.parametrize("text", ["", "{}", "[1]", "nonsense"])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, text):
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(InputError, match="--tokenizer"):
        open_tokenizer(str(tmp_path))


def test_a_tokenizer_that_is_not_here_is_refused(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03\0\0\0oops")
    for name in (str(tmp_path), str(tmp_path / "bad.gguf"), "nobody/no-such-model", "x" * 5000):
        with pytest.raises(InputError, match="--tokenizer"):
            open_tokenizer(name)

"""Questions of a data set: read, counted or estimated, asked once before any is asked again."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phasemeter.engines.vllm_model import write_tokenizer
from phasemeter.measure.load import Stage
from phasemeter.measure.workload import open_workload, parse_workload
from phasemeter.record.errors import InputError


def talk(*said: tuple[str, str]) -> dict[str, object]:
    return {"id": "x", "conversations": [{"from": by, "value": value} for by, value in said]}


TALKS = [
    talk(("human", "one two three four five six"), ("gpt", "a b c d e f g h i")),
    talk(("gpt", "an answer first"), ("human", "and?")),
    talk(("human", "alone")),
    talk(),
    talk(("user", "x " * 30), ("assistant", "y " * 60), ("user", "z")),
]


def asked(path, n, *, number=0, seed=0, **keys):
    made = open_workload({"kind": "sharegpt", "file": str(path), **keys}, seed).items(
        Stage(concurrency=1), number
    )
    return list(islice(made, n))


@pytest.fixture
def talks(tmp_path):
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(TALKS))
    return path


def test_the_first_question_of_each_conversation_is_asked(talks):
    found = asked(talks, 4)
    assert {item.prompt for item in found} == {"one two three four five six", "x " * 30}
    by_prompt = {item.prompt: item for item in found}
    first = by_prompt["one two three four five six"]
    assert (first.input_tokens, first.output_tokens) == (8, 12)  # 4/3 tokens a word, and the request says so
    assert first.tags["lengths"] == "estimated"


def test_each_is_asked_once_before_any_is_asked_again(talks):
    found = asked(talks, 6, seed=3)
    for place in (0, 2, 4):
        assert found[place].prompt != found[place + 1].prompt
    assert [item.tags.get("round") for item in found] == [None, None, "1", "1", "2", "2"]


def test_a_tokenizer_counts_exactly(talks, tmp_path):
    pytest.importorskip("tokenizers")
    write_tokenizer(tmp_path / "model", 2048)
    found = {i.prompt: i for i in asked(talks, 2, tokenizer=str(tmp_path / "model"))}
    first = found["one two three four five six"]  # a byte a token
    assert (first.input_tokens, first.output_tokens) == (
        len("one two three four five six"),
        len("a b c d e f g h i"),
    )
    assert "lengths" not in first.tags


def test_lines_of_prompts_are_read(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"prompt": "one two three", "output_len": 77}\n\n{"prompt": "four five six", "completion": "a b c d e f"}\n'
    )
    found = {i.prompt: i.output_tokens for i in asked(path, 2)}
    assert found == {"one two three": 77, "four five six": 8}


def test_lengths_choose_among_the_questions(talks):
    assert {i.prompt for i in asked(talks, 4, longest=50)} == {"one two three four five six"}
    with pytest.raises(InputError, match="no question"):
        asked(talks, 1, shortest=1000)


def test_the_model_may_end_its_answers_itself(talks):
    spec = parse_workload(f"sharegpt:file={talks},own_end=true")
    item = next(open_workload(spec).items(Stage(concurrency=1), 0))
    assert item.ignore_eos is False
    assert item.output_tokens


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "file"), ("[", "line 1"), ('{"prompt": "x", "output_len": 3}\n{oops', "line 2"), ("[1]", "entry 1"),
        ('{"prompt": 3}', "line 1, prompt"), ('{"prompt": "a"}', "line 1"),
        ('{"prompt": "a", "output_len": 0}', "output_len"),
        ('{"prompt": "a", "output_len": "9"}', "output_len"), ('{"prompt": "a", "output_len": true}', "output_len"),
        ('[{"id": 1}]', "entry 1, conversations"), ('[{"conversations": [3]}]', "entry 1"), ("3", "line 1"),
        ('[{"conversations": [{"from": "human"}]}]', "entry 1, conversations"), ("[" * 100_000, "line 1"),
    ],
)  # fmt: skip
def test_a_bad_entry_is_named(tmp_path, text, field):
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        asked(path, 1)
    assert field in error.value.field


KEYS = st.sampled_from(["conversations", "from", "value", "prompt", "completion", "output_len"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    )
)
def test_no_json_breaks_the_reader(tmp_path, value):
    path = tmp_path / "any.json"
    path.write_text(json.dumps(value))
    try:
        found = asked(path, 1, shortest=1)
    except InputError:
        return
    assert found[0].prompt

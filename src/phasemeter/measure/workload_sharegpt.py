"""Questions of a data set, with their own text: ShareGPT's JSON, or JSON lines of prompts.

Of a ShareGPT conversation the first human message and the answer to it are used, as vLLM's benchmark does. How long an
answer is, is counted by the model's tokenizer where there is one; else it is estimated from the words and the request
carries the tag `lengths=estimated`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

from msgspec import Struct

from phasemeter.measure.item import Item
from phasemeter.measure.load import Stage
from phasemeter.measure.text_file import UNZIPPABLE, read_text
from phasemeter.measure.text_tokens import open_tokenizer
from phasemeter.measure.workload_lengths import STAGE_INDICES, source
from phasemeter.record.errors import InputError

_FIELD = "--workload sharegpt"
_TOKENS_A_WORD = 4 / 3
"""English text in the usual vocabularies of 32,000 tokens and more: about 100 tokens for 75 words (OpenAI's own rule of
thumb in "What are tokens and how to count them"). An estimate, and marked as one."""
_ANSWERS = ("completion", "response", "answer")
_LENGTHS = ("output_len", "output_tokens")
_ASKERS, _ANSWERERS = frozenset({"human", "user"}), frozenset({"gpt", "assistant", "chatgpt", "bard", "bing"})


class ShareGptSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Which file, and which of its questions.

    file       ShareGPT's JSON list, or JSON lines of {"prompt", "completion" | "output_len"}
    tokenizer  directory or name of a tokenizer on this machine, for exact lengths
    shortest, longest    questions (tokens of prompt and answer each at least; both together at most)
    own_end    true: the model ends its answer itself; the data set's length is the most it may have
    """

    file: str
    tokenizer: str | None = None
    shortest: int = 4
    longest: int = 1_000_000
    own_end: bool = False


class _Question(Struct, frozen=True):
    prompt: str
    input_tokens: int
    output_tokens: int


class ShareGpt:
    """Questions in an order drawn for every round: each is asked once before any is asked again, and then carries the
    tag `round`, for a prefix cache may know it."""

    def __init__(self, spec: ShareGptSpec, seed: int) -> None:
        self._seed, self._own_end = seed, spec.own_end
        self._estimated = spec.tokenizer is None
        count = _estimate if spec.tokenizer is None else open_tokenizer(spec.tokenizer).count
        self._questions = [q for q in _questions(Path(spec.file), count) if _fits(q, spec)]
        if not self._questions:
            raise InputError(
                f"{_FIELD} file", spec.file, "no question of the file lies within shortest and longest"
            )

    def items(self, stage: Stage, number: int) -> Iterator[Item]:
        """Endless."""
        del stage
        draw = source("sharegpt", self._seed, number)
        index, again = number * STAGE_INDICES, 0
        marks = {"lengths": "estimated"} if self._estimated else {}
        while True:
            for question in draw.sample(self._questions, k=len(self._questions)):
                yield Item(
                    index,
                    question.input_tokens,
                    question.output_tokens,
                    prompt=question.prompt,
                    ignore_eos=not self._own_end,
                    tags={**marks, "round": str(again)} if again else marks,
                )
                index += 1
            again += 1


def _estimate(text: str) -> int:
    return max(1, math.ceil(len(text.split()) * _TOKENS_A_WORD))


def _fits(question: _Question, spec: ShareGptSpec) -> bool:
    shorter = min(question.input_tokens, question.output_tokens)
    return shorter >= spec.shortest and question.input_tokens + question.output_tokens <= spec.longest


def _questions(path: Path, count: Callable[[str], int]) -> Iterator[_Question]:
    try:
        text = read_text(path)
    except (OSError, ValueError, *UNZIPPABLE) as error:
        raise InputError(f"{_FIELD} file", str(path), f"the file cannot be read ({error})") from error
    if text.lstrip().startswith("["):
        yield from _of_list(path, text, count)
        return
    for line, part in enumerate(text.split("\n"), start=1):
        if part.strip():
            yield _of_record(_loads(part, path, line), f"{path}, line {line}", count)


def _loads(text: str, path: Path, line: int) -> object:
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}, line {line}", text[:80], f"not JSON ({error})") from error


def _of_list(path: Path, text: str, count: Callable[[str], int]) -> Iterator[_Question]:
    for number, entry in enumerate(cast("list[object]", _loads(text, path, 1)), start=1):
        where = f"{path}, entry {number}"
        turns = _object(entry, where).get("conversations")
        if not isinstance(turns, list):
            raise InputError(
                f"{where}, conversations", turns, 'expected {"conversations": [{"from", "value"}, ...]}'
            )
        said = [_message(turn, where) for turn in cast("list[object]", turns)]
        # A conversation that opens with an answer, or has none, holds no question to ask; the data set has such.
        if len(said) >= 2 and said[0][0] in _ASKERS and said[1][0] in _ANSWERERS and said[0][1].strip():
            prompt, answer = said[0][1], said[1][1]
            yield _Question(prompt, count(prompt), max(1, count(answer)))


def _message(turn: object, where: str) -> tuple[str, str]:
    told = _object(turn, where)
    by, value = told.get("from"), told.get("value")
    if not isinstance(by, str) or not isinstance(value, str):
        raise InputError(f"{where}, conversations", turn, 'a message is {"from": text, "value": text}')
    return by, value


def _of_record(entry: object, where: str, count: Callable[[str], int]) -> _Question:
    record = _object(entry, where)
    prompt = record.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise InputError(f"{where}, prompt", prompt, "expected a text")
    for name in _LENGTHS:
        length = record.get(name)
        if length is not None:
            if not isinstance(length, int) or isinstance(length, bool) or not 1 <= length <= 10_000_000:
                raise InputError(f"{where}, {name}", length, "expected a whole number of tokens, 1 or more")
            return _Question(prompt, count(prompt), length)
    for name in _ANSWERS:
        answer = record.get(name)
        if isinstance(answer, str):
            return _Question(prompt, count(prompt), max(1, count(answer)))
    raise InputError(where, ", ".join(record), f"expected one of {', '.join((*_ANSWERS[:1], *_LENGTHS[:1]))}")


def _object(entry: object, where: str) -> dict[str, object]:
    if not isinstance(entry, dict):
        raise InputError(where, entry, "expected a JSON object")
    return cast("dict[str, object]", entry)

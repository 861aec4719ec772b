"""Requests and scripts that would keep the simulated server busy for ever, or break its reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from phasemeter.engines.simulated.api import MOST_OUTPUT_TOKENS, ApiError, Limits, read_body
from phasemeter.engines.simulated.plan import Ask, make_plan
from phasemeter.engines.simulated.script import Behaviour, behaviour_of, load_script
from phasemeter.engines.simulated.truth import Truth, rng_of, truth_of
from phasemeter.record.errors import InputError

COMPLETIONS = "/v1/completions"


@pytest.mark.parametrize("tokens", [MOST_OUTPUT_TOKENS + 1, 99_999_999_999_999_999_999])
def test_an_answer_too_long_to_lay_out_is_refused(tokens: int) -> None:
    with pytest.raises(ApiError, match="max_tokens"):
        read_body(COMPLETIONS, b'{"prompt":"x","max_tokens":%d}' % tokens, Limits(("m",)))


def test_a_body_of_brackets_without_end_is_no_json() -> None:
    with pytest.raises(ApiError, match="no JSON"):
        read_body(COMPLETIONS, b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}", Limits(("m",)))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e308])
def test_times_without_measure_are_refused(value: float) -> None:
    with pytest.raises(InputError, match="ttft_ms"):
        truth_of({"ttft_ms": value})
    with pytest.raises(InputError, match=r"stall\.ms"):
        behaviour_of({"stall": {"after": 1, "ms": value}})


def test_a_script_that_never_ends_or_nests_too_deeply(tmp_path: Path) -> None:
    deep = tmp_path / "deep.toml"
    deep.write_text("a=" + "[" * 100_000)
    with pytest.raises(InputError, match="not a script"):
        load_script(deep)
    with pytest.raises(InputError, match="no regular file"):
        load_script(Path("/dev/zero"))


@pytest.mark.parametrize(("asked", "garbage"), [(1, False), (2, True), (5, True)])
def test_garbage_behind_more_tokens_than_the_answer_has_never_comes(asked: int, garbage: bool) -> None:
    ask = Ask(prompt_tokens=4, max_tokens=asked, chat=False, include_usage=False, continuous_usage=False)
    plan = make_plan(Truth(ttft_ms=1.0), Behaviour(garbage_json=2), ask, 0, rng_of(Truth(), 0))
    assert any(piece.garbage for piece in plan.pieces) is garbage

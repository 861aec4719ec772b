from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from phasemeter.cli.simulate import command
from phasemeter.engines.simulated.faults import FAULTS, parse_fault, parse_faults
from phasemeter.engines.simulated.script import (
    Behaviour,
    ScriptReader,
    asked,
    behaviour_of,
    load_script,
    merged,
    script_of,
    truth_for,
)
from phasemeter.engines.simulated.truth import Truth
from phasemeter.record.errors import InputError

ROOT = Path(__file__).resolve().parents[3]
ARGUMENTS = {
    "role_first": "off",
    "empty_deltas": "0,2",
    "reasoning": "2:reasoning_content",
    "usage": "chunk",
    "usage_lie": "7",
    "cached_tokens": "3",
    "short_output": "2",
    "finish": "stop",
    "keepalive_comments": "20",
    "hang_after": "1",
    "stall": "2:30",
    "reset_after": "1",
    "truncate_after": "1",
    "error_event_after": "1",
    "garbage_json": "1",
    "status": "503:2",
    "slow_drip": "0.5",
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_parses_and_asks_for_its_own_field(name):
    text = f"{name}:{ARGUMENTS[name]}" if name in ARGUMENTS else name
    assert name in asked(parse_fault(text))
    assert name in Behaviour.__struct_fields__


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_listed_and_documented(name):
    page = (ROOT / "docs/commands/simulate.md").read_text("utf-8")
    assert re.search(rf"^\| `{name}\b", page, re.M), f"{name} has no row in docs/commands/simulate.md"
    listed = CliRunner().invoke(command, ["--list-faults"]).output
    assert re.search(rf"^{re.escape(FAULTS[name].usage)} +\S", listed, re.M)


def test_every_option_is_documented():
    page = (ROOT / "docs/commands/simulate.md").read_text("utf-8")
    for parameter in command.params:
        assert any(f"`{option}" in page for option in parameter.opts), parameter.opts


def test_every_field_of_x_simulate_is_documented():
    page = (ROOT / "docs/commands/simulate.md").read_text("utf-8")
    missing = [name for name in Behaviour.__struct_fields__ if f"`{name}" not in page]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nosuch", "unknown"),
        ("crlf:1", "write it as crlf"),
        ("stall:1", "stall:K:MS"),
        ("hang_after:x", "no number"),
        ("hang_after:-1", "at least 0"),
        ("role_first:maybe", "role_first:on"),
        ("usage:sometimes", "sometimes"),
        ("status:200", "400 to 599"),
        ("empty_deltas:-1", "counted from 0"),
        ("short_output:0", "at least 1"),
    ],
)
def test_wrong_faults_say_what_to_write(text, says):
    with pytest.raises(InputError, match=re.escape(says)):
        parse_fault(text)


def test_unknown_keys_are_named_and_types_checked():
    with pytest.raises(InputError, match=r"a_key, b_key.*unknown keys"):
        behaviour_of({"b_key": 1, "itl_ms": 3, "a_key": 2})
    with pytest.raises(InputError, match="itl_ms"):
        behaviour_of({"itl_ms": "fast"})
    with pytest.raises(InputError, match=r"stall"):
        behaviour_of({"stall": {"after": 1}})
    with pytest.raises(InputError, match="give an object"):
        behaviour_of([1])


def test_the_later_one_wins_and_silence_changes_nothing():
    base = parse_faults(["short_output:4", "no_done", "short_output:2"])
    assert base == Behaviour(short_output=2, no_done=True)
    assert merged(base, Behaviour(no_done=False)) == Behaviour(short_output=2, no_done=False)
    assert merged(base, Behaviour()) == base


def test_ttft_and_its_parts_replace_each_other():
    parts = Truth(queue_ms=1, prefill_ms=2, itl_ms=3)
    assert truth_for(parts, Behaviour(ttft_ms=9)) == Truth(ttft_ms=9, itl_ms=3)
    assert truth_for(Truth(ttft_ms=9, itl_ms=3), Behaviour(prefill_ms=2)) == Truth(prefill_ms=2, itl_ms=3)
    with pytest.raises(InputError, match="either"):
        truth_for(parts, Behaviour(ttft_ms=9, prefill_ms=1))


def test_steps_in_order_times_and_matching():
    text = """
    [[step]]
    times = 2
    ttft_ms = 1
    [[step]]
    path = "/v1/completions"
    ttft_ms = 2
    [[step]]
    model = "b"
    ttft_ms = 3
    """
    reader = ScriptReader(script_of(text))
    taken = [
        reader.take(path, model)
        for path, model in [
            ("/v1/chat/completions", "a"),
            ("/v1/chat/completions", "b"),
            ("/v1/chat/completions", "b"),
            ("/v1/completions", "a"),
            ("/v1/completions", "a"),
        ]
    ]
    assert [step and step.ttft_ms for step in taken] == [1, 1, 3, 2, None]


def test_a_cycle_starts_again():
    reader = ScriptReader(
        script_of("cycle = true\n[[step]]\nttft_ms = 1\n[[step]]\nttft_ms = 2\ntimes = 2\n")
    )
    steps = [reader.take("/", None) for _ in range(7)]
    assert [step.ttft_ms for step in steps if step is not None] == [1, 2, 2, 1, 2, 2, 1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[step]\n", "not a script"),
        ("", r"has no \[\[step\]\]"),
        ("cycles = true\n[[step]]\n", "cycles"),
        ("[[step]]\ntimes = 0\n", "step 1 times"),
        ("[[step]]\nttft_ms = 1\n[[step]]\nstahl = 2\n", "step 2: stahl: unknown keys"),
        ("[[step]]\nhang_after = -2\n", "hang_after"),
    ],
)
def test_bad_scripts_name_the_place(text, says):
    with pytest.raises(InputError, match=says):
        script_of(text)


def test_script_files(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load_script(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="UTF-8"):
        load_script(tmp_path / "bytes.toml")
    example = load_script(ROOT / "examples/simulate-script.toml")
    assert example.steps
    assert all(msgspec.json.encode(step) for step in example.steps)

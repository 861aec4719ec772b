"""docs/workloads.md: every command opens, every key of every kind is there."""

from __future__ import annotations

import json
import re
import shlex
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from phasemeter.measure.load import Stage
from phasemeter.measure.workload import KINDS, open_workload, parse_workload, trace_spec
from phasemeter.measure.workload_conversations import ConversationsSpec
from phasemeter.measure.workload_lengths import LengthsSpec
from phasemeter.measure.workload_prefixes import PrefixesSpec
from phasemeter.measure.workload_sharegpt import ShareGptSpec
from phasemeter.measure.workload_trace import TraceSpec

PAGE = (Path(__file__).parents[3] / "docs/workloads.md").read_text()
COMMANDS = [
    shlex.split(command)
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    for command in re.findall(r"^\$ (.*)", block.replace("\\\n", " "), re.MULTILINE)
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[-1])
def test_every_command_of_the_page_yields_items(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    talk = [{"from": "human", "value": "a b c d e"}, {"from": "gpt", "value": "f g h i j"}]
    (tmp_path / "talks.json").write_text(json.dumps([{"conversations": talk}]))
    options = dict(zip(words[2::2], words[3::2], strict=True))
    if "--trace" in options:
        scale, window = float(options["--trace-scale"]), options["--trace-window"]
        spec = trace_spec(options["--trace"], scale, window)
    else:
        spec = parse_workload(options["--workload"])
    assert len(list(islice(open_workload(spec).items(Stage(concurrency=1), 0), 20))) == 20


def test_the_page_has_a_command_for_every_kind():
    text = " ".join(word for words in COMMANDS for word in words)
    assert [kind for kind in KINDS if f"{kind}:" not in text] == []


@pytest.mark.parametrize("spec", [LengthsSpec, PrefixesSpec, ConversationsSpec, ShareGptSpec, TraceSpec])
def test_every_key_is_on_the_page(spec):
    assert [f.name for f in msgspec.structs.fields(spec) if f"`{f.name}`" not in PAGE] == []

"""docs/definitions.md names every phase, latency, cause and check of the code, and no other check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phasemeter.explain.attribute import Cause
from phasemeter.explain.latency import Latency
from phasemeter.explain.phases import PHASE_NAMES
from phasemeter.explain.summary import summarise
from unit.explain.builders import run, sequence

PAGE = Path(__file__).parents[3].joinpath("docs", "definitions.md").read_text("utf-8")
CHECKS = PAGE.split("## Checks")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", [*PHASE_NAMES, *Latency.__struct_fields__])
def test_every_phase_and_latency_is_defined(name):
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_is_defined(cause):
    assert f"| {cause.value} |" in PAGE


def test_the_checks_table_is_the_checks():
    listed = re.findall(r"^\| `(\w+)` \|", CHECKS, re.MULTILINE)
    assert listed == [check.name for check in summarise(run(*sequence())).checks]

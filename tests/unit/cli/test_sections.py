"""Help in sections: every option once, none forgotten."""

from __future__ import annotations

import re

import click

from phasemeter.cli.measure import command
from phasemeter.cli.sections import SECTIONS


def test_every_option_is_in_the_help_once():
    text = command.get_help(click.Context(command, info_name="measure"))
    for param in command.params:
        for option in (o for o in param.opts if o.startswith("--")):
            assert len(re.findall(rf"^  (?:-\w, )?{option}\b(?!-)", text, re.MULTILINE)) == 1, option


def test_a_name_stands_in_one_section_alone():
    names = [name for _, names in SECTIONS for name in names.split()]
    assert len(names) == len(set(names))

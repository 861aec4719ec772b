"""Gates as JUnit XML, which GitLab, GitHub's actions and Jenkins read: one test case a gate.

A failed gate is a `failure`. An undecided one is an `error`: the command ends with a code other than 0 for both, and a
skipped test would look green. The form is that of Apache Ant's JUnit task, which all readers take as their base.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

from phasemeter.record.visible import visible
from phasemeter.report.compare_view import CompareView, GateLine

_ELEMENTS = {"fail": "failure", "undecided": "error"}


def comparison_junit(view: CompareView) -> str:
    """The view's gates as an XML document."""
    answers = [gate.answer.answer for gate in view.gates]
    counts = {
        "tests": str(len(answers)),
        "failures": str(answers.count("fail")),
        "errors": str(answers.count("undecided")),
        "skipped": "0",
        "time": "0",
    }
    root = ET.Element("testsuites", {"name": "phasemeter compare", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": _clean(view.title), **counts})
    properties = ET.SubElement(suite, "properties")
    for role, name, facts in view.sides:
        ET.SubElement(properties, "property", {"name": role, "value": _clean(f"{name}: {facts}")})
    for gate in view.gates:
        _case(suite, gate)
    out = ET.SubElement(suite, "system-out")
    told = (*view.differs, *(f"{m.name}: {m.effect} % {m.answer.text}" for m in view.lines), *view.notes)
    out.text = _clean("\n".join(told))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _case(suite: ET.Element, gate: GateLine) -> None:
    case = ET.SubElement(
        suite, "testcase", {"classname": "phasemeter.compare", "name": gate.text, "time": "0"}
    )
    element = _ELEMENTS.get(gate.answer.answer)
    said = _clean(f"{gate.seen} ({gate.why})" if gate.why else gate.seen)
    if element is None:
        ET.SubElement(case, "system-out").text = said
    else:
        found = ET.SubElement(case, element, {"message": said, "type": gate.answer.answer})
        found.text = said


def _clean(text: str) -> str:
    """XML 1.0 holds no control characters, and none of the two last code points of the basic plane."""
    return visible(text).replace("\ufffe", "").replace("\uffff", "")

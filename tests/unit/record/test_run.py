"""Merging refuses to mix."""

from __future__ import annotations

import msgspec
import pytest

from phasemeter.record.clock import Anchor
from phasemeter.record.engine import EngineInfo, Outcome
from phasemeter.record.errors import InputError
from phasemeter.record.request import Cell
from phasemeter.record.run import SCHEMA, Gpu, Header, Machine, Run, differences, merge
from phasemeter.record.timeline import Timeline

MACHINE = Machine(host="h", os="Linux", cpu="C", cores=2, gpus=(Gpu("A"),), load_1min=0.1)
ENGINE = EngineInfo(
    "openai", "m", version="1", dtype="bfloat16", url="http://127.0.0.1:1", details={"flag": "x"}
)


def run(run_id: str, **changes: object) -> Run:
    fields: dict[str, object] = {
        "schema": SCHEMA,
        "run_id": run_id,
        "phasemeter": "0.1.0",
        "anchor": Anchor(0, 0),
        "engine": ENGINE,
        "machine": MACHINE,
        "settings": {"input_tokens": [64], "seed": 0, "repeats": 5},
        "planned": 1,
    }
    header = Header(**(fields | changes))
    line = Timeline(
        id="1", cell=Cell(64, 4), max_tokens=4, outcome=Outcome.OK, arrived_ns=0, started_ns=0, end_ns=1
    )
    return Run(header=header, requests=(line,), name=f"{run_id}.jsonl")


def test_runs_of_one_measurement_merge():
    merged = merge([run("a"), run("b", settings={"input_tokens": [64], "seed": 7, "repeats": 2})])
    assert [t.id for t in merged.requests] == ["a/1", "b/1"]
    assert merged.header.planned == 2


def test_a_busier_machine_is_the_same_machine():
    other = msgspec.structs.replace(MACHINE, load_1min=3.0)
    assert differences(run("a").header, run("b", machine=other).header) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"machine": msgspec.structs.replace(MACHINE, cpu="D")}, "machine.cpu"),
        ({"machine": msgspec.structs.replace(MACHINE, host="other")}, "machine.host"),
        ({"machine": msgspec.structs.replace(MACHINE, gpus=(Gpu("B"),))}, "machine.gpus"),
        ({"machine": msgspec.structs.replace(MACHINE, cores=4)}, "machine.cores"),
        ({"engine": msgspec.structs.replace(ENGINE, model="n")}, "engine.model"),
        ({"engine": msgspec.structs.replace(ENGINE, kind="local")}, "engine.kind"),
        ({"engine": msgspec.structs.replace(ENGINE, version="2")}, "engine.version"),
        ({"engine": msgspec.structs.replace(ENGINE, dtype="float32")}, "engine.dtype"),
        ({"engine": msgspec.structs.replace(ENGINE, details={})}, "engine.flag"),
        ({"settings": {"input_tokens": [128], "seed": 0, "repeats": 5}}, "settings.input_tokens"),
        ({"settings": {"input_tokens": [64], "seed": 0, "repeats": 5, "top_p": 0.9}}, "settings.top_p"),
        ({"shape": {"layers": 18}}, "model shape"),
    ],
)
def test_unlike_runs_are_refused_and_the_field_is_named(changes, named):
    with pytest.raises(InputError, match=named):
        merge([run("a"), run("b", **changes)])


def test_the_same_run_twice_and_nothing_are_refused():
    with pytest.raises(InputError, match="twice"):
        merge([run("a"), run("a")])
    with pytest.raises(InputError, match="at least one"):
        merge([])


def test_one_run_is_itself():
    one = run("a")
    assert merge([one]) is one

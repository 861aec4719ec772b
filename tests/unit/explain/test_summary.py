"""The summary as a whole, and the JSON that scripts rely on."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.explain.phases import BUDGET
from phasemeter.explain.summary import summarise, summary_json
from phasemeter.record.engine import Outcome
from phasemeter.record.request import Cell, Usage
from phasemeter.roofline.presets import load_shape
from unit.explain.builders import CELL, header, report, run, sequence, timeline, timelines

DIST = {"n", "mean", "p50", "p90", "p99", "ci95_p50"}
PHASES = {"late", "connect", "first", "front_end", "queue", "prefill", "decode", "engine_decode", "tail"}
WARM = msgspec.structs.replace(CELL, warmup=True)


def told(*made, **changes):
    return json.loads(json.dumps(summary_json(summarise(run(*made, **changes))), allow_nan=False))


def test_contract_of_the_json():
    head = header(shape=msgspec.to_builtins(load_shape("ERNIE-4.5-0.3B")), hardware="t4", planned=10)
    out = told(*sequence(10, report=report()), header=head)
    assert {"planned", "ok", "failed", "by_outcome"} <= set(out["requests"])
    for name in ("ttft_ms", "ttft_from_arrival_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        assert set(out[name]) == DIST
    assert set(out["phases"]) == PHASES
    for phase in out["phases"].values():
        assert set(phase) == DIST | {"basis"}
    assert {n for n, p in out["phases"].items() if p["basis"] == "inferred"} == {"front_end"}
    assert {"output_tokens_per_s", "requests_per_s"} <= set(out["throughput"])
    assert {"asked", "seen_max", "seen_mean"} <= set(out["concurrency"])
    assert {"first_ttft_ms", "steady_ttft_ms", "requests_to_settle"} <= set(out["cold"])
    assert all(set(c) == {"name", "verdict", "evidence", "mend"} for c in out["checks"])
    assert out["verdict"] in {"ok", "warn", "invalid"}
    [shape] = out["by_shape"]
    assert (shape["input_tokens"], shape["output_tokens"], shape["batch"]) == (64, 5, 1)
    for name in ("ttft_ms", "tpot_ms", "prefill_ms"):
        assert set(shape[name]) == DIST
    assert shape["floor_prefill_ms"] > 0
    assert shape["floor_tpot_ms"] > 0
    assert shape["bound"] in {"compute", "memory"}
    assert out["machine"]["cpu"] == "cpu"
    assert out["settings"] == {"repeats": 5}
    assert out["model"]["shape"] == "ernie-4.5-0.3b"


def test_values():
    out = told(*sequence(10, report=report()))
    assert out["ttft_ms"] == {"n": 10, "mean": 50, "p50": 50, "p90": 50, "p99": 50, "ci95_p50": [50, 50]}
    assert out["ttft_from_arrival_ms"]["p50"] == 53
    assert out["tpot_ms"]["p50"] == 10
    assert out["itl_ms"]["n"] == 40
    assert out["e2e_ms"]["p50"] == 96
    assert out["phases"]["front_end"]["p50"] == 5
    assert out["requests"] == {"planned": None, "ok": 10, "failed": 0, "by_outcome": {"ok": 10}, "warmup": 0}
    assert out["tokens_counted"] == "usage"


def test_absent_is_null():
    out = told(*sequence(3))
    for name in ("front_end", "queue", "prefill", "engine_decode"):
        assert out["phases"][name] is None
    assert out["ttft_ms"]["ci95_p50"] is None
    assert out["ttfa_ms"] is None
    [shape] = out["by_shape"]
    assert (shape["prefill_ms"], shape["floor_prefill_ms"], shape["floor_tpot_ms"], shape["bound"]) == (
        None,
    ) * 4


def test_empty_run():
    out = told()
    assert out["ttft_ms"] is None
    assert out["by_shape"] == []
    assert out["throughput"]["requests_per_s"] is None
    assert out["concurrency"]["asked"] is None
    assert out["verdict"] == "invalid"


def test_only_failures():
    out = told(*sequence(4, outcome=Outcome.TIMEOUT_FIRST))
    assert out["ttft_ms"] is None
    assert out["requests"]["by_outcome"] == {"timeout_first_token": 4}
    [shape] = out["by_shape"]
    assert (shape["ok"], shape["failed"], shape["ttft_ms"]) == (0, 4, None)


def test_warm_up_and_failures_are_counted_and_left_out():
    warm = [timeline(f"w{i}", at=-1000 + i, first=999.0, cell=WARM) for i in range(3)]
    bad = [timeline("b", at=9000, first=999.0, outcome=Outcome.RESET)]
    out = told(*warm, *sequence(5), *bad)
    assert out["requests"] == {
        "planned": None,
        "ok": 5,
        "failed": 1,
        "by_outcome": {"ok": 5, "reset": 1},
        "warmup": 3,
    }
    assert out["ttft_ms"]["p99"] == 50
    assert out["cold"]["first_ttft_ms"] == 999


def test_shapes_are_kept_apart_and_in_order():
    cells = [Cell(128, 5), Cell(64, 9), Cell(64, 5, concurrency=4), Cell(64, 5)]
    made = [
        timeline(f"r{i}{j}", at=1000 * (4 * j + i), cell=c) for i, c in enumerate(cells) for j in range(2)
    ]
    shapes = told(*made)["by_shape"]
    assert [(s["input_tokens"], s["output_tokens"], s["batch"]) for s in shapes] == [
        (64, 5, 1),
        (64, 5, 4),
        (64, 9, 1),
        (128, 5, 1),
    ]
    assert [s["ok"] for s in shapes] == [2, 2, 2, 2]


def test_itl_is_per_token_where_the_server_tells():
    out = told(*sequence(5, counts=(1, 2, 2, 2, 2), usage=Usage(64, 9)))
    assert (out["itl_ms"]["n"], out["itl_ms"]["p50"]) == (40, 5)
    assert (out["itl_chunk_ms"]["n"], out["itl_chunk_ms"]["p50"]) == (20, 10)
    assert out["itl_token_ms"] == out["itl_ms"]
    untold = told(*sequence(5, counts=None))
    assert untold["itl_token_ms"] is None
    assert untold["itl_ms"] == untold["itl_chunk_ms"]


def test_mixed_counts():
    mixed = [
        *sequence(3),
        timeline("x", at=5000, counts=None),
        timeline("y", at=6000, counts=(1, 2, 1, 1, 1)),
    ]
    out = told(*mixed)
    assert (out["itl_chunk_ms"]["n"], out["itl_token_ms"]["n"], out["itl_ms"]["n"]) == (20, 17, 21)


@pytest.mark.parametrize(
    ("changes", "how"),
    [({}, "usage"), ({"usage": None}, "server"), ({"usage": None, "counts": None}, "chunk")],
)
def test_how_tokens_were_counted(changes, how):
    assert told(*sequence(3, **changes))["tokens_counted"] == how


def test_time_to_first_answer():
    out = told(*sequence(5, kinds="ggttt"))
    assert (out["ttft_ms"]["p50"], out["ttfa_ms"]["p50"]) == (50, 70)


def test_mixed_reports_make_no_phase_of_those_without():
    made = [*sequence(4, report=report()), timeline("x", at=5000)]
    assert told(*made)["phases"]["prefill"]["n"] == 4


@given(st.lists(timelines(), min_size=1, max_size=6))
def test_any_requests_can_be_summarised(made):
    made = [msgspec.structs.replace(t, id=f"r{i}", outcome=Outcome.OK) for i, t in enumerate(made)]
    out = told(*made)
    means = [out["phases"][name] for name in BUDGET]
    total = sum(p["mean"] * p["n"] for p in means if p is not None)
    assert total == pytest.approx(out["e2e_ms"]["mean"] * out["e2e_ms"]["n"])


def test_importing_loads_nothing_heavy():
    code = (
        "import sys, phasemeter.explain.summary; "
        "heavy = ('numpy', 'asyncio', 'httptools', 'torch', 'rich', 'click', 'scipy'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

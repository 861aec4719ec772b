"""The comparison of a simulation with a measured run: it finds its own again, and sees what is slower."""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from phasemeter.predict.whatif import simulate
from phasemeter.predict.whatif_load import EngineSettings, Traffic
from phasemeter.predict.whatif_times import LinearSteps
from phasemeter.record.engine import Outcome
from phasemeter.record.errors import InputError
from phasemeter.record.request import Cell
from phasemeter.record.timeline import Timeline

BENCH = Path(__file__).parents[2] / "benchmarks" / "validation"
MODEL = LinearSteps(step=3.3e-3, prompt_token=2e-5, sequence=1e-4, front_end=2e-3)
ENGINE = EngineSettings(max_num_seqs=8, max_num_batched_tokens=512)


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(BENCH))
    try:
        yield {name: importlib.import_module(name) for name in ("whatif", "vllm_cpu_load")}
    finally:
        sys.path.remove(str(BENCH))


def line(i: int, seen, cell: Cell, start_ns: int = 0, **fields) -> Timeline:
    """A request of a simulation as a record would hold it: its tokens evenly between the first and the last."""
    arrived, first, end = (
        start_ns + round(float(t[i]) * 1e9) for t in (seen.issued_s, seen.first_s, seen.ended_s)
    )
    n = int(seen.output_tokens[i])
    stamps = [first + (end - first) * k // max(1, n - 1) for k in range(n)]
    deltas = [b - a for a, b in zip([arrived, *stamps], stamps, strict=False)]
    return Timeline(
        id=f"r{i}-{start_ns}", cell=cell, max_tokens=n, outcome=Outcome.OK, arrived_ns=arrived, started_ns=arrived,
        sent_ns=arrived, end_ns=end, deltas_ns=tuple(deltas), kinds="t" * n,
        prompt_tokens_sent=int(seen.input_tokens[i]), **fields,
    )  # fmt: skip


def open_run(rate: float, n: int = 300):
    draw = random.Random(3)
    now, arrive = 0.0, []
    for _ in range(n):
        now += draw.expovariate(rate)
        arrive.append(now)
    prompts, outputs = ([draw.randint(8, most) for _ in range(n)] for most in (400, 60))
    seen = simulate(Traffic(prompts, outputs, arrive_s=arrive), ENGINE, MODEL)
    cell = Cell(0, 0, concurrency=None, rate_per_s=rate)
    warm = line(0, seen, Cell(0, 0, concurrency=None, rate_per_s=rate, warmup=True), -(10**12))
    return SimpleNamespace(requests=[warm, *(line(i, seen, cell) for i in range(n))], name="made")


def test_a_run_of_the_model_itself_is_found_without_error(bench):
    [level] = bench["whatif"].compare(MODEL, open_run(20.0), ENGINE)
    assert (level.name, level.requests, level.failed) == ("20/s", 300, 0)
    assert {(row.metric, row.percentile) for row in level.rows} == {
        (metric, share) for metric in ("ttft", "tpot", "e2e") for share in ("p50", "p90")
    }
    assert all(abs(row.error) < 1e-4 and row.kept for row in level.rows)
    assert level.present[0] == pytest.approx(level.present[1], rel=1e-3)


def test_a_model_that_is_too_quick_is_seen(bench):
    quick = LinearSteps(step=2e-3, prompt_token=1e-5, sequence=6e-5, front_end=1e-3)
    [level] = bench["whatif"].compare(quick, open_run(20.0), ENGINE)
    assert all(row.error < -0.3 for row in level.rows)
    assert not all(row.kept for row in level.rows)
    assert "MISSED" in bench["whatif"].table([level])


def test_a_closed_loop_is_simulated_by_its_users_and_failures_are_counted(bench):
    n = 40
    seen = simulate(Traffic([64] * n, [16] * n, users=4), ENGINE, MODEL)
    cell = Cell(64, 16, concurrency=4)
    lines = [line(i, seen, cell) for i in range(n)]
    lines.append(
        Timeline(id="bad", cell=cell, max_tokens=16, outcome=Outcome.RESET, arrived_ns=10, started_ns=10, end_ns=20)
    )  # fmt: skip
    run = SimpleNamespace(requests=lines, name="made")
    [level] = bench["whatif"].compare(MODEL, run, ENGINE)
    assert (level.requests, level.failed) == (n, 1)
    assert all(abs(row.error) < 1e-4 for row in level.rows)
    with pytest.raises(InputError, match="no load"):
        bench["whatif"].compare(MODEL, run, ENGINE, closed=False)


def test_the_load_script_reads_its_arguments(bench, capsys):
    script = bench["vllm_cpu_load"]
    args = script.parser().parse_args(["out", "--loads", "0.2,0.9", "--duration", "5"])
    assert (args.out, args.loads, args.duration, args.repeats) == (Path("out"), (0.2, 0.9), 5.0, 5)
    for bad in ("2", "", "0.5,x", "0"):
        with pytest.raises(argparse.ArgumentTypeError):
            script.shares(bad)
    with pytest.raises(SystemExit) as ended:
        script.parser().parse_args(["out", "--loads", "1.5"])
    assert ended.value.code == 2
    assert "between 0 and 1" in capsys.readouterr().err
    assert script.completed_per_s(json.dumps({"throughput": {"requests_per_s": 7.5}})) == 7.5
    assert str(script.SEQUENCES) in script.SERVER

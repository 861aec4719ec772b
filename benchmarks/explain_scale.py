"""How large a run may be: time and memory of `explain` and `report` on made-up runs of ten million tokens.

    python benchmarks/explain_scale.py            the three shapes (some minutes), write benchmarks/results/
    python benchmarks/explain_scale.py --quick    a hundredth of the tokens, prints only
    python benchmarks/explain_scale.py --make FILE --requests N --tokens M      the run file alone

The run is made up, and says so in its header: what is measured here is how long Phasemeter takes to read it. It is
written through `RunWriter`, as a run is: requests in closed loops of 64 slots, ten blocks, 1 % of them failed, a role
chunk before and finish, usage and end after the tokens, gaps with jitter and a few stalls, the server's usage and an
engine's report. Each command is a process of its own; its wall and CPU time and its peak resident memory are what the
system says of it when it ends (wait4).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

SHAPES = ((10_000, 1_000), (80_000, 128), (500_000, 20))
"""(requests, tokens of each): ten million tokens, in few long and in many short answers."""
SLOTS = 64
BLOCKS = 10
FAILED = 0.01
SEED = 20_261_201


def make(path: Path, requests: int, tokens: int) -> None:
    """Write a run of `requests` answers of `tokens` tokens."""
    import numpy as np

    sys.path.insert(0, str(ROOT / "src"))
    from phasemeter.record.file import RunWriter
    from phasemeter.record.run import Footer, Sample

    rng = np.random.default_rng(SEED)
    free_ns = np.arange(SLOTS, dtype=np.int64) * 1_000_000
    end_ns = 0
    with RunWriter(path, _header(requests, tokens)) as writer:
        for i in range(requests):
            slot = int(free_ns.argmin())
            timeline = _timeline(rng, i, int(free_ns[slot]), tokens, i * BLOCKS // requests)
            writer.write(timeline)
            free_ns[slot] = timeline.end_ns
            end_ns = max(end_ns, timeline.end_ns)
        for t_ns in range(0, end_ns, 1_000_000_000):
            writer.write(Sample(t_ns, {"client_cpu_ratio": 0.3, "loop_lag_ns": 80_000.0}))
        writer.write(Footer(end_ns))


def _header(requests: int, tokens: int):
    from phasemeter.record.clock import Anchor
    from phasemeter.record.engine import EngineInfo
    from phasemeter.record.run import SCHEMA, Header, Machine

    return Header(
        schema=SCHEMA,
        run_id=f"made-up-{requests}x{tokens}",
        phasemeter=version("phasemeter"),
        anchor=Anchor(0, 1_790_000_000_000_000_000),
        engine=EngineInfo("openai", "made-up", url="http://127.0.0.1:9/v1", api="completions"),
        machine=Machine("nowhere", "none", "none", 1),
        settings={"seed": SEED},
        planned=requests,
        notes=("made up by benchmarks/explain_scale.py; no model ran",),
    )


def _timeline(rng, i: int, free_ns: int, tokens: int, block: int):
    import numpy as np

    from phasemeter.record.engine import EngineReport, Outcome
    from phasemeter.record.request import Cell, Usage
    from phasemeter.record.timeline import Timeline

    late, connect = (int(ns) for ns in rng.exponential((30_000, 120_000)))
    front_end, queue, prefill = (int(ns) for ns in rng.lognormal((14.0, 13.0, 16.5), 0.3))
    gaps = rng.gamma(25.0, 400_000.0, tokens - 1)
    gaps[rng.random(tokens - 1) < 0.002] += 40e6
    gaps = gaps.astype(np.int64).tolist()
    first = connect + front_end + queue + prefill
    failed = rng.random() < FAILED
    kept = gaps[: len(gaps) // 2] if failed else gaps
    ending = [] if failed else [20_000, 5_000, 5_000]
    deltas = (connect + front_end // 2, first - connect - front_end // 2, *kept, *ending)
    n = len(kept) + 1
    started = free_ns + late
    return Timeline(
        id=f"r{i}",
        cell=Cell(input_tokens=256, output_tokens=tokens, concurrency=SLOTS, block=block),
        max_tokens=tokens,
        outcome=Outcome.RESET if failed else Outcome.OK,
        arrived_ns=free_ns,
        started_ns=started,
        connected_ns=started + connect // 2,
        sent_ns=started + connect,
        first_byte_ns=started + connect + front_end // 2,
        end_ns=started + sum(deltas) + 30_000,
        deltas_ns=deltas,
        kinds="r" + "t" * n + "fud"[: len(ending)],
        counts=(0, *[1] * n, *[0] * len(ending)),
        prompt_tokens_sent=256,
        status=200,
        error="connection reset by peer" if failed else None,
        finish_reason=None if failed else "length",
        usage=None if failed else Usage(prompt_tokens=256, completion_tokens=n),
        report=None
        if failed
        else EngineReport(
            "vllm plugin",
            queue_ns=queue,
            prefill_ns=prefill,
            decode_ns=sum(gaps),
            cached_tokens=0,
            n_tokens=n,
        ),
        reused_connection=True,
        in_flight=min(i + 1, SLOTS),
    )


def commands(run: Path, out: Path) -> dict[str, list[str]]:
    """What is timed, by name."""
    phasemeter = [sys.executable, "-m", "phasemeter"]
    return {
        "explain --json": [*phasemeter, "explain", str(run), "--json"],
        "explain": [*phasemeter, "explain", str(run)],
        "report": [*phasemeter, "report", str(run), "-o", str(out)],
    }


def timed(command: list[str]) -> dict:
    """Run `command` to its end: wall and CPU seconds, peak resident memory in MB (10^6 bytes)."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    begun_s = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(child.pid, 0)
    wall_s = time.monotonic() - begun_s
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {child.returncode}")
    scale = 1 if platform.system() == "Darwin" else 1024
    return {
        "wall_s": round(wall_s, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "peak_mb": round(usage.ru_maxrss * scale / 1e6),
    }


def measure(folder: Path, requests: int, tokens: int) -> dict:
    """One shape: make its run, time every command on it, remove it."""
    run, out = folder / f"{requests}x{tokens}.jsonl", folder / "report.html"
    make(run, requests, tokens)
    found = {
        "requests": requests,
        "tokens_each": tokens,
        "tokens": requests * tokens,
        "file_mb": round(run.stat().st_size / 1e6),
        "commands": {},
    }
    for name, command in commands(run, out).items():
        found["commands"][name] = timed(command)
        print(f"{requests} x {tokens}: {name}: {found['commands'][name]}", file=sys.stderr)
    found["report_mb"] = round(out.stat().st_size / 1e6, 1)
    run.unlink()
    return found


def run_all(shapes: tuple[tuple[int, int], ...]) -> dict:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        results = [measure(Path(folder), *shape) for shape in shapes]
    return {"machine": _machine() | {"load_1min_before": round(load, 2)}, "results": results}


def _machine() -> dict:
    cpu = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        cpu = next((line.partition(":")[2].strip() for line in lines if "model name" in line), cpu)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("phasemeter", "numpy", "msgspec", "plotly")},
    }


def markdown(found: dict) -> str:
    machine = found["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    lines = [
        "# Time and memory to explain large runs",
        "",
        "Written by `benchmarks/explain_scale.py`; its docstring says what the runs are. Wall and CPU seconds and peak"
        " resident memory of the whole process; MB are 10^6 bytes.",
        "",
        f"- Machine: {machine['cpu']}, {machine['cores']} cores, {machine['os']}, Python {machine['python']};"
        f" {versions}; load average before the run {machine['load_1min_before']}",
        "",
        "| requests | tokens each | tokens | file | command | wall | CPU | peak memory | page |",
        "|---:|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for row in found["results"]:
        for name, cost in row["commands"].items():
            page = f"{row['report_mb']} MB" if name == "report" else ""
            lines.append(
                f"| {row['requests']:,} | {row['tokens_each']:,} | {row['tokens']:,} | {row['file_mb']} MB | `{name}`"
                f" | {cost['wall_s']} s | {cost['cpu_s']} s | {cost['peak_mb']} MB | {page} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--make", type=Path, metavar="FILE")
    parser.add_argument("--requests", type=int, default=SHAPES[1][0])
    parser.add_argument("--tokens", type=int, default=SHAPES[1][1])
    asked = parser.parse_args()
    if asked.make is not None:
        make(asked.make, asked.requests, asked.tokens)
    elif asked.quick:
        print(markdown(run_all(tuple((n // 100, tokens) for n, tokens in SHAPES))))
    else:
        found = run_all(SHAPES)
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / "explain_scale.json").write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "explain_scale.md").write_text(markdown(found))
        print(markdown(found))


if __name__ == "__main__":
    main()

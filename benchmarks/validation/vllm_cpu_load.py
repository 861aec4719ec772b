"""Make the runs that `whatif.py` is held against: vLLM for CPU with a tiny ERNIE, a grid to fit, and three loads.

    flock LOCK python benchmarks/validation/vllm_cpu_load.py OUT [--loads 0.3,0.6,0.85] [--duration 180]

Needs a quiet machine, about 25 minutes, and vLLM's environment (`make vllm-env`). In OUT: `grid.jsonl.gz` (to fit),
`saturation.jsonl.gz` (a closed loop as wide as the server, whose rate of completions is what the loads are shares of),
`load.jsonl.gz` (one stage a load), MODEL.json, and `whatif.json` with the errors. Other runs are fitted than tested.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEQUENCES = 16
BUDGET = 512
SERVER = (
    "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", str(SEQUENCES),
    "--max-num-batched-tokens", str(BUDGET), "--no-enable-prefix-caching",
)  # fmt: skip
GRID = (
    "--input-tokens", "16,48,96,192,320", "--output-tokens", "16,64", "--concurrency", "1,2,4,8,16",
)  # fmt: skip
WORKLOAD = "lengths:input=uniform:16:320,output=uniform:8:64"


def shares(text: str) -> tuple[float, ...]:
    """Shares of saturation, as 0.3,0.6,0.85."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0.0 < share < 1.0 for share in found):
        raise argparse.ArgumentTypeError(f"{text!r}: give shares between 0 and 1, such as 0.3,0.6,0.85")
    return found


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("out", type=Path)
    found.add_argument("--loads", type=shares, default=(0.3, 0.6, 0.85), metavar="SHARE,...")
    found.add_argument("--duration", type=float, default=180.0, metavar="S", help="seconds of each load")
    found.add_argument("--repeats", type=int, default=5, help="blocks of the grid")
    found.add_argument("--engine-python", type=Path, help="default: .venv-vllm/bin/python")
    found.add_argument("--seed", type=int, default=1)
    return found


class Bench:
    """Where things are, and how one run is measured."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        sys.path.insert(0, str(ROOT / "tests"))
        from live.tiny_vllm import vllm_python, write_model

        self.args, self.folder = args, folder
        self.python = args.engine_python or vllm_python()
        self.model = write_model(folder / "tiny-ernie")
        self.out: Path = args.out
        self.out.mkdir(parents=True, exist_ok=True)

    def phasemeter(self, *words: str) -> str:
        """Run a command; its stdout. vLLM's threads spin while they wait, so they leave the client a core."""
        cores = sorted(os.sched_getaffinity(0))
        done = subprocess.run(
            [sys.executable, "-m", "phasemeter", *words],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT / "src"),
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores[:-1] or cores)),
            },
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout

    def measure(self, name: str, *words: str) -> Path:
        """One run, gzipped into OUT."""
        plain = self.folder / f"{name}.jsonl"
        self.phasemeter(
            *("measure", "--engine", "vllm", "--engine-python", str(self.python), "--model", str(self.model)),
            *("--dtype", "float32", "--seed", str(self.args.seed), *words, "--out", str(plain)),
            *("--", *SERVER),
        )
        packed = self.out / f"{name}.jsonl.gz"
        with plain.open("rb") as source, gzip.open(packed, "wb") as target:
            shutil.copyfileobj(source, target)
        return packed


def completed_per_s(explained: str) -> float:
    """Requests a second of a closed loop, from `explain --json`."""
    return float(json.loads(explained)["throughput"]["requests_per_s"])


def measure_all(bench: Bench) -> list[Path]:
    """The three runs, and the model; the last path is the load's."""
    args = bench.args
    grid = bench.measure("grid", *GRID, "--repeats", str(args.repeats))
    bench.phasemeter("fit", str(grid), "--out", str(bench.out / "MODEL.json"))
    full = bench.measure(
        "saturation", "--workload", WORKLOAD, "--concurrency", str(SEQUENCES), "--duration", "60"
    )
    saturation = completed_per_s(bench.phasemeter("explain", str(full), "--json"))
    rates = ",".join(f"{share * saturation:.4g}" for share in args.loads)
    print(f"saturated at {saturation:.4g} requests/s; loads {rates}", file=sys.stderr)
    load = bench.measure("load", "--workload", WORKLOAD, "--rate", rates, "--duration", str(args.duration))
    return [grid, full, load]


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="phasemeter-whatif-") as folder:
        bench = Bench(args, Path(folder))
        *_, load = measure_all(bench)
    sys.path.insert(0, str(Path(__file__).parent))
    from whatif import main as compare

    flags = ["--max-num-seqs", str(SEQUENCES), "--max-num-batched-tokens", str(BUDGET)]
    model, errors = bench.out / "MODEL.json", bench.out / "whatif.json"
    return compare([str(model), str(load), *flags, "--json", str(errors)])


if __name__ == "__main__":
    sys.exit(main())

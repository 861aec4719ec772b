"""How true is the client? Ours beside the peers, against one server of known truth.

    python benchmarks/fidelity/run.py --env aiperf=DIR --env guidellm=DIR --env vllm=DIR      all levels, 3 rounds
    python benchmarks/fidelity/run.py --only phasemeter,vllm-rs --levels 128,256 --rounds 5   a part of them
    python benchmarks/fidelity/run.py --part truths --part faults --part long                 the other questions
    python benchmarks/fidelity/run.py --page                                                  only write the page anew

Each turn starts a fresh server (server/, C) and one client, as a user would start it, and compares the client's own
result file with the server's log (`compare.py` says how). CPU is that of the client's whole process tree from start to
exit. Results are appended to benchmarks/results/fidelity.json, so that parts combine; the page beside it is made from
them. `--env NAME=DIR` is an environment in which that tool is installed; a tool without one is left out, and told so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine
import page
from cases import PARTS, Case, cases_of, ordered
from clients import CLIENTS, Turn, program_of, version_in
from compare import compare
from seen import UnreadableError
from tokenizer import write_tokenizer
from truth import build, read_truth, serving

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "fidelity.json"
_START_S = 150.0
"""What a client may take to start and to sum up, beside the load itself."""
_SLOWEST = 5.0
"""A turn that takes so many times its ideal is cut off."""

_ATTEMPTS = 5
"""A turn during which others used more of the machine than `machine.QUIET_BUSY_RATIO` is made again, whatever came of
it; the last attempt counts as it is, and the page says how busy others were."""


def main() -> int:
    """Exit 0: measured; 2: bad input; 3: the machine is not quiet."""
    asked = _asked()
    if not asked.page:
        quiet, busy = (False, -1.0) if asked.noisy else machine.wait_until_quiet(asked.patience_s)
        if not quiet and not asked.noisy:
            print(f"the machine is not quiet: others use {busy:.0%} of it; wait, or --noisy", file=sys.stderr)
            return 3
        _measure(asked, quiet=quiet)
    page.write(asked.results)
    return 0


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=list(CLIENTS), metavar="TOOL,..."
    )
    parser.add_argument("--part", action="append", choices=PARTS, help="default: levels")
    parser.add_argument(
        "--levels", type=lambda text: [int(n) for n in text.split(",")], default=[], metavar="C,..."
    )
    parser.add_argument("--waves", type=int, help="requests a slot (default: by level, 3 to 16)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1, help="of the order of tools")
    parser.add_argument("--api", choices=("chat", "completions"), default="chat")
    parser.add_argument("--workers", type=int, help="phasemeter measure --workers N")
    parser.add_argument("--server-nice", type=int, default=-10, help="of the server, where that is allowed")
    parser.add_argument(
        "--patience-s", type=float, default=120.0, help="how long to wait for a quiet machine"
    )
    parser.add_argument("--noisy", action="store_true", help="measure on a busy machine; the results say so")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep every turn's files there")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE.json")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    asked = parser.parse_args()
    unknown = [tool for tool in asked.only if tool not in CLIENTS]
    if unknown:
        parser.error(f"--only: {', '.join(unknown)}: must be of {', '.join(CLIENTS)}")
    return asked


def _environments(asked: argparse.Namespace) -> dict[str, Path]:
    """Tool -> its environment. vLLM's two clients share one; ours is the one that runs this."""
    given = dict(pair.split("=", 1) for pair in asked.env)
    found = {"phasemeter": Path(sys.prefix)} | {name: Path(where) for name, where in given.items()}
    if "vllm" in found:
        found.setdefault("vllm-rs", found["vllm"])
    return found


def _measure(asked: argparse.Namespace, *, quiet: bool) -> None:
    environments = _environments(asked)
    programs: dict[str, str] = {}
    absent: dict[str, str] = {}
    for tool in asked.only:
        program = program_of(CLIENTS[tool], environments[tool]) if tool in environments else None
        if program is None:
            where = "has no such program" if tool in environments else "was not given"
            absent[tool] = f"its environment {where}"
        else:
            programs[tool] = str(program)
    session: dict[str, Any] = {
        "machine": machine.describe(),
        "quiet": quiet,
        "versions": {tool: version_in(CLIENTS[tool], environments[tool]) for tool in programs},
        "absent": absent,
        "commit": _commit(),
        "api": asked.api,
        "workers": asked.workers,
        "server_nice": asked.server_nice,
        "seed": asked.seed,
    }
    number = _append(asked.results, "sessions", session)
    with tempfile.TemporaryDirectory() as scratch:
        base = asked.keep or Path(scratch)
        server, tokenizer = build(base / "build"), write_tokenizer(base / "tokenizer")
        cases = cases_of(asked.part or ["levels"], asked.levels, asked.waves)
        for at, (round_number, case, tool) in enumerate(
            ordered(cases, list(programs), asked.rounds, asked.seed)
        ):
            for attempt in range(1, _ATTEMPTS + 1):
                folder = base / f"{at:04d}-{attempt}-{tool}-{case.part}-{case.concurrency}"
                folder.mkdir(parents=True)
                if not asked.noisy:
                    machine.wait_until_quiet(asked.patience_s)
                row = _turn(asked, case, programs[tool], CLIENTS[tool].name, (server, tokenizer, folder))
                row = {"session": number, "round": round_number, "tool": tool, **_case_row(case), **row}
                again = not asked.noisy and row["others_busy"] > machine.QUIET_BUSY_RATIO
                spoiled = again and attempt < _ATTEMPTS
                _append(asked.results, "spoiled" if spoiled else "turns", row)
                print(("again: " if spoiled else "") + _line(row), file=sys.stderr, flush=True)
                if not spoiled:
                    break


def _turn(
    asked: argparse.Namespace, case: Case, program: str, tool: str, places: tuple[Path, Path, Path]
) -> dict[str, Any]:
    server, tokenizer, folder = places
    report, log = folder / "spend.json", folder / "truth.jsonl"
    limit_s = _START_S + _SLOWEST * case.ideal_s
    with serving(server, log, case.server_options(), asked.server_nice) as (url, server_pid):
        turn = Turn(
            url, asked.api, case.concurrency, case.requests, case.input_tokens, case.output_tokens,
            folder, tokenizer, asked.workers,
        )  # fmt: skip
        command = CLIENTS[tool].command(program, turn)
        before = machine.ticks()
        subprocess.run(
            [sys.executable, str(Path(__file__).parent / "spend.py"), str(report), f"{limit_s:g}",
             str(folder / "console.log"), "--", *command],
            check=True, timeout=limit_s + 60,
        )  # fmt: skip
        after, server_s = machine.ticks(), machine.process_cpu_s(server_pid)
    spent = json.loads(report.read_text())
    row = {key: spent[key] for key in ("status", "wall_s", "timed_out", "left_running")}
    row["others_busy"] = machine.busy_ratio(before, after, spent["cpu_ns"] / 1e9 + server_s)
    row["server_cpu_s"] = server_s
    truth = read_truth(log)
    try:
        return row | compare(CLIENTS[tool].read(folder), truth, spent["cpu_ns"])
    except (UnreadableError, OSError) as error:
        return row | {"unreadable": str(error), "requests_at_server": len(truth.served)}


def _case_row(case: Case) -> dict[str, Any]:
    names = ("part", "concurrency", "requests", "ttft_ms", "itl_ms", "input_tokens", "output_tokens", "fault")
    return {name: getattr(case, name) for name in names}


def _append(path: Path, kind: str, row: dict[str, Any]) -> int:
    """Add one row to the results at once, so that a run that is ended keeps what it has; the row's number."""
    found: dict[str, list[dict[str, Any]]] = json.loads(path.read_text()) if path.is_file() else {}
    for name in ("sessions", "turns", "spoiled"):
        found.setdefault(name, [])
    found[kind].append(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    lists = ",\n".join(
        f'"{name}": [\n' + ",\n".join(json.dumps(one) for one in rows) + "\n]" for name, rows in found.items()
    )
    path.write_text(f"{{{lists}}}\n")
    return len(found[kind]) - 1


def _commit() -> str | None:
    told = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    return told.stdout.strip() or None


def _line(row: dict[str, Any]) -> str:
    head = f"round {row['round']}  {row['part']:<6} C={row['concurrency']:<4} {row['tool']:<10}"
    if "unreadable" in row:
        return f"{head} {row['unreadable']} (status {row['status']}, {row['wall_s']:.0f} s)"
    shown = (
        ("ttft p50", "ttft_error_p50_ms"),
        ("p99", "ttft_error_p99_ms"),
        ("us/token", "cpu_us_per_token"),
    )
    numbers = "  ".join(f"{name} {_number(row[key])}" for name, key in shown)
    return (
        f"{head} {numbers}  itl {_number(row['itl_p50_ms'])}  seen {row['seen_concurrency_max']}  ok {row['good']} "
        f"failed {row['failed']}  late p99 {_number(row['server_late_p99_ms'])}  others {row['others_busy']:.0%}  "
        f"{row['wall_s']:.0f} s"
    )


def _number(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float | int) else "-"


if __name__ == "__main__":
    sys.exit(main())

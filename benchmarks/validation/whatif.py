"""The simulation of `phasemeter whatif` beside a load that was measured: the same arrivals and lengths.

    python benchmarks/validation/whatif.py MODEL.json RUN.jsonl.gz [--max-num-seqs 16 ...] [--json OUT.json]

MODEL.json must be fitted to other runs than RUN. Each stretch of load of RUN is simulated from empty, as it began: an
open loop by its arrivals, a closed one by its users. Stretches of one level (closed: of one shape, too) are pooled.
Failed requests are left out and counted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from phasemeter.explain.stages import stretches
from phasemeter.predict.model import FittedModel, load
from phasemeter.predict.steps import StepModel
from phasemeter.predict.whatif import simulate
from phasemeter.predict.whatif_fitted import machine_of
from phasemeter.predict.whatif_load import EngineSettings, Traffic
from phasemeter.predict.whatif_outcome import Outcome as Simulated
from phasemeter.record.engine import Outcome
from phasemeter.record.errors import InputError
from phasemeter.record.file import read_run
from phasemeter.record.run import Run
from phasemeter.record.timeline import Timeline

LIMITS = {"p50": 0.15, "p90": 0.25}
SHARES = {"p50": 0.5, "p90": 0.9}


class Beside(Struct, frozen=True):
    """One metric's percentile, measured and simulated; `limit` is the error that was promised, None for the parts that
    are shown for their reasons alone."""

    metric: str
    percentile: str
    measured_ms: float
    simulated_ms: float
    limit: float | None

    @property
    def error(self) -> float:
        return self.simulated_ms / self.measured_ms - 1.0

    @property
    def kept(self) -> bool:
        return self.limit is None or abs(self.error) <= self.limit


class Level(Struct, frozen=True):
    """One level of the run. `present` is the mean number of requests sent and not ended, measured and simulated."""

    name: str
    requests: int
    failed: int
    present: tuple[float, float]
    rows: tuple[Beside, ...]


def compare(
    model: StepModel, run: Run, settings: EngineSettings, *, closed: bool = True
) -> tuple[Level, ...]:
    """Every level of `run` against its simulation; without `closed`, those of open loops alone. Raises InputError where
    there is none."""
    lines = [line for line in run.requests if not line.cell.warmup]
    levels: dict[str, list[list[Timeline]]] = {}
    for stretch in stretches(lines, {line.id: "" for line in lines}):
        members = [lines[i] for i in stretch.members]
        if closed or members[0].cell.concurrency is None:
            levels.setdefault(_name(members[0]), []).append(members)
    if not levels:
        raise InputError(run.name or "run", "no load", "measure one with --rate, --trace or --concurrency")
    return tuple(_level(model, name, parts, settings) for name, parts in levels.items())


def _name(line: Timeline) -> str:
    cell = line.cell
    if cell.concurrency is None:
        return "trace" if cell.rate_per_s is None else f"{cell.rate_per_s:.4g}/s"
    return f"{cell.concurrency} users, {cell.input_tokens} in, {cell.output_tokens} out"


def _level(model: StepModel, name: str, parts: list[list[Timeline]], settings: EngineSettings) -> Level:
    good = [[one for one in part if one.outcome is Outcome.OK] for part in parts]
    good = [sorted(part, key=lambda one: one.arrived_ns) for part in good if part]
    if not good:
        raise InputError("run", "no successful request", "measure it again")
    played = [_played(model, part, settings) for part in good]
    ok = [one for part in good for one in part]
    measured = _measured(ok)
    rows = [
        Beside(
            metric,
            percentile,
            _quantile_ms(values, share),
            _quantile_ms(np.concatenate([one.values_s(metric) for one in played]), share),
            LIMITS[percentile] if metric in ("ttft", "tpot") else None,
        )
        for metric, values in measured.items()
        for percentile, share in SHARES.items()
        if values.size == len(ok) or metric == "tpot"
    ]
    lasted = [(max(one.end_ns for one in part) - part[0].arrived_ns) / 1e9 for part in good]
    spent_s = sum(one.end_ns - one.arrived_ns for one in ok) / 1e9
    simulated_s = sum(float(one.values_s("e2e").sum()) for one in played)
    present = simulated_s / sum(one.lasted_s for one in played)
    failed = sum(len(part) for part in parts) - len(ok)
    return Level(name, len(ok), failed, (spent_s / sum(lasted), present), tuple(rows))


def _played(model: StepModel, ok: list[Timeline], settings: EngineSettings) -> Simulated:
    users = ok[0].cell.concurrency
    arrive = [(one.arrived_ns - ok[0].arrived_ns) / 1e9 for one in ok]
    traffic = Traffic(
        [_prompt(one) for one in ok],
        [one.counted_tokens() for one in ok],
        arrive_s=arrive if users is None else None,
        users=users,
    )
    return simulate(traffic, settings, model)


def _quantile_ms(values: np.ndarray, share: float) -> float:
    return float(np.quantile(values, share, method="inverted_cdf")) * 1e3


def _measured(ok: list[Timeline]) -> dict[str, np.ndarray]:
    """Seconds by metric; parts that only the engine saw where it told them of every request."""
    firsts = [one.generated() for one in ok]
    found = {
        "ttft": np.array([g[0][0] - one.arrived_ns for one, g in zip(ok, firsts, strict=True)]),
        "tpot": np.array([
            (g[-1][0] - g[0][0]) / (n - 1)
            for one, g in zip(ok, firsts, strict=True)
            if (n := one.counted_tokens()) > 1
        ]),
        "e2e": np.array([g[-1][0] - one.arrived_ns for one, g in zip(ok, firsts, strict=True)]),
        "queue": np.array([r.queue_ns for one in ok if (r := one.report) and r.queue_ns is not None]),
        "prefill": np.array([r.prefill_ns for one in ok if (r := one.report) and r.prefill_ns is not None]),
    }  # fmt: skip
    return {name: values / 1e9 for name, values in found.items() if values.size}


def _prompt(line: Timeline) -> int:
    told = None if line.usage is None else line.usage.prompt_tokens
    return told or line.prompt_tokens_sent or line.cell.input_tokens


def table(levels: Sequence[Level]) -> str:
    """Markdown."""
    lines = [
        "| load | requests | present, measured / simulated | metric | measured ms | simulated ms | error | promise |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for level in levels:
        for row in level.rows:
            limit = "" if row.limit is None else f"±{row.limit:.0%}, {'kept' if row.kept else 'MISSED'}"
            present = f"{level.present[0]:.2f} / {level.present[1]:.2f}"
            lines.append(
                f"| {level.name} | {level.requests} | {present} | {row.metric} {row.percentile} "
                f"| {row.measured_ms:.4g} | {row.simulated_ms:.4g} | {row.error:+.1%} | {limit} |"
            )
    return "\n".join(lines)


def settings_of(args: argparse.Namespace, model: FittedModel) -> EngineSettings:
    """The flags that the server had."""
    return EngineSettings(
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens or max(model.budget_tokens, args.max_num_seqs),
        kv_blocks=args.kv_blocks,
        block_size=args.block_size,
    )


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("model", type=Path)
    found.add_argument("run", type=Path, nargs="+")
    found.add_argument("--max-num-seqs", type=int, default=128)
    found.add_argument("--max-num-batched-tokens", type=int)
    found.add_argument("--kv-blocks", type=int)
    found.add_argument("--block-size", type=int, default=16)
    found.add_argument("--open-only", action="store_true", help="leave closed loops out")
    found.add_argument("--json", type=Path, metavar="OUT.json")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    fitted = load(args.model)
    model = machine_of(fitted).steps
    levels = [
        level
        for path in args.run
        for level in compare(model, read_run(path), settings_of(args, fitted), closed=not args.open_only)
    ]
    print(table(levels))
    if args.json is not None:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(levels), indent=1) + b"\n")
    return 0 if all(row.kept for level in levels for row in level.rows) else 1


if __name__ == "__main__":
    sys.exit(main())

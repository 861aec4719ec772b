"""The article's table, re-measured: ERNIE-4.5-0.3B on vLLM, four server starts, one run file each.

    PYTHONPATH=src:SITE python3 benchmarks/h200/measure_article.py --out OUT --only http-default,http-eager

{default, --enforce-eager} x {through HTTP, in process}; random weights, bfloat16, prefix caching off, greedy. Every
start writes NAME.jsonl.gz (`phasemeter explain` reads it), its log goes into logs.tar.gz, the machine into
fingerprint.json. Whatever ends it, what was measured is kept. `--plan` prints what will be done and how long it should
take; `--tiny --device cpu` runs the whole script on a toy model.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import gzip
import shutil
import subprocess
import sys
import tarfile
import tempfile
import traceback
from functools import partial
from pathlib import Path

import msgspec
from article_engines import TINY_CONFIG, model_folder, open_http, open_local
from article_plan import DEFAULT, EAGER, TINY, Plan, expected_s

from phasemeter.explain.summary import summarise
from phasemeter.measure.ceilings import measure_ceilings
from phasemeter.measure.environment import fingerprint
from phasemeter.measure.header import FINGERPRINTED, Asked, make_header
from phasemeter.measure.nvml import sample_gpu
from phasemeter.measure.plan import Grid
from phasemeter.measure.session import Beside, Session
from phasemeter.measure.warmup import warm_up
from phasemeter.record.clock import MonotonicClock, anchor, cpu_ns
from phasemeter.record.engine import Engine
from phasemeter.record.errors import PhasemeterError
from phasemeter.record.file import RunWriter, read_run
from phasemeter.record.request import Sampling
from phasemeter.record.run import Footer
from phasemeter.roofline.config import shape_from_config
from phasemeter.roofline.hardware import Ceilings, match_hardware
from phasemeter.roofline.presets import load_shape

STARTS = ("http-default", "http-eager", "local-default", "local-eager")
MODEL = "ernie-4.5-0.3b"
WARMUP_ROUNDS = 2
CLOCK = MonotonicClock()


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/h200"))
    parser.add_argument("--only", default=",".join(STARTS), help=f"of {', '.join(STARTS)}")
    parser.add_argument("--prefix", default="h200", help="first part of every file's name")
    parser.add_argument("--budget-s", type=float, default=560.0, help="for the whole call")
    parser.add_argument("--blocks", type=int, help="interleaved repeats of every start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--engine-python", default=sys.executable, help="interpreter that imports vllm")
    parser.add_argument("--ceilings", type=Path, help="file with ceilings; measured into it if not there")
    parser.add_argument("--ceilings-s", type=float, default=6.0)
    parser.add_argument("--only-ceilings", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tiny", action="store_true", help="a toy model and grid, to try the script out")
    parser.add_argument(
        "--plan", action="store_true", help="print the plan and its expected time; start nothing"
    )
    return parser.parse_args(given)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def now_s() -> float:
    return CLOCK.now_ns() / 1e9


def plan_of(options: argparse.Namespace, name: str) -> Plan:
    plan = TINY if options.tiny else EAGER if name.endswith("eager") else DEFAULT
    return plan if options.blocks is None else msgspec.structs.replace(plan, blocks=options.blocks)


class ArticleSession(Session):
    """A session over the union of three grids, block by block, that ends before its time is up."""

    def __init__(self, plan: Plan, until_s: float, seed: int, *rest: object) -> None:
        super().__init__(*rest)  # pyright: ignore[reportArgumentType]
        self._plan, self._until_s, self._seed = plan, until_s, seed
        self._planned = plan.requests
        self.blocks = 0

    async def run(self) -> None:
        await warm_up(self._maker, self._plan.warmups(), WARMUP_ROUNDS, self._visit)
        gc.freeze()
        longest_s = 0.0
        for number in range(self._plan.blocks):
            started_s = now_s()
            if started_s + longest_s > self._until_s:
                break
            for visit in self._plan.block(number, self._seed):
                await self._visit(visit.cell, list(self._maker.several(visit.cell, visit.requests)))
            self.blocks += 1
            longest_s = max(longest_s, now_s() - started_s)
        await asyncio.sleep(0.5)  # an engine's last words
        self._write_seen()


async def one_start(options: argparse.Namespace, name: str, model: Path, ceilings: Ceilings | None) -> str:
    """Start, measure, stop. What it took, as a line."""
    plan = plan_of(options, name)
    out = options.out / f"{options.prefix}-{name}.jsonl"
    log = options.out / "logs" / f"{options.prefix}-{name}.log"
    opener = open_http if name.startswith("http") else open_local
    begun_s = now_s()
    engine: Engine = opener(options, model, log, CLOCK, eager=name.endswith("eager"))
    try:
        await engine.start()
        ready_s = now_s()
        until_s = min(ready_s + plan.budget_s, options.ends_s - 15.0)
        blocks = await measured(options, engine, plan, until_s, (name, out, ceilings))
        done_s = now_s()
    finally:
        await engine.close()
        compress(out)
        pack_logs(options)
    return (
        f"{name}: start {ready_s - begun_s:.1f} s, {blocks} blocks in {done_s - ready_s:.1f} s, "
        f"stop {now_s() - done_s:.1f} s"
    )


async def measured(
    options: argparse.Namespace,
    engine: Engine,
    plan: Plan,
    until_s: float,
    what: tuple[str, Path, Ceilings | None],
) -> int:
    name, out, ceilings = what
    sampling = Sampling(temperature=0.0)
    machine = fingerprint(FINGERPRINTED)
    gpu = machine.gpus[0] if machine.gpus and options.device == "cuda" else None
    row = match_hardware(gpu.name, gpu.memory_bytes) if gpu else match_hardware(machine.cpu)
    asked = Asked(
        started=anchor(CLOCK),
        settings={
            "start": name,
            "plan": msgspec.to_builtins(plan),
            "warmup": WARMUP_ROUNDS,
            "seed": options.seed,
            "sampling": msgspec.to_builtins(sampling),
            "driver": "closed loop",
        },
        planned=plan.requests,
        shape=msgspec.to_builtins(
            shape_from_config(TINY_CONFIG, "tiny-ernie") if options.tiny else load_shape(MODEL)
        ),
        hardware=row.name if row else None,
        ceilings=None if ceilings is None else msgspec.to_builtins(ceilings),
        notes=getattr(engine, "notes", ()),
    )
    # the folder's place is of no interest, the model is
    info = msgspec.structs.replace(engine.info, model="tiny-ernie" if options.tiny else MODEL)
    header = make_header(info, asked, CLOCK, machine)
    base = Grid(input_tokens=(1,), output_tokens=(1,), sampling=sampling)
    beside = Beside(probes=(partial(sample_gpu, 0),) if gpu else ())
    with RunWriter(out, header) as writer:
        session = ArticleSession(
            plan, until_s, options.seed, engine, base, CLOCK, writer, header.run_id, beside
        )
        cpu = cpu_ns()
        error = None
        try:
            await session.run()
        except PhasemeterError as failed:
            error = str(failed)
            raise
        finally:
            short = session.blocks < plan.blocks
            writer.write(Footer(CLOCK.now_ns(), interrupted=short, client_cpu_ns=cpu_ns() - cpu, error=error))
    return session.blocks


def compress(path: Path) -> None:
    """Beside itself with .gz, the plain file gone; without a time stamp, so that the same run gives the same bytes."""
    if not path.exists():
        return
    Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()


def pack_logs(options: argparse.Namespace) -> None:
    with tarfile.open(options.out / f"{options.prefix}-logs-{options.mark}.tar.gz", "w:gz") as packed:
        packed.add(options.out / "logs", arcname="logs")


def ceilings_of(options: argparse.Namespace) -> Ceilings | None:
    """Measured once, in a process of its own: its GPU memory is free again before vLLM looks at it."""
    path = options.ceilings or options.out / "ceilings.json"
    if not path.exists():
        command = [sys.executable, __file__, "--only-ceilings", "--ceilings", str(path)]
        command += ["--device", options.device, "--ceilings-s", str(options.ceilings_s)]
        failed = subprocess.run(command, check=False).returncode
        if failed:
            say(f"the ceilings could not be measured (exit code {failed})")
            return None
    return msgspec.json.decode(path.read_bytes(), type=Ceilings)


def write_fingerprint(options: argparse.Namespace, ceilings: Ceilings | None) -> None:
    told = {"machine": fingerprint(FINGERPRINTED), "ceilings": ceilings}
    if shutil.which("nvidia-smi"):
        answer = subprocess.run(["nvidia-smi", "-q"], capture_output=True, text=True, check=False)
        told["nvidia-smi -q"] = answer.stdout.splitlines()
    frozen = subprocess.run(
        [options.engine_python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=False
    )  # fmt: skip
    told["packages"] = frozen.stdout.splitlines()
    path = options.out / f"{options.prefix}-fingerprint-{options.mark}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(told)))


def table(paths: list[Path]) -> str:
    """Medians of every shape, milliseconds."""
    lines = ["start          input output batch    n    ttft  prefill  front    tpot"]
    for path in paths:
        run = read_run(path)
        name = run.header.settings["start"]
        for shape in summarise(run).shapes:
            phases, seen, key = shape.phases, shape.latency, shape.key
            values = (
                seen.ttft_ms,
                None if phases.prefill is None else phases.prefill.dist,
                None if phases.front_end is None else phases.front_end.dist,
                seen.tpot_ms,
            )
            shown = " ".join("      -" if dist is None else f"{dist.p50:7.2f}" for dist in values)
            lines.append(
                f"{name:14} {key.input_tokens:5} {key.output_tokens:6} {key.concurrency:5} {shape.ok:4} {shown}"
                + (f"  {shape.failed} failed" if shape.failed else "")
            )
    return "\n".join(lines)


def show_plan(options: argparse.Namespace) -> None:
    total = 0.0
    for name in options.only.split(","):
        plan = plan_of(options, name)
        eager = name.endswith("eager")
        start_s = 45.0 if eager else 80.0
        took_s = expected_s(plan, eager=eager)
        total += start_s + min(took_s, plan.budget_s) + 8.0
        say(
            f"{name}: start about {start_s:.0f} s; {plan.blocks} blocks of {plan.requests // plan.blocks} requests, "
            f"{took_s:.0f} s (at most {plan.budget_s:.0f}); stop about 8 s"
        )
    say(f"together about {total + 25:.0f} s with the ceilings; --budget-s is {options.budget_s:.0f}")


async def all_starts(options: argparse.Namespace, model: Path, ceilings: Ceilings | None) -> list[str]:
    lines: list[str] = []
    for name in options.only.split(","):
        if now_s() + 60.0 > options.ends_s and not options.tiny:
            lines.append(f"{name}: not started, the time is up")
            continue
        # one start's failure, of whatever kind, must not cost the others their time on the machine
        [told] = await asyncio.gather(one_start(options, name, model, ceilings), return_exceptions=True)
        if isinstance(told, BaseException) and not isinstance(told, PhasemeterError):
            traceback.print_exception(told)
        lines.append(told if isinstance(told, str) else f"{name}: {type(told).__name__}: {told}")
        say(lines[-1])
    return lines


def main() -> int:
    options = arguments(sys.argv[1:])
    unknown = [name for name in options.only.split(",") if name not in STARTS]
    if unknown:
        say(f"--only: {unknown[0]}: choose of {', '.join(STARTS)}")
        return 2
    if options.plan:
        show_plan(options)
        return 0
    if options.only_ceilings:
        dtypes = ("bfloat16", "float16", "float32") if options.device == "cuda" else ("float32",)
        found = measure_ceilings(options.device, dtypes, CLOCK, budget_s=options.ceilings_s)
        options.ceilings.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
        return 0
    options.ends_s = now_s() + options.budget_s
    options.mark = options.only.replace(",", "-and-") if options.only.count(",") < 3 else "all"
    (options.out / "logs").mkdir(parents=True, exist_ok=True)
    show_plan(options)
    ceilings = ceilings_of(options)
    write_fingerprint(options, ceilings)
    with tempfile.TemporaryDirectory(prefix="article-") as folder:
        model = model_folder(options, Path(folder))
        with asyncio.Runner(loop_factory=_loop()) as runner:
            lines = runner.run(all_starts(options, model, ceilings))
    shutil.rmtree(options.out / "logs")
    print(table(sorted(options.out.glob(f"{options.prefix}-*.jsonl.gz"))))
    print("\n".join(lines))
    print(f"{options.budget_s - (options.ends_s - now_s()):.0f} s in all")
    return 0 if all("blocks in" in line for line in lines) else 4


def _loop():
    import uvloop

    return uvloop.new_event_loop


if __name__ == "__main__":
    sys.exit(main())

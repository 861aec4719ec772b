"""What our plugin and vLLM's per-request metrics cost: up to three servers on one GPU, measured in turn.

    PYTHONPATH=src:SITE python3 benchmarks/h200/overhead.py --out OUT

none: neither; metrics: --enable-per-request-metrics alone; plugin: it and phasemeter-vllm. The servers start at once
and stay up together; each block visits every shape on every server, in a random order of its own, so that whatever
drifts (clocks, the host) meets all three alike. Differences are paired by block: the median of the blocks' differences
with its bootstrap interval. Writes PREFIX-NAME.jsonl.gz for `phasemeter explain`, overhead.json, and the logs.
`--tiny --device cpu` runs the whole script on a toy model.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import random
import shutil
import sys
import tempfile
from collections.abc import Generator
from functools import partial
from pathlib import Path

import msgspec
from article_engines import MODEL, START_S, TINY_CONFIG, environment_of, flags_of, model_folder
from measure_article import compress, now_s, pack_logs, say
from msgspec import Struct

from phasemeter.engines.http_request import HttpOptions
from phasemeter.engines.vllm_server import VllmServer, VllmServerOptions
from phasemeter.explain.phases import tpot_ns, ttft_ns
from phasemeter.explain.stats import interval_of_median
from phasemeter.measure.environment import fingerprint
from phasemeter.measure.header import FINGERPRINTED, Asked, make_header
from phasemeter.measure.nvml import sample_gpu
from phasemeter.measure.plan import Grid
from phasemeter.measure.session import Beside, Session
from phasemeter.measure.warmup import warm_up
from phasemeter.record.clock import MonotonicClock, anchor, cpu_ns
from phasemeter.record.engine import Outcome
from phasemeter.record.errors import PhasemeterError
from phasemeter.record.file import RunWriter
from phasemeter.record.request import Cell, Sampling
from phasemeter.record.run import Footer, Machine
from phasemeter.record.timeline import Timeline
from phasemeter.roofline.config import shape_from_config
from phasemeter.roofline.presets import load_shape

VARIANTS = ("none", "metrics", "plugin")
METRICS_OFF, METRICS_ON = "--no-enable-per-request-metrics", "--enable-per-request-metrics"
MEASURES = ("ttft_ms", "tpot_ms", "tokens_per_s")
SHAPES = (((128, 64), 1, 4), ((128, 64), 64, 128))
"""((input, output), concurrency, requests a block)."""
TINY_SHAPES = (((16, 8), 1, 3), ((16, 8), 4, 8))
KV_BYTES = 8 << 30
"""Given outright: a server that measured how much is free would take its neighbours' allocations for its own."""
GPU_RATIO = "0.25"
STOP_S = 18.0
SAMPLING = Sampling(temperature=0.0)
CLOCK = MonotonicClock()

Block = dict[tuple[int, str], dict[str, float]]
"""What one block gave: by shape's number and variant, the measures."""


class Difference(Struct, frozen=True):
    """A variant less `none`, paired by block, in the measure's unit."""

    shape: str
    measure: str
    variant: str
    blocks: int
    none: float
    with_it: float
    difference: float
    ci95: tuple[float, float] | None
    percent: float


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/h200"))
    parser.add_argument("--only", default=",".join(VARIANTS), help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--prefix", default="h200-overhead", help="first part of every file's name")
    parser.add_argument(
        "--budget-s", type=float, default=240.0, help="for the whole call, the starts included"
    )
    parser.add_argument("--blocks", type=int, default=40, help="at most so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--engine-python", default=sys.executable, help="interpreter that imports vllm")
    parser.add_argument("--sequential", action="store_true", help="start the servers one after the other")
    parser.add_argument("--tiny", action="store_true", help="a toy model and grid, to try the script out")
    return parser.parse_args(given)


class OverheadSession(Session):
    """A session whose visits are asked for from outside, in turn with those of others."""

    async def warm(self, cells: list[Cell]) -> None:
        await warm_up(self._maker, cells, 2, self._visit)

    async def visit(self, cell: Cell, requests: int) -> list[Timeline]:
        return await self._visit(cell, list(self._maker.several(cell, requests)))

    def last_words(self) -> None:
        self._write_seen()


def server(options: argparse.Namespace, name: str, model: Path) -> VllmServer:
    flags = [*flags_of(options, eager=False), METRICS_OFF if name == "none" else METRICS_ON]
    environment = environment_of(options)
    if options.device == "cuda":
        flags += ["--gpu-memory-utilization", GPU_RATIO, "--kv-cache-memory-bytes", str(KV_BYTES)]
        # caches of their own: three servers that compile at once would write the same files
        environment["VLLM_CACHE_ROOT"] = str(model.parent / f"cache-{name}")
    engine = VllmServer(
        VllmServerOptions(
            http=HttpOptions(url="", model=model.name, api="completions", clock=CLOCK),
            model=str(model),
            python=options.engine_python,
            flags=tuple(flags),
            dtype="float32" if options.device == "cpu" else "bfloat16",
            environment=environment,
            log=options.out / "logs" / f"{options.prefix}-{name}.log",
            plugin=name == "plugin",
            clock=CLOCK,
            start_s=START_S,
        )
    )
    engine.tell_with(lambda line: say(f"{name}: {line}"))
    return engine


async def started(options: argparse.Namespace, engines: dict[str, VllmServer]) -> dict[str, VllmServer]:
    """Those that came up; a failure is told and costs the others nothing."""
    if options.sequential:
        found = [(await asyncio.gather(e.start(), return_exceptions=True))[0] for e in engines.values()]
    else:
        found = await asyncio.gather(*(e.start() for e in engines.values()), return_exceptions=True)
    up: dict[str, VllmServer] = {}
    for (name, engine), failed in zip(engines.items(), found, strict=True):
        if failed is None:
            up[name] = engine
        elif isinstance(failed, PhasemeterError):
            say(f"{name}: not started: {failed}")
        else:
            raise failed
    return up


@contextlib.contextmanager
def session(
    options: argparse.Namespace, name: str, engine: VllmServer, machine: Machine
) -> Generator[OverheadSession]:
    """A run file that is open while the servers are measured in turn."""
    shape = shape_from_config(TINY_CONFIG, "tiny-ernie") if options.tiny else load_shape(MODEL)
    asked = Asked(
        started=anchor(CLOCK),
        settings={
            "start": f"overhead-{name}",
            "shapes": [list(flat(shape)) for shape in shapes_of(options)],
            "beside": sorted(options.only.split(",")),
            "seed": options.seed,
            "sampling": msgspec.to_builtins(SAMPLING),
            "driver": "closed loop",
        },
        shape=msgspec.to_builtins(shape),
        notes=engine.notes,
    )
    info = msgspec.structs.replace(engine.info, model="tiny-ernie" if options.tiny else MODEL)
    header = make_header(info, asked, CLOCK, machine)
    grid = Grid(input_tokens=(1,), output_tokens=(1,), sampling=SAMPLING)
    beside = Beside(probes=(partial(sample_gpu, 0),) if options.device == "cuda" else ())
    error, cpu = None, cpu_ns()
    with RunWriter(options.out / f"{options.prefix}-{name}.jsonl", header) as writer:
        found = OverheadSession(engine, grid, CLOCK, writer, header.run_id, beside)
        try:
            yield found
        except PhasemeterError as failed:
            error = str(failed)
            raise
        finally:
            found.last_words()
            writer.write(Footer(CLOCK.now_ns(), client_cpu_ns=cpu_ns() - cpu, error=error))


def shapes_of(options: argparse.Namespace) -> tuple[tuple[tuple[int, int], int, int], ...]:
    return TINY_SHAPES if options.tiny else SHAPES


def flat(shape: tuple[tuple[int, int], int, int]) -> tuple[int, int, int, int]:
    (new, out), concurrency, requests = shape
    return new, out, concurrency, requests


async def blocks_of(options: argparse.Namespace, sessions: dict[str, OverheadSession]) -> list[Block]:
    shapes = [flat(shape) for shape in shapes_of(options)]
    for each in sessions.values():
        await each.warm([Cell(new, out, concurrency, warmup=True) for new, out, concurrency, _ in shapes])
    gc.freeze()
    order = random.Random(f"overhead/{options.seed}")
    blocks: list[Block] = []
    longest_s = 0.0
    for number in range(options.blocks):
        began_s = now_s()
        if began_s + longest_s > options.ends_s - STOP_S:
            say(f"the time is up after {number} blocks")
            break
        block: Block = {}
        for which in order.sample(range(len(shapes)), k=len(shapes)):
            new, out, concurrency, requests = shapes[which]
            for name in order.sample(list(sessions), k=len(sessions)):
                cell = Cell(new, out, concurrency, block=number)
                block[which, name] = measures(await sessions[name].visit(cell, requests))
        blocks.append(block)
        longest_s = max(longest_s, now_s() - began_s)
    await asyncio.sleep(0.5)  # the plugin's last words
    return blocks


def measures(timelines: list[Timeline]) -> dict[str, float]:
    """Medians over one visit, and its throughput: generated tokens from the first start to the last end."""
    import numpy as np

    good = [timeline for timeline in timelines if timeline.outcome is Outcome.OK]
    if len(good) < len(timelines):
        bad = next(timeline for timeline in timelines if timeline.outcome is not Outcome.OK)
        raise PhasemeterError(f"a request failed ({bad.outcome.value}): {bad.error}")
    first = [ns for ns in map(ttft_ns, good) if ns is not None]
    each = [ns for ns in map(tpot_ns, good) if ns is not None]
    took_ns = max(timeline.end_ns for timeline in good) - min(timeline.started_ns for timeline in good)
    tokens = sum(timeline.counted_tokens() for timeline in good)
    values = (np.median(first) / 1e6, np.median(each) / 1e6, tokens / took_ns * 1e9)
    return dict(zip(MEASURES, map(float, values), strict=True))


def differences(options: argparse.Namespace, blocks: list[Block], names: list[str]) -> list[Difference]:
    """Every variant less `none`, or nothing where that one is not there."""
    import numpy as np

    found: list[Difference] = []
    if not blocks or "none" not in names:
        return found
    for which, shape in enumerate(shapes_of(options)):
        new, out, concurrency, _ = flat(shape)
        for measure in MEASURES:
            plain = np.array([block[which, "none"][measure] for block in blocks])
            for name in names:
                if name == "none":
                    continue
                more = np.array([block[which, name][measure] for block in blocks])
                middle, less = float(np.median(plain)), float(np.median(more - plain))
                found.append(
                    Difference(
                        shape=f"({new}, {out}) x {concurrency}",
                        measure=measure,
                        variant=name,
                        blocks=len(blocks),
                        none=middle,
                        with_it=float(np.median(more)),
                        difference=less,
                        ci95=interval_of_median(more - plain),
                        percent=100.0 * less / middle,
                    )
                )
    return found


def table(found: list[Difference]) -> str:
    lines = [
        "shape            measure       variant  blocks       none  difference       95 % interval        %"
    ]
    for one in found:
        span = "-" if one.ci95 is None else f"{one.ci95[0]:+9.3f} .. {one.ci95[1]:+9.3f}"
        lines.append(
            f"{one.shape:16} {one.measure:13} {one.variant:8} {one.blocks:6} {one.none:10.3f} "
            f"{one.difference:+11.3f} {span:>22} {one.percent:+7.2f}"
        )
    return "\n".join(lines)


async def measured(options: argparse.Namespace, model: Path) -> tuple[list[Block], list[str]]:
    begun_s = now_s()
    engines = {name: server(options, name, model) for name in options.only.split(",")}
    try:
        up = await started(options, engines)
        ready_s = now_s()
        say(f"{', '.join(up) or 'no server'} up after {ready_s - begun_s:.0f} s")
        if not up:
            return [], []
        machine = fingerprint(FINGERPRINTED)
        with contextlib.ExitStack() as stack:
            sessions = {
                name: stack.enter_context(session(options, name, engine, machine))
                for name, engine in up.items()
            }
            blocks = await blocks_of(options, sessions)
        say(f"{len(blocks)} blocks in {now_s() - ready_s:.0f} s")
        return blocks, list(up)
    finally:
        await asyncio.gather(*(engine.close() for engine in engines.values()))
        for name in engines:
            compress(options.out / f"{options.prefix}-{name}.jsonl")
        pack_logs(options)


def main() -> int:
    options = arguments(sys.argv[1:])
    unknown = [name for name in options.only.split(",") if name not in VARIANTS]
    if unknown:
        say(f"--only: {unknown[0]}: choose of {', '.join(VARIANTS)}")
        return 2
    options.ends_s = now_s() + options.budget_s
    options.mark = "all" if options.only == ",".join(VARIANTS) else options.only.replace(",", "-and-")
    (options.out / "logs").mkdir(parents=True, exist_ok=True)
    import uvloop

    with tempfile.TemporaryDirectory(prefix="overhead-", ignore_cleanup_errors=True) as folder:
        model = model_folder(options, Path(folder))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            blocks, names = runner.run(measured(options, model))
    shutil.rmtree(options.out / "logs")
    found = differences(options, blocks, names)
    told = {
        "servers": names,
        "differences": found,
        "blocks": [
            [{"shape": which, "variant": name, **values} for (which, name), values in sorted(block.items())]
            for block in blocks
        ],
    }
    (options.out / "overhead.json").write_bytes(msgspec.json.format(msgspec.json.encode(told)))
    print(table(found))
    print(f"{options.budget_s - (options.ends_s - now_s()):.0f} s in all")
    return 0 if found and len(names) == len(options.only.split(",")) else 4


if __name__ == "__main__":
    sys.exit(main())

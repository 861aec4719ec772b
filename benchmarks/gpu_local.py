"""Measure this machine's ceilings and one preset's prefill and decode in the local engine; write a run file.

    PYTHONPATH=src python benchmarks/gpu_local.py --out runs/gpu --device cuda

Within four minutes on a data-centre GPU: ceilings of three number formats, then ERNIE-4.5-0.3B with random
bfloat16 weights at five shapes, repeats interleaved. A table is printed; run and ceilings are files.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from functools import partial
from pathlib import Path

import msgspec

from phasemeter import __version__
from phasemeter.engines.transformers_local import LocalOptions, TransformersLocal
from phasemeter.measure.ceilings import measure_ceilings
from phasemeter.measure.environment import fingerprint
from phasemeter.measure.nvml import sample_gpu
from phasemeter.measure.plan import Grid, check_grid, planned_requests
from phasemeter.measure.session import Beside, measure
from phasemeter.record.clock import MonotonicClock, anchor, wall_text
from phasemeter.record.errors import InputError, PhasemeterError
from phasemeter.record.file import read_run
from phasemeter.record.run import SCHEMA, Header, Run
from phasemeter.roofline.floor import decode_floor, prefill_floor
from phasemeter.roofline.hardware import Ceilings, effective, match_hardware
from phasemeter.roofline.presets import load_shape, preset_config
from phasemeter.roofline.shape import ModelShape

PACKAGES = ("torch", "transformers", "msgspec", "numpy", "nvidia-ml-py")
SHAPES = "64x32,128x32,256x32,512x32,2048x16"


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for run.jsonl and ceilings.json")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--model", default="ERNIE-4.5-0.3B")
    parser.add_argument("--shapes", default=SHAPES, help="INPUTxOUTPUT, comma separated")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--warmup", type=int, default=None, help="requests a shape; default: until times settle"
    )
    parser.add_argument("--ceilings-s", type=float, default=6.0, help="time for the ceilings")
    parser.add_argument("--layers", type=int, default=None, help="fewer layers, to try the script out")
    return parser.parse_args(given)


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def run(options: argparse.Namespace) -> Run:
    out = options.out / "run.jsonl"
    if out.exists():
        raise InputError("--out", str(out), "exists already; name a new folder")
    clock = MonotonicClock()
    start_ns = clock.now_ns()
    ceilings = measure_ceilings(
        options.device, ("bfloat16", "float16", "float32"), clock, budget_s=options.ceilings_s
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "ceilings.json").write_bytes(msgspec.json.format(msgspec.json.encode(ceilings)))
    progress(f"ceilings in {(clock.now_ns() - start_ns) / 1e9:.1f} s")

    config = preset_config(options.model)
    if options.layers is not None:
        config |= {"num_hidden_layers": options.layers}
    engine = TransformersLocal(
        LocalOptions(options.model, dtype=options.dtype, device=options.device, config=config, clock=clock)
    )
    await engine.start()
    try:
        progress(
            f"import {(engine.import_ns or 0) / 1e9:.1f} s, weights {(engine.weights_ns or 0) / 1e9:.1f} s"
        )
        pairs = [tuple(map(int, shape.split("x"))) for shape in options.shapes.split(",")]
        grid = Grid(
            input_tokens=tuple(new for new, _ in pairs),
            output_tokens=tuple(out for _, out in pairs),
            paired=True,
            repeats=options.repeats,
            warmup=options.warmup,
        )
        check_grid(grid, engine.info.max_context_tokens)
        machine = fingerprint(PACKAGES)
        start = anchor(clock)
        gpu = machine.gpus[0] if machine.gpus and str(engine.info.device).startswith("cuda") else None
        row = match_hardware(gpu.name, gpu.memory_bytes) if gpu else match_hardware(machine.cpu)
        header = Header(
            schema=SCHEMA,
            run_id=f"gpu-local-{start.wall_ns // 10**9}",
            phasemeter=__version__,
            anchor=start,
            engine=engine.info,
            machine=machine,
            settings={"grid": msgspec.to_builtins(grid), "started": wall_text(start.wall_ns)},
            shape=None if options.layers is not None else msgspec.to_builtins(load_shape(options.model)),
            hardware=row.name if row else None,
            ceilings=msgspec.to_builtins(ceilings),
            planned=planned_requests(grid),
        )
        probes = (partial(sample_gpu, 0),) if gpu else ()
        await measure(engine, grid, clock, out, header, Beside(probes=tuple(probes)))
    finally:
        await engine.close()
    progress(f"all in {(clock.now_ns() - start_ns) / 1e9:.1f} s")
    return read_run(out)


def table(run: Run, ceilings: Ceilings, shape: ModelShape | None) -> str:
    """Medians a shape, beside the floors of the ceilings measured on this machine."""
    dtype = run.header.engine.dtype or "bfloat16"
    hardware = effective(None, ceilings)
    lines = [
        f"{ceilings.device}: read {_giga(ceilings.read_bandwidth_bytes_per_s)} GB/s, "
        f"copy {_giga(ceilings.copy_bandwidth_bytes_per_s)} GB/s, "
        + ", ".join(f"{name} {rate / 1e12:.2f} TFLOP/s" for name, rate in ceilings.gemm_flops_per_s.items())
        + f", launch {(ceilings.launch_ns or 0) / 1e3:.2f} us",
        "input output  n  prefill ms (floor, ratio)       decode ms/token (floor, ratio)",
    ]
    groups: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for timeline in run.requests:
        report, cell = timeline.report, timeline.cell
        if (
            cell.warmup
            or report is None
            or report.prefill_ns is None
            or not report.decode_ns
            or not report.n_tokens
        ):
            continue
        step_ms = report.decode_ns / (report.n_tokens - 1) / 1e6
        groups.setdefault((cell.input_tokens, cell.output_tokens), []).append(
            (report.prefill_ns / 1e6, step_ms)
        )
    for (new, out), times in sorted(groups.items()):
        prefill_ms, step_ms = (statistics.median(column) for column in zip(*times, strict=True))
        floors = ("", "")
        if shape is not None:
            first = prefill_floor(shape, new, hardware, dtype=dtype).seconds * 1e3
            step = decode_floor(shape, new + out // 2, hardware, dtype=dtype).seconds * 1e3
            floors = (f"({first:.3f}, {prefill_ms / first:.1f}x)", f"({step:.3f}, {step_ms / step:.1f}x)")
        lines.append(
            f"{new:5} {out:6} {len(times):2}  {prefill_ms:10.3f} {floors[0]:20} {step_ms:10.3f} {floors[1]}"
        )
    return "\n".join(lines)


def _giga(rate: float | None) -> str:
    return "?" if rate is None else f"{rate / 1e9:.1f}"


def main() -> int:
    options = arguments(sys.argv[1:])
    try:
        measured = asyncio.run(run(options))
    except PhasemeterError as error:
        progress(str(error))
        return error.exit_code
    ceilings = msgspec.convert(measured.header.ceilings, Ceilings)
    print(table(measured, ceilings, None if options.layers is not None else load_shape(options.model)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

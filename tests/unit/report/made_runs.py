"""Runs made by hand: every phase is chosen here, so a view's numbers can be checked exactly."""

from __future__ import annotations

import random

import msgspec

from phasemeter.record.clock import Anchor
from phasemeter.record.engine import EngineInfo, EngineReport, Outcome
from phasemeter.record.request import Cell, Usage
from phasemeter.record.run import SCHEMA, Footer, Header, Machine, Run
from phasemeter.record.timeline import Timeline
from phasemeter.roofline.presets import load_shape

MS = 1_000_000


def timeline(
    name: str,
    cell: Cell,
    *,
    at_ms: float,
    late: float = 0.1,
    connect: float = 0.2,
    front_end: float = 1.0,
    queue: float | None = 0.5,
    prefill: float = 20.0,
    gap: float = 5.0,
    tail: float = 0.3,
    report: bool = True,
    outcome: Outcome = Outcome.OK,
) -> Timeline:
    """One request with these phases in milliseconds; without `report` nobody saw the engine start."""
    arrived = round(at_ms * MS)
    started = arrived + round(late * MS)
    sent = started + round(connect * MS)
    first = sent + round((front_end + (queue or 0.0) + prefill) * MS)
    tokens = cell.output_tokens
    deltas = [first - started] + [round(gap * MS)] * (tokens - 1)
    last = first + round(gap * MS) * (tokens - 1)
    if outcome is not Outcome.OK:
        deltas, last, tokens = [], sent, 0
    told = EngineReport(
        source="made by hand",
        queue_ns=None if queue is None else round(queue * MS),
        prefill_ns=round(prefill * MS),
        decode_ns=round(gap * MS) * (tokens - 1),
        n_tokens=tokens,
    )
    return Timeline(
        id=name,
        cell=cell,
        max_tokens=cell.output_tokens,
        outcome=outcome,
        arrived_ns=arrived,
        started_ns=started,
        end_ns=last + round(tail * MS),
        connected_ns=started + round(connect * MS / 2),
        sent_ns=sent,
        first_byte_ns=first if tokens else None,
        deltas_ns=tuple(deltas),
        kinds="t" * len(deltas),
        counts=(1,) * len(deltas) if tokens else None,
        prompt_tokens_sent=cell.input_tokens,
        status=200 if tokens else 500,
        error=None if tokens else "broke",
        finish_reason="length" if tokens else None,
        usage=Usage(prompt_tokens=cell.input_tokens, completion_tokens=tokens) if tokens else None,
        report=told if report and tokens else None,
        in_flight=1,
    )


def header(
    model: str = "ernie-4.5-0.3b",
    *,
    weights: str = "random, seed 0",
    shape: str | None = "ernie-4.5-0.3b",
    ceilings: bool = True,
    hardware: str | None = None,
    run_id: str = "made-1",
    kind: str = "vllm",
    cpu: str = "Made processor",
) -> Header:
    """A header of a small machine whose ceilings were measured."""
    return Header(
        schema=SCHEMA,
        run_id=run_id,
        phasemeter="0.1.0",
        anchor=Anchor(clock_ns=0, wall_ns=1_796_000_000 * 10**9),
        engine=EngineInfo(
            kind=kind, model=model, version="5.24.0", dtype="float32", device="cpu", weights=weights,
            versions={"torch": "2.13.0"}, details={"attention": "sdpa"},
        ),
        machine=Machine(
            host="made", os="Linux 6.1", cpu=cpu, cores=2, memory_bytes=8 * 2**30, python="3.11.7",
            versions={"numpy": "2.4"},
        ),
        settings={"input_tokens": [64, 128, 256, 512], "output_tokens": [16], "repeats": 6, "seed": 7},
        shape=None if shape is None else msgspec.to_builtins(load_shape(shape)),
        hardware=hardware,
        ceilings={
            "device": "cpu",
            "method": "made by hand",
            "read_bandwidth_bytes_per_s": 15e9,
            "gemm_flops_per_s": {"float32": 120e9},
            "launch_ns": 4000.0,
        }
        if ceilings
        else None,
        planned=None,
    )  # fmt: skip


def run(
    *,
    lengths: tuple[int, ...] = (64, 128, 256, 512),
    output: int = 16,
    concurrency: tuple[int, ...] = (1,),
    repeats: int = 6,
    report: bool = True,
    queue: float | None = 0.5,
    prefill_per_token: float = 5.6,
    head: Header | None = None,
    failed: int = 0,
) -> Run:
    """Interleaved repeats of every shape; prefill is linear in length with a constant part, the noise is
    seeded."""
    rng = random.Random(3)
    at_ms, requests = 0.0, []
    cells = [(n, c) for c in concurrency for n in lengths]
    for block in range(-1, repeats):
        for n, c in cells:
            cell = Cell(
                input_tokens=n, output_tokens=output, concurrency=c, block=max(block, 0), warmup=block < 0
            )
            for slot in range(c):
                noise = 1 + rng.uniform(-0.02, 0.02)
                prefill = (
                    (180 + prefill_per_token * n) * noise * (1.8 if block < 0 else 1.0) * (1 + 0.1 * slot)
                )
                gap = (155 + 0.004 * n) * noise * (1 + 0.15 * (c - 1))
                made = timeline(
                    f"b{block}-{n}-{c}-{slot}", cell, at_ms=at_ms, prefill=prefill, gap=gap, report=report,
                    queue=queue, front_end=2.1 * noise, late=0.05, tail=0.4,
                )  # fmt: skip
                requests.append(made)
            at_ms = max(r.end_ns for r in requests) / MS + 1.0
    cell = Cell(input_tokens=lengths[0], output_tokens=output, block=0)
    requests += [
        timeline(f"failed-{i}", cell, at_ms=at_ms + i, outcome=Outcome.HTTP_ERROR) for i in range(failed)
    ]
    at = max((r.end_ns for r in requests), default=0)
    return Run(
        header=head or header(),
        requests=tuple(requests),
        footer=Footer(end_ns=at, client_cpu_ns=10**9),
        name="run.jsonl",
    )

"""The docs page "Validation", generated from committed data and from nothing else.

    PYTHONPATH=src python benchmarks/validation/page.py --docs docs

Every number is a prediction of something that the fit had not seen. What misses its figure is said to miss it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, median

import kernels
import own_runs
import silicon
import small_models

HERE = Path(__file__).parent
DATA = HERE / "data"
RUNS = HERE.parent / "h200"
OWN = ("h200-http-default.jsonl.gz", "h200-local-default.jsonl.gz", "h200-local-eager.jsonl.gz")

INTRO = """# Validation

This page is generated from committed data (`make validation`; scripts and data in `benchmarks/validation/`, sources and
licences in its `data/README.md`). Every figure is of predictions of what the fit had not seen: whole lengths or whole
batches left out, the form chosen anew without them. How forms are fitted and chosen:
[decision 011](decisions/011-fitted-forms.md)."""


def page() -> str:
    parts = [INTRO, *_kernels(), *_silicon(), *_small(), *_own()]
    return "\n\n".join(parts) + "\n"


def _kernels() -> list[str]:
    rows, square = kernels.left_out(DATA), kernels.quadratic(DATA)
    errors = [abs(row.error) for row in rows]
    mean, worst = fmean(errors), max(errors)
    lines = [
        [_n(row.tokens), _g(row.measured_ms), _g(row.predicted_ms), _signed(row.error), row.form]
        for row in rows
    ]
    return [
        "## Kernel sums of a prefill: ERNIE-4.5-0.3B on an A100",
        "Sums of measured kernels (vLLM 0.14, A100 80 GB SXM), each length predicted by a fit"
        " to the other lengths; the"
        " shortest and the longest are extrapolated.",
        f"**Mean error {_p(mean)} (at most 4 %: {_met(mean <= 0.04)}), largest {_p(worst)} (at most 10 %:"
        f" {_met(worst <= 0.10)}).** Beside it, a + b N + c N², no coefficient negative, fitted to the lengths up to"
        f" {kernels.SHORT}: {_g(square.predicted_ms)} ms at {_n(square.tokens)} tokens, where"
        f" {_g(square.measured_ms)} ms"
        f" were measured: {square.predicted_ms / square.measured_ms:.1f} times too much.",
        _table(["input tokens", "measured ms", "predicted ms", "error", "form chosen without it"], lines),
    ]


def _silicon() -> list[str]:
    groups = silicon.groups(DATA)
    used = [group for group in groups if group.tpot is not None and group.ttft is not None]
    tpot = median(group.tpot[0] for group in used if group.tpot)
    ttft = median(group.ttft[0] for group in used if group.ttft)
    lines = [
        [
            group.name,
            str(group.rows),
            str(group.batches),
            *_pair(group.tpot, 0.05),
            *_pair(group.ttft, 0.18),
            group.why,
        ]
        for group in groups
    ]
    failing = [group for group in used if (group.tpot and group.tpot[0] > 0.05)]
    late = [group for group in used if (group.ttft and group.ttft[0] > 0.18)]
    return [
        "## Batching: public end-to-end rows, whole batches left out",
        f"{len(groups)} set-ups of aiconfigurator's table of measured rows (dense models, aggregated serving);"
        f" {len(used)} have {silicon.LEAST_ROWS} rows and {silicon.LEAST_BATCHES} batches or more. No model shape or"
        " hardware is used: the forms count tokens.",
        f"**Median over the set-ups of the mean error: TPOT {_p(tpot)} (at most 5 %: {_met(tpot <= 0.05)}), TTFT"
        f" {_p(ttft)} (at most 18 %: {_met(ttft <= 0.18)}).** TPOT misses 5 % in {len(failing)} set-ups, TTFT 18 % in"
        f" {len(late)}.",
        "What is hard about them: (1) the smallest and the largest batch are extrapolated, from"
        " three to six batches in all."
        " (2) TTFT of these rows is not prefill alone: it holds the wait for a place in the"
        " batch and the other prompts of"
        " a closed loop, which each engine orders differently. (3) In the rows of Llama-8B at TP"
        " 4 and 8 TTFT grows 2.1 to"
        " 3.1 times with the output length alone at batch 8, and 1.2 to 1.5 times at batch 32. (4)"
        " The gb200 rows are of two"
        " lengths, of one ratio of input to output, so that foreign prefill and batch are one to a fit.",
        _table(
            ["set-up", "rows", "batches", "TPOT mean", "worst", "TTFT mean", "worst", "note"],
            lines,
        ),
    ]


def _small() -> list[str]:
    rows = small_models.rows(DATA)
    told = [abs(row.error) for row in rows if row.error is not None]
    audit = [row for row in rows if row.below_floor]
    lines = [
        [
            row.source,
            row.what,
            _g(row.tpot_ms),
            "(the host's constant)" if row.predicted_ms is None else _g(row.predicted_ms),
            "" if row.error is None else _signed(row.error),
            _g(row.host_ms),
            _g(row.ttft_ms),
            _g(row.ttft_floor_ms) + (" **below the floor**" if row.below_floor else ""),
        ]
        for row in rows
    ]
    names = ", ".join(row.source for row in audit) or "none"
    return [
        "## Small models: public rows, one host constant a machine",
        "The chip's part at 0.8 of its peak bandwidth; the host's constant from each machine's first row.",
        f"**TPOT of the other rows: {_p(max(told))} at most (10 %:"
        f" {_met(max(told) <= 0.10)}).** Rows whose TTFT is below"
        f" the physical floor are cases for `phasemeter audit`, no accuracy figures: {names}."
        " There the prompt was answered"
        " from a prefix cache, or the length is not what it says. One row a machine beside the"
        " first is little evidence.",
        _table(
            ["row", "what", "TPOT ms", "predicted ms", "error", "host ms", "TTFT ms", "TTFT floor ms"],
            lines,
        ),
    ]


def _own() -> list[str]:
    found = own_runs.phases([RUNS / name for name in OWN])
    every = [held for phase in found for held in phase.held]
    covered = sum(held.covered for held in every) / len(every)
    half = median(held.half_width for held in every)
    inner = [phase.within(edges=False) for phase in found]
    good, whole = sum(a for a, _ in inner), sum(b for _, b in inner)
    lines = [
        [
            phase.run.removesuffix(".jsonl.gz"),
            own_phase(phase.phase),
            str(phase.cells),
            "" if phase.repeatability is None else _p(phase.repeatability),
            _p(phase.limit),
            "{} of {}".format(*phase.within(edges=False)),
            "{} of {}".format(*phase.within(edges=True)),
            "" if phase.coverage is None else _p(phase.coverage),
            "" if phase.half_width is None else _p(phase.half_width),
        ]
        for phase in found
    ]
    misses = [
        [
            phase.run.removesuffix(".jsonl.gz"),
            own_phase(phase.phase),
            held.group + (" (rim)" if held.edge else ""),
            f"{held.input_tokens} → {held.output_tokens}, batch {held.batch}",
            _g(held.measured_ms),
            f"{_g(held.mid_ms)} [{_g(held.lo_ms)}, {_g(held.hi_ms)}]",
            _signed(held.error),
        ]
        for phase in found
        for held in phase.held
        if abs(held.error) > phase.limit
    ]
    return [
        "## Our own runs: ERNIE-4.5-0.3B on an H200",
        "Each input length, and each batch, predicted by a fit without it. The limit is the"
        " larger of 10 % (prefill) or 5 %"
        " (decode) and 1.5 times the split-half repeatability of the cells: the host of this"
        " machine is shared. `step` is"
        " TPOT as the engine tells it, `TPOT` as the client sees it. Cells at the rim"
        " (smallest and largest length and"
        " batch) are extrapolated.",
        f"**Inside {good} of {whole} held-out cells are within the limit (all of them: {_met(good == whole)}). 90 %"
        f" intervals cover {_p(covered)} (85 to 95 %: {_met(0.85 <= covered <= 0.95)}), median half width {_p(half)}"
        f" (at most 15 %: {_met(half <= 0.15)}).**",
        _table(
            [
                "run",
                "phase",
                "cells",
                "repeatability",
                "limit",
                "inside",
                "at the rim",
                "coverage",
                "half width",
            ],
            lines,
        ),
        "Cells beyond the limit. Likely reasons, not shown here: requests of one batch do"
        " not reach the engine in one"
        " moment, so that which of them share a step is luck; and the client's TPOT over 16"
        " tokens includes how late the"
        " first of them was delivered.",
        _table(["run", "phase", "left out", "cell", "measured ms", "predicted ms", "error"], misses),
    ]


def own_phase(phase: str) -> str:
    return {"prefill": "prefill", "decode": "TPOT", "step": "step"}[phase]


def _pair(found: tuple[float, float] | None, limit: float) -> list[str]:
    if found is None:
        return ["", ""]
    return [_p(found[0]) + (" **misses**" if found[0] > limit else ""), _p(found[1])]


def _met(reached: object) -> str:
    return "reached" if reached else "**not reached**"


def _p(share: float) -> str:
    return f"{share * 100:.1f} %"


def _signed(share: float) -> str:
    return f"{share * 100:+.1f} %"


def _g(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _n(value: int) -> str:
    return f"{value:,}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--docs", type=Path, default=HERE.parents[1] / "docs")
    options = parser.parse_args()
    (options.docs / "validation.md").write_text(page(), encoding="utf-8")
    print(f"wrote {options.docs / 'validation.md'}")


if __name__ == "__main__":
    main()

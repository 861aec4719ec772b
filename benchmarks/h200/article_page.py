"""The docs page "The article's table, re-measured", generated from run files and from nothing else.

    PYTHONPATH=src python benchmarks/h200/article_page.py --runs benchmarks/h200 --docs docs

Every number and every sentence on the page is computed from the runs, the model's shape and the hardware table. A run
that is not there leaves its columns out; a sentence whose numbers are missing is not written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from article_data import Claim, Runs, audited, claims_of, load_runs
from article_predict import predicted
from article_prose import closing, growth_lines, intro, label, say
from msgspec import Struct

from phasemeter.explain.shapes import ShapeSummary
from phasemeter.explain.stats import Dist
from phasemeter.report.budget import median, phase_median
from phasemeter.report.digits import DASH, plain, with_interval
from phasemeter.report.parts import ABSENT, Number

NAMES = {"en": "article-remeasured.md", "zh": "article-remeasured.zh.md"}


class Column(Struct, frozen=True):
    """One server start as the page names it."""

    name: str
    label: str


def page(runs: Runs, lang: str) -> str:
    """The whole page in Markdown."""
    parts = [
        f"# {say(lang, 'title')}",
        say(lang, "generated"),
        *intro(runs, lang),
        f"## {say(lang, 'claims')}",
        claims_table(runs, lang),
        say(lang, "predicted_how"),
        say(lang, "verdicts"),
        f"## {say(lang, 'audited')}",
        audited_list(lang),
        f"## {say(lang, 'right_wrong')}",
        *closing(runs, lang),
        f"## {say(lang, 'growth')}",
        *growth_lines(runs, lang),
        f"## {say(lang, 'lengths')}",
        lengths_table(runs, lang),
        f"## {say(lang, 'batches')}",
        batches_table(runs, lang),
        f"## {say(lang, 'front')}",
        front_table(runs, lang),
        f"## {say(lang, 'runs')}",
        runs_table(runs, lang),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def claims_table(runs: Runs, lang: str) -> str:
    """Claim, floor on the article's hardware, what was measured, what a fit to it says for the A100, verdict."""
    columns = columns_of(runs, lang)
    head = [say(lang, key) for key in ("claim", "lengths_head", "claimed", "floor_a100")]
    head += [say(lang, "measured_by", start=column.label) for column in columns]
    head += [say(lang, key) for key in ("predicted", "verdict")]
    found = {column.name: claims_of(runs.by_name[column.name], lang) for column in columns}
    if not found:
        return say(lang, "nothing")
    rows: list[list[str]] = []
    for row, foreseen in zip(zip(*found.values(), strict=True), predicted(runs.main_path), strict=True):
        first: Claim = row[0]
        cells = [first.what, first.lengths, plain(first.claimed_ms), plain(first.floor_claimed_ms)]
        cells += [with_interval(claim.measured) for claim in row]
        told = say(lang, "too_little") if foreseen.value is None else with_interval(foreseen)
        cells += [told, say(lang, f"verdict_{first.verdict}")]
        rows.append(cells)
    return table(head, rows)


def audited_list(lang: str) -> str:
    """Every claim of the article, sentences too, with the audit's verdict and reason."""
    lines = [f"- `{one.id}`, **{one.word}**: {one.statement}. → {one.reason}" for one in audited(lang)]
    return "\n".join(lines)


def lengths_table(runs: Runs, lang: str) -> str:
    """Prefill and TPOT by input length at batch 1."""
    columns = columns_of(runs, lang)
    shapes = {column.name: runs.lengths(column.name) for column in columns}
    lengths = sorted({shape.key.input_tokens for found in shapes.values() for shape in found})
    head = [say(lang, "input"), say(lang, "floor_here")]
    for column in columns:
        head += [f"{say(lang, 'prefill')}, {column.label}", f"TPOT, {column.label}"]
    rows: list[list[str]] = []
    for length in lengths:
        here = {name: _at(found, length) for name, found in shapes.items()}
        floors = [s.floor.prefill_floor_ms for s in here.values() if s is not None and s.floor is not None]
        cells = [f"{length:,}", plain(floors[0]) if floors else DASH]
        for column in columns:
            shape = here[column.name]
            cells += [with_interval(_prefill(shape)), with_interval(_tpot(shape))]
        rows.append(cells)
    return table(head, rows) if rows else say(lang, "nothing")


def batches_table(runs: Runs, lang: str) -> str:
    """Prefill, TPOT and tokens per second by batch."""
    columns = columns_of(runs, lang)
    shapes = {column.name: runs.batches(column.name) for column in columns}
    batches = sorted({shape.key.concurrency for found in shapes.values() for shape in found})
    head = [say(lang, "batch"), say(lang, "floor_tpot")]
    for column in columns:
        head += [f"{say(lang, 'prefill')}, {column.label}", f"TPOT, {column.label}"]
        head += [f"{say(lang, 'tokens_s')}, {column.label}"]
    rows: list[list[str]] = []
    for batch in batches:
        here = {
            name: next((s for s in found if s.key.concurrency == batch), None)
            for name, found in shapes.items()
        }
        floors = [s.floor.tpot_floor_ms for s in here.values() if s is not None and s.floor is not None]
        cells = [str(batch), plain(floors[0]) if floors else DASH]
        for column in columns:
            shape = here[column.name]
            rate = None if shape is None else shape.throughput.output_tokens_per_s
            cells += [
                with_interval(_prefill(shape)),
                with_interval(_tpot(shape)),
                DASH if rate is None else f"{rate:,.0f}",
            ]
        rows.append(cells)
    if not rows:
        return say(lang, "nothing")
    return f"{say(lang, 'batches_note')}\n\n{table(head, rows)}"


def front_table(runs: Runs, lang: str) -> str:
    """Time to first token and what of it is the front end: through HTTP and in process."""
    columns = columns_of(runs, lang)
    shapes = {column.name: runs.lengths(column.name) for column in columns}
    lengths = sorted({shape.key.input_tokens for found in shapes.values() for shape in found})
    head = [say(lang, "input")]
    for column in columns:
        head += [f"TTFT, {column.label}", f"{say(lang, 'front_end')}, {column.label}"]
    rows: list[list[str]] = []
    for length in lengths:
        cells = [f"{length:,}"]
        for column in columns:
            shape = _at(shapes[column.name], length)
            front = ABSENT if shape is None else phase_median(shape.phases.front_end)
            cells += [with_interval(_median(shape, "ttft_ms")), with_interval(front)]
        rows.append(cells)
    return table(head, rows) if rows else say(lang, "nothing")


def runs_table(runs: Runs, lang: str) -> str:
    """The files behind the page and what the checks said of each."""
    head = [say(lang, key) for key in ("file", "start", "requests", "checks")]
    rows: list[list[str]] = []
    for name, summary in runs.by_name.items():
        told = [
            f"{c.name} ({c.verdict.value}: {c.evidence})" for c in summary.checks if c.verdict.value != "ok"
        ]
        counted = f"{summary.requests.ok:,}"
        if summary.requests.failed:
            counted += f" ({say(lang, 'failed', n=summary.requests.failed)})"
        rows.append([f"`{summary.name}`", label(name, lang), counted, "; ".join(told) or say(lang, "all_ok")])
    return table(head, rows)


def columns_of(runs: Runs, lang: str) -> list[Column]:
    return [Column(name, label(name, lang)) for name in runs.by_name]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in [head, *rows]]
    return "\n".join([lines[0], "|" + " --- |" * len(head), *lines[1:]])


def _at(shapes: list[ShapeSummary], length: int) -> ShapeSummary | None:
    return next((shape for shape in shapes if shape.key.input_tokens == length), None)


def _prefill(shape: ShapeSummary | None) -> Number:
    return ABSENT if shape is None else phase_median(shape.phases.prefill)


def _tpot(shape: ShapeSummary | None) -> Number:
    return _median(shape, "tpot_ms")


def _median(shape: ShapeSummary | None, name: str) -> Number:
    dist: Dist | None = None if shape is None else getattr(shape.latency, name)
    return median(dist)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path(__file__).parent)
    parser.add_argument("--docs", type=Path, default=Path(__file__).parents[2] / "docs")
    options = parser.parse_args()
    paths = sorted(options.runs.glob("*.jsonl.gz"))
    if not paths:
        print(f"{options.runs}: holds no *.jsonl.gz run", file=sys.stderr)
        return 2
    runs = load_runs(paths)
    for lang, name in NAMES.items():
        (options.docs / name).write_text(page(runs, lang), "utf-8")
        print(options.docs / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())

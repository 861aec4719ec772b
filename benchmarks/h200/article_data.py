"""Run files as the page needs them: by server start, with the article's claims judged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from phasemeter.explain.growth import Exponent
from phasemeter.explain.roof import roofs
from phasemeter.explain.shapes import ShapeSummary
from phasemeter.explain.summary import Summary, summarise
from phasemeter.record.errors import InputError
from phasemeter.record.file import read_run
from phasemeter.report.article import HARDWARE, LIST_PREFILL_MS, MODEL, TABLE_MS, Place, article_rows
from phasemeter.report.parts import Number
from phasemeter.roofline.hardware import Hardware, find_hardware
from phasemeter.roofline.presets import load_shape

ROWS = len(LIST_PREFILL_MS) + 2 * len(TABLE_MS)
ORDER = ("http-default", "local-default", "http-eager", "local-eager")


class Claim(Struct, frozen=True):
    """One number of the article, judged alone.

    impossible   below the floor of the hardware it names: no software can be that fast
    plausible    between that floor and `most_ms`
    implausible  above `most_ms`, the slowest that we measured of it times the larger of the two chips' ratios
                 (bandwidth, arithmetic): the chip alone cannot explain it
    undecidable  not measured here
    """

    what: str
    lengths: str
    input_tokens: int
    claimed_ms: float
    floor_claimed_ms: float
    measured: Number
    most_ms: float | None
    verdict: str


class Runs(Struct, frozen=True):
    """All runs by the start they measured, the main one first."""

    by_name: dict[str, Summary]

    @property
    def main(self) -> Summary:
        """The run that stands for all where one must: through HTTP with the defaults, where there is one."""
        return next(iter(self.by_name.values()))

    def get(self, name: str) -> Summary | None:
        return self.by_name.get(name)

    def pairs(self, first: str, second: str) -> list[tuple[Summary, Summary]]:
        """Runs that differ in one thing: ("default", "eager") or ("http", "local")."""
        found: list[tuple[Summary, Summary]] = []
        for name, summary in self.by_name.items():
            other = self.by_name.get(name.replace(first, second))
            if first in name and other is not None:
                found.append((summary, other))
        return found

    def lengths(self, name: str) -> list[ShapeSummary]:
        """Shapes at batch 1 that differ in input length alone (the output that most of them have)."""
        return lengths_of(self.by_name[name])

    def batches(self, name: str) -> list[ShapeSummary]:
        """Shapes of one length that differ in batch alone."""
        shapes = [shape for shape in self.by_name[name].shapes if shape.ok]
        wide = {(s.key.input_tokens, s.key.output_tokens) for s in shapes if s.key.concurrency > 1}
        if not wide:
            return []
        chosen = max(
            wide, key=lambda pair: sum((s.key.input_tokens, s.key.output_tokens) == pair for s in shapes)
        )
        return [s for s in shapes if (s.key.input_tokens, s.key.output_tokens) == chosen]


def lengths_of(summary: Summary) -> list[ShapeSummary]:
    """Shapes at batch 1 with the output length that most of them share, by input length."""
    shapes = [shape for shape in summary.shapes if shape.ok and shape.key.concurrency == 1]
    outputs = [shape.key.output_tokens for shape in shapes]
    if not outputs:
        return []
    usual = max(set(outputs), key=lambda n: (outputs.count(n), -n))
    return sorted((s for s in shapes if s.key.output_tokens == usual), key=lambda s: s.key.input_tokens)


def load_runs(paths: Sequence[Path]) -> Runs:
    """Read and summarise every run of the article's model or shape; the start is what the run's settings name.
    Raises InputError where two runs measured the same start."""
    found: dict[str, Summary] = {}
    for path in paths:
        summary = summarise(read_run(path))
        name = start_of(summary)
        if name in found:
            raise InputError(
                "--runs", path.name, f"measures {name} as {found[name].name} does; keep one of them"
            )
        found[name] = summary
    ranked = sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    return Runs({name: found[name] for name in ranked})


def start_of(summary: Summary) -> str:
    """ "http-default" and so on, as the run's settings say; else from what the engine says of itself."""
    told = summary.header.settings.get("start")
    if isinstance(told, str):
        return told
    engine = summary.header.engine
    way = "local" if engine.kind == "vllm-local" else "http" if engine.url else engine.kind
    return f"{way}-eager" if engine.details.get("enforce_eager") == "True" else f"{way}-default"


def claims_of(summary: Summary, runs: Runs, lang: str) -> list[Claim]:
    """The article's ten numbers beside one run, each judged against all runs."""
    found = roofs(summary.header, hardware=summary.hardware_name, model_shape=MODEL)
    place = Place(load_shape(MODEL), find_hardware(HARDWARE), found[0] if found else None)
    most = _most_ms(runs, place.named, lang)
    return [
        Claim(
            what=row.what,
            lengths=row.lengths,
            input_tokens=row.input_tokens,
            claimed_ms=row.claimed_ms,
            floor_claimed_ms=row.floor_claimed.value or 0.0,
            measured=row.measured,
            most_ms=most[index],
            verdict=_verdict(row.claimed_ms, row.floor_claimed.value or 0.0, most[index]),
        )
        for index, row in enumerate(article_rows(summary, place, lang))
    ]


def scale_of(here: Hardware | None, named: Hardware) -> float | None:
    """How many times slower the named chip can be than this one, if all time were the chip's: the larger of the
    ratios of bandwidth and of bfloat16 arithmetic. At least 1."""
    if here is None:
        return None
    bandwidth = here.memory_bandwidth_bytes_per_s / named.memory_bandwidth_bytes_per_s
    peaks = [h.peak_flops_per_s.get("bfloat16") or h.peak_flops_per_s.get("float16") for h in (here, named)]
    arithmetic = peaks[0] / peaks[1] if peaks[0] and peaks[1] else 1.0
    return max(1.0, bandwidth, arithmetic)


def exponents_of(summary: Summary, metric: str) -> list[Exponent]:
    """Growth between neighbouring lengths at batch 1, of the line with the most lengths."""
    lengths = lengths_of(summary)
    if not lengths:
        return []
    output = lengths[0].key.output_tokens
    wanted = [e for e in summary.growth if e.concurrency == 1 and e.output_tokens == output]
    return [e for e in wanted if e.metric == metric]


def _most_ms(runs: Runs, named: Hardware, lang: str) -> list[float | None]:
    """For each row the slowest median over all runs, moved to the named chip at the worst."""
    seen: list[list[float]] = [[] for _ in range(ROWS)]
    for summary in runs.by_name.values():
        name = summary.hardware_name
        scale = scale_of(find_hardware(name) if name else None, named)
        for values, row in zip(
            seen, article_rows(summary, Place(load_shape(MODEL), named, None), lang), strict=True
        ):
            if row.measured.value is not None and scale is not None:
                values.append((row.measured.hi or row.measured.value) * scale)
    return [max(values, default=None) for values in seen]


def _verdict(claimed_ms: float, floor_ms: float, most_ms: float | None) -> str:
    if claimed_ms < floor_ms:
        return "impossible"
    if most_ms is None:
        return "undecidable"
    return "plausible" if claimed_ms <= most_ms else "implausible"

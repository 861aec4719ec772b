"""The table of all numbers: distributions with mean, p50, p90 and p99, each marked by how it is known."""

from __future__ import annotations

from phasemeter.explain.floors import FloorCheck
from phasemeter.explain.phases import PHASE_NAMES
from phasemeter.explain.shapes import Latency, PhaseDist, PhaseDists, ShapeSummary
from phasemeter.explain.stats import Dist
from phasemeter.explain.summary import Summary
from phasemeter.report.budget import median, phase_median
from phasemeter.report.levels import shape_text
from phasemeter.report.parts import ABSENT, Line, Mark, Number
from phasemeter.report.words import PHASES, word

_LATENCIES = ("ttft", "ttft_from_arrival", "ttfa", "tpot", "itl", "e2e")


def lines_of(summary: Summary, lang: str) -> tuple[Line, ...]:
    """All numbers of a run, the whole run first, then each shape."""
    section = word(lang, "all_shapes")
    lines = _latency_lines(section, summary.latency, lang) + _phase_lines(section, summary.phases, lang)
    lines += _load_lines(section, summary, lang)
    for shape in summary.shapes:
        lines += _shape_lines(shape, lang)
    return tuple(lines)


def _latency_lines(section: str, latency: Latency, lang: str) -> list[Line]:
    return [
        _dist_line(section, word(lang, f"{name}_name"), getattr(latency, f"{name}_ms"), Mark.OBSERVED)
        for name in _LATENCIES
    ]


def _phase_lines(section: str, phases: PhaseDists, lang: str) -> list[Line]:
    lines: list[Line] = []
    for name in PHASE_NAMES:
        phase: PhaseDist | None = getattr(phases, name)
        label = PHASES[lang].get(name) or word(lang, name)
        if name == "first":
            label = word(lang, "first_short")
        mark = phase_median(phase).mark
        lines.append(_dist_line(section, label, None if phase is None else phase.dist, mark))
    return lines


def _load_lines(section: str, summary: Summary, lang: str) -> list[Line]:
    flow, conc = summary.throughput, summary.concurrency
    pairs: list[tuple[str, float | None, str]] = [
        ("output_rate", flow.output_tokens_per_s, "1/s"),
        ("peak_rate", flow.peak_output_tokens_per_s, "1/s"),
        ("request_rate", flow.requests_per_s, "1/s"),
        ("conc_asked", conc.asked, ""),
        ("conc_max", conc.seen_max, ""),
        ("conc_mean", conc.seen_mean, ""),
        ("cold_first", summary.cold.first_ttft_ms, "ms"),
        ("cold_steady", summary.cold.steady_ttft_ms, "ms"),
        ("cold_settle", summary.cold.requests_to_settle, ""),
    ]
    return [Line(section, word(lang, key), _single(value, unit)) for key, value, unit in pairs]


def _shape_lines(shape: ShapeSummary, lang: str) -> list[Line]:
    section = shape_text(shape.key, lang)
    lines = _latency_lines(section, shape.latency, lang) + _phase_lines(section, shape.phases, lang)
    for floor, source in ((shape.floor_measured, "measured"), (shape.floor_datasheet, "datasheet")):
        lines += _floor_lines(section, floor, word(lang, f"ceiling_{source}"), lang)
    slope = shape.decode_slope
    if slope is not None:
        lo, hi = slope.ci95 if slope.ci95 is not None else (None, None)
        seen = Number(slope.us_per_token, unit="µs", lo=lo, hi=hi, n=slope.n)
        lines.append(Line(section, word(lang, "slope"), seen))
        lines.append(
            Line(section, word(lang, "slope_floor"), _single(slope.floor_us_per_token, "µs", Mark.CALCULATED))
        )
    return lines


def _floor_lines(section: str, floor: FloorCheck | None, source: str, lang: str) -> list[Line]:
    if floor is None:
        return []
    seen = Mark.OBSERVED if floor.prefill_from == "prefill" else Mark.INFERRED
    pairs: list[tuple[str, float | None, str, Mark]] = [
        ("prefill_floor", floor.prefill_floor_ms, "ms", Mark.CALCULATED),
        ("tpot_floor", floor.tpot_floor_ms, "ms", Mark.CALCULATED),
        ("mfu", None if floor.mfu_prefill is None else floor.mfu_prefill * 100, "%", seen),
        ("mbu", None if floor.mbu_decode is None else floor.mbu_decode * 100, "%", Mark.OBSERVED),
    ]
    return [
        Line(section, f"{word(lang, key)} ({source})", _single(value, unit, mark))
        for key, value, unit, mark in pairs
    ]


def _dist_line(section: str, name: str, dist: Dist | None, mark: Mark) -> Line:
    if dist is None:
        return Line(section, name, ABSENT)
    columns = tuple(Number(value, mark=mark, n=dist.n) for value in (dist.mean, dist.p50, dist.p90, dist.p99))
    return Line(section, name, median(dist, mark), columns)


def _single(value: float | None, unit: str, mark: Mark = Mark.OBSERVED) -> Number:
    return ABSENT if value is None else Number(float(value), unit=unit, mark=mark)

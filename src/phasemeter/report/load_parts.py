"""What is shown of a run under load: levels, objectives, capacity, and the points of the charts."""

from __future__ import annotations

from msgspec import Struct

from phasemeter.report.inside import TextTable


class Point(Struct, frozen=True):
    """One level in a chart: where it stands on the axis of load, and values with their intervals, None where absent.
    `line` is what a server that keeps up would complete; `steady`: the values are of a steady window."""

    load: float
    label: str
    completed: tuple[float, float | None, float | None] | None
    ttft_p50_ms: float | None
    ttft_p99: tuple[float, float | None, float | None] | None
    tpot_p50_ms: float | None
    tpot_p99: tuple[float, float | None, float | None] | None
    steady: bool


class LoadChart(Struct, frozen=True):
    """Levels of one kind. `slope`: completions a second for each unit of load while the server keeps up; `marks` are
    (load, text) of knee and largest level; `limits_ms` what was asked of TTFT and TPOT."""

    axis: str
    points: tuple[Point, ...]
    slope: float | None
    marks: tuple[tuple[float, str], ...]
    limits_ms: dict[str, float]


class LoadView(Struct, frozen=True):
    """Everything shown of the levels of one run."""

    sentences: tuple[str, ...]
    tables: tuple[TextTable, ...]
    charts: tuple[LoadChart, ...]
    alt: str

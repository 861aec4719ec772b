"""From a run's samples to the panels of "Beside the run". A run of several clocks has none: samples of two clocks do
not lie on one axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.explain.columns import ABSENT
from phasemeter.explain.load import origins_by_id
from phasemeter.explain.phases import Reading
from phasemeter.explain.readings import Readings, readings_of
from phasemeter.record.run import Run
from phasemeter.report.beside import BesideView, Panel, Series
from phasemeter.report.digits import plain
from phasemeter.report.inside import TextTable

if TYPE_CHECKING:
    from phasemeter.explain.stats import Floats

_MOST_POINTS = 800
"""A longer line is cut into so many stretches of equal time, each drawn as its largest value."""


class _Line(Struct, frozen=True):
    """Where a line comes from: the sample's name, the factor to the panel's unit, and whether it counts since the
    server began, so that its growth per second is drawn."""

    name: str
    colour: str
    scale: float = 1.0
    counts: bool = False


_PANELS: dict[str, tuple[_Line, ...]] = {
    "requests": (
        _Line("server_running_requests", "#2f7fbf"),
        _Line("server_waiting_requests", "#d9822b"),
    ),
    "kv": (_Line("server_kv_usage_ratio", "#2f7fbf", 100.0),),
    "tokens": (_Line("server_generated_tokens", "#2f7fbf", counts=True),),
    "preemptions": (_Line("server_preemptions", "#b3261e", counts=True),),
    "gpu_load": (
        _Line("gpu_utilisation_ratio", "#3f9142", 100.0),
        _Line("client_cpu_ratio", "#5b6b7b", 100.0),
    ),
    "power": (_Line("gpu_power_w", "#3f9142"),),
    "clock": (_Line("gpu_clock_sm_mhz", "#3f9142"),),
    "lag": (_Line("loop_lag_ns", "#5b6b7b", 1e-6),),
}
"""Panels from top to bottom, by the key of their words."""

_WORDS: dict[str, dict[str, str]] = {
    "en": {
        "requests": "requests",
        "kv": "KV cache, %",
        "tokens": "tokens/s",
        "preemptions": "preemptions/s",
        "gpu_load": "load, %",
        "power": "power, W",
        "clock": "clock, MHz",
        "lag": "lag, ms",
        "in_flight": "in flight, client",
        "server_running_requests": "running, server",
        "server_waiting_requests": "waiting, server",
        "server_kv_usage_ratio": "KV cache in use, server",
        "server_generated_tokens": "generated tokens, server",
        "server_preemptions": "preemptions, server",
        "gpu_utilisation_ratio": "GPU busy",
        "gpu_power_w": "GPU power",
        "gpu_clock_sm_mhz": "GPU clock",
        "client_cpu_ratio": "client's CPU",
        "loop_lag_ns": "event loop's lag",
        "title": "Samples beside the run",
        "what": "quantity",
        "n": "samples",
        "mean": "mean",
        "least": "least",
        "most": "most",
        "alt": "Lines over the time of the run: {names}.",
        "note": "On the run's clock, from the first arrival on, warm-up included. A sample of the server is what its "
        "/metrics said at that moment; what rose and fell in between is not in it.",
    },
    "zh": {
        "requests": "请求数",
        "kv": "KV 缓存，%",
        "tokens": "token/秒",
        "preemptions": "抢占/秒",
        "gpu_load": "占用，%",
        "power": "功率，W",
        "clock": "频率，MHz",
        "lag": "延迟，毫秒",
        "in_flight": "在途请求，客户端",
        "server_running_requests": "运行中，服务器",
        "server_waiting_requests": "等待中，服务器",
        "server_kv_usage_ratio": "KV 缓存占用，服务器",
        "server_generated_tokens": "生成的 token，服务器",
        "server_preemptions": "抢占，服务器",
        "gpu_utilisation_ratio": "GPU 忙碌",
        "gpu_power_w": "GPU 功率",
        "gpu_clock_sm_mhz": "GPU 频率",
        "client_cpu_ratio": "客户端 CPU",
        "loop_lag_ns": "事件循环延迟",
        "title": "运行期间的采样",
        "what": "量",
        "n": "样本数",
        "mean": "均值",
        "least": "最小",
        "most": "最大",
        "alt": "按运行时间的曲线：{names}。",
        "note": "按运行的时钟，自首个到达起，含预热。服务器的样本是其 /metrics 在该时刻所报；其间的起落不在其中。",
    },
}


def beside_of(run: Run, lang: str, requests: Sequence[Reading] | None = None) -> BesideView | None:
    """The panels in "en" or "zh"; None where fewer than two samples were taken, or the run is of several clocks.
    `requests` are the run's own where they were read already."""
    if len(run.samples) < 2:
        return None
    readings = readings_of(run.requests if requests is None else requests)
    ids = readings.columns.ids
    if not ids or len(set(origins_by_id(ids, run.header.run_id).values())) > 1:
        return None
    words = _WORDS[lang]
    zero_ns = int(readings.told("arrived").min())
    panels: list[Panel] = []
    for key, lines in _PANELS.items():
        series = [made for line in lines if (made := _series(run, line, zero_ns, words)) is not None]
        if key == "requests":
            series.insert(0, _in_flight(readings, zero_ns, words))
        if key == "preemptions" and not any(any(made.values) for made in series):
            continue  # the usual case needs no panel
        if series:
            panels.append(Panel(words[key], tuple(series)))
    names = ", ".join(made.label for panel in panels for made in panel.series)
    return BesideView(tuple(panels), _table(panels, words), words["alt"].format(names=names), words["note"])


def _series(run: Run, line: _Line, zero_ns: int, words: dict[str, str]) -> Series | None:
    import numpy as np

    found = sorted((s.t_ns, s.values[line.name]) for s in run.samples if line.name in s.values)
    if len(found) < 2:
        return None
    t_s = np.asarray([(t_ns - zero_ns) / 1e9 for t_ns, _ in found])
    values = np.asarray([value for _, value in found]) * line.scale
    if line.counts:
        t_s, values = _rates(t_s, values)
    return _made(words[line.name], line.colour, t_s, values)


def _rates(t_s: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Growth per second up to each sample but the first; a count that fell (a new server) grew by nothing known and
    is left out."""
    import numpy as np

    spans, grown = np.diff(t_s), np.diff(counts)
    kept = (spans > 0) & (grown >= 0)
    return t_s[1:][kept], grown[kept] / spans[kept]


def _in_flight(readings: Readings, zero_ns: int, words: dict[str, str]) -> Series:
    """Requests between sent (else started) and end; an end at the very moment of a start comes first."""
    import numpy as np

    sent = readings.told("sent")
    starts = np.where(sent == ABSENT, readings.told("started"), sent)
    ends = np.maximum(starts, readings.told("end"))
    times = np.concatenate((ends, starts))
    steps = np.concatenate((-np.ones(len(ends)), np.ones(len(starts))))
    order = np.argsort(times, kind="stable")
    t_s = (times[order] - zero_ns) / 1e9
    return _made(words["in_flight"], "#222b35", t_s, np.cumsum(steps[order]), steps=True)


def _made(label: str, colour: str, t_s: Floats, values: Floats, *, steps: bool = False) -> Series:
    t_s, values = _thinned(t_s, values)
    return Series(label, colour, tuple(map(float, t_s)), tuple(map(float, values)), steps=steps)


def _thinned(t_s: Floats, values: Floats) -> tuple[Floats, Floats]:
    import numpy as np

    if len(t_s) <= _MOST_POINTS or t_s[-1] <= t_s[0]:
        return t_s, values
    stretch = np.floor((t_s - t_s[0]) / (t_s[-1] - t_s[0]) * (_MOST_POINTS - 1)).astype(np.int64)
    first = np.flatnonzero(np.diff(stretch, prepend=-1))
    return t_s[first], np.maximum.reduceat(values, first)


def _table(panels: Sequence[Panel], words: dict[str, str]) -> TextTable:
    rows: list[tuple[str, ...]] = []
    for panel in panels:
        unit = panel.axis.rpartition(", ")[2].rpartition("，")[2]
        for made in panel.series:
            if made.steps or not made.values:
                continue  # its mean over steps is not that over time; concurrency tells it
            shown: list[Callable[[Sequence[float]], float]] = [_mean, min, max]
            label = made.label if unit == panel.axis and "/" not in unit else f"{made.label}, {unit}"
            rows.append((label, f"{len(made.values):,}", *(plain(of(made.values)) for of in shown)))
    heads = tuple(words[key] for key in ("what", "n", "mean", "least", "most"))
    return TextTable(words["title"], heads, tuple(rows))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)

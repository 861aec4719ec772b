"""One picture of a run as plain SVG: the budget of its shapes, and prefill against length with its floor.

Written by hand so that it needs no browser and no plotting library; it follows the reader's light or dark
theme.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from phasemeter.report.digits import plain, power, with_unit
from phasemeter.report.levels import lowest
from phasemeter.report.palette import COLOURS
from phasemeter.report.parts import Mark, Number, RunView, ShapeView, View
from phasemeter.report.words import say, word

WIDTH, TOP = 980, 104
LEFT_BAR, BAR_SPAN, PITCH, BAR = 120, 330, 46, 32
PLOT_X, PLOT_W = 610, 340
MOST_SHAPES = 8

_STYLE = """
text { font-family: system-ui, "Segoe UI", Roboto, "Noto Sans", "PingFang SC", "Noto Sans CJK SC",
sans-serif; } .bg { fill: #ffffff; stroke: #d9dfe6; } .ink { fill: #1b2430; } .soft { fill: #586675; }
.grid { stroke: #e1e6ec; fill: none; } .floor { stroke: #1b2430; fill: none; stroke-dasharray: 6 4;
stroke-width: 1.5; } .loud { fill: #9a5b00; } .onbar { fill: #ffffff; }
@media (prefers-color-scheme: dark) {
  .bg { fill: #181f27; stroke: #2d3844; } .ink { fill: #e6ebf0; } .soft { fill: #9fadbb; }
  .grid { stroke: #2b3641; } .floor { stroke: #e6ebf0; } .loud { fill: #f2b858; }
}
"""


def picture_svg(view: View) -> str:
    """The first run of the view as an SVG document. Shapes of the lowest level of load are drawn, at most
    eight."""
    return "\n".join(_picture(view.runs[0], view.lang))


def _picture(run: RunView, lang: str) -> Iterator[str]:
    shapes = _chosen(run.shapes)
    height = max(TOP + PITCH * len(shapes) + 96, 400)
    title = say(lang, "picture_title", model=run.title)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">'
    )
    yield f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    yield f'<rect class="bg" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>'
    yield _text(28, 36, title, size=19, cls="ink", weight=600)
    yield _text(28, 58, say(lang, "picture_sub", machine=run.device, engine=run.engine), size=13)
    loud = " · ".join(f"{fact.label}: {fact.text}" for fact in run.facts if fact.loud)
    if loud:
        yield _text(WIDTH - 28, 58, loud, size=13, cls="loud", anchor="end")
    if not shapes:
        yield _text(28, TOP, say(lang, "run_empty"), size=14, cls="ink")
    else:
        yield _text(28, TOP - 12, f"{word(lang, 'budget')} (ms)", size=14, cls="ink", weight=600)
        yield from _bars(shapes)
        yield from _legend(shapes, height - 44, lang)
        yield from _plot(run, shapes, height, lang)
    yield "</svg>\n"


def _chosen(shapes: Sequence[ShapeView]) -> list[ShapeView]:
    seen = [shape for shape in shapes if shape.total.value]
    low = lowest(seen)
    return [shape for shape in seen if shape.asked == low][:MOST_SHAPES]


def _bars(shapes: Sequence[ShapeView]) -> Iterator[str]:
    longest = max(shape.total.value or 0.0 for shape in shapes)
    for i, shape in enumerate(shapes):
        y = TOP + PITCH * i
        yield _text(LEFT_BAR - 10, y + 21, shape.short, size=13, cls="ink", anchor="end")
        for segment in shape.segments:
            value = segment.number.value
            if value is None or value <= 0:
                continue
            x = LEFT_BAR + segment.start_ms / longest * BAR_SPAN
            width = value / longest * BAR_SPAN
            if width < 0.05:
                continue
            tip = f"{escape(segment.label)} {with_unit(segment.number)}"
            yield (
                f'<rect x="{x:.1f}" y="{y}" width="{width:.2f}" height="{BAR}" '
                f'fill="{COLOURS[segment.phase]}">'
                f"<title>{tip}</title></rect>"
            )
            if width > 44:
                yield _text(x + width / 2, y + 20, plain(value), size=12, cls="onbar", anchor="middle")
        end = LEFT_BAR + (shape.total.value or 0.0) / longest * BAR_SPAN
        yield _text(end + 8, y + 21, plain(shape.total.value), size=13, cls="ink", weight=600)


def _legend(shapes: Sequence[ShapeView], y: float, lang: str) -> Iterator[str]:
    names: dict[str, str] = {}
    marks: dict[str, Mark] = {}
    for shape in shapes:
        for segment in shape.segments:
            if segment.number.value is not None:
                names[segment.phase] = segment.label
                marks[segment.phase] = segment.number.mark
    x = 28.0
    for phase in COLOURS:
        if phase not in names:
            continue
        label = ("~ " if marks[phase] is Mark.INFERRED else "") + names[phase]
        yield f'<rect x="{x:.0f}" y="{y - 10}" width="11" height="11" rx="2" fill="{COLOURS[phase]}"/>'
        yield _text(x + 16, y, label, size=12)
        x += 30 + _width(label, 12)
    yield _text(28, y + 22, f"{word(lang, 'budget_note')} {word(lang, 'legend')}", size=11)


def _plot(run: RunView, shapes: Sequence[ShapeView], height: int, lang: str) -> Iterator[str]:
    split = all(shape.split for shape in shapes)
    seen = {s.input_tokens: (s.prefill if split else s.ttft) for s in shapes}
    points = {x: n for x, n in sorted(seen.items()) if n.value is not None and n.value > 0}
    title = word(lang, "prefill_chart" if split else "ttft_name")
    yield _text(PLOT_X - 40, TOP - 12, f"{title} (ms)", size=14, cls="ink", weight=600)
    if not points:
        return
    floors = {s.input_tokens: s.prefill_floor.value for s in shapes if s.prefill_floor.value}
    ys = [n.value or 0.0 for n in points.values()] + list(floors.values())
    ys += [edge for n in points.values() for edge in (n.lo, n.hi) if edge is not None and edge > 0]
    across = _Scale(min(points), max(points), PLOT_X + 20, PLOT_X + PLOT_W - 30)
    up = _Scale(min(ys), max(ys), height - 130.0, TOP + 24.0)
    for tick in _decades(min(ys), max(ys)):
        level = f"{up(tick):.1f}"
        yield f'<line class="grid" x1="{PLOT_X}" x2="{PLOT_X + PLOT_W}" y1="{level}" y2="{level}"/>'
        yield _text(PLOT_X - 8, up(tick) + 4, f"{tick:,.6g}", size=11, anchor="end")
    for x in points:
        yield _text(across(x), height - 104, f"{x:,}", size=11, anchor="middle")
    yield _text(PLOT_X + PLOT_W / 2, height - 86, word(lang, "axis_input"), size=12, anchor="middle")
    if floors:
        yield _path([(across(x), up(y or 1.0)) for x, y in sorted(floors.items())], "floor")
        source = word(lang, "floor_measured" if run.ceilings_measured else "floor_datasheet")
        yield f'<line class="floor" x1="{PLOT_X + 10}" x2="{PLOT_X + 40}" y1="{TOP + 8}" y2="{TOP + 8}"/>'
        yield _text(PLOT_X + 48, TOP + 12, source, size=12)
    yield from _measured(points, across, up)
    yield from _exponents(run, points, across, up, "prefill" if split else "first")


def _measured(points: dict[int, Number], across: _Scale, up: _Scale) -> Iterator[str]:
    colour = COLOURS["prefill"]
    line = " ".join(f"{across(x):.1f},{up(n.value or 1.0):.1f}" for x, n in points.items())
    yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
    for x, n in points.items():
        if n.lo is not None and n.hi is not None and n.lo > 0:
            yield (
                f'<line x1="{across(x):.1f}" x2="{across(x):.1f}" y1="{up(n.lo):.1f}" y2="{up(n.hi):.1f}" '
                f'stroke="{colour}" stroke-width="1.5"/>'
            )
        yield f'<circle cx="{across(x):.1f}" cy="{up(n.value or 1.0):.1f}" r="4.5" fill="{colour}"/>'


def _exponents(
    run: RunView, points: dict[int, Number], across: _Scale, up: _Scale, metric: str
) -> Iterator[str]:
    low = lowest(run.shapes)
    done: set[int] = set()
    for entry in run.growth:
        near, far = points.get(entry.low), points.get(entry.high)
        if entry.metric != metric or entry.asked != low or near is None or far is None or entry.low in done:
            continue
        done.add(entry.low)
        x = (across(entry.low) + across(entry.high)) / 2
        y = (up(near.value or 1.0) + up(far.value or 1.0)) / 2
        yield _text(x - 6, y - 8, f"n^{power(entry.exponent.value or 0.0)}", size=12, cls="ink", anchor="end")


class _Scale:
    """A logarithmic axis."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        pad = 0.0 if high > low else 1.0
        self._low, self._span = math.log(low) - pad / 2, math.log(high) - math.log(low) + pad
        self._start, self._length = start, end - start

    def __call__(self, value: float) -> float:
        return self._start + (math.log(value) - self._low) / self._span * self._length


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    steps = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [step * 10.0**exponent for exponent in range(first, last + 1) for step in steps]
    return [tick for tick in ticks if low * 0.95 <= tick <= high * 1.05]


def _path(points: Sequence[tuple[float, float]], cls: str) -> str:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{cls}" points="{line}"/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int,
    cls: str = "soft",
    weight: int = 400,
    anchor: str = "start",
) -> str:
    return (
        f'<text class="{cls}" x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _width(text: str, size: int) -> float:
    """A guess at the width of a text in pixels: wide for Chinese, a little more than half its size
    otherwise."""
    return sum(size if ord(letter) > 0x2E80 else size * 0.56 for letter in text)

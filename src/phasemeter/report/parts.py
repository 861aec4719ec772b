"""The frozen pieces of a `View`: everything a page shows, as values with unit and basis.

Renderers (terminal, HTML, picture) read these and compute nothing. Times are milliseconds unless a name says
otherwise; an absent value is None and is shown as a dash, never as 0.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from phasemeter.explain.shape_key import Asked
from phasemeter.report.beside import BesideView
from phasemeter.report.inside import InsideView
from phasemeter.report.load_parts import LoadView


class Mark(StrEnum):
    """How a number is known."""

    OBSERVED = "observed"
    """Read from stamps, or reported by the engine in its own clock."""
    INFERRED = "inferred"
    """Computed from other numbers and a stated assumption."""
    CALCULATED = "calculated"
    """A floor: arithmetic on the model's shape and the machine's ceilings; nothing was timed."""
    ABSENT = "absent"


class Number(Struct, frozen=True):
    """One number: value, unit, how it is known, and where there is one its 95 % interval and sample count."""

    value: float | None
    unit: str = "ms"
    mark: Mark = Mark.OBSERVED
    lo: float | None = None
    hi: float | None = None
    n: int | None = None


ABSENT = Number(None, mark=Mark.ABSENT)


class Fact(Struct, frozen=True):
    """One line of the header card; `loud` facts must not be overlooked (random weights)."""

    label: str
    text: str
    loud: bool = False


class CheckLine(Struct, frozen=True):
    """One check of the run: name in words, verdict (ok, warn, invalid), evidence and how to mend it."""

    name: str
    verdict: str
    evidence: str
    mend: str


class Segment(Struct, frozen=True):
    """One phase in the budget of a shape: its mean, where it starts in the bar, and its share of the
    whole."""

    phase: str
    label: str
    number: Number
    start_ms: float
    share: float | None


class Part(Struct, frozen=True):
    """One piece of an attribution: what the time of a phase goes to."""

    name: str
    label: str
    number: Number
    share: float | None


class Attributed(Struct, frozen=True):
    """A phase's time split into arithmetic, memory traffic and the rest, with the sentence that says what
    binds."""

    phase: str
    label: str
    parts: tuple[Part, ...]
    bound: str
    below_floor: bool = False
    note: str = ""


class Histogram(Struct, frozen=True):
    """Counts of gaps between tokens in bins of equal ratio; `edges_ms` has one entry more than `counts`."""

    edges_ms: tuple[float, ...]
    counts: tuple[int, ...]


class Row(Struct, frozen=True):
    """One request in the timeline: per phase (name, start, duration, mark), milliseconds from its own
    arrival."""

    name: str
    outcome: str
    arrived_ms: float
    """From the first arrival of the run."""
    spans: tuple[tuple[str, float, float, Mark], ...]
    tokens: int
    warmup: bool


SHAPE_COLUMNS = (
    "input",
    "output",
    "conc",
    "n",
    "ttft",
    "prefill_ms",
    "floor",
    "ratio",
    "tpot_ms",
    "floor",
    "ratio",
)
"""Columns of the table of shapes, wherever it is wide enough for one row a shape."""


class ShapeView(Struct, frozen=True):
    """All that is shown of one shape (input tokens, output tokens, level of load), or of a bucket of shapes: then
    the lengths are medians and `lengths` names their ranges."""

    label: str
    short: str
    input_tokens: int
    output_tokens: int
    asked: Asked
    lengths: tuple[str, str]
    one_shape: bool
    n: int
    failed: int
    ttft: Number
    prefill: Number
    """Absent where nobody saw the engine start: TTFT is never called prefill."""
    prefill_floor: Number
    """On measured ceilings where there are any, else the datasheet's."""
    prefill_floor_measured: Number
    prefill_floor_datasheet: Number
    prefill_ratio: Number
    tpot: Number
    tpot_floor: Number
    tpot_floor_measured: Number
    tpot_floor_datasheet: Number
    tpot_ratio: Number
    e2e: Number
    mean_context: int
    """Tokens in the cache in the middle of the answer."""
    bound: str
    segments: tuple[Segment, ...]
    """Phases of the mean budget, in order; those that were seen add up to `total`."""
    total: Number
    split: bool
    """Whether prefill was told apart; else `first` stands for queue, prefill and front end together."""
    attributed: tuple[Attributed, ...]
    itl: Histogram | None
    rows: tuple[Row, ...]
    rows_left_out: int


class Growth(Struct, frozen=True):
    """Local exponent between two neighbouring lengths, with its interval, and the sentence that reads it."""

    metric: str
    low: int
    high: int
    output_tokens: int | None
    asked: Asked
    exponent: Number
    sentence: str


class Cold(Struct, frozen=True):
    """The first request beside the steady ones, told apart."""

    first_ttft: Number
    steady_ttft: Number
    requests_to_settle: Number
    sentence: str


class Line(Struct, frozen=True):
    """One line of the table of all numbers."""

    section: str
    name: str
    number: Number
    columns: tuple[Number, ...] = ()
    """mean, p50, p90, p99 where the number is a distribution."""


class ArticleRow(Struct, frozen=True):
    """One claim of the article beside what was measured here."""

    what: str
    lengths: str
    """Input tokens, and output tokens where the claim names them."""
    input_tokens: int
    output_tokens: int | None
    claimed_ms: float
    measured: Number
    floor_claimed: Number
    """Floor on the hardware that the article names."""
    floor_here: Number
    claimed_ratio: Number
    measured_ratio: Number


class ArticleView(Struct, frozen=True):
    """The article's table, and in plain words what may be compared and what may not."""

    title: str
    rows: tuple[ArticleRow, ...]
    notes: tuple[str, ...]


class RunView(Struct, frozen=True):
    """Everything shown of one run."""

    name: str
    title: str
    device: str
    engine: str
    facts: tuple[Fact, ...]
    settings: tuple[Fact, ...]
    verdict: str
    verdict_text: str
    checks: tuple[CheckLine, ...]
    counts: tuple[Fact, ...]
    shapes: tuple[ShapeView, ...]
    growth: tuple[Growth, ...]
    cold: Cold | None
    closing: tuple[str, ...]
    lines: tuple[Line, ...]
    article: ArticleView | None
    ceilings_measured: bool
    inside: InsideView | None = None
    beside: BesideView | None = None
    load: LoadView | None = None


class View(Struct, frozen=True):
    """A whole page: its language and one or several runs, each whole; they are never merged."""

    lang: str
    title: str
    runs: tuple[RunView, ...]
    warnings: tuple[str, ...] = ()

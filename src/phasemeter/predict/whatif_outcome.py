"""What a simulation saw, and what can be asked of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from phasemeter.record.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_MOST_SAMPLES = 4096


class Ledger:
    """Moments of every request, in seconds, and sums over time. Filled in by replicas, in order of time."""

    def __init__(self, n: int) -> None:
        self.issued_s = [0.0] * n
        """When the client began to wait for it."""
        self.arrived_s = [0.0] * n
        """When the engine had it: later by the front end's time."""
        self.scheduled_s = [-1.0] * n
        self.first_s = [-1.0] * n
        self.ended_s = [-1.0] * n
        self.cached = [0] * n
        self.preemptions = [0] * n
        self.replica = [0] * n
        self.gaps: list[tuple[float, int]] = []
        """(seconds between two tokens of a sequence, how many such gaps)."""
        self._last: dict[int, float] = {}
        self._area = [0.0, 0.0]
        self._now_s = 0.0
        self.waiting = self.present = 0

    def arrived(self, i: int, now_s: float) -> None:
        """It is in the engine's queue."""
        self._pass(now_s)
        self.arrived_s[i] = now_s
        self.waiting += 1
        self.present += 1

    def admitted(self, i: int, now_s: float, cached: int) -> None:
        """Its first step, or the first one after a preemption, begins."""
        self._pass(now_s)
        self.waiting -= 1
        if self.scheduled_s[i] < 0.0:
            self.scheduled_s[i] = now_s
            self.cached[i] = cached

    def token(self, i: int, now_s: float) -> None:
        """A token at the end of a prompt; those of plain decode steps are told by `decoded`."""
        if self.first_s[i] < 0.0:
            self.first_s[i] = now_s
        before = self._last.pop(i, None)
        if before is not None:
            self.gaps.append((now_s - before, 1))

    def decoded(self, seconds: float, tokens: int) -> None:
        """So many tokens, each `seconds` after its sequence's one before."""
        if tokens:
            self.gaps.append((seconds, tokens))

    def preempted(self, i: int, now_s: float) -> None:
        """It waits again; its last token, if it had one, came at `now_s` or before the preemption before."""
        self._pass(now_s)
        self.preemptions[i] += 1
        self.waiting += 1
        if self.first_s[i] >= 0.0:
            self._last.setdefault(i, now_s)

    def ended(self, i: int, now_s: float) -> None:
        """Its last token is there."""
        self._pass(now_s)
        self.ended_s[i] = now_s
        self.present -= 1

    def areas(self) -> tuple[float, float]:
        """Integrals over time of requests present, and of those waiting, in request seconds."""
        return self._area[0], self._area[1]

    def _pass(self, now_s: float) -> None:
        past = now_s - self._now_s
        if past > 0.0:
            self._area[0] += past * self.present
            self._area[1] += past * self.waiting
            self._now_s = now_s


class Series:
    """Running, waiting and used blocks over time, thinned out to a few thousand samples as it grows."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, int, int, int]] = []
        self._stride = self._seen = 0

    def due(self) -> bool:
        """Whether the coming event is to be sampled."""
        self._seen += 1
        return self._seen > self._stride

    def add(self, row: tuple[float, int, int, int]) -> None:
        """One sample: (seconds, running, waiting, used blocks)."""
        self._seen = 0
        self.rows.append(row)
        if len(self.rows) > _MOST_SAMPLES:
            del self.rows[::2]
            self._stride = 2 * self._stride + 1


class Outcome(Struct, frozen=True, eq=False):
    """What came of the requests, in the order they were given; float arrays of seconds of length n.

    issued_s, arrived_s, scheduled_s, first_s, ended_s: moments (see `Ledger`). `gaps_s` and `gap_counts`: all gaps
    between tokens, a value and how often it came. `series`: columns time, running, waiting, used blocks. `present` and
    `waiting`: means over the time from the first issue to the last end. `busy_ratio`: share of that time in which a
    replica computes, mean over replicas. `kv_left` blocks in use at the end: 0 unless the books are wrong.
    """

    issued_s: Floats
    arrived_s: Floats
    scheduled_s: Floats
    first_s: Floats
    ended_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    preemptions: Ints
    replica: Ints
    gaps_s: Floats
    gap_counts: Ints
    series: Floats
    present: float
    waiting: float
    busy_ratio: float
    kv_left: int

    @property
    def requests(self) -> int:
        """How many."""
        return int(self.issued_s.size)

    @property
    def lasted_s(self) -> float:
        """From the first issue to the last end."""
        return float(self.ended_s.max() - self.issued_s.min())

    def values_s(self, metric: str) -> Floats:
        """Seconds of every request: `ttft` (from its issue, which is its intended arrival), `ttft_from_arrival` (the
        same here: a simulated client is never late), `e2e`, `queue`, `front_end`, `prefill`, and `tpot`, of requests
        with two or more tokens. Raises InputError for another name."""
        if metric == "tpot":
            many = self.output_tokens > 1
            return (self.ended_s - self.first_s)[many] / (self.output_tokens[many] - 1)
        ends = {
            "ttft": (self.issued_s, self.first_s),
            "ttft_from_arrival": (self.issued_s, self.first_s),
            "e2e": (self.issued_s, self.ended_s),
            "front_end": (self.issued_s, self.arrived_s),
            "queue": (self.arrived_s, self.scheduled_s),
            "prefill": (self.scheduled_s, self.first_s),
        }
        if metric not in ends:
            raise InputError("metric", metric, f"use one of {', '.join((*ends, 'tpot', 'itl'))}")
        start, end = ends[metric]
        return end - start

    def from_request(self, first: int) -> Outcome:
        """Without the requests before `first` (the time in which an empty engine fills); sums over time and gaps stay
        those of the whole."""
        from msgspec.structs import replace

        names = ("issued_s", "arrived_s", "scheduled_s", "first_s", "ended_s", "input_tokens", "output_tokens",
                 "cached_tokens", "preemptions", "replica")  # fmt: skip
        return replace(self, **{name: getattr(self, name)[first:] for name in names})

    def quantile_ms(self, metric: str, share: float) -> float | None:
        """The least value that `share` of the requests (for `itl`: of all gaps) do not exceed, in milliseconds; None
        where there are no values."""
        import numpy as np

        if metric == "itl":
            return _weighted(self.gaps_s, self.gap_counts, share)
        values = self.values_s(metric)
        return float(np.quantile(values, share, method="inverted_cdf")) * 1e3 if values.size else None


def _weighted(values: Floats, counts: Ints, share: float) -> float | None:
    import numpy as np

    if not values.size:
        return None
    order = np.argsort(values, kind="stable")
    heap = np.cumsum(counts[order])
    at = int(np.searchsorted(heap, share * float(heap[-1]) - 1e-9, side="left"))
    return float(values[order[min(at, values.size - 1)]]) * 1e3

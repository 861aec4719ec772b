"""All requests of a run as numpy columns: how ten million tokens are read in seconds and fit into memory.

`columns_of` goes once over the timelines, some thousands at a time, and keeps a few integers of each request and every
gap between its tokens. What is derived from them (phases, latencies) stands in `explain.readings`; `phases.read` says
the same of one request and is what the tests hold this against.

Integers are exact: a record holds none above 2^60, so their sums and differences fit into 64 bits.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, repeat
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from phasemeter.record.engine import EngineReport, Outcome
from phasemeter.record.request import Cell, Usage
from phasemeter.record.timeline import GENERATED_LETTERS, Timeline

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

ABSENT = -(2**63)
"""Stands for None in a column of integers; no value of a record is as low."""

OUTCOMES = tuple(Outcome)
"""What the column `outcome` counts in."""

_TOLD = (
    *(
        "arrived",
        "started",
        "end",
        "connected",
        "sent",
        "first_byte",
        "max_tokens",
        "prompt_sent",
        "in_flight",
    ),
    *(
        "cell",
        "outcome",
        "given_up",
        "counts_told",
        "report_told",
        "usage_prompt",
        "usage_completion",
        "usage_cached",
    ),
    *("queue", "prefill", "engine_decode", "engine_e2e", "engine_before", "engine_after"),
    *("engine_cached", "engine_tokens"),
)
_FROM_PIECES = ("first_token", "last_token", "first_answer", "pieces", "counted", "thought", "disordered")
FIELDS = (*_TOLD, *_FROM_PIECES)
"""The columns. Stamps are ns on the run's clock; `first_token` and `last_token` of the generated pieces, `first_answer`
of the first that is no reasoning; `pieces` counts the generated ones, `counted` their tokens; `cell` is a place in
`Columns.cells`. `given_up`, `counts_told`, `report_told`, `thought` (any reasoning) and `disordered` (see
`timeline.broken_invariants`) are 0 or 1."""

_CHUNK_REQUESTS, _CHUNK_PIECES = 8192, 500_000
_ANSWER_LETTERS, _REASONING_LETTER = "tc", "g"


class Columns(Struct, frozen=True, eq=False):
    """Requests in columns, in the order of `timelines`. `gaps` holds the gaps between generated pieces of all requests
    one behind the other, those of request i from `offsets[i]` to `offsets[i + 1]`; `gap_tokens` the tokens of the piece
    that ended each gap (1 where nobody told), None where every one is 1."""

    timelines: Sequence[Timeline]
    ids: list[str]
    cells: tuple[Cell, ...]
    table: dict[str, Ints]
    gaps: Ints
    gap_tokens: Ints | None
    offsets: Ints


def columns_of(timelines: Sequence[Timeline]) -> Columns:
    """Read `timelines` once."""
    import numpy as np

    n = len(timelines)
    table = {name: np.empty(n, dtype=np.int64) for name in FIELDS}
    cells: dict[Cell, int] = {}
    ids: list[str] = []
    gaps, tokens = array("q"), _Tokens()
    for chunk in _chunks(timelines):
        rows = slice(len(ids), len(ids) + len(chunk))
        told = np.array([_told(t, cells) for t in chunk], dtype=np.int64).reshape(len(chunk), len(_TOLD))
        for name, column in zip(_TOLD, told.T, strict=True):
            table[name][rows] = column
        pieces = _pieces(chunk)
        found, gaps_found, tokens_found = _read(pieces, {name: table[name][rows] for name in _TOLD})
        for name, column in found.items():
            table[name][rows] = column
        gaps.frombytes(gaps_found.tobytes())
        tokens.add(tokens_found)
        ids += [t.id for t in chunk]
    sizes = np.maximum(table["pieces"] - 1, 0)
    return Columns(
        timelines=timelines,
        ids=ids,
        cells=tuple(cells),
        table=table,
        gaps=np.frombuffer(gaps, dtype=np.int64),
        gap_tokens=tokens.whole(),
        offsets=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes))),
    )


class _Tokens:
    """Tokens by gap, stored from the first that is not one on."""

    def __init__(self) -> None:
        self._ones = 0
        self._others = array("q")

    def add(self, tokens: Ints) -> None:
        if not self._others and bool((tokens == 1).all()):
            self._ones += tokens.size
            return
        if not self._others:
            self._others.extend(repeat(1, self._ones))
        self._others.frombytes(tokens.tobytes())

    def whole(self) -> Ints | None:
        import numpy as np

        return np.frombuffer(self._others, dtype=np.int64) if self._others else None


def _chunks(timelines: Iterable[Timeline]) -> Iterator[list[Timeline]]:
    chunk: list[Timeline] = []
    pieces = 0
    for timeline in timelines:
        chunk.append(timeline)
        pieces += len(timeline.deltas_ns)
        if pieces >= _CHUNK_PIECES or len(chunk) >= _CHUNK_REQUESTS:
            yield chunk
            chunk, pieces = [], 0
    if chunk:
        yield chunk


_NO_USAGE = Usage()
_NO_REPORT = EngineReport("")
_PLACE = {outcome: i for i, outcome in enumerate(OUTCOMES)}


def _told(t: Timeline, cells: dict[Cell, int]) -> tuple[int, ...]:
    """One row, in the order of `_TOLD`."""
    usage = t.usage or _NO_USAGE
    report = t.report or _NO_REPORT
    row = (
        *(t.arrived_ns, t.started_ns, t.end_ns, t.connected_ns, t.sent_ns, t.first_byte_ns),
        *(t.max_tokens, t.prompt_tokens_sent, t.in_flight),
        *(cells.setdefault(t.cell, len(cells)), _PLACE[t.outcome], t.given_up),
        *(
            t.counts is not None,
            t.report is not None,
            usage.prompt_tokens,
            usage.completion_tokens,
            usage.cached_tokens,
        ),
        *(report.queue_ns, report.prefill_ns, report.decode_ns, report.e2e_ns),
        *(report.before_ns, report.after_ns, report.cached_tokens, report.n_tokens),
    )
    return tuple([ABSENT if value is None else value for value in row])


class _Pieces(Struct, frozen=True, eq=False):
    """The received pieces of some requests, one behind the other; `starts` has one entry more than there are requests.
    `since` runs on through all of them: the sum of the gaps so far."""

    deltas: Ints
    since: Ints
    letters: NDArray[np.uint8]
    counts: Ints
    starts: Ints


def _pieces(chunk: Sequence[Timeline]) -> _Pieces:
    import numpy as np

    sizes = np.array([len(t.deltas_ns) for t in chunk], dtype=np.int64)
    starts = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
    total = int(starts[-1])
    deltas = np.fromiter(chain.from_iterable(t.deltas_ns for t in chunk), np.int64, total)
    counts = chain.from_iterable(repeat(1, len(t.kinds)) if t.counts is None else t.counts for t in chunk)
    letters = "".join([t.kinds for t in chunk]).encode("latin-1", "replace")
    return _Pieces(
        deltas=deltas,
        since=np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(deltas))),
        letters=np.frombuffer(letters, dtype=np.uint8),
        counts=np.fromiter(counts, np.int64, total),
        starts=starts,
    )


def _read(pieces: _Pieces, told: dict[str, Ints]) -> tuple[dict[str, Ints], Ints, Ints]:
    """(the columns of `_FROM_PIECES`, gaps, tokens of each gap)."""
    import numpy as np

    places = np.flatnonzero(_among(pieces.letters, GENERATED_LETTERS) & (pieces.counts > 0))
    bounds = np.searchsorted(places, pieces.starts)
    n_pieces = np.diff(bounds)
    some = n_pieces > 0
    stamps, tokens = pieces.since[places + 1], pieces.counts[places]
    first, last = np.full(some.size, ABSENT), np.full(some.size, ABSENT)
    zero = (told["started"] - pieces.since[pieces.starts[:-1]])[some]
    first[some] = zero + stamps[bounds[:-1][some]]
    last[some] = zero + stamps[bounds[1:][some] - 1]
    so_far = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(tokens)))
    later = np.ones(places.size, dtype=np.bool_)
    later[bounds[:-1][some]] = False
    thought, answer = _answers(pieces, told["started"], first)
    found = {
        "first_token": first,
        "last_token": last,
        "first_answer": answer,
        "pieces": n_pieces,
        "counted": np.diff(so_far[bounds]),
        "thought": thought,
        "disordered": _disordered(pieces, told).astype(np.int64),
    }
    return found, np.diff(stamps, prepend=0)[later], tokens[later]


def _answers(pieces: _Pieces, started: Ints, first: Ints) -> tuple[Ints, Ints]:
    """(whether there was reasoning, stamp of the first answer piece) of each request."""
    import numpy as np

    reasoning = np.flatnonzero(_among(pieces.letters, _REASONING_LETTER))
    thought = np.diff(np.searchsorted(reasoning, pieces.starts)) > 0
    if not thought.any():
        return thought.astype(np.int64), first
    places = np.flatnonzero(_among(pieces.letters, _ANSWER_LETTERS) & (pieces.counts > 0))
    bounds = np.searchsorted(places, pieces.starts)
    some = np.diff(bounds) > 0
    answer = np.full(some.size, ABSENT)
    zero = (started - pieces.since[pieces.starts[:-1]])[some]
    answer[some] = zero + pieces.since[places[bounds[:-1][some]] + 1]
    return thought.astype(np.int64), np.where(thought & (first != ABSENT), answer, first)


def _disordered(pieces: _Pieces, told: dict[str, Ints]) -> Bools:
    """Requests of which `timeline.broken_invariants` has something to say."""
    import numpy as np

    before = told["started"]
    found = before < told["arrived"]
    for name in ("connected", "sent", "first_byte", "end"):
        stamp = told[name]
        reached = stamp != ABSENT
        found |= reached & (stamp < before)
        before = np.where(reached, stamp, before)
    backwards = np.flatnonzero(pieces.deltas < 0)
    found |= np.diff(np.searchsorted(backwards, pieces.starts)) > 0
    starts, ends = pieces.starts[:-1], pieces.starts[1:]
    some = ends > starts
    zero = (told["started"] - pieces.since[starts])[some]
    sent = told["sent"][some]
    early = (sent != ABSENT) & (zero + pieces.since[starts[some] + 1] < sent)
    found[some] |= early | (zero + pieces.since[ends[some]] > told["end"][some])
    return found


def _among(letters: NDArray[np.uint8], wanted: Iterable[str]) -> Bools:
    import numpy as np

    chosen = np.zeros(256, dtype=np.bool_)
    chosen[[ord(letter) for letter in wanted]] = True
    return chosen[letters]


def by_size(flat: NDArray[Any], sizes: Ints, most: int = 1_000_000) -> Iterator[tuple[Ints, NDArray[Any]]]:
    """Groups of equal size together, of groups that stand one behind the other in `flat`: (their places, a matrix with
    a row for each), no larger than `most` numbers unless one row is."""
    import numpy as np

    starts = np.cumsum(sizes) - sizes
    order = np.argsort(sizes, kind="stable")
    bounds = [*np.flatnonzero(np.diff(sizes[order], prepend=-1)).tolist(), order.size]
    for begin, end in pairwise(bounds):
        size = int(sizes[order[begin]])
        step = max(1, most // max(size, 1))
        for at in range(begin, end, step):
            members = order[at : min(at + step, end)]
            yield members, flat[starts[members, None] + np.arange(size)]


def total(column: Ints) -> int:
    """Exact sum, however large; absent counts nothing."""
    return sum(n for n in cast("list[int]", column.tolist()) if n != ABSENT)

"""Run files: append-only JSONL, one line a thing, readable after a kill at any byte.

Line types by their `type` field: `header` (first line), `request`, `engine_report` and `engine_step` (what the engine
saw inside, joined by request id on reading), `sample`, `scrape` (a server's own sums), `footer` (last, if the run ended
by itself). The schema version stands in the header; a reader refuses a newer one and must keep reading every older one.

Schema history:
    1   first version
    2   `scrape` lines: what a server's /metrics said before and after the measured requests
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec
from msgspec.structs import asdict

from phasemeter.record.clock import wall_text
from phasemeter.record.engine import EngineStep, SeenRequest
from phasemeter.record.errors import InputError
from phasemeter.record.join import joiner
from phasemeter.record.kept import KeptRequests
from phasemeter.record.run import SCHEMA, Footer, Header, Run, Sample
from phasemeter.record.scrape import Scrape
from phasemeter.record.timeline import Timeline, kind_of

Line = Header | Timeline | Sample | Footer | SeenRequest | EngineStep | Scrape

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding JSON that others wrote may raise; the last one for brackets within brackets without end."""

_MOST = 2**60
"""No number of a run is larger (36 years of nanoseconds): sums and differences of a few of them are 64-bit integers
wherever they are computed with."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


class _Peek(msgspec.Struct):
    type: str | None = None
    schema: int | None = None


class RunWriter:
    """Appends lines to a new run file; each line is one write, so a kill can cut only the last one.

    Raises InputError if the file exists (a run is never overwritten), if its folder cannot be written, or if the
    disk is full (what was written before stays readable).
    """

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        check_place(path)
        try:
            self._fd: int | None = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
        except OSError as error:
            raise _cannot_write(path, error) from None
        self._end = 0
        self.write(header)

    def write(self, line: Line) -> None:
        """Append one line."""
        if self._fd is None:
            raise ValueError("run file is closed")
        data = _encoder.encode(line) + b"\n"
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            with contextlib.suppress(OSError):  # a device has no length to take back
                os.ftruncate(self._fd, self._end)
            why = "no space left on the disk" if error.errno == errno.ENOSPC else error.strerror
            raise InputError(
                "--out",
                str(self.path),
                f"{why}; the lines written before are kept, give a place with more room",
            ) from None
        self._end += len(data)

    def close(self) -> None:
        """Flush to the disk and close. Safe to call twice."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with contextlib.suppress(
                OSError
            ):  # a pipe cannot be synchronised; every line went out in `write`
                os.fsync(fd)
            os.close(fd)

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_place(path: Path) -> None:
    """Raises InputError unless a new run file can be made at `path`; makes its folder. Cheap, so that a command can ask
    before it loads a model."""
    if path.exists():
        raise InputError("--out", str(path), "exists already; runs are never overwritten, name a new file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(path, error) from None
    if not os.access(path.parent, os.W_OK):
        raise InputError("--out", str(path), "its folder is not writable; name another place")


def _cannot_write(path: Path, error: OSError) -> InputError:
    return InputError("--out", str(path), f"cannot be written ({error.strerror}); name another place")


def read_run(path: Path) -> Run:
    """Read a run file, plain or gzipped, or the `run.jsonl` in a folder.

    A line cut by a kill is left out and `Run.cut` says so; unreadable lines in the middle are left out and listed in
    `Run.damaged`. Raises InputError for what is no run file.
    """
    if path.is_dir() and (path / "run.jsonl").is_file():
        path = path / "run.jsonl"
    if path.exists() and not path.is_file() and not path.is_dir():  # a device or pipe may never end
        raise InputError("run file", str(path), "is no regular file; write it to one first")
    lines = _lines(path)
    header = _header(path, next(lines, None))
    requests, found, damaged, cut = _decoded(path, lines)
    seen = [line for line in found if isinstance(line, SeenRequest)]
    footers = [line for line in found if isinstance(line, Footer)]
    return Run(
        header=header,
        requests=KeptRequests(requests, joiner(seen)),
        samples=tuple(line for line in found if isinstance(line, Sample)),
        seen=tuple(seen),
        steps=tuple(line for line in found if isinstance(line, EngineStep)),
        scrapes=tuple(line for line in found if isinstance(line, Scrape)),
        footer=footers[-1] if footers else None,
        cut=cut,
        damaged=tuple(damaged),
        name=path.name,
    )


def _decoded(
    path: Path, lines: Iterator[tuple[bytes, bool]]
) -> tuple[list[bytes], list[Line], list[int], bool]:
    """Of the lines after the header: the requests as they stand there, the others, the numbers of those that cannot be
    read, and whether the last one was cut. Raises InputError where a second run begins: its stamps lie on another
    clock."""
    requests: list[bytes] = []
    found: list[Line] = []
    damaged: list[int] = []
    cut = False
    for number, (text, whole) in enumerate(lines, start=2):
        if not text.strip():
            continue
        try:
            line = _decoder.decode(text)
        except UNREADABLE:
            cut = cut or not whole
            if whole:
                damaged.append(number)
            continue
        if isinstance(line, Header):
            raise InputError(
                "run file", str(path), f"holds another run from line {number} on; give each run its own file"
            )
        if not _sound(line):
            damaged.append(number)
        elif isinstance(line, Timeline):
            requests.append(text)
        else:
            found.append(line)
    return requests, found, damaged, cut


def _sound(line: Line) -> bool:
    """Whether a line can be computed with; everything beyond that is for the checks to judge."""
    if isinstance(line, Timeline):
        return _of_one_length(line) and all(abs(n) <= _MOST for n in _numbers(line))
    if isinstance(line, Sample):
        return all(map(math.isfinite, line.values.values()))
    if isinstance(line, Scrape):
        return _of_one_server(line)
    return True


def _of_one_server(line: Scrape) -> bool:
    """Numbers that can be subtracted: finite, and counts that grow from bucket to bucket."""
    numbers = [*line.finished.values(), *line.counters.values()]
    for histogram in line.histograms.values():
        counts = [n for _, n in histogram.buckets] + [histogram.count]
        if counts != sorted(counts) or counts[0] < 0 or counts[-1] > _MOST:
            return False
        numbers += [histogram.total, *(upper for upper, _ in histogram.buckets)]
    return all(map(math.isfinite, numbers))


def _of_one_length(line: Timeline) -> bool:
    """A request's arrays belong together, piece by piece, and every piece is of a known kind."""
    counts = line.kinds if line.counts is None else line.counts
    try:
        set(map(kind_of, set(line.kinds)))
    except KeyError:
        return False
    return len(line.deltas_ns) == len(line.kinds) == len(counts) and min(line.counts or (0,)) >= 0


def _numbers(line: Timeline) -> Iterator[int]:
    yield from (line.arrived_ns, line.started_ns, line.end_ns, line.connected_ns or 0, line.sent_ns or 0)
    yield from (line.first_byte_ns or 0, line.max_tokens, line.prompt_tokens_sent or 0, line.in_flight or 0)
    yield from (sum(map(abs, line.deltas_ns)), sum(line.counts or ()))
    for told in (line.usage, line.report):
        if told is not None:
            yield from (value for value in asdict(told).values() if isinstance(value, int))


def _header(path: Path, first: tuple[bytes, bool] | None) -> Header:
    text = b"" if first is None else first[0]
    try:
        peek = msgspec.json.decode(text, type=_Peek)
    except UNREADABLE:
        peek = _Peek()
    if peek.type != "header" or peek.schema is None:
        cut = first is not None and not first[1] and text.startswith(b'{"type":"header"')
        mend = (
            "was cut before its header was complete; nothing can be read from it"
            if cut
            else "is not a Phasemeter run file (its first line is no header); give a file made by `phasemeter measure`"
        )
        raise InputError("run file", str(path), mend)
    if peek.schema > SCHEMA:
        raise InputError(
            "run file",
            str(path),
            f"has schema {peek.schema}, this Phasemeter reads up to {SCHEMA}; upgrade Phasemeter to read it",
        )
    try:
        header = msgspec.json.decode(text, type=Header)
        wall_text(header.anchor.wall_ns)
    except (*UNREADABLE, OverflowError, OSError, ValueError) as error:
        raise InputError("run file", str(path), f"has a damaged header ({error})") from None
    return header


def _lines(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Each line with whether it ended in a newline."""
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = gzip.GzipFile(fileobj=raw) if zipped else raw
            try:
                for line in stream:
                    yield line, line.endswith(b"\n")
            except (EOFError, zlib.error, gzip.BadGzipFile):
                yield b"{", False  # the compressed file was cut
    except FileNotFoundError:
        raise InputError("run file", str(path), "there is no such file") from None
    except IsADirectoryError:
        raise InputError("run file", str(path), "is a folder without a run.jsonl; name a run file") from None
    except OSError as error:
        raise InputError("run file", str(path), f"cannot be read ({error.strerror})") from None

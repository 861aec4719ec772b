"""Traces of production traffic: when a request came, how long its prompt and its answer were.

Formats, told apart by their first line:

azure     CSV, TIMESTAMP,ContextTokens,GeneratedTokens; wall time with up to 7 decimals (2023, Splitwise) or with an
          offset from UTC (2024, DynamoLLM). github.com/Azure/AzurePublicDataset
burstgpt  CSV, Timestamp (seconds),Model,Request tokens,Response tokens,Total tokens,Log Type; later files have
          Session ID and Elapsed time, too. github.com/HPMLL/BurstGPT
mooncake  JSON lines, timestamp (ms), input_length, output_length, hash_ids: one id for each block of 512 tokens of the
          prompt, the same id for the same block after the same blocks. github.com/kvcache-ai/Mooncake

A row without prompt or answer tokens (BurstGPT has them: requests that failed) cannot be sent; it is left out and
counted.
"""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import TextIO, cast

import msgspec
from msgspec import Struct

from phasemeter.measure.text_file import UNZIPPABLE, open_text
from phasemeter.record.errors import InputError

SAMPLES = {
    "azure": "azure-sample.csv",
    "burstgpt": "burstgpt-sample.csv",
    "mooncake": "mooncake-sample.jsonl",
}
"""Synthetic traces in the package, named `sample:azure` and so on; `examples/make_traces.py` made them."""
MOONCAKE_BLOCK_TOKENS = 512
MOST_ROWS = 1_000_000
_MOST_HELD = 5_000_000
"""Rows up to the window's end: about a gigabyte."""
_MOST_TOKENS = 10_000_000
_MOST_S = 1e10


class Row(Struct, frozen=True):
    """One request of a trace; `at_ns` counts from an origin of the trace's own."""

    at_ns: int
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


class TraceFile(Struct, frozen=True):
    """A trace as read, in order of time from its first row at 0; `skipped` rows had nothing to send."""

    format: str
    rows: tuple[Row, ...]
    skipped: int = 0


class _Place(Struct, frozen=True):
    """Where a value stands."""

    path: str
    line: int

    def error(self, column: str, value: object, mend: str) -> InputError:
        return InputError(f"{self.path}, line {self.line}, column {column}", value, mend)


def read_trace(
    name: str, window_ns: tuple[int, int | None] = (0, None), most: int | None = None
) -> TraceFile:
    """The rows of a file, or of `sample:NAME`, that lie in `window_ns` (start, length; None: to the end) after its
    first, at most the first `most` of them.

    Raises InputError for a file that cannot be read, an unknown format, and a bad row: file, line, column, value.
    """
    path, (start_ns, length_ns) = _located(name), window_ns
    try:
        with open_text(path) as lines:
            found = _format(lines, name)
            held = _held(_READERS[found](lines, name), None if length_ns is None else start_ns + length_ns)
    except (OSError, ValueError, csv.Error, *UNZIPPABLE) as error:
        raise InputError("--trace", name, f"the file cannot be read ({error})") from error
    if held.first_ns is None:
        raise InputError("--trace", name, "the file has a header and no rows")
    zero_ns = held.first_ns + start_ns
    rows = sorted(
        (msgspec.structs.replace(row, at_ns=row.at_ns - zero_ns) for row in held.rows),
        key=lambda row: row.at_ns,  # stable: rows of one moment keep their order
    )
    rows = [row for row in rows if row.at_ns >= 0 and (length_ns is None or row.at_ns < length_ns)]
    if not rows and window_ns == (0, None):
        raise InputError("--trace", name, "no row has tokens in both its prompt and its answer")
    if not rows:
        last_s = (held.last_ns - held.first_ns) / 1e9
        raise InputError("--trace-window", name, f"no row to send lies in it; the trace lasts {last_s:.3f} s")
    rows = rows[:most]
    if len(rows) > MOST_ROWS:
        raise InputError(
            "--trace-window", f"{len(rows)} rows", f"a run holds {MOST_ROWS}; choose a shorter window"
        )
    return TraceFile(found, tuple(rows), held.skipped)


class _Held(Struct):
    """What is kept of a file while it is read."""

    rows: list[Row] = []
    skipped: int = 0
    first_ns: int | None = None
    last_ns: int = 0


def _held(rows: Iterable[Row], end_ns: int | None) -> _Held:
    """Rows that can be sent and that may lie before `end_ns` after the earliest, which is known at the end alone."""
    held = _Held()
    for row in rows:
        held.first_ns = row.at_ns if held.first_ns is None else min(held.first_ns, row.at_ns)
        held.last_ns = max(held.last_ns, row.at_ns)
        if row.input_tokens == 0 or row.output_tokens == 0:
            held.skipped += 1
        elif end_ns is None or row.at_ns - held.first_ns < end_ns:
            held.rows.append(row)
        if len(held.rows) > _MOST_HELD:
            raise InputError(
                "--trace-window", f"over {_MOST_HELD} rows", "they do not fit in memory; cut the file first"
            )
    return held


def _located(name: str) -> Path:
    if not name.startswith("sample:"):
        return Path(name)
    sample = name.removeprefix("sample:")
    if sample not in SAMPLES:
        raise InputError(
            "--trace", name, f"the samples are {', '.join(f'sample:{known}' for known in SAMPLES)}"
        )
    return Path(str(resources.files("phasemeter.measure") / "data" / SAMPLES[sample]))


def _format(lines: TextIO, name: str) -> str:
    """Told by the first line; leaves `lines` at its start."""
    first = lines.readline()
    lines.seek(0)
    names = {column.strip().lower() for column in first.split(",")}
    if {"timestamp", "contexttokens", "generatedtokens"} <= names:
        return "azure"
    if {"timestamp", "request tokens", "response tokens"} <= names:
        return "burstgpt"
    if first.lstrip().startswith("{"):
        return "mooncake"
    raise InputError(
        "--trace",
        f"{name}: {first.strip()[:80]}",
        "the first line tells the format: TIMESTAMP,ContextTokens,GeneratedTokens (Azure), "
        "Timestamp,Model,Request tokens,Response tokens,... (BurstGPT) or a JSON object (Mooncake)",
    )


def _azure(lines: TextIO, name: str) -> Iterator[Row]:
    columns = ("timestamp", "contexttokens", "generatedtokens")
    for place, (at, context, generated) in _cells(lines, name, columns):
        yield Row(
            _wall_ns(at, place),
            _tokens(context, "ContextTokens", place),
            _tokens(generated, "GeneratedTokens", place),
        )


def _burstgpt(lines: TextIO, name: str) -> Iterator[Row]:
    columns = ("timestamp", "request tokens", "response tokens")
    for place, (at, request, response) in _cells(lines, name, columns):
        yield Row(
            _seconds_ns(at, place),
            _tokens(request, "Request tokens", place),
            _tokens(response, "Response tokens", place),
        )


def _cells(lines: TextIO, name: str, columns: Sequence[str]) -> Iterator[tuple[_Place, list[str]]]:
    """Of every row the cells of `columns`."""
    rows = csv.reader(lines)
    header = [column.strip().lower() for column in next(rows)]
    places = [header.index(column) for column in columns]
    for row in rows:
        if not row:
            continue
        place = _Place(name, rows.line_num)
        if len(row) < len(header):
            raise place.error(
                header[len(row)], ",".join(row), f"the row has {len(row)} of {len(header)} columns"
            )
        yield place, [row[i].strip() for i in places]


_WALL = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")


def _wall_ns(text: str, place: _Place) -> int:
    """Nanoseconds since 1970; a time without an offset counts as UTC."""
    found = _WALL.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        moment = datetime.datetime.fromisoformat(f"{found[1]}T{found[2]}{found[4] or '+00:00'}")
    except ValueError as error:
        raise place.error("TIMESTAMP", text, "expected a time such as 2023-11-16 18:15:46.6805900") from error
    return round(moment.timestamp()) * 1_000_000_000 + int((found[3] or "0").ljust(9, "0"))


def _seconds_ns(text: str, place: _Place) -> int:
    found = re.fullmatch(r"(\d{1,10})(?:\.(\d{0,9})\d*)?", text)
    if found is None:
        raise place.error(
            "Timestamp", text, "expected seconds from the trace's start, for example 45 or 45.25"
        )
    return int(found[1]) * 1_000_000_000 + int((found[2] or "0").ljust(9, "0"))


def _tokens(text: str, column: str, place: _Place) -> int:
    if not re.fullmatch(r"\d{1,8}(\.0+)?", text) or float(text) > _MOST_TOKENS:
        raise place.error(column, text, f"expected a whole number of tokens, 0 to {_MOST_TOKENS}")
    return int(float(text))


class _MooncakeLine(Struct):
    """A line as far as we read it; other keys are left alone."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def _mooncake(lines: TextIO, name: str) -> Iterator[Row]:
    decode = msgspec.json.Decoder(_MooncakeLine).decode
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _mooncake_row(line, _Place(name, number), decode)


def _mooncake_row(line: str, place: _Place, decode: Callable[[str], _MooncakeLine]) -> Row:
    try:
        said = decode(line)
    except msgspec.ValidationError as error:
        column, value = _blamed(str(error), line)
        raise place.error(column, value, f"{str(error).partition(' - at')[0]}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise place.error("1", line.strip()[:80], f"not JSON ({error})") from error
    for column, tokens in (("input_length", said.input_length), ("output_length", said.output_length)):
        if not 0 <= tokens <= _MOST_TOKENS:
            raise place.error(column, tokens, f"expected a whole number of tokens, 0 to {_MOST_TOKENS}")
    if not 0 <= said.timestamp <= _MOST_S * 1e3:
        raise place.error(
            "timestamp", said.timestamp, "expected milliseconds from the trace's start, 0 or more"
        )
    asked = -(-said.input_length // MOONCAKE_BLOCK_TOKENS)
    if said.hash_ids and len(said.hash_ids) != asked:
        raise place.error(
            "hash_ids",
            f"{len(said.hash_ids)} ids",
            f"{said.input_length} tokens are {asked} blocks of {MOONCAKE_BLOCK_TOKENS}",
        )
    return Row(round(said.timestamp * 1e6), said.input_length, said.output_length, said.hash_ids)


def _blamed(message: str, line: str) -> tuple[str, object]:
    """The column of a validation error and its value, as far as they can be told."""
    found = re.search(r"at `\$\.(\w+)|field `(\w+)`", message)
    if found is None:
        return "1", line.strip()[:80]
    column = found[1] or found[2]
    entry = cast("dict[str, object]", msgspec.json.decode(line))
    return column, entry.get(column, "missing")


_READERS: dict[str, Callable[[TextIO, str], Iterator[Row]]] = {
    "azure": _azure,
    "burstgpt": _burstgpt,
    "mooncake": _mooncake,
}

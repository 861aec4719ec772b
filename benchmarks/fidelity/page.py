"""The results as a page: fidelity.md, made from fidelity.json and from nothing else."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from machine import QUIET_BUSY_RATIO

Row = dict[str, Any]

_HEAD = """# How true the client is

Written by `benchmarks/fidelity/run.py` from `fidelity.json`; `docs/fidelity.md` defines the columns. Each cell is
the median over the rounds, with the least and the largest round where they differ. The server is on the same machine.
"""


def write(results: Path) -> None:
    """Write the page beside the results."""
    found = json.loads(results.read_text())
    text = markdown(found["sessions"], found["turns"])
    again = len(found.get("spoiled", ()))
    if again:
        text += (
            f"\n{again} further turns were made again, whatever came of them, because other processes used more than "
            f"{QUIET_BUSY_RATIO:.0%} of the machine during them; they are in the JSON under `spoiled`.\n"
        )
    results.with_suffix(".md").write_text(text)


def markdown(sessions: Sequence[Row], turns: Sequence[Row]) -> str:
    """The whole page."""
    parts = [_HEAD, *(_session(i, session, turns) for i, session in enumerate(sessions))]
    for part, title, keys in (
        ("levels", "TTFT 50 ms, a token every 10 ms, 128 tokens", ("concurrency",)),
        ("truths", "The same build against other truths", ("ttft_ms", "itl_ms", "concurrency")),
        ("long", "Prompts of 50,000 tokens", ("concurrency",)),
    ):
        rows = [turn for turn in turns if turn["part"] == part]
        if rows:
            parts.append(f"## {title}\n\n{_timing_table(rows, keys)}")
    rows = [turn for turn in turns if turn["part"] == "faults"]
    if rows:
        parts.append(f"## What is counted as failed\n\n{_fault_table(rows)}")
    return "\n".join(parts)


def _session(number: int, session: Row, turns: Sequence[Row]) -> str:
    machine = session["machine"]
    libraries = ", ".join(f"{name} {told}" for name, told in machine["libraries"].items())
    tools = ", ".join(f"{tool} {told}" for tool, told in session["versions"].items())
    left_out = "".join(f"; {tool} left out: {why}" for tool, why in session["absent"].items())
    workers = "" if session["workers"] is None else f", workers {session['workers']}"
    own = [turn for turn in turns if turn["session"] == number]
    noisy = sum(turn["others_busy"] > QUIET_BUSY_RATIO for turn in own)
    state = "quiet at the start" if session["quiet"] else "**not known to be quiet**"
    return (
        f"- Session {number + 1}: {machine['cpu']}, {machine['cores']} cores, {machine['os']}, "
        f"Python {machine['python']}, {libraries}; {tools}{left_out}; commit {session['commit']}, "
        f"API {session['api']}{workers}; machine {state}; in {noisy} of {len(own)} turns other processes used more "
        f"than {QUIET_BUSY_RATIO:.0%} of it\n"
    )


def _groups(rows: Iterable[Row], keys: Sequence[str]) -> dict[tuple[object, ...], list[Row]]:
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("TTFT p50 error, ms", "ttft_error_p50_ms", lambda v: f"{v:+.2f}"),
    ("TTFT p99 error, ms", "ttft_error_p99_ms", lambda v: f"{v:.2f}"),
    ("ITL p50 error", "itl_error_p50", lambda v: f"{v:.1%}"),
    ("CPU, us/token", "cpu_us_per_token", lambda v: f"{v:.1f}"),
    ("seen at once", "seen_concurrency_max", lambda v: f"{v:.0f}"),
    ("mean", "seen_concurrency_mean", lambda v: f"{v:.0f}"),
    ("failed", "failed", lambda v: f"{v:.0f}"),
    ("server late p99, ms", "server_late_p99_ms", lambda v: f"{v:.2f}"),
    ("wall, s", "wall_s", lambda v: f"{v:.0f}"),
)


def _timing_table(rows: Sequence[Row], keys: Sequence[str]) -> str:
    names = {"concurrency": "asked at once", "ttft_ms": "TTFT, ms", "itl_ms": "ITL, ms"}
    head = [*(names[key] for key in keys), "client", *(title for title, *_ in _COLUMNS), "rounds"]
    lines = [_cells(head), "|" + "---:|" * len(keys) + "---|" + "---:|" * (len(head) - len(keys) - 1)]
    groups = _groups(rows, [*keys, "tool"])
    for key in sorted(groups, key=lambda key: (*key[:-1], key[-1] != "phasemeter", key[-1])):
        turns = groups[key]
        read = [turn for turn in turns if "unreadable" not in turn]
        cells = [_over(read, name, show) for _, name, show in _COLUMNS]
        lost = len(turns) - len(read)
        rounds = f"{len(read)}" + (f" ({lost} without a result: {_why(turns)})" if lost else "")
        lines.append(
            _cells([*(f"{part:g}" if isinstance(part, float) else str(part) for part in key), *cells, rounds])
        )
    return "\n".join(lines) + "\n"


def _over(turns: Sequence[Row], name: str, show: Callable[[float], str]) -> str:
    values = [float(turn[name]) for turn in turns if turn.get(name) is not None]
    if not values:
        return "–"
    shown = show(statistics.median(values))
    low, high = show(min(values)), show(max(values))
    return shown if low == high else f"{shown} ({low}…{high})"


def _why(turns: Sequence[Row]) -> str:
    told = {
        "timed out" if turn["timed_out"] else f"exit {turn['status']}, {turn['unreadable']}"
        for turn in turns
        if "unreadable" in turn
    }
    return "; ".join(sorted(told))


def _fault_table(rows: Sequence[Row]) -> str:
    head = (
        "fault",
        "client",
        "requests",
        "spoiled by the server",
        "counted as failed",
        "counted as good",
        "failed as",
    )
    lines = [_cells(head), "|---|---|---:|---:|---:|---:|---|"]
    for (fault, tool), turns in sorted(_groups(rows, ("fault", "tool")).items(), key=str):
        read = [turn for turn in turns if "unreadable" not in turn]
        if not read:
            lines.append(_cells([fault, tool, "–", "–", "–", "–", f"no result: {_why(turns)}"]))
            continue
        last = read[-1]
        spoiled, told = last["faults"], last["failed_as"]
        ways = "; ".join(f"{n}x {kind}" for kind, n in told.items()) or "–"
        numbers = (last["requests_at_server"], sum(spoiled.values()), last["failed"], last["good"])
        lines.append(_cells([fault, tool, *numbers, ways]))
    return "\n".join(lines) + "\n"


def _cells(values: Iterable[object]) -> str:
    return "| " + " | ".join(str(value).replace("|", "/") for value in values) + " |"

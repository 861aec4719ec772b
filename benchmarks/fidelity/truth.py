"""The server of known truth: building it, running it for one turn of one client, and reading its log."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

SOURCES = Path(__file__).resolve().parent / "server"
MEASURED_TOKENS = 2
"""Requests for fewer tokens are questions that a client asks before it measures."""


class Served(Struct, frozen=True):
    """One request as the server saw it; stamps on CLOCK_MONOTONIC."""

    id: str
    arrived_ns: int
    read_ns: int
    first_due_ns: int
    ended_ns: int
    asked_tokens: int
    prompt_tokens: int
    fault: str
    end: str
    late_ns: list[int]


class Summary(Struct, frozen=True):
    """What the server says of itself at its end."""

    requests: int
    tokens: int
    late_mean_ns: int
    late_max_ns: int
    read_late_mean_ns: int
    read_late_max_ns: int
    most_in_flight: int


class Truth(Struct, frozen=True):
    """One turn as the server saw it: the requests that were measured, in order of arrival."""

    itl_ns: int
    served: tuple[Served, ...]
    summary: Summary

    def ttft_ns(self, one: Served) -> int | None:
        """Arrival of the request's last byte to the first token's write."""
        return one.first_due_ns + one.late_ns[0] - one.arrived_ns if one.late_ns else None

    def left_ns(self, one: Served) -> int:
        """When the last bytes were about to go out: a client may send the next request before that write returns."""
        if one.end != "done" or not one.late_ns:
            return one.ended_ns
        return one.first_due_ns + (len(one.late_ns) - 1) * self.itl_ns + one.late_ns[-1]

    def gaps_ns(self, one: Served) -> list[int]:
        """Between the writes of two tokens in a row."""
        return [self.itl_ns + b - a for a, b in zip(one.late_ns, one.late_ns[1:], strict=False)]


class _Line(Struct):
    type: str
    itl_ns: int = 0


def build(folder: Path) -> Path:
    """Compile the server into `folder` and return the program. Raises CalledProcessError with the compiler's words."""
    command = ["make", "--no-print-directory", "-C", str(SOURCES), f"OUT={folder}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / "truth_server"


@contextmanager
def serving(program: Path, log: Path, options: Sequence[str], nice: int = 0) -> Generator[tuple[str, int]]:
    """URL and process of a fresh server, niced where that is allowed; its log is whole when the block has ended."""
    command = [*_niced(nice), str(program), "--log", str(log), *options]
    with log.with_suffix(".err").open("w") as errors:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        if not port:
            raise SystemExit(f"the truth server did not start: {log.with_suffix('.err').read_text().strip()}")
        yield f"http://127.0.0.1:{port}", server.pid
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)


def _niced(nice: int) -> list[str]:
    if not nice:
        return []
    allowed = subprocess.run(["nice", "-n", str(nice), "true"], capture_output=True, text=True)
    return ["nice", "-n", str(nice)] if not allowed.stderr else []


def read_truth(log: Path, measured_tokens: int = MEASURED_TOKENS) -> Truth:
    """Read a finished log. Raises ValueError when it has no summary: the server did not end by itself."""
    served: list[Served] = []
    summary, itl_ns = None, 0
    for raw in log.read_bytes().splitlines():
        line = msgspec.json.decode(raw, type=_Line)
        if line.type == "server":
            itl_ns = line.itl_ns
        elif line.type == "summary":
            summary = msgspec.json.decode(raw, type=Summary)
        else:
            one = msgspec.json.decode(raw, type=Served)
            if one.asked_tokens >= measured_tokens:
                served.append(one)
    if summary is None:
        raise ValueError(f"{log} has no summary")
    return Truth(itl_ns, tuple(sorted(served, key=lambda one: one.arrived_ns)), summary)


def seen_concurrency(truth: Truth) -> tuple[int, float]:
    """Most requests in flight at the server, and the mean over the time in which there was at least one."""
    served = truth.served
    moments = sorted([(s.arrived_ns, 1) for s in served] + [(truth.left_ns(s), -1) for s in served])
    most = flying = 0
    busy_ns = area = 0
    before = moments[0][0] if moments else 0
    for t_ns, step in moments:
        if flying:
            busy_ns += t_ns - before
            area += flying * (t_ns - before)
        flying += step
        most = max(most, flying)
        before = t_ns
    return most, area / busy_ns if busy_ns else 0.0

"""The truth server keeps its schedule, logs what it did and spoils what it is told to spoil. Needs a C compiler."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[3] / "benchmarks/fidelity/server"

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or shutil.which("make") is None, reason="needs a C compiler and make"
)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("truth")
    done = subprocess.run(["make", "-C", str(SOURCES), f"OUT={folder}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    return folder / "truth_server"


class Server:
    def __init__(self, program: Path, log: Path, *options: str) -> None:
        self.log = log
        self.process = subprocess.Popen(
            [program, "--log", log, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.process.stdout.close()

    def stop(self) -> list[dict]:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(10) == 0
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def serve(program, tmp_path):
    started: list[Server] = []

    def start(*options: str) -> Server:
        started.append(Server(program, tmp_path / f"{len(started)}.jsonl", *options))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


def _post(
    port: int, path: str = "/v1/chat/completions", request_id: str = "r", **body: object
) -> socket.socket:
    body = {
        "messages": [{"role": "user", "content": 'one "two" three'}],
        "stream": True,
        "max_tokens": 4,
    } | body
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Request-Id: {request_id}\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def _read(connection: socket.socket) -> bytes:
    """Until the response's last chunk, or the end of the connection."""
    got = b""
    with connection:
        while not got.endswith(b"0\r\n\r\n"):
            piece = connection.recv(65536)
            if not piece:
                break
            got += piece
    return got


def _events(raw: bytes) -> list[object]:
    lines = [line for line in raw.split(b"\r\n") if line.startswith(b"data: ")]
    return [line[6:].strip() if b"[DONE]" in line else json.loads(line[6:]) for line in lines]


def _requests(lines: list[dict]) -> list[dict]:
    return [line for line in lines if line["type"] == "request"]


def test_tokens_keep_an_absolute_schedule_and_the_log_says_how_late_each_was(serve):
    server = serve("--ttft-ms", "30", "--itl-ms", "5")
    before_ns = time.monotonic_ns()
    connection = _post(server.port, max_tokens=20, request_id='a"b')
    raw = _read(connection)
    after_ns = time.monotonic_ns()
    lines = server.stop()
    [request], summary = _requests(lines), lines[-1]
    assert lines[0]["ttft_ns"] == 30_000_000
    assert request["id"] == "a_b"
    assert before_ns < request["arrived_ns"] <= request["read_ns"] < after_ns
    assert request["first_due_ns"] == request["arrived_ns"] + 30_000_000
    assert len(request["late_ns"]) == request["asked_tokens"] == 20
    assert min(request["late_ns"]) >= 0
    # due times do not drift: the last write is its own lateness away from its due time, whatever came before
    last_ns = request["first_due_ns"] + 19 * 5_000_000 + request["late_ns"][-1]
    assert last_ns <= request["ended_ns"] < after_ns
    assert after_ns - before_ns >= 30_000_000 + 19 * 5_000_000
    assert summary["late_max_ns"] == max(request["late_ns"])
    assert summary["most_in_flight"] == 1
    assert (
        len([e for e in _events(raw) if isinstance(e, dict) and e["choices"][0]["delta"].get("content")])
        == 20
    )


def test_streams_in_flight_together_are_counted_and_keep_their_own_schedules(serve):
    server = serve("--ttft-ms", "60", "--itl-ms", "2")
    connections = [_post(server.port, request_id=f"r{i}") for i in range(40)]
    assert all(_read(connection).endswith(b"0\r\n\r\n") for connection in connections)
    lines = server.stop()
    assert {r["id"] for r in _requests(lines)} == {f"r{i}" for i in range(40)}
    assert all(r["first_due_ns"] - r["arrived_ns"] == 60_000_000 for r in _requests(lines))
    assert lines[-1]["most_in_flight"] == max(r["in_flight"] for r in _requests(lines)) > 1


def test_usage_comes_as_it_is_asked_for(serve):
    server = serve("--ttft-ms", "1", "--itl-ms", "1")
    plain = _events(_read(_post(server.port)))
    assert all("usage" not in event for event in plain if isinstance(event, dict))
    at_end = _events(_read(_post(server.port, stream_options={"include_usage": True})))
    told = {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4}
    assert [e["usage"] for e in at_end if isinstance(e, dict) and "usage" in e] == [told]
    assert at_end[-2]["choices"] == []
    always = {"include_usage": True, "continuous_usage_stats": True}
    every = _events(_read(_post(server.port, stream_options=always)))
    assert [e["usage"]["completion_tokens"] for e in every[:-1]] == [0, 1, 2, 3, 4, 4]
    assert every[-3]["choices"][0]["finish_reason"] == "length"


def test_completions_take_token_ids_and_whole_answers_come_whole(serve):
    server = serve("--ttft-ms", "1", "--itl-ms", "1")
    raw = _read(
        _post(server.port, "/v1/completions", prompt=[5, 6, 7, 8], stream_options={"include_usage": True})
    )
    assert [e["choices"][0]["text"] for e in _events(raw)[:4]] == [" w0", " w1", " w2", " w3"]
    assert _events(raw)[4]["usage"]["prompt_tokens"] == 4
    with _post(server.port, stream=False) as connection:
        whole = connection.recv(65536)
    assert json.loads(whole.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("fault", "end", "tokens"),
    [("error", "fault", 2), ("empty", "fault", 0), ("reset", "reset", 2), ("cut", "cut", 2)],
)
def test_each_second_request_is_spoiled_as_told(serve, fault, end, tokens):
    server = serve(
        "--ttft-ms", "1", "--itl-ms", "1", "--fault", fault, "--fault-every", "2", "--fault-after", "2"
    )
    assert b"w3" in _read(_post(server.port))
    spoiled = b""
    try:
        spoiled = _read(_post(server.port))
    except ConnectionResetError:
        assert fault == "reset"
    assert b"w3" not in spoiled
    assert (b'"error"' in spoiled) == (fault == "error")
    good, bad = _requests(server.stop())
    assert (good["fault"], good["end"], len(good["late_ns"])) == ("none", "done", 4)
    assert (bad["fault"], bad["end"], len(bad["late_ns"])) == (fault, end, tokens)


def test_a_client_that_leaves_is_told_apart(serve):
    server = serve("--ttft-ms", "1", "--itl-ms", "50")
    _post(server.port).close()
    assert b"w3" in _read(_post(server.port, request_id="stays"))
    ends = {r["id"]: r["end"] for r in _requests(server.stop())}
    assert ends == {"r": "client_gone", "stays": "done"}


def test_keep_alive_and_other_paths(serve):
    server = serve("--model", "some")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        for path, status, word in (
            ("/v1/models", b"200", b"some"),
            ("/health", b"200", b""),
            ("/x", b"404", b"no such"),
        ):
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answer = connection.recv(65536)
            assert answer.split()[1] == status
            assert word in answer


@pytest.mark.parametrize(
    "words", [["--itl-ms", "-1"], ["--fault", "melt"], ["--log", "no/such/folder"], ["--port", "x"]]
)
def test_bad_input_is_one_line_and_exit_2(program, words):
    done = subprocess.run([program, *words], capture_output=True, text=True, timeout=10)
    assert done.returncode == 2
    assert done.stderr.startswith(f"truth_server: {words[0]}: {words[1]}: ")
    assert done.stderr.count("\n") == 1

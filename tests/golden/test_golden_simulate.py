"""`phasemeter simulate` read by an independent raw-socket reader: what it says, when, and what its log
claims."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from golden.reader import Answer, Client, request_bytes
from golden.simulate_process import (
    CHAT,
    COMPLETIONS,
    MS,
    NOISE_NS,
    SRC,
    START,
    Server,
    ask,
    check_log,
    check_stamps,
    sends,
)


@pytest.fixture(scope="module")
def server():
    server = Server("--ttft-ms", "30", "--itl-ms", "10")
    yield server
    code, err = server.stop()
    assert code == 0, err
    assert "Traceback" not in err


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_ttft_and_every_gap_are_the_schedule(server, path):
    answer, entry = ask(server, path, max_tokens=21)
    assert (answer.status, answer.ended, entry["outcome"]) == (200, "complete", "completed")
    assert [p for p, _, _ in sends(entry, "text")] == [30 * MS + 10 * MS * k for k in range(21)]
    check_log(entry)
    check_stamps(answer, entry, "text")
    received = [t for t, _ in answer.content()]
    assert received[0] - entry["received_ns"] >= 30 * MS
    assert received[0] - answer.sent_ns < 30 * MS + NOISE_NS
    assert answer.done()
    assert answer.usages() == [
        {
            "prompt_tokens": 4 if path == COMPLETIONS else 6,
            "completion_tokens": 21,
            "total_tokens": 25 if path == COMPLETIONS else 27,
        }
    ]
    assert (entry["queue_ns"], entry["prefill_ns"], entry["decode_ns"]) == (0, 30 * MS, 200 * MS)


def test_the_role_comes_at_receipt_and_is_no_token(server):
    answer, entry = ask(server, CHAT)
    first = answer.events[0].json()["choices"][0]["delta"]
    assert first == {"role": "assistant", "content": ""}
    assert sends(entry, "role")[0][0] == 0
    assert answer.events[0].t_ns < answer.content()[0][0]
    assert len(answer.content()) == 6
    without, entry = ask(server, CHAT, role_first=False)
    assert not sends(entry, "role")
    assert "role" not in without.events[0].json()["choices"][0]["delta"]


def test_a_chunk_carries_several_tokens_and_usage_tells_how_many(server):
    answer, entry = ask(server, max_tokens=10, tokens_per_chunk=4, usage="chunk")
    assert [(p, n) for p, _, n in sends(entry, "text")] == [(30 * MS, 4), (70 * MS, 4), (90 * MS, 2)]
    assert [len(text.split()) for _, text in answer.content()] == [4, 4, 2]
    assert [u["completion_tokens"] for u in answer.usages()] == [4, 8, 10, 10, 10]
    answer, entry = ask(server, max_tokens=10, tokens_per_chunk=4, first_chunk_tokens=1)
    assert [(p, n) for p, _, n in sends(entry, "text")] == [
        (30 * MS, 1),
        (70 * MS, 4),
        (110 * MS, 4),
        (120 * MS, 1),
    ]


def test_usage_can_be_left_out_and_can_lie(server):
    assert ask(server, usage="none")[0].usages() == []
    assert ask(server, ask_usage=False)[0].usages() == []
    answer, _ = ask(server, usage_lie=99)
    assert answer.usages()[-1]["completion_tokens"] == 99
    assert len(answer.content()) == 6


def test_cached_tokens_shorten_the_prefill_and_show_in_usage(server):
    answer, entry = ask(server, prefill_us_per_token=5000, cached_tokens=2)
    assert entry["prefill_ns"] == 2 * 5 * MS
    assert answer.usages()[-1]["prompt_tokens_details"] == {"cached_tokens": 2}


def test_reasoning_comes_first_under_either_name(server):
    for name in ("reasoning", "reasoning_content"):
        answer, entry = ask(server, CHAT, reasoning=4, reasoning_field=name)
        deltas = [e.json()["choices"][0]["delta"] for e in answer.events[1:7]]
        assert [list(delta) for delta in deltas] == [[name]] * 4 + [["content"]] * 2
        check_stamps(answer, entry, "reasoning", "text")
        assert answer.usages()[-1]["completion_tokens_details"] == {"reasoning_tokens": 4}


def test_empty_deltas_are_tokens_without_text(server):
    answer, entry = ask(server, CHAT, empty_deltas=[0, 3])
    assert [text == "" for _, text in answer.content()] == [True, False, False, True, False, False]
    assert entry["sent_tokens"] == 6
    assert [k for k in entry["kinds"] if k in ("text", "empty")] == [
        "empty",
        "text",
        "text",
        "empty",
        "text",
        "text",
    ]


def test_finish_reasons(server):
    def finishes(answer: Answer) -> list[str]:
        reasons = [e.json()["choices"][0]["finish_reason"] for e in answer.events if '"choices":[{' in e.data]
        return [reason for reason in reasons if reason is not None]

    assert finishes(ask(server)[0]) == ["length"]
    assert finishes(ask(server, finish="stop")[0]) == ["stop"]
    short, entry = ask(server, short_output=2)
    assert finishes(short) == ["stop"]
    assert (entry["sent_tokens"], len(short.content())) == (2, 2)
    joined, _ = ask(server, finish_with_last=True)
    assert finishes(joined) == ["length"]
    assert len(joined.content()) == 6


def test_jitter_is_seeded_and_logged(server):
    first = ask(server, jitter={"kind": "normal", "ms": 2.0}, itl_ms=6, max_tokens=20)[1]
    gaps = [b - a for a, b in zip(first["planned_ns"], first["planned_ns"][1:], strict=False)]
    assert len(set(gaps)) > 10
    check_log(first)


def test_close_connection_and_keep_alive(server):
    client = Client(server.port)
    body = {"prompt": "ab", "max_tokens": 2, "stream": True}
    for _ in range(3):
        assert client.post(COMPLETIONS, body).ended == "complete"
    answer = client.post(COMPLETIONS, body | {"x_simulate": {"close_connection": True}})
    assert answer.headers["connection"] == "close"
    assert client.sock.recv(1) == b""
    client.close()


def test_not_streaming_request(server):
    client = Client(server.port)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    answer = client.post(CHAT, body, {"X-Request-Id": "at-once"})
    told = json.loads(answer.body)
    assert told["choices"][0]["message"]["content"] == "time flows from"
    assert told["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert answer.reads[0][0] - server.entry("at-once")["received_ns"] >= 50 * MS
    client.close()


def test_pipelined_requests_are_answered_in_order(server):
    client = Client(server.port)
    raw = b"".join(
        request_bytes("POST", COMPLETIONS, {"prompt": "a" * n, "max_tokens": 2}) for n in (1, 2, 3)
    ) + request_bytes("GET", "/health", b"")
    first = client.exchange(raw)
    answers = [first, *(client.read(Answer(time.monotonic_ns())) for _ in range(3))]
    assert [json.loads(a.body)["usage"]["prompt_tokens"] for a in answers[:3]] == [1, 2, 3]
    assert answers[3].status == 200
    client.close()


def test_expect_100_continue_and_a_body_of_megabytes(server):
    client = Client(server.port)
    raw = request_bytes(
        "POST", COMPLETIONS, {"prompt": "x" * 3_000_000, "max_tokens": 1}, {"Expect": "100-continue"}
    )
    head, _, body = raw.partition(b"\r\n\r\n")
    client.sock.sendall(head + b"\r\n\r\n")
    assert client.sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
    answer = client.exchange(body)
    assert json.loads(answer.body)["usage"]["prompt_tokens"] == 3_000_000
    client.close()


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (COMPLETIONS, b"{not json", 400, None),
        (COMPLETIONS, b"[]", 400, None),
        (COMPLETIONS, {"max_tokens": 3}, 400, "prompt"),
        (COMPLETIONS, {"prompt": ""}, 400, "prompt"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, 400, "prompt"),
        (CHAT, {"prompt": "a"}, 400, "messages"),
        (CHAT, {"messages": [{"content": "x"}]}, 400, "messages"),
        (COMPLETIONS, {"prompt": "a", "model": "other"}, 404, "model"),
        (COMPLETIONS, {"prompt": "a", "x_simulate": {"stahl": 1}}, 400, "x_simulate"),
        (COMPLETIONS, {"prompt": "a", "x_simulate": {"ttft_ms": -1}}, 400, "x_simulate"),
        (COMPLETIONS, {"prompt": "a", "x_simulate": {"cached_tokens": 2}}, 400, "x_simulate"),
        ("/v1/embeddings", {"input": "a"}, 404, None),
        ("/health", {}, 405, None),
    ],
)
def test_bad_requests_get_openai_errors(server, path, body, status, param):
    client = Client(server.port)
    answer = client.post(path, body)
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"], error["code"]) == (status, param, status)
    if param == "x_simulate" and "stahl" in str(body):
        assert "stahl" in error["message"]
    assert client.get("/health").status == 200, "the connection goes on"
    client.close()


def test_what_is_no_http_is_refused_and_the_server_lives(server):
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert b" 400 " in sock.recv(1000)
    client = Client(server.port)
    assert json.loads(client.get("/v1/models").body)["data"][0]["id"] == "simulated"
    client.close()


def test_a_client_abort_frees_its_slot_and_is_logged():
    server = Server("--ttft-ms", "20", "--itl-ms", "20", "--slots", "1")
    holder = Client(server.port)
    holder.sock.sendall(
        request_bytes(
            "POST",
            COMPLETIONS,
            {"prompt": "a", "max_tokens": 500, "stream": True},
            {"X-Request-Id": "holder"},
        )
    )
    threading.Timer(0.25, holder.sock.close).start()
    time.sleep(0.05)
    waiting = Client(server.port)
    body = {"prompt": "b", "max_tokens": 2, "stream": True}
    answer = waiting.post(COMPLETIONS, body, {"X-Request-Id": "waiting"})
    waiting.close()
    held, waited = server.entry("holder"), server.entry("waiting")
    assert held["outcome"] == "client_aborted"
    assert 0 < held["sent_tokens"] == held["kinds"].count("text") < 500
    assert held["sent_ns"][-1] < waited["start_ns"] <= held["end_ns"]
    assert waited["queue_ns"] == waited["start_ns"] - waited["received_ns"] > 100 * MS
    assert len(answer.content()) == 2
    assert server.stop(signal.SIGINT)[0] == 0


def test_slots_queue_without_drift_under_concurrency(tmp_path):
    log = tmp_path / "sent.jsonl"
    server = Server("--ttft-ms", "30", "--itl-ms", "10", "--slots", "2", "--log", str(log))

    def one(_: int) -> Answer:
        client = Client(server.port)
        answer = client.post(COMPLETIONS, {"prompt": "a", "max_tokens": 4, "stream": True})
        client.close()
        return answer

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(one, range(6)))
    assert [len(a.content()) for a in answers] == [4] * 6
    code, err = server.stop()
    assert (code, "6 requests" in err) == (0, True)
    lines = sorted((json.loads(line) for line in log.read_text().splitlines()), key=lambda e: e["serial"])
    for line in lines:
        check_log(line)
        assert [p - line["planned_ns"][1] for p in line["planned_ns"][1:5]] == [0, 10 * MS, 20 * MS, 30 * MS]
    # a slot is passed on at the scheduled end (60 ms a request), not when the loop noticed: exact to the
    # nanosecond
    starts = sorted(line["start_ns"] for line in lines)
    assert starts[2:] == [
        starts[0] + 60 * MS,
        starts[1] + 60 * MS,
        starts[0] + 120 * MS,
        starts[1] + 120 * MS,
    ]


def test_script_is_applied_in_order(tmp_path):
    script = tmp_path / "script.toml"
    script.write_text(
        'cycle = true\n[[step]]\nttft_ms = 5\n[[step]]\npath = "/v1/completions"\nstatus = {code = 503}\n'
    )
    server = Server("--itl-ms", "1", "--script", str(script), "--fault", "short_output:1")
    client = Client(server.port)
    statuses = [client.post(COMPLETIONS, {"prompt": "a", "max_tokens": 3}).status for _ in range(4)]
    assert statuses == [200, 503, 200, 503]
    assert server.log()[0]["prefill_ns"] == 5 * MS
    assert server.log()[0]["sent_tokens"] == 1
    client.close()
    assert server.stop()[0] == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--fault", "nosuch"), "nosuch"),
        (("--fault", "stall:x:2"), "stall:K:MS"),
        (("--jitter", "normal"), "size"),
        (("--jitter", "odd:1ms"), "KIND:SIZE"),
        (("--ttft-ms", "-1"), "ttft_ms"),
        (("--ttft-ms", "5", "--prefill-ms", "3"), "either"),
        (("--script", "/nonexistent.toml"), "nonexistent"),
        (("--log", "/nonexistent/x.jsonl"), "--log"),
    ],
)
def test_bad_flags_are_one_line_and_code_2(flags, says):
    done = subprocess.run(
        [sys.executable, "-c", START, *flags],
        env={"PYTHONPATH": str(SRC)},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert says in done.stderr.decode()
    assert len(done.stderr.decode().strip().splitlines()) == 1


def test_a_port_in_use_is_code_2(server):
    done = subprocess.run(
        [sys.executable, "-c", START, "--port", str(server.port)],
        env={"PYTHONPATH": str(SRC)},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    told = done.stderr.decode()
    assert "--port" in told
    assert f"{server.port}: cannot listen" in told


def test_the_example_calibrates_a_client(server):
    example = SRC.parent / "examples" / "calibrate_client.py"
    done = subprocess.run(
        [sys.executable, str(example), f"http://127.0.0.1:{server.port}"],
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.startswith(b"400 chunks: the client stamps ")

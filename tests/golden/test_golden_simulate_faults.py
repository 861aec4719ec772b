"""Every fault of `phasemeter simulate`, seen by an independent raw-socket reader and told by the log."""

from __future__ import annotations

import itertools
import json

import pytest

from golden.simulate_process import (
    CHAT,
    MS,
    Server,
    ask,
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


@pytest.mark.parametrize("flag", ["split_utf8", "split_events", "slow_drip", "coalesce", "crlf"])
def test_cut_bytes_add_up_to_the_same_text(server, flag):
    value = 0.05 if flag == "slow_drip" else True
    plain, _ = ask(server, CHAT, max_tokens=40, itl_ms=4)
    answer, entry = ask(server, CHAT, max_tokens=40, itl_ms=4, **{flag: value})
    assert answer.ended == "complete"
    assert answer.done()
    assert sum(entry["tokens"]) == 40
    if flag == "split_utf8":
        assert len(answer.text()) == 40
        assert all(ord(character) > 0x2E7F for character in answer.text())
        assert any(_cut_in_character(data) for _, data in answer.reads)
    else:
        assert answer.text() == plain.text()
    if flag == "crlf":
        assert b"\n\n" not in answer.body
        assert answer.body.count(b"\r\n\r\n") == len(answer.events)
    if flag == "coalesce":
        assert [n for _, _, n in sends(entry, "text")] == [2] * 20
    if flag == "split_events":
        assert entry["kinds"].count("part") >= 2 * len(answer.events)
    if flag == "slow_drip":
        assert entry["kinds"].count("part") > len(answer.body) - len(answer.events)
        assert len(answer.reads) > 2 * len(answer.events)


def _cut_in_character(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


def test_keepalive_comments_come_on_their_own_schedule(server):
    answer, entry = ask(server, keepalive_comments=12)
    assert [p for p, _, _ in sends(entry, "keepalive")] == [12 * MS * k for k in range(1, 7)]
    assert sum(event.comment for event in answer.events) == 6
    assert len(answer.content()) == 6


def test_stall_delays_everything_behind_it(server):
    answer, entry = ask(server, stall={"after": 2, "ms": 80})
    assert [p // MS for p, _, _ in sends(entry, "text")] == [30, 40, 130, 140, 150, 160]
    times = [t for t, _ in answer.content()]
    assert max(b - a for a, b in itertools.pairwise(times)) == times[2] - times[1]
    check_stamps(answer, entry, "text")


@pytest.mark.parametrize(("fault", "tokens"), [({"hang_before_first": True}, 0), ({"hang_after": 3}, 3)])
def test_a_hang_lasts_until_the_client_goes(server, fault, tokens):
    answer, entry = ask(server, timeout_s=0.4, **fault)
    assert (answer.status, answer.ended, len(answer.content())) == (200, "timeout", tokens)
    assert (entry["outcome"], entry["sent_tokens"]) == ("client_aborted", tokens)
    assert entry["faults"] == [next(iter(fault))]
    assert entry["end_ns"] - entry["received_ns"] >= 390 * MS


def test_reset_mid_stream(server):
    answer, entry = ask(server, reset_after=3)
    assert answer.ended == "reset"
    assert len(answer.content()) == 3
    assert entry["outcome"] == "fault:reset_after"
    assert sends(entry, "reset")[0][0] == 60 * MS


def test_truncation_ends_in_order_but_unfinished(server):
    answer, entry = ask(server, truncate_after=2)
    assert (answer.ended, answer.done(), len(answer.content())) == ("complete", False, 2)
    assert entry["outcome"] == "fault:truncate_after"
    assert '"finish_reason":"' not in "".join(e.data for e in answer.events)


def test_an_error_event_inside_a_200(server):
    answer, entry = ask(server, error_event_after=3)
    assert answer.status == 200
    assert [e.json()["error"]["code"] for e in answer.events if '"error"' in e.data] == [500]
    assert (answer.done(), len(answer.content()), entry["outcome"]) == (True, 3, "fault:error_event_after")


def test_garbage_is_one_event_and_the_stream_goes_on(server):
    answer, entry = ask(server, garbage_json=2)
    bad = [e for e in answer.events if e.data.startswith("{") and "not json" in e.data]
    assert len(bad) == 1
    with pytest.raises(ValueError, match="Expecting"):
        bad[0].json()
    assert (len(answer.content()), entry["outcome"]) == (6, "fault:garbage_json")


def test_empty_stream_and_missing_done(server):
    answer, entry = ask(server, empty_stream=True)
    assert (answer.status, answer.content(), answer.done(), entry["sent_tokens"]) == (200, [], True, 0)
    answer, _ = ask(server, no_done=True)
    assert (answer.ended, answer.done(), len(answer.content())) == ("complete", False, 6)


@pytest.mark.parametrize("code", [429, 500, 503])
@pytest.mark.parametrize("wait", [None, 2])
def test_error_statuses(server, code, wait):
    answer, entry = ask(server, status={"code": code} | ({} if wait is None else {"retry_after_s": wait}))
    assert answer.status == code
    assert answer.headers.get("retry-after") == (None if wait is None else "2")
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert entry["outcome"] == f"status:{code}"


def test_answers_that_are_no_event_stream(server):
    answer, entry = ask(server, not_streaming=True)
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body)["usage"]["completion_tokens"] == 6
    assert entry["outcome"] == "fault:not_streaming"
    answer, _ = ask(server, wrong_content_type=True)
    assert answer.headers["content-type"].startswith("text/plain")
    assert len(answer.content()) == 6

"""The plugin's file read back: ids, partial lines, durations that mean nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phasemeter.engines.vllm_seen import SeenFile, our_id
from phasemeter.record.engine import EngineReport, EngineStep, SeenRequest

RUN = "3f9cab12cd34"


def line(kind="request", **fields):
    return json.dumps({"v": 1, "type": kind, "engine_ns": 5_000, **fields}) + "\n"


def request(name=f"cmpl-{RUN}-000012-0", **fields):
    known = {"queue_ns": 1, "prefill_ns": 2, "decode_ns": 3, "e2e_ns": 9, "generated_tokens": 4}
    return line(request_id=name, **(known | fields))


@pytest.mark.parametrize(
    "told",
    [
        f"cmpl-{RUN}-000012-0",
        f"cmpl-{RUN}-000012-13",
        f"cmpl-{RUN}-000012-0-a1b2c3d4",
        f"cmpl-{RUN}-000012-0-12345678",
        f"1_cmpl-{RUN}-000012-0",
        f"1_cmpl-{RUN}-000012-0-a1b2c3d4",
        f"chatcmpl-{RUN}-000012",
        f"chatcmpl-{RUN}-000012_0",
        f"chatcmpl-{RUN}-000012-a1b2c3d4",
        f"chatcmpl-{RUN}-000012_0-12345678",
        f"0_chatcmpl-{RUN}-000012-a1b2c3d4",
    ],
)
def test_vllms_ids_become_ours(told):
    assert our_id(told) == f"{RUN}-000012"


@pytest.mark.parametrize(
    ("told", "ours"),
    [
        ("chatcmpl-a1b2c3d4", "a1b2c3d4"),
        ("chatcmpl-run-a1b2c3d4", "run-a1b2c3d4"),
        ("cmpl-9debaff0c8d63999-0", "9debaff0c8d63999"),
        ("embd-x-0", "embd-x-0"),
        ("cmpl-my%20run%2F1-000001-0", "my run/1-000001"),
        ("cmpl-", "cmpl-"),
    ],
)
def test_ids_of_others_are_left_as_they_are(told, ours):
    assert our_id(told) == ours


@given(
    run=st.from_regex(r"[0-9a-f]{12}", fullmatch=True),
    serial=st.integers(0, 99_999_999),
    random=st.sampled_from(["", "-deadbeef", "-01234567"]),
)
def test_every_id_that_we_make_comes_back(run, serial, random):
    ours = f"{run}-{serial:06d}"
    assert our_id(f"cmpl-{ours}-0{random}") == ours
    assert our_id(f"chatcmpl-{ours}{random}") == ours


def test_a_file_is_followed_line_by_line(tmp_path):
    path = tmp_path / "seen.jsonl"
    seen = SeenFile(path)
    assert seen.read() == []  # not there yet
    whole = line("start", vllm="0.26.0", pid=1, engine_index=0) + request() + line("step", prefill_tokens=7)
    path.write_text(whole[:-20])
    [found] = seen.read()
    assert found == SeenRequest(
        f"{RUN}-000012",
        EngineReport("vllm plugin", queue_ns=1, prefill_ns=2, decode_ns=3, e2e_ns=9, n_tokens=4),
        engine_ns=5_000,
    )
    assert seen.vllm == "0.26.0"
    assert seen.read() == []
    with path.open("a") as file:
        file.write(whole[-20:])
    assert seen.read() == [EngineStep(5_000, prefill_tokens=7)]
    assert seen.damaged == 0


@given(st.lists(st.integers(1, 200), max_size=8))
def test_however_the_file_grows_the_same_is_read(tmp_path_factory, cuts):
    path = tmp_path_factory.mktemp("seen") / "seen.jsonl"
    whole = (line("start") + request() + request(preemptions=2) + line("step", running=3)).encode()
    seen, found, at = SeenFile(path), [], 0
    for size in [*cuts, len(whole)]:
        with path.open("ab") as file:
            file.write(whole[at : at + size])
        at += size
        found += seen.read()
    assert found == SeenFile(path).read()
    assert [type(one) for one in found] == [SeenRequest, SeenRequest, EngineStep]


def test_the_sequences_of_one_request_are_numbered(tmp_path):
    path = tmp_path / "seen.jsonl"
    path.write_text(request() + request("cmpl-other-000001-0") + request())
    assert [(s.request[-6:], s.index) for s in SeenFile(path).read()] == [
        ("000012", 0),
        ("000001", 0),
        ("000012", 1),
    ]


def test_a_request_without_a_token_has_no_prefill_and_no_decode(tmp_path):
    """vLLM subtracts stamps that were never set: large negative numbers, or one stamp since boot."""
    path = tmp_path / "seen.jsonl"
    path.write_text(
        request(generated_tokens=0, prefill_ns=-3_000_000_000, decode_ns=0, queue_ns=-5)
        + request(generated_tokens=1, decode_ns=0)
    )
    none, one = SeenFile(path).read()
    assert (none.report.queue_ns, none.report.prefill_ns, none.report.decode_ns) == (None, None, None)
    assert none.report.n_tokens == 0
    assert (one.report.prefill_ns, one.report.decode_ns, one.report.n_tokens) == (2, 0, 1)


def test_garbage_is_counted_and_other_kinds_are_passed_over(tmp_path):
    path = tmp_path / "seen.jsonl"
    path.write_bytes(b"\xff\xfe\n{}\n" + line("news").encode() + line().encode() + request().encode())
    seen = SeenFile(path)
    assert len(seen.read()) == 1
    assert seen.damaged == 2


def test_steps_and_requests_say_whose_they_are(tmp_path):
    path = tmp_path / "seen.jsonl"
    path.write_text(line("step", engine_index=0) + line("step", engine_index=1) + request(engine_index=1))
    seen = SeenFile(path)
    found = seen.read()
    assert [type(one) for one in found] == [EngineStep, EngineStep, SeenRequest]
    assert [one.engine for one in found] == [0, 1, 1]
    assert seen.engines == {0, 1}


def test_a_plugin_that_numbers_no_engine_is_read(tmp_path):
    path = tmp_path / "seen.jsonl"
    path.write_text(line("step", running=1) + request())
    assert [one.engine for one in SeenFile(path).read()] == [None, None]

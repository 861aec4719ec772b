"""Bodies written by hand from each server's documentation and source: see docs/other-engines.md."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from phasemeter.engines.http_chunks import read_chunk
from phasemeter.engines.http_reports import UNREADABLE, llama_report, ollama_report, sglang_report, tgi_report
from phasemeter.engines.http_settle import settle
from phasemeter.engines.http_wire import Answer, End
from phasemeter.record.clock import ManualClock
from phasemeter.record.engine import EmissionKind, Outcome

BODIES = Path(__file__).with_name("bodies")
MS = 1_000_000


def body(name: str) -> bytes:
    return (BODIES / name).read_bytes()


def events(name: str) -> list[bytes]:
    return [part.removeprefix(b"data: ") for part in body(name).split(b"\n\n") if part.strip()]


def answered(chunks: list[bytes]) -> Answer:
    return Answer(
        end=End.CLOSED,
        end_ns=100 * MS,
        connected_ns=0,
        sent_ns=0,
        status=200,
        headers=(("content-type", "text/event-stream"),),
        stamps_ns=[(i + 1) * MS for i in range(len(chunks))],
        pieces=[b"data: " + data + b"\n\n" for data in chunks],
    )


def test_llamacpp_timings_become_prefill_and_decode():
    result = settle(answered(events("llamacpp_chat.sse")), ManualClock())
    report = result.report
    assert result.outcome is Outcome.OK
    assert report.source == "llama.cpp timings"
    assert (report.queue_ns, report.prefill_ns, report.decode_ns) == (None, 80_500_000, 14_100_000)
    assert (report.cached_tokens, report.n_tokens) == (32, 3)


def test_llamacpp_timings_per_token_tell_how_many_tokens_a_chunk_holds():
    result = settle(answered(events("llamacpp_chat.sse")), ManualClock())
    generated = [(e.text, e.n_tokens) for e in result.emissions if e.kind is EmissionKind.TEXT]
    assert generated == [("Par", 1), ("is is", 2)]


def test_llamacpp_prompt_progress_is_no_token():
    facts = [read_chunk(data) for data in events("llamacpp_chat.sse")]
    assert facts[0].kind is EmissionKind.ROLE
    assert facts[0].completion_tokens is None


def test_llamacpp_timings_in_the_last_chunk_alone_count_no_chunk():
    chunks = events("llamacpp_chat.sse")
    for i in (1, 2):
        chunk = msgspec.json.decode(chunks[i])
        del chunk["timings"]
        chunks[i] = msgspec.json.encode(chunk)
    result = settle(answered(chunks), ManualClock())
    assert result.report.prefill_ns == 80_500_000
    assert all(e.n_tokens is None for e in result.emissions)


def test_sglang_meta_info_tells_queue_and_prefill_but_no_decode():
    first, last, _ = events("sglang_generate.sse")
    facts = [read_chunk(data) for data in (first, last)]
    report = facts[-1].report
    assert report.source == "sglang meta_info"
    assert (report.queue_ns, report.prefill_ns, report.decode_ns) == (1_250_000, 18_500_000, None)
    assert (report.e2e_ns, report.n_tokens) == (31_000_000, 2)
    assert (report.cached_tokens, report.preemptions) == (2, 1)


def test_sglang_meta_info_of_a_choice_is_read_as_well():
    info = msgspec.json.decode(events("sglang_generate.sse")[1])["meta_info"]
    chunk = {"choices": [{"delta": {"content": "x"}, "finish_reason": "length", "meta_info": info}]}
    assert read_chunk(msgspec.json.encode(chunk)).report.prefill_ns == 18_500_000


def test_sglang_without_metrics_has_no_phases():
    report = sglang_report(body("sglang_without_metrics.json"))
    assert (report.queue_ns, report.prefill_ns, report.decode_ns) == (None, None, None)
    assert (report.e2e_ns, report.n_tokens) == (31_000_000, 2)
    unset = b'{"queue_time":0.001,"forward_entry_time":0.0,"prefill_finished_time":2000.0}'
    assert sglang_report(unset).prefill_ns is None
    assert sglang_report(b'{"prompt_tokens":6,"completion_tokens":1}') is None


def test_ollama_tells_in_its_last_object_alone():
    lines = body("ollama_generate.jsonl").splitlines()
    assert ollama_report(lines[0]) is None
    report = ollama_report(lines[1])
    # 8.7 ms for the one token that no cache answered; loading the model is in neither
    assert (report.prefill_ns, report.decode_ns, report.e2e_ns) == (8_686_000, 52_479_709, 174_560_334)
    assert (report.cached_tokens, report.n_tokens) == (37, 18)


def test_an_older_ollama_says_nothing_of_its_cache():
    report = ollama_report(body("ollama_before_0.33.3.json"))
    assert report.prefill_ns == 13_074_791
    assert report.cached_tokens is None


def test_tgi_headers_are_whole_milliseconds_without_the_split():
    lines = body("tgi_headers.txt").decode().splitlines()
    report = tgi_report(dict(line.split(": ") for line in lines))
    assert (report.queue_ns, report.e2e_ns, report.n_tokens) == (0, 187_000_000, 20)
    assert (report.prefill_ns, report.decode_ns) == (None, None)
    assert tgi_report({"content-type": "application/json"}) is None
    assert tgi_report({"x-queue-time": "soon"}) is None


@pytest.mark.parametrize("reader", [llama_report, sglang_report, ollama_report])
def test_a_field_of_that_name_with_another_shape_is_unreadable(reader):
    with pytest.raises(UNREADABLE):
        reader(b"[1]")
    assert read_chunk(b'{"choices":[{"text":"x"}],"timings":[1],"meta_info":"no"}').report is None

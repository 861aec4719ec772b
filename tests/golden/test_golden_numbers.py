"""Golden: the numbers that the product reports of a stream (TTFT, every gap, TPOT, tokens, throughput, phases)
against the oracle's log. Expected values are worked out here from the log, by the definitions alone."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from golden.golden_client import EACH_MS, MEDIAN_MS, MEDIAN_OF, one, request
from golden.oracle import Oracle, Seen, chat, stream, text, usage_chunk
from phasemeter.explain.phases import Reading, itl_token_ns, read
from phasemeter.explain.summary import Summary, summarise
from phasemeter.record.clock import Anchor
from phasemeter.record.engine import EngineInfo, Outcome
from phasemeter.record.run import Footer, Header, Machine, Run
from phasemeter.record.timeline import timeline_of


def _measured(events: list, *, api: str = "chat") -> tuple[Reading, Seen]:
    """One stream through the client and the record, read by the product; and what the oracle really sent."""
    with Oracle(lambda _: stream(events)) as oracle:
        result = one(oracle, api=api)
        seen = oracle.measured[0]
    start_ns = result.connected_ns or 0
    reading = read(timeline_of(request(), result, arrived_ns=start_ns, started_ns=start_ns))
    cut = (getattr(reading.phases, name) for name in ("late", "connect", "first", "decode", "tail"))
    assert sum(span.ns for span in cut if span is not None) == result.end_ns - start_ns
    return reading, seen


def _summary(reading: Reading) -> Summary:
    header = Header(
        schema=1,
        run_id="r",
        phasemeter="0",
        anchor=Anchor(0, 0),
        engine=EngineInfo("openai", "m"),
        machine=Machine("h", "linux", "cpu", 2),
        settings={},
    )
    footer = Footer(reading.timeline.end_ns)
    return summarise(Run(header=header, requests=(reading.timeline,), footer=footer))


def _sent_ms(seen: Seen, first: int, last: int) -> list[float]:
    """When the pieces `first` to `last` were sent, after the request was read."""
    return [(t - seen.received_ns) / 1e6 for t, _ in seen.sent[first : last + 1]]


def _near(ours: float | None, theirs: float) -> None:
    assert ours is not None
    assert abs(ours - theirs) < EACH_MS, (ours, theirs)


def _gaps_agree(reading: Reading, sent: list[float]) -> None:
    theirs = [b - a for a, b in pairwise(sent)]
    assert len(reading.gaps_ns) == len(theirs)
    off = [ours / 1e6 - gap for ours, gap in zip(reading.gaps_ns, theirs, strict=True)]
    assert max(map(abs, off), default=0.0) < EACH_MS, off
    if len(off) >= MEDIAN_OF:
        assert abs(statistics.median(off)) < MEDIAN_MS, off


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_n_tokens_have_n_minus_1_gaps_and_tpot_leaves_the_first_out(api: str) -> None:
    """Pitfalls 1, 2 and 13: a long first token is in TTFT alone, not in a gap and not in TPOT."""
    made = [chat(w) if api == "chat" else text(w) for w in "abcde"]
    events: list = [(0, chat("", role="assistant"))] if api == "chat" else []
    events += [(200 + 10 * i, piece) for i, piece in enumerate(made)]
    reading, seen = _measured([*events, (240, usage_chunk(5))], api=api)
    first = len(events) - 4  # the head is piece 0
    sent = _sent_ms(seen, first, first + 4)
    _near(None if reading.ttft_ns is None else reading.ttft_ns / 1e6, sent[0])
    assert sent[0] >= 200
    _gaps_agree(reading, sent)
    assert max(reading.gaps_ns) < 150e6
    _near(None if reading.tpot_ns is None else reading.tpot_ns / 1e6, (sent[-1] - sent[0]) / 4)
    assert reading.tpot_ns == (sum(reading.gaps_ns)) / 4
    assert reading.tokens == 5


def test_a_hidden_first_token_starts_the_clock() -> None:
    """Pitfalls 3 and 10: content "" is a token that came, the text behind it comes later."""
    events = [
        (0, chat("", role="assistant")),
        (30, chat("")),
        (150, chat("a")),
        (160, chat("b", finish="stop")),
    ]
    reading, seen = _measured(events)
    sent = _sent_ms(seen, 2, 4)
    _near(reading.ttft_ns and reading.ttft_ns / 1e6, sent[0])
    assert reading.ttft_ns < 150e6
    assert reading.tokens == 3


def test_a_first_piece_of_many_tokens_is_told_and_doubted() -> None:
    """Pitfall 10: with a stream interval the first piece holds twenty tokens; the record says so."""
    events: list = [(100 + 100 * i, chat("x" * 20, usage=20 * (i + 1))) for i in range(4)]
    reading, _ = _measured([*events, (400, chat(finish="length", usage=80)), (400, usage_chunk(80))])
    assert [n for _, n in reading.timeline.generated()] == [20] * 4
    assert reading.tokens == 80
    doubts = {check.name: check for check in _summary(reading).checks}
    assert doubts["buffering"].verdict.value == "warn"
    assert "several tokens a piece" in doubts["buffering"].evidence


def test_speculative_decoding_counts_tokens_not_pieces() -> None:
    """Pitfalls 5 and 6: pieces of 3, 4, 1 and 2 tokens: TPOT and the gap a token by tokens, a gap by piece."""
    counts = [1, 3, 4, 1, 2]
    total, events = 0, []
    for i, n in enumerate(counts):
        total += n
        events.append((40 + 40 * i, chat("w " * n, usage=total)))
    reading, seen = _measured([*events, (200, usage_chunk(total))])
    sent = _sent_ms(seen, 1, 5)
    _gaps_agree(reading, sent)
    assert reading.tokens == 11
    _near(reading.tpot_ns and reading.tpot_ns / 1e6, (sent[-1] - sent[0]) / 10)
    by_token = itl_token_ns(reading.timeline)
    assert by_token is not None
    expected = [gap / n for gap, n in zip(reading.gaps_ns, counts[1:], strict=True) for _ in range(n)]
    assert by_token == pytest.approx(expected)
    assert len(by_token) == 10


def test_the_best_second_is_no_slower_than_the_mean() -> None:
    """Pitfall 7: five tokens an event; a peak that counted events would lie below the mean."""
    events: list = [(20 * i, chat("w", usage=5 * i)) for i in range(1, 61)]
    reading, _ = _measured([*events, (1200, usage_chunk(300))])
    found = _summary(reading).throughput
    assert found.output_tokens_per_s is not None
    assert found.peak_output_tokens_per_s is not None
    assert found.peak_output_tokens_per_s >= found.output_tokens_per_s * (1 - 1e-9)
    assert found.output_tokens_per_s > 60 * 5 / 3


def test_tool_text_held_till_the_end_is_seen() -> None:
    """Pitfall 8: 64 tokens generated, all in one late piece: the count is the server's, and a check doubts."""
    call = [{"index": 0, "function": {"name": "f", "arguments": '{"a":1}'}}]
    events = [
        (0, chat(None, role="assistant")),
        (30, chat("Let")),
        (300, chat(tool_calls=call, finish="tool_calls")),
        (300, usage_chunk(64)),
    ]
    reading, _ = _measured(events)
    assert (reading.tokens, reading.counted) == (64, 2)
    assert _summary(reading).tokens_counted == "usage"
    doubts = {check.name: check.verdict.value for check in _summary(reading).checks}
    assert doubts["buffering"] == "warn"


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_first_token_and_first_answer_are_two_times(field: str) -> None:
    """Pitfalls 11 and 17: twenty thoughts, then the answer; usage holds the thoughts already."""
    events: list = [(0, chat("", role="assistant"))]
    events += [(20 + 10 * i, chat(**{field: "hm"})) for i in range(20)]
    events += [(260, chat("42")), (270, chat("."))]
    told = usage_chunk(22)
    told["usage"]["completion_tokens_details"] = {"reasoning_tokens": 20}
    reading, seen = _measured([*events, (270, chat(finish="stop")), (270, told)])
    sent = _sent_ms(seen, 2, 23)
    _near(reading.ttft_ns and reading.ttft_ns / 1e6, sent[0])
    _near(reading.ttfa_ns and reading.ttfa_ns / 1e6, sent[20])
    _gaps_agree(reading, sent)
    assert reading.tokens == reading.counted == 22
    latency = _summary(reading).latency
    assert latency.ttfa_ms is not None
    assert latency.ttft_ms is not None
    assert latency.ttfa_ms.p50 > latency.ttft_ms.p50 + 100


def test_a_stall_stays_in_the_tail_of_the_gaps_and_in_the_mean() -> None:
    """Pitfall 12: one gap of 200 ms among gaps of 5 ms."""
    due = [10.0 + 5 * i + (200 if i >= 30 else 0) for i in range(60)]
    reading, seen = _measured([*((t, chat("x")) for t in due), (due[-1], chat(finish="length"))])
    sent = _sent_ms(seen, 1, 60)
    latency = _summary(reading).latency
    assert latency.itl_ms is not None
    assert latency.itl_ms.n == 59
    _near(latency.itl_ms.mean, (sent[-1] - sent[0]) / 59)
    _near(latency.tpot_ms and latency.tpot_ms.p50, (sent[-1] - sent[0]) / 59)
    assert latency.itl_ms.p50 < 50
    _near(max(reading.gaps_ns) / 1e6, max(b - a for a, b in pairwise(sent)))


def test_a_late_done_is_tail_not_decode() -> None:
    """Pitfall 17: the window of the tokens ends with the last token, not with [DONE]."""
    events = [(20, chat("a")), (40, chat("b")), (40, chat(finish="stop")), (240, usage_chunk(2))]
    reading, seen = _measured(events)
    a, b, _, _, done = _sent_ms(seen, 1, 5)
    _near(reading.phases.decode and reading.phases.decode.ns / 1e6, b - a)
    _near(reading.phases.tail and reading.phases.tail.ns / 1e6, done - b)
    assert reading.tpot_ns is not None
    assert reading.tpot_ns < 150e6


@pytest.mark.parametrize("told", [True, False])
def test_one_token_has_no_tpot_and_no_gap(told: bool) -> None:
    """Pitfall 18: absent, neither 0 nor NaN."""
    events: list = [(20, chat("x", finish="length"))] + ([(20, usage_chunk(1))] if told else [])
    reading, _ = _measured(events)
    assert (reading.tokens, reading.tpot_ns, reading.gaps_ns) == (1, None, ())
    latency = _summary(reading).latency
    assert latency.tpot_ms is None
    assert latency.itl_ms is None
    assert latency.ttft_ms is not None


def test_without_a_count_a_piece_is_counted_and_called_so() -> None:
    """Pitfalls 15 and 16: nothing is tokenised again by us; where nobody counts, the report says by chunk."""
    reading, _ = _measured([(20, chat("two words")), (40, chat(" three more words", finish="stop"))])
    assert reading.tokens == 2
    assert _summary(reading).tokens_counted == "chunk"


def test_the_residual_between_engine_and_client_is_shown() -> None:
    """Pitfall 41: the engine says 12.5 ms of prefill and 30 ms of decode; what is left has a name."""
    last = chat(finish="stop") | {
        "timings": {"prompt_n": 5, "prompt_ms": 12.5, "predicted_n": 3, "predicted_ms": 30.0}
    }
    reading, seen = _measured([(60, chat("a")), (80, chat("b")), (100, chat("c")), (100, last)])
    sent = _sent_ms(seen, 1, 3)
    phases = reading.phases
    assert phases.prefill is not None
    assert phases.first is not None
    assert phases.front_end is not None
    assert phases.prefill.ns == 12_500_000
    assert phases.front_end.ns == phases.first.ns - 12_500_000
    _near(phases.front_end.ns / 1e6, sent[0] - 12.5)
    assert phases.queue is None
    assert phases.engine_decode is not None
    assert phases.engine_decode.ns == 30_000_000


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([(20, chat("a")), (40, {"error": {"message": "no blocks", "code": 503}})], Outcome.ERROR_IN_STREAM),
        ([], Outcome.EMPTY_STREAM),
    ],
)
def test_a_200_that_failed_is_in_no_number(events: list, outcome: Outcome) -> None:
    """Pitfall 40: an error inside a 200 and a 200 without a token are failures, and no latency holds them."""
    reading, _ = _measured(events)
    assert reading.timeline.outcome is outcome
    found = _summary(reading)
    assert (found.requests.ok, found.requests.failed) == (0, 1)
    assert found.requests.by_outcome == {outcome.value: 1}
    assert found.latency.ttft_ms is None
    assert found.throughput.output_tokens_per_s is None
    assert found.verdict.value == "invalid"

"""Golden: what `phasemeter measure` sends, as a raw socket at the other end sees it: prompts, lengths, warm-up."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from golden.oracle import Oracle, Script, Seen, chat, stream, text, usage_chunk, whole
from phasemeter.explain.summary import Summary, summarise
from phasemeter.record.file import read_run
from phasemeter.record.run import Run

SRC = Path(__file__).parents[2] / "src"
TEMPLATE_TOKENS = 7
HEAD = 4
"""Tokens that may be shared by no two prompts. vLLM's blocks have 16, but a radix cache (SGLang) matches by token."""


def _measure(oracle: Oracle, out: Path, *args: str) -> tuple[Run, Summary]:
    command = [sys.executable, "-m", "phasemeter", "measure", "--engine", "openai", "--url", oracle.url]
    done = subprocess.run(
        [*command, "--out", str(out), *args],
        env={"PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = read_run(out)
    return run, summarise(run)


def _answer(seen: Seen, *, stop_after: int | None = None) -> Script:
    """What was asked for, 2 ms a token after 10 ms; counts the prompt as it came."""
    prompt = seen.json["prompt"]
    n = min(seen.json["max_tokens"], stop_after or 10_000)
    finish = "length" if stop_after is None else "stop"
    events: list = [(10 + 2 * i, text("w")) for i in range(n)]
    events.append((10 + 2 * n, text("", finish)))
    return stream([*events, (10 + 2 * n, usage_chunk(n, len(prompt)))])


def _generations(oracle: Oracle) -> list[Seen]:
    return [seen for seen in oracle.seen if seen.method == "POST"]


def test_no_prompt_comes_twice_in_a_run_or_from_run_to_run(tmp_path: Path) -> None:
    """Pitfalls 31 and 33: two runs with one seed against a warm server, ready check and warm-up included, and
    no two prompts open alike."""
    args = ("--input-tokens", "32,48", "--output-tokens", "4", "--repeats", "2", "--seed", "0")
    with Oracle(_answer) as oracle:
        _measure(oracle, tmp_path / "a.jsonl", *args, "--concurrency", "1,2")
        first = len(_generations(oracle))
        _measure(oracle, tmp_path / "b.jsonl", *args, "--concurrency", "1,2")
        prompts = [seen.json["prompt"] for seen in _generations(oracle)]
    assert 0 < first < len(prompts)
    heads = [tuple(prompt[:HEAD]) for prompt in prompts if isinstance(prompt, list) and len(prompt) >= HEAD]
    assert len(heads) > 2 * (2 + 1) * 2
    assert [head for head, n in Counter(heads).items() if n > 1] == []
    whole_prompts = [tuple(p) if isinstance(p, list) else p for p in prompts]
    assert [p for p, n in Counter(whole_prompts).items() if n > 1] == []


def test_token_ids_have_exactly_the_length_asked(tmp_path: Path) -> None:
    """Pitfall 34: as the server counts them; a prompt of one token is one token, not none."""
    with Oracle(_answer) as oracle:
        run, _ = _measure(
            oracle, tmp_path / "r.jsonl", "--input-tokens", "1,33", "--output-tokens", "3", "--repeats", "2"
        )
        by_id = {seen.headers["x-request-id"]: seen.json for seen in _generations(oracle)}
    measured = [t for t in run.requests if not t.cell.warmup]
    assert {t.cell.input_tokens for t in measured} == {1, 33}
    assert all(len(by_id[t.id]["prompt"]) == t.cell.input_tokens for t in measured)


def test_text_prompts_are_made_exact_by_the_servers_own_count(tmp_path: Path) -> None:
    """Pitfalls 15, 16 and 34: a template of seven tokens and words of two tokens each: no tokenizer of ours
    could know them, and the prompt has the length asked."""

    def count(seen: Seen) -> int:
        words = "".join(message["content"] for message in seen.json["messages"]).split()
        return TEMPLATE_TOKENS + sum(2 if len(word) <= 4 else 2 + len(word) - 4 for word in words)

    def answer(seen: Seen) -> Script:
        if seen.method == "GET" or not seen.path.endswith("/chat/completions"):
            return whole("404 Not Found", b"{}")
        n = seen.json["max_tokens"]
        events: list = [(5 + 2 * i, chat("w")) for i in range(n)]
        return stream([*events, (5 + 2 * n, chat(finish="length")), (5 + 2 * n, usage_chunk(n, count(seen)))])

    with Oracle(answer, raw=True) as oracle:
        run, summary = _measure(
            oracle,
            tmp_path / "r.jsonl",
            *("--api", "chat", "--model", "m", "--input-tokens", "33,65"),
            *("--output-tokens", "3", "--repeats", "2"),
        )
        counted = {seen.headers["x-request-id"]: count(seen) for seen in _generations(oracle)}
    measured = [t for t in run.requests if not t.cell.warmup]
    assert all(counted[t.id] == t.cell.input_tokens for t in measured)
    assert {check.name: check.verdict.value for check in summary.checks}["prompt_tokens"] == "ok"


def test_answers_shorter_than_asked_are_reported(tmp_path: Path) -> None:
    """Pitfall 35: the server ignores ignore_eos and stops after 3 of 12 tokens."""
    with Oracle(lambda seen: _answer(seen, stop_after=3)) as oracle:
        run, summary = _measure(
            oracle, tmp_path / "r.jsonl", "--input-tokens", "16", "--output-tokens", "12", "--repeats", "5"
        )
        assert all(seen.json["ignore_eos"] is True for seen in oracle.measured)
    assert {t.usage.completion_tokens for t in run.requests if t.usage and not t.cell.warmup} == {3}
    found = {check.name: check for check in summary.checks}["output_shortfall"]
    assert found.verdict.value != "ok"
    assert "15 of 60 tokens came" in found.evidence


def test_every_shape_is_warmed_before_it_is_measured_and_nothing_straddles(tmp_path: Path) -> None:
    """Pitfalls 36 and 37: each length at each concurrency is warmed with as many at once, and no warm-up
    request is in flight when the first measured one is sent."""
    with Oracle(_answer) as oracle:
        run, summary = _measure(
            oracle,
            tmp_path / "r.jsonl",
            *("--input-tokens", "16,40", "--output-tokens", "4", "--concurrency", "1,3", "--repeats", "2"),
        )
        seen = {s.headers["x-request-id"]: s for s in _generations(oracle)}
    warm = [t for t in run.requests if t.cell.warmup]
    measured = [t for t in run.requests if not t.cell.warmup]
    first_ns = min(seen[t.id].received_ns for t in measured)
    assert max(seen[t.id].sent[-1][0] for t in warm) < first_ns
    for length in (16, 40):
        assert any(len(seen[t.id].json["prompt"]) == length for t in warm)
        spans = [
            (seen[t.id].received_ns, seen[t.id].sent[-1][0])
            for t in warm
            if len(seen[t.id].json["prompt"]) == length
        ]
        most = max(sum(a <= start < b for a, b in spans) for start, _ in spans)
        assert most >= 3, f"length {length} was warmed with {most} at once"
    assert summary.requests.ok == len(measured)
    assert summary.requests.warmup == len(warm)
    assert summary.latency.ttft_ms is not None
    assert summary.latency.ttft_ms.n == len(measured)


def test_a_slow_first_request_is_cold_start_and_no_measured_number(tmp_path: Path) -> None:
    """Pitfall 36: the first generation of the process takes 300 ms more; steady numbers do not know it."""
    begun: list[Seen] = []

    def answer(seen: Seen) -> Script:
        begun.append(seen)
        late = 300 if len(begun) == 1 else 0
        return [(due + late, data) for due, data in _answer(seen)]

    with Oracle(answer) as oracle:
        _, summary = _measure(
            oracle, tmp_path / "r.jsonl", "--input-tokens", "16", "--output-tokens", "4", "--repeats", "5"
        )
    assert summary.latency.ttft_ms is not None
    assert summary.latency.ttft_ms.p50 < 150
    assert summary.latency.ttft_ms.p99 < 250
    assert summary.cold.first_ttft_ms is not None
    assert summary.cold.first_ttft_ms >= 300
    assert summary.cold.steady_ttft_ms is not None
    assert summary.cold.steady_ttft_ms < 150

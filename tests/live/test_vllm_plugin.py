"""Our plugin in a real vLLM: what it tells, joined with what the client saw, beside vLLM's own /metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from live.tiny_vllm import CONTEXT, Server, serving
from phasemeter.cli import cli
from phasemeter.engines.openai_http import HttpOptions, OpenAIHttp
from phasemeter.engines.vllm_metrics import scrape_of
from phasemeter.engines.vllm_seen import SeenFile
from phasemeter.explain.facts import contradictions
from phasemeter.explain.phases import read
from phasemeter.explain.server_metrics import agreement, agreements, between, quantile
from phasemeter.explain.steps import life_of
from phasemeter.explain.summary import summarise
from phasemeter.record.clock import MonotonicClock, anchor
from phasemeter.record.engine import EngineStep, Outcome, SeenRequest
from phasemeter.record.errors import UndecidedError
from phasemeter.record.file import RunWriter
from phasemeter.record.join import joined
from phasemeter.record.request import Cell, Request
from phasemeter.record.run import Header, Machine, Run
from phasemeter.record.timeline import Timeline, timeline_of

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

CHUNK = 128
LIMIT = 14


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("vllm")
    flags = ["--max-num-batched-tokens", str(CHUNK), "--max-num-seqs", "16", "--no-enable-prefix-caching"]
    flags += ["--max-num-queued-reqs", str(LIMIT), "--enable-per-request-metrics"]
    with serving(folder, *flags) as running:
        yield running


class Seen:
    """One test's requests: sends them, and gives them back with what the plugin and /metrics told of them."""

    def __init__(self, server: Server, engine: OpenAIHttp, file: SeenFile, name: str) -> None:
        self.server, self.engine, self.file, self.name = server, engine, file, name
        self.clock = MonotonicClock()
        self.before = scrape_of(server.metrics())
        self._serial = 0

    def request(self, tokens: int, output: int, **extra) -> Request:
        number, self._serial = self._serial, self._serial + 1
        return Request(
            id=f"{self.name}-{number:06d}",
            cell=Cell(tokens, output),
            max_tokens=output,
            token_ids=tuple((37 * number + 11 * k) % 1900 + 5 for k in range(tokens)),
            extra=extra,
        )

    async def send(self, request: Request) -> Timeline:
        started = self.clock.now_ns()
        reply = await self.engine.generate(request)
        return timeline_of(request, reply.settle(), arrived_ns=started, started_ns=started)

    async def told(self, n: int, within_s: float = 5.0) -> tuple[list[SeenRequest], list[EngineStep]]:
        """What the plugin wrote, once `n` sequences are there."""
        lines: list[SeenRequest | EngineStep] = []
        end = time.monotonic() + within_s
        while sum(isinstance(line, SeenRequest) for line in lines) < n and time.monotonic() < end:
            await asyncio.sleep(0.05)
            lines += self.file.read()
        requests = [line for line in lines if isinstance(line, SeenRequest)]
        return requests, [line for line in lines if isinstance(line, EngineStep)]

    def metrics(self):
        return between(self.before, scrape_of(self.server.metrics()))

    def run(self, timelines, requests, steps) -> Run:
        header = Header(
            schema=1,
            run_id=self.name,
            phasemeter="0",
            anchor=anchor(self.clock),
            engine=self.engine.info,
            machine=Machine("host", "linux", "cpu", 2),
            settings={},
        )
        return Run(header, joined(timelines, requests), seen=tuple(requests), steps=tuple(steps))


@pytest.fixture
async def seen(server: Server, request: pytest.FixtureRequest):
    engine = OpenAIHttp(HttpOptions(url=server.url))
    await engine.start()
    await asyncio.sleep(0.3)  # the probe's own requests are told before ours
    file = SeenFile(server.seen)
    file.read()
    name = re.sub(r"\W", "", request.node.name)[-12:]
    yield Seen(server, engine, file, name)
    await engine.close()


def agrees_with_metrics(requests: list[SeenRequest], told) -> None:
    found = agreements([line.report for line in requests], told)
    assert {one.name for one in found} == {"queue", "prefill", "decode", "e2e"}
    assert [one for one in found if not one.agrees] == []


def impossible(timeline: Timeline) -> list[str]:
    """Contradictions that no busy machine explains. That the client sees another decode time than the engine is a
    fact of such a machine: the server's front end delivers when it gets a core."""
    return [one.evidence for one in contradictions(timeline) if one.name != "decode"]


async def test_twelve_mixed_streams_at_once(seen: Seen, capfd: pytest.CaptureFixture[str]):
    shapes = [(20, 30), (300, 30), (60, 1), (150, 20), (8, 40), (400, 24)] * 2
    timelines = await asyncio.gather(*[seen.send(seen.request(*shape)) for shape in shapes])
    assert [t.outcome for t in timelines] == [Outcome.OK] * 12
    requests, steps = await seen.told(12)
    assert {line.request for line in requests} == {t.id for t in timelines}
    told = seen.metrics()
    agrees_with_metrics(requests, told)
    run = seen.run(timelines, requests, steps)
    for timeline, (_, output) in zip(run.requests, shapes, strict=True):
        reading = read(timeline)
        assert timeline.report is not None
        assert timeline.report.source == "vllm plugin"
        assert timeline.report.n_tokens == output == reading.tokens
        assert timeline.report.preemptions == 0
        assert reading.phases.front_end is not None
        assert reading.phases.front_end.ns > 0
        assert impossible(timeline) == []
    # what the client saw of decoding beside what vLLM says of it
    client_ms = sum(read(t).phases.decode.ns for t in run.requests) / 1e6  # type: ignore[union-attr]
    decode = agreement("decode", client_ms, 12, told.histograms["decode"])
    summary = summarise(run)
    assert summary.steps is not None
    assert summary.steps.placed == 10  # two had one token only
    splits = [shape.front_end_split for shape in summary.shapes]
    assert all(split is not None and split.api_process.dist.p50 > 0 for split in splits)
    with capfd.disabled():
        print(f"\nclient's decode beside vLLM's: {decode.ours_ms:.1f} and {decode.theirs_ms:.1f} ms")
        for shape in summary.shapes:
            phases, split = shape.phases, shape.front_end_split
            assert phases.front_end is not None
            assert split is not None
            print(
                f"{shape.key.input_tokens} -> {shape.key.output_tokens}: front end {phases.front_end.dist.mean:.1f}, "
                f"API process {split.api_process.dist.mean:.1f}, outside {split.outside.dist.mean:.1f} ms"
            )
    assert decode.their_count == 12
    assert decode.ours_ms == pytest.approx(decode.theirs_ms, rel=0.5)


async def test_the_plugin_and_the_last_chunk_say_the_same(seen: Seen):
    timeline = await seen.send(seen.request(64, 16))
    [line], _ = await seen.told(1)
    chunk, plugin = timeline.report, line.report
    assert chunk is not None
    assert chunk.source == "vllm response metrics"
    for name in ("queue_ns", "prefill_ns", "decode_ns"):
        assert getattr(chunk, name) == pytest.approx(getattr(plugin, name), abs=1000), name
    [whole] = joined([timeline], [line])
    assert whole.report is not None
    assert whole.report.source == "vllm plugin"


async def test_one_token_is_all_prefill(seen: Seen):
    timelines = [await seen.send(seen.request(100, 1)) for _ in range(3)]
    requests, _ = await seen.told(3)
    for timeline in joined(timelines, requests):
        assert timeline.outcome is Outcome.OK
        assert timeline.report is not None
        assert (timeline.report.decode_ns, timeline.report.n_tokens) == (0, 1)
        assert timeline.report.prefill_ns is not None
        assert timeline.report.prefill_ns > 0
        reading = read(timeline)
        assert reading.tpot_ns is None
        assert impossible(timeline) == []


async def test_two_answers_to_one_prompt_are_two_sequences(seen: Seen):
    timeline = await seen.send(seen.request(40, 12, n=2, temperature=1.0))
    requests, _ = await seen.told(2)
    assert timeline.outcome is Outcome.OK
    assert [(line.request, line.index) for line in requests] == [(timeline.id, 0), (timeline.id, 1)]
    assert timeline.report is None  # vLLM's last chunk says nothing when n > 1; the plugin does
    [whole] = joined([timeline], requests)
    assert whole.report is not None
    assert whole.report.n_tokens == 24
    agrees_with_metrics(requests, seen.metrics())


async def test_an_abort_is_ours_alone(seen: Seen):
    """vLLM tells nothing of a request whose client went away."""
    task = asyncio.create_task(seen.send(seen.request(20, 400)))
    await asyncio.sleep(0.3)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    after = await seen.send(seen.request(20, 4))
    requests, _ = await seen.told(1)
    assert [line.request for line in requests] == [after.id]
    assert seen.metrics().finished["length"] == 1


async def test_a_full_queue_refuses_inside_a_200(seen: Seen):
    timelines = await asyncio.gather(*[seen.send(seen.request(20, 120)) for _ in range(LIMIT + 6)])
    served = [t for t in timelines if t.outcome is Outcome.OK]
    refused = [t for t in timelines if t.outcome is not Outcome.OK]
    assert len(served) >= LIMIT
    assert refused, "nothing was refused"
    assert {t.outcome for t in refused} == {Outcome.REFUSED}
    assert {t.status for t in refused} == {200}
    requests, _ = await seen.told(len(served))
    assert {line.request for line in requests} == {t.id for t in served}
    told = seen.metrics()
    assert told.counters["vllm:admission_rejections"] == len(refused)
    agrees_with_metrics(requests, told)


async def test_a_prompt_that_is_too_long_never_reaches_the_engine(seen: Seen):
    timeline = await seen.send(seen.request(CONTEXT + 50, 8))
    assert (timeline.outcome, timeline.status) == (Outcome.HTTP_ERROR, 400)
    assert str(CONTEXT) in (timeline.error or "")
    requests, _ = await seen.told(1, within_s=0.5)
    assert requests == []


async def test_long_prompts_slow_the_short_ones_that_decode(seen: Seen, tmp_path: Path):
    """Chunked prefill: a prompt of 400 tokens takes 4 steps of 128, and who decodes beside it waits for them."""
    short = [asyncio.create_task(seen.send(seen.request(8, 90))) for _ in range(3)]
    await asyncio.sleep(0.12)
    long = [asyncio.create_task(seen.send(seen.request(400, 4))) for _ in range(3)]
    timelines = await asyncio.gather(*short, *long)
    requests, steps = await seen.told(6)
    run = seen.run(timelines, requests, steps)
    found = summarise(run).steps
    assert found is not None
    assert found.note == ""
    by_kind = {kind.kind: kind for kind in found.kinds}
    assert by_kind["mixed"].prefill_tokens > 800
    assert max(step.prefill_tokens or 0 for step in steps) <= CHUNK
    slowed = {one.request: one for one in found.most}
    for timeline in timelines[:3]:
        one = slowed[timeline.id]
        assert one.decode_steps == 89
        assert one.prefill_steps >= 4
        assert one.interference_ms is not None
        assert one.share is not None
        assert 0 < one.interference_ms < one.decode_ms
        life = life_of(run, timeline.id)
        assert life is not None
        decoding = sum(row.cost_ms or 0.0 for row in life.rows if row.part == "decode")
        assert decoding == pytest.approx(one.decode_ms, rel=0.05, abs=3.0)
    agrees_with_metrics(requests, seen.metrics())
    explained_alone(write(run, tmp_path / "run.jsonl"), timelines)


def write(run: Run, path: Path) -> Path:
    """The run as a file."""
    with RunWriter(path, run.header) as writer:
        for line in (*run.requests, *run.seen, *run.steps):
            writer.write(line)
    return path


def explained_alone(path: Path, timelines: list[Timeline]) -> None:
    """`explain --request` on the record of short prompts that decoded beside long ones."""
    said = CliRunner().invoke(cli, ["explain", str(path), "--request", "slowest-itl", "--json"])
    assert said.exit_code == 0, said.output
    told = json.loads(said.output)["request"]
    assert told["id"] in {timeline.id for timeline in timelines}
    assert {told["phases"][name]["basis"] for name in ("queue", "prefill", "decode")} == {"observed"}
    for short in timelines[:3]:
        said = CliRunner().invoke(cli, ["explain", str(path), "--request", short.id, "--json"])
        told = json.loads(said.output)["request"]
        shared = told["shared"]
        assert shared["steps"]["prefill_tokens"] > 400
        assert len(shared["gaps"]["gaps"]) == 89
        assert shared["gaps"]["beside"] >= 4
        beside = [row for row in shared["life"]["rows"] if row["part"] == "decode" and row["prefill_tokens"]]
        assert sum(row["other_prefill_tokens"] for row in beside) == shared["steps"]["prefill_tokens"]
        own = [row["own_prefill_tokens"] for row in shared["life"]["rows"]]
        assert None in own or sum(own) == 8
        said = CliRunner().invoke(cli, ["explain", str(path), "--request", short.id])
        assert "tokens of other requests" in said.output


async def test_what_the_default_buckets_cannot_say_is_refused(seen: Seen):
    await seen.send(seen.request(20, 4))
    await seen.told(1)
    with pytest.raises(UndecidedError, match=r"between 0 and 0\.3 s"):
        quantile(seen.metrics().histograms["prefill"], 0.5, takes_buckets=True)


def test_the_file_holds_one_whole_line_for_everything(server: Server):
    lines = [json.loads(line) for line in Path(server.seen).read_text().splitlines()]
    assert [line["type"] for line in lines].count("start") == 1
    assert {line["type"] for line in lines} == {"start", "step", "request"}
    assert lines[0]["vllm"].startswith("0.")
    stamps = [line["engine_ns"] for line in lines]
    assert stamps == sorted(stamps)


def test_a_plugin_that_cannot_write_leaves_the_server_alone(tmp_path: Path):
    with serving(tmp_path, seen="/dev/full") as running:
        assert "vllm:request_success_total" in running.metrics()  # it came up and has generated
        assert running.process.poll() is None
        log = running.log.read_text(errors="replace")
    assert log.count("phasemeter: nothing more is written") == 1

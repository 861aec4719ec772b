"""Sessions in virtual time: what lands in the file, warm-up, interruption, a dying engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from phasemeter.engines.simulated.engine import SimulatedEngine
from phasemeter.engines.simulated.truth import Truth
from phasemeter.engines.simulated.virtual import run_virtual
from phasemeter.measure.plan import Grid
from phasemeter.measure.session import Beside, Progress, measure
from phasemeter.record.clock import Anchor, ManualClock
from phasemeter.record.engine import EngineInfo, Outcome, Result
from phasemeter.record.errors import EngineError, InputError
from phasemeter.record.file import read_run
from phasemeter.record.request import Request, Usage
from phasemeter.record.run import SCHEMA, Header, Machine


def header(engine) -> Header:
    return Header(
        schema=SCHEMA,
        run_id="r",
        phasemeter="0",
        anchor=Anchor(0, 0),
        engine=engine.info,
        machine=Machine("h", "o", "c", 2),
        settings={},
    )


def run(
    grid: Grid, out: Path, make=lambda clock: SimulatedEngine(Truth(ttft_ms=50, itl_ms=10), clock), **options
):
    async def main(clock: ManualClock) -> None:
        engine = make(clock)
        await measure(engine, grid, clock, out, header(engine), Beside(**options))

    run_virtual(main)


def test_the_file_holds_the_whole_plan_in_its_order(tmp_path):
    out = tmp_path / "run.jsonl"
    run(Grid((64, 128), (4, 8), concurrency=(1, 2), repeats=3), out)
    found = read_run(out)
    measured = [t for t in found.requests if not t.cell.warmup]
    # 4 cells of 1 request and 4 of 4 requests a block, and the anchor.
    assert len(measured) == 3 * (4 + 16 + 1)
    assert [t.cell.block for t in measured] == sorted(t.cell.block for t in measured)
    assert all(t.outcome is Outcome.OK for t in measured)
    assert {t.counted_tokens() for t in measured if t.cell.output_tokens == 8} == {8}
    assert len({t.id for t in found.requests}) == len(found.requests)
    assert found.footer is not None
    assert not found.footer.interrupted
    assert found.samples


def test_warm_up_goes_on_until_times_settle_and_stays_marked_in_the_record(tmp_path):
    out = tmp_path / "run.jsonl"
    truth = Truth(ttft_ms=50, itl_ms=10, cold_first_ms=400)
    run(Grid((64,), (8,), repeats=2), out, lambda clock: SimulatedEngine(truth, clock))
    found = read_run(out)
    warm = [t for t in found.requests if t.cell.warmup]
    firsts = [(t.generated()[0][0] - (t.sent_ns or 0)) // 1_000_000 for t in warm]
    assert firsts == [450, 50, 50]
    assert all(
        (t.generated()[0][0] - (t.sent_ns or 0)) == 50_000_000 for t in found.requests if not t.cell.warmup
    )


def test_a_fixed_number_of_warm_up_rounds_is_kept_to(tmp_path):
    for rounds in (0, 3):
        out = tmp_path / f"{rounds}.jsonl"
        run(Grid((64, 128), (8,), repeats=1, warmup=rounds), out)
        assert sum(t.cell.warmup for t in read_run(out).requests) == 2 * rounds


class Interrupting(SimulatedEngine):
    """Ctrl-C in the middle of the fifth request."""

    count = 0

    async def generate(self, request: Request):
        self.count += 1
        if self.count == 5:
            raise asyncio.CancelledError
        return await super().generate(request)


def test_ctrl_c_keeps_what_was_measured_and_says_so(tmp_path):
    out = tmp_path / "run.jsonl"
    with pytest.raises(asyncio.CancelledError):
        run(Grid((64,), (4,), repeats=9, warmup=0), out, lambda clock: Interrupting(Truth(ttft_ms=5), clock))
    found = read_run(out)
    assert [t.outcome for t in found.requests] == [Outcome.OK] * 4 + [Outcome.CANCELLED]
    assert found.footer is not None
    assert found.footer.interrupted


class Dying(SimulatedEngine):
    """Its server goes away after three requests."""

    count = 0

    async def generate(self, request: Request):
        self.count += 1
        if self.count <= 3:
            return await super().generate(request)
        from phasemeter.record.engine import Settled

        await asyncio.sleep(0.01)
        return Settled(Result(Outcome.CONNECT_FAILED, end_ns=0, error="connection refused"))


def test_a_dead_engine_ends_the_run_with_its_reason_and_keeps_the_rest(tmp_path):
    out = tmp_path / "run.jsonl"
    with pytest.raises(EngineError, match=r"cannot be reached any more \(connection refused\)"):
        run(Grid((64,), (4,), repeats=50, warmup=0), out, lambda clock: Dying(Truth(ttft_ms=5), clock))
    found = read_run(out)
    assert len(found.requests) == 3 + 8
    assert found.footer is not None
    assert found.footer.error is not None


def test_an_existing_file_is_never_touched(tmp_path):
    out = tmp_path / "run.jsonl"
    out.write_text("mine")
    with pytest.raises(InputError, match="never overwritten"):
        run(Grid((64,), (4,), repeats=1), out)
    assert out.read_text() == "mine"


def test_the_watcher_sees_the_plan_go_by(tmp_path):
    seen: list[Progress] = []
    run(Grid((64, 128), (4,), repeats=3), tmp_path / "run.jsonl", watch=seen.append)
    assert seen[-1].done == seen[-1].planned == 9
    assert any(p.warming for p in seen)
    left = [p.left_s for p in seen if p.left_s is not None]
    assert left == sorted(left, reverse=True)
    assert left[0] == pytest.approx(0.08 * 8, rel=0.2)


class TextOnly(SimulatedEngine):
    """Takes text, counts a template of 7 tokens and one a word."""

    @property
    def info(self) -> EngineInfo:
        return replace(super().info, takes_token_ids=False)

    async def generate(self, request: Request):
        assert request.token_ids is None
        assert request.prompt is not None
        settled = await super().generate(request)
        usage = Usage(7 + len(request.prompt.split()), request.max_tokens)
        from phasemeter.record.engine import Settled

        return Settled(replace(settled.settle(), usage=usage))


def test_text_prompts_are_made_exact_by_what_the_server_counts(tmp_path):
    out = tmp_path / "run.jsonl"
    run(Grid((64, 128), (4,), repeats=2), out, lambda clock: TextOnly(Truth(ttft_ms=5), clock))
    measured = [t for t in read_run(out).requests if not t.cell.warmup]
    assert measured
    assert all(t.usage and t.usage.prompt_tokens == t.cell.input_tokens for t in measured)

"""The generated page says what the numbers say, whatever run files are there."""

from __future__ import annotations

import gzip
import importlib
import re
import sys
from pathlib import Path

import msgspec
import pytest

from phasemeter.record.clock import Anchor
from phasemeter.record.engine import EngineInfo, EngineReport, Outcome
from phasemeter.record.errors import InputError
from phasemeter.record.file import RunWriter
from phasemeter.record.request import Cell, Usage
from phasemeter.record.run import SCHEMA, Footer, Gpu, Header, Machine
from phasemeter.record.timeline import Timeline
from phasemeter.roofline.presets import load_shape

BENCH = Path(__file__).parents[2] / "benchmarks" / "h200"
MS = 1_000_000


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(BENCH))
    try:
        yield {
            name: importlib.import_module(name) for name in ("article_page", "article_data", "article_plan")
        }
    finally:
        sys.path.remove(str(BENCH))


def timeline(serial: int, cell: Cell, prefill_ms: float, tpot_ms: float, front_ms: float) -> Timeline:
    noise = 1 + 0.01 * (cell.block - 3)  # over seven blocks the median is exact
    prefill_ns, gap_ns, front_ns = (round(ms * noise * MS) for ms in (prefill_ms, tpot_ms, front_ms))
    start_ns = serial * 10_000 * MS
    first_ns = front_ns + prefill_ns
    gaps = [gap_ns] * (cell.output_tokens - 1)
    return Timeline(
        id=f"r{serial}",
        cell=cell,
        max_tokens=cell.output_tokens,
        outcome=Outcome.OK,
        arrived_ns=start_ns,
        started_ns=start_ns,
        connected_ns=start_ns,
        sent_ns=start_ns,
        first_byte_ns=start_ns + first_ns,
        end_ns=start_ns + first_ns + sum(gaps),
        deltas_ns=(first_ns, *gaps),
        kinds="t" * cell.output_tokens,
        counts=(1,) * cell.output_tokens,
        prompt_tokens_sent=cell.input_tokens,
        usage=Usage(cell.input_tokens, cell.output_tokens),
        report=EngineReport(
            "test", queue_ns=0, prefill_ns=prefill_ns, decode_ns=sum(gaps), n_tokens=cell.output_tokens
        ),
    )


def write(folder: Path, start: str, prefill, tpot_ms: float, front_ms: float, shapes=None) -> Path:
    """A run on an H200 whose prefill is `prefill(tokens)` ms, seven blocks."""
    header = Header(
        schema=SCHEMA,
        run_id=start,
        phasemeter="0",
        anchor=Anchor(0, 1_800_000_000 * 10**9),
        engine=EngineInfo(
            "vllm", "ernie-4.5-0.3b", version="0.26.0", dtype="bfloat16", weights="random, seed 0"
        ),
        machine=Machine("h", "os", "cpu", 16, gpus=(Gpu("NVIDIA H200"),)),
        settings={"start": start},
        shape=msgspec.to_builtins(load_shape("ernie-4.5-0.3b")),
        hardware="h200",
    )
    shapes = shapes or [(n, 16) for n in (64, 128, 256, 512)] + [(64, 128), (128, 256), (256, 512)]
    path = folder / f"h200-{start}.jsonl"
    with RunWriter(path, header) as writer:
        serial = 0
        for block in range(7):
            for new, out in shapes:
                serial += 1
                cell = Cell(new, out, block=block)
                writer.write(timeline(serial, cell, prefill(new), tpot_ms, front_ms))
        writer.write(Footer(serial * 10_001 * MS))
    zipped = Path(f"{path}.gz")
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return zipped


@pytest.fixture
def flat(tmp_path):
    """Prefill that does not grow, as on a host-bound GPU."""
    return [
        write(tmp_path, "http-default", lambda n: 7.0, 2.0, 4.0),
        write(tmp_path, "http-eager", lambda n: 17.0, 9.0, 4.0),
        write(tmp_path, "local-default", lambda n: 7.0, 2.0, 1.0),
    ]


def page(bench, paths, lang="en"):
    return bench["article_page"].page(bench["article_data"].load_runs(paths), lang)


def row(text: str, start: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_flat_prefill_refutes_the_square_law(bench, flat):
    text = page(bench, flat)
    assert "Wrong: prefill does not follow a square law" in text
    assert (
        "grow 48.0 times from 64 to 512 tokens (exponent 1.86); we measured 1.00 times (exponent 0.00)"
        in text
    )
    assert text.count("a square law is excluded") == 9  # three neighbours in each of three runs


def test_a_quadratic_prefill_is_not_called_wrong(bench, tmp_path):
    path = write(tmp_path, "http-default", lambda n: 15 * (n / 64) ** 2, 2.0, 4.0)
    text = page(bench, [path])
    assert "Wrong" not in text
    assert "Prefill grew 64.0 times from 64 to 512 tokens (exponent 2.00)" in text
    assert "excluded" not in text


def test_each_number_is_judged_alone(bench, flat):
    text = page(bench, flat)
    assert row(text, "prefill, list | 64 ")[-1] == "plausible"
    assert row(text, "prefill, list | 128 ")[-1] == "implausible"  # against its own 15 ms at 64
    assert row(text, "prefill, list | 256 ")[-1] == "implausible"
    assert row(text, "prefill, table | 256 ")[-1] == "implausible"
    assert row(text, "TPOT | 64 ")[-1] == "plausible"
    # Where host and chip are one constant (TPOT 2 ms whatever the context) the prediction for the A100 is our host's
    # time within its factor, and never below the A100's floor.
    found = re.fullmatch(r"~([\d.]+) \[([\d.]+), ([\d.]+)\]", row(text, "TPOT | 64 ")[-2])
    assert found is not None
    mid, low, high = map(float, found.groups())
    assert 0.466 <= low < 2.0 < high
    assert 1.0 < mid < 4.0
    assert "- `environment`, **impossible**: Measured on" in text


def test_the_audited_file_holds_the_numbers_that_the_page_shows(bench):
    data = bench["article_data"]
    claims = data.read_claims(data.CLAIMS)
    listed = {n: claims.row(f"list-{n}").claim.prefill_ms for n, _ in data.LIST_PREFILL_MS}
    assert listed == dict(data.LIST_PREFILL_MS)
    rows = [claims.row(f"table-{n}").claim for n, *_ in data.TABLE_MS]
    assert [(r.input_tokens, r.output_tokens, r.prefill_ms, r.tpot_ms) for r in rows] == list(data.TABLE_MS)


def test_medians_stand_with_their_intervals(bench, flat):
    cells = row(page(bench, flat), "prefill, list | 64 ")
    assert cells[2] == "15.0"
    assert re.fullmatch(r"7\.00 \[6\.\d\d, 7\.\d\d\]", cells[4])
    assert cells[4] == cells[5]  # in process the engine's prefill is the same
    assert re.fullmatch(r"17\.0 \[16\.\d, 17\.\d\]", cells[6])


def test_sentences_compare_the_starts(bench, flat):
    text = page(bench, flat)
    assert "lie between our 2.00 ms (HTTP, default) and 9.00 ms (HTTP, eager)" in text
    assert "TPOT at 256 + 512 tokens is 9.00 ms eagerly and 2.00 ms by default, 4.50 times less" in text
    assert "HTTP (default): of 11.0 ms to the first token at 64 tokens, 4.00 ms are front end" in text
    assert "in process 1.00 of 8.00 ms" in text


def test_what_is_missing_is_left_out(bench, tmp_path):
    path = write(tmp_path, "local-default", lambda n: 7.0, 2.0, 1.0, shapes=[(100, 16)])
    text = page(bench, [path])
    assert "Not measured." in text
    assert "Wrong" not in text
    assert "front end; in process" not in text
    assert row(text, "prefill, list | 64 ")[4] == "—"
    assert row(text, "prefill, list | 64 ")[-1] == "plausible"  # the audit needs no run


def test_both_languages_hold_the_same_numbers(bench, flat):
    english, chinese = page(bench, flat), page(bench, flat, "zh")
    assert chinese.startswith("# 文章的表格，重新测量")
    pattern = re.compile(r"\d[\d,.]*\d")

    def numbers(text):
        return sorted(n for line in text.splitlines() if line.startswith("|") for n in pattern.findall(line))

    assert numbers(english) == numbers(chinese)
    assert len(english.splitlines()) == len(chinese.splitlines())


def test_two_runs_of_one_start_are_refused(bench, flat, tmp_path):
    (tmp_path / "again").mkdir()
    again = write(tmp_path / "again", "http-default", lambda n: 7.0, 2.0, 4.0)
    with pytest.raises(InputError, match="measures http-default"):
        page(bench, [*flat, again])


def test_every_text_has_both_languages_with_the_same_fields(bench):
    texts = importlib.import_module("article_prose").TEXT
    for key, (english, chinese) in texts.items():
        assert set(re.findall(r"{(\w+)}", english)) == set(re.findall(r"{(\w+)}", chinese)), key


def test_the_plan_repeats_every_cell_at_least_ten_times_within_its_budget(bench):
    plans = bench["article_plan"]
    for plan, eager in ((plans.DEFAULT, False), (plans.EAGER, True)):
        assert plan.blocks >= 10
        assert plans.expected_s(plan, eager=eager) < plan.budget_s
        for number in range(2):
            visits = [v for v in plan.block(number, 0) if not v.cell.anchor]
            shapes = [(v.cell.input_tokens, v.cell.output_tokens, v.cell.concurrency) for v in visits]
            assert len(set(shapes)) == len(shapes) == len(plan.base())
            assert {(64, 128, 1), (128, 256, 1), (256, 512, 1), (7000, 16, 1), (128, 64, 256)} <= set(shapes)
            assert all(v.cell.block == number for v in visits)
        assert plan.block(0, 0) != plan.block(1, 0)

"""Traces: the public formats, windows and scales, and every bad row named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phasemeter.measure.load import Stage
from phasemeter.measure.traces import SAMPLES, read_trace
from phasemeter.measure.workload import open_workload, trace_spec
from phasemeter.record.errors import InputError

ROOT = Path(__file__).parents[3]

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:16:46,879,55
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00+00:00,2399,6
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
BURSTGPT_SESSIONS = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
0,a-1,2.5,ChatGPT,10,20,30,Conversation log
"""
SHARED = "46,47,48,49,50,51,52,53,54,55,56,57"
MOONCAKE = f"""{{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [{SHARED},2353,2354]}}
{{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [{SHARED},2366]}}
"""


def written(folder: Path, text: str) -> str:
    path = folder / "trace.txt"
    path.write_text(text)
    return str(path)


def plan(folder: Path, text: str, **keys: object):
    spec = {"kind": "trace", "file": written(folder, text), **keys}
    return list(open_workload(spec).items(Stage(), 0))


def test_the_two_years_of_azure_are_read(tmp_path):
    items = plan(tmp_path, AZURE_2023)
    assert [i.arrive_ns for i in items] == [0, 4_314_579_000, 59_319_410_000]
    assert [(i.input_tokens, i.output_tokens) for i in items] == [(374, 44), (396, 109), (879, 55)]
    later = plan(tmp_path, AZURE_2024)  # not in order in the file
    assert [(i.arrive_ns, i.input_tokens) for i in later] == [(0, 2399), (9_930_000, 2162)]


def test_burstgpt_leaves_out_what_failed_and_says_how_much(tmp_path):
    file = read_trace(written(tmp_path, BURSTGPT))
    assert (file.format, file.skipped) == ("burstgpt", 1)
    assert [(r.at_ns, r.input_tokens, r.output_tokens) for r in file.rows] == [
        (0, 472, 18),
        (113 * 10**9, 417, 276),
    ]
    assert read_trace(written(tmp_path, BURSTGPT_SESSIONS)).rows[0].output_tokens == 20


def test_mooncake_blocks_become_shared_openings(tmp_path):
    first, second = plan(tmp_path, MOONCAKE)
    assert second.arrive_ns == 3_053_000_000
    assert sum(part.tokens for part in first.chain) == first.input_tokens == 6955
    assert [part.tokens for part in first.chain] == [512] * 13 + [6955 - 13 * 512]
    names = [{part.name for part in item.chain} for item in (first, second)]
    assert len(names[0] & names[1]) == 12
    assert first.chain[:12] == second.chain[:12]


def test_scale_and_window_are_in_the_traces_own_time(tmp_path):
    lines = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    lines += [f"{100 + k},m,{k + 1},5,6,API log" for k in range(60)]
    text = "\n".join(lines)
    items = plan(tmp_path, text, scale=4, start_s=10, length_s=20)
    assert [i.input_tokens for i in items] == list(range(11, 31))
    assert [i.arrive_ns for i in items] == [k * 250_000_000 for k in range(20)]
    assert len(plan(tmp_path, text, most=7)) == 7
    with pytest.raises(InputError, match="--trace-window.*lasts 59"):
        plan(tmp_path, text, start_s=60)


def test_a_stage_with_a_rate_takes_the_lengths_alone_and_begins_anew_at_the_end(tmp_path):
    workload = open_workload({"kind": "trace", "file": written(tmp_path, MOONCAKE)})
    made = workload.items(Stage(rate_per_s=5.0), 2)
    four = [next(made) for _ in range(4)]
    assert [item.arrive_ns for item in four] == [None] * 4
    assert four[2].tags == {"round": "1"}
    assert [i.index for i in four] == sorted({i.index for i in four})
    assert not {p.name for p in four[0].chain} & {p.name for p in four[2].chain}


def test_a_window_finds_its_rows_in_a_file_without_order(tmp_path):
    """The earliest row, from which a window counts, may be the file's last."""
    seconds = [50, 41, 90, 42, 39, 60, 40]
    lines = ["Timestamp,Model,Request tokens,Response tokens", *(f"{s},m,{s},1" for s in seconds)]
    name = written(tmp_path, "\n".join(lines))
    for start, length in ((0, 3), (1, 20), (11, 100)):
        found = read_trace(name, (start * 10**9, length * 10**9)).rows
        assert [row.input_tokens for row in found] == [
            s for s in sorted(seconds) if start <= s - 39 < start + length
        ]


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_is_there_and_the_script_makes_the_same_bytes(name, tmp_path):
    script = ROOT / "examples/make_traces.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    shipped = ROOT / "src/phasemeter/measure/data" / SAMPLES[name]
    assert (tmp_path / SAMPLES[name]).read_bytes() == shipped.read_bytes()
    file = read_trace(f"sample:{name}")
    assert file.format == name
    assert len(file.rows) > 500
    assert 500e9 < file.rows[-1].at_ns < 600e9
    assert bool(file.skipped) == (name == "burstgpt")


def test_the_mooncake_sample_shares_prefixes_as_a_cache_knows_them():
    """An id stands for a block after the same blocks: what it follows on is the same wherever it occurs."""
    before: dict[int, tuple[int, ...]] = {}
    hits = blocks = 0
    for row in read_trace("sample:mooncake").rows:
        for place, name in enumerate(row.blocks):
            hits += name in before
            blocks += 1
            assert before.setdefault(name, row.blocks[:place]) == row.blocks[:place]
    assert 0.2 < hits / blocks < 0.8


@pytest.mark.parametrize(
    ("text", "line", "column", "value"),
    [
        (AZURE_2023.replace("374", "x"), 2, "ContextTokens", "x"),
        (AZURE_2023.replace(",109", ",-1"), 3, "GeneratedTokens", "-1"),
        (AZURE_2023.replace("2023-11-16 18:16:46", "yesterday"), 4, "TIMESTAMP", "yesterday"),
        (
            AZURE_2023.replace("2023-11-16 18:16:46", "2023-13-40 18:16:46"),
            4,
            "TIMESTAMP",
            "2023-13-40 18:16:46",
        ),
        (AZURE_2023.replace(",396,109", ""), 3, "contexttokens", "2023-11-16 18:15:50.9951690"),
        (BURSTGPT.replace("45.5", "1e3"), 3, "Timestamp", "1e3"),
        (BURSTGPT.replace("417", ""), 4, "Request tokens", ""),
        (BURSTGPT.replace("276", "99999999"), 4, "Response tokens", "99999999"),
        (MOONCAKE.replace("6955", '"6955"'), 1, "input_length", "6955"),
        (MOONCAKE.replace('"input_length": 6472, ', ""), 2, "input_length", "missing"),
        (MOONCAKE.replace("30535", "-1"), 2, "timestamp", -1.0),
        (MOONCAKE.replace("[46,", "[", 1), 1, "hash_ids", "13 ids"),
        (MOONCAKE.replace("[46,", "[4.5,", 1), 1, "hash_ids", None),
        (MOONCAKE + "{oops\n", 3, "1", "{oops"),
        (MOONCAKE + "[1]\n", 3, "1", "[1]"),
    ],
)
def test_a_bad_row_is_named_with_file_line_column_and_value(tmp_path, text, line, column, value):
    name = written(tmp_path, text)
    with pytest.raises(InputError) as error:
        read_trace(name)
    assert error.value.field == f"{name}, line {line}, column {column}"
    if value is not None:
        assert error.value.value == value


@pytest.mark.parametrize(
    "text", ["", "\n", "a,b,c\n1,2,3\n", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "[]\n", "\x00\x01"]
)
def test_files_of_no_known_format_are_refused(tmp_path, text):
    with pytest.raises(InputError, match="--trace"):
        read_trace(written(tmp_path, text))


def test_files_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "bin").write_bytes(b"\xff\xfe\x00" * 40)
    for name in (str(tmp_path / "bin"), str(tmp_path), "no/such.csv", "sample:none", "a\x00b", "x" * 5000):
        with pytest.raises(InputError, match="--trace"):
            read_trace(name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.sampled_from([AZURE_2023, BURSTGPT, MOONCAKE]), st.data())
def test_no_damage_to_a_file_gets_past_the_reader(tmp_path, text, data):
    """Bytes replaced anywhere: rows as they should be, or one InputError."""
    raw = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place : place + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=5))
    path = tmp_path / "damaged"
    path.write_bytes(bytes(raw))
    try:
        rows = read_trace(str(path)).rows
    except InputError:
        return
    assert rows
    assert all(row.at_ns >= 0 and row.input_tokens > 0 and row.output_tokens > 0 for row in rows)


@pytest.mark.parametrize("window", ["", "5", "a:b", "1:2:3", "-1:5", "1.2.3:4"])
def test_other_windows_are_refused(window):
    with pytest.raises(InputError, match="--trace-window"):
        trace_spec("f", window=window)


def test_the_options_make_a_specification_that_is_json():
    spec = trace_spec("sample:azure", 2.0, "60:10")
    assert json.loads(json.dumps(spec)) == spec
    items = list(open_workload(spec).items(Stage(), 0))
    assert items
    assert all(item.arrive_ns is not None and item.arrive_ns < 5e9 for item in items)

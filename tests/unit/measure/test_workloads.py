"""Workloads: the same in every process, prefixes that hit as the arithmetic says, conversations that grow."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phasemeter.measure.item import Item
from phasemeter.measure.load import Stage
from phasemeter.measure.prompts import Part, token_ids
from phasemeter.measure.workload import KINDS, open_workload, parse_workload
from phasemeter.measure.workload_prefixes import Prefixes, PrefixesSpec
from phasemeter.record.errors import InputError

CLOSED = Stage(concurrency=4)
TEXTS = (
    "lengths:input=64,128,output=lognormal:64:0.5:1:512",
    "prefixes:prefix=512,input=uniform:1:256,output=16,groups=8,share=0.7,zipf=1",
    "conversations:turns=uniform:1:6,first=300,input=normal:50:10,output=20,think=exp:2,system=100",
    "trace:file=sample:mooncake",
    "trace:file=sample:azure,scale=2",
)


def items(
    spec: str | dict[str, object], n: int, seed: int = 0, number: int = 0, stage: Stage = CLOSED
) -> list[Item]:
    asked = parse_workload(spec) if isinstance(spec, str) else spec
    return list(islice(open_workload(asked, seed).items(stage, number), n))


class BlockCache:
    """A prefix cache as servers keep it: whole blocks, each known by all tokens up to its end, none evicted. At least
    the last token of a prompt is computed. Shares no code with the product."""

    def __init__(self, block_tokens: int = 16) -> None:
        self.block_tokens = block_tokens
        self._known: set[int] = set()

    def found(self, ids: tuple[int, ...]) -> int:
        state, hit, still = 0, 0, True
        for end in range(self.block_tokens, len(ids) + 1, self.block_tokens):
            state = hash((state, ids[end - self.block_tokens : end]))
            still = still and state in self._known
            hit += self.block_tokens if still and end < len(ids) else 0
            self._known.add(state)
        return hit


def ids_of(item: Item, run: str = "run") -> tuple[int, ...]:
    parts = [Part(p.name, p.tokens) for p in item.openings]
    return token_ids(item.input_tokens, item.index, run, 32_000, parts)


@pytest.mark.parametrize("text", TEXTS)
def test_another_process_draws_the_same_items_and_another_seed_does_not(text):
    code = (
        "import sys, msgspec; from itertools import islice\n"
        "from phasemeter.measure.load import Stage; from phasemeter.measure.workload import open_workload\n"
        "spec = msgspec.json.decode(sys.argv[1])\n"
        "made = open_workload(spec, 7).items(Stage(concurrency=4), 3)\n"
        "print(msgspec.json.encode(list(islice(made, 300))).decode())"
    )
    spec = json.dumps(parse_workload(text))
    done = subprocess.run([sys.executable, "-c", code, spec], capture_output=True, text=True, check=True)
    here = items(text, 300, seed=7, number=3)
    assert msgspec.json.decode(done.stdout, type=list[Item]) == here
    if not text.startswith("trace"):
        assert items(text, 300, seed=8, number=3) != here


@pytest.mark.parametrize("text", TEXTS)
def test_indices_count_up_and_no_two_stages_share_one(text):
    seen: list[int] = []
    for number in range(3):
        found = [item.index for item in items(text, 200, number=number)]
        assert all(b == a + 1 for a, b in pairwise(found))
        seen += found
    assert len(set(seen)) == 600


@pytest.mark.parametrize("text", TEXTS)
def test_no_two_prompts_of_a_run_share_more_than_their_openings(text):
    """Within a stage and across stages; and nothing with another run of the same seed."""
    cache, found, due = BlockCache(), 0, 0
    known: Counter[str] = Counter()
    for item in items(text, 60) + items(text, 60, number=1):
        shared, still = 0, True
        for part in item.openings:
            common = min(known[part.name], part.tokens)
            shared += common if still else 0
            still = still and common == part.tokens
            known[part.name] = max(known[part.name], part.tokens)
        found += cache.found(ids_of(item))
        due += min(shared, item.input_tokens - 1) // 16 * 16
    assert found == due
    assert sum(cache.found(ids_of(item, "another")) for item in items(text, 1)) == 0


def test_lengths_are_what_was_asked():
    found = items("lengths:input=64,128,output=uniform:5:9", 4000)
    assert set(Counter(i.input_tokens for i in found)) == {64, 128}
    assert {i.output_tokens for i in found} == set(range(5, 10))
    assert all(not item.openings and item.prompt is None for item in found)


@pytest.mark.parametrize(
    ("keys", "n"),
    [
        ("prefix=512,input=64,groups=1,share=1", 200),
        ("prefix=500,input=uniform:1:256,groups=20,share=0.6,zipf=1", 2000),
        ("prefix=100,input=lognormal:60:0.5:1:400,groups=300,share=0.9", 2000),
        ("prefix=15,input=40,groups=3,share=1", 100),
    ],
)
def test_a_block_cache_finds_the_ratio_that_the_arithmetic_says(keys, n):
    spec = parse_workload(f"prefixes:{keys},output=8")
    workload = open_workload(spec, 5)
    assert isinstance(workload, Prefixes)
    cache, found, total = BlockCache(), 0, 0
    for item in islice(workload.items(CLOSED, 0), n):
        found += cache.found(ids_of(item))
        total += item.input_tokens
    assert found / total == pytest.approx(workload.expected_hit_ratio(n), abs=0.02)
    assert workload.expected_hit_ratio(n) < workload.expected_hit_ratio() or found == 0


def test_a_hit_ratio_can_be_asked_for():
    workload = Prefixes(PrefixesSpec(input=100, output=1, prefix=320, groups=4, hit=0.5), 0)
    assert workload.expected_hit_ratio() == pytest.approx(0.5)
    assert workload.share == pytest.approx(0.5 * 420 / 320)
    with pytest.raises(InputError, match=r"hit.*at most 0\.762"):
        Prefixes(PrefixesSpec(input=100, output=1, prefix=320, hit=0.8), 0)


def test_popularity_of_prefixes_follows_zipf():
    found = items("prefixes:prefix=16,input=1,output=1,groups=5,zipf=1", 30_000)
    counts = Counter(item.openings[0].name for item in found)
    whole = sum(1 / k for k in range(1, 6))
    for rank in range(5):
        due = 30_000 / (rank + 1) / whole
        assert counts[f"0/prefix-{rank}"] == pytest.approx(due, abs=4 * due**0.5)


def test_with_and_without_a_prefix_prompts_are_as_long():
    found = items("prefixes:prefix=200,input=50,output=1,share=0.5", 400)
    assert {i.input_tokens for i in found} == {250}
    assert 140 < sum(bool(i.openings) for i in found) < 260


def test_a_conversation_grows_by_what_was_said():
    found = items("conversations:turns=4,first=300,input=50,output=20,think=2.5,system=100", 8)
    assert [i.input_tokens for i in found] == [400, 470, 540, 610] * 2
    turns = [i.turn for i in found]
    assert [t.number for t in turns if t] == [0, 1, 2, 3] * 2
    assert [t.think_ns for t in turns if t] == [0, *[2_500_000_000] * 3] * 2
    assert len({t.conversation for t in turns if t}) == 2
    ids = [ids_of(i) for i in found]
    for k in (1, 2, 3):
        assert ids[k][: len(ids[k - 1])] == ids[k - 1]
    assert ids[4][:100] == ids[0][:100]  # the system prompt
    assert ids[4][100:116] != ids[0][100:116]


def test_a_conversation_ends_before_it_outgrows_the_context():
    found = items("conversations:turns=50,input=100,output=100,longest=1000", 100)
    assert max(i.input_tokens + (i.output_tokens or 0) for i in found) == 1000
    assert max(i.turn.number for i in found if i.turn) == 4


def test_think_times_are_drawn():
    found = items("conversations:turns=1000000,input=1,output=1,think=exp:3", 4000)
    times = [i.turn.think_ns / 1e9 for i in found if i.turn and i.turn.number]
    assert sum(times) / len(times) == pytest.approx(3, rel=0.08)


def test_a_toml_file_says_the_same(tmp_path):
    path = tmp_path / "w.toml"
    path.write_text('kind = "lengths"\ninput = "64,128"\noutput = 32\n')
    assert items(str(path), 50) == items("lengths:input=64,128,output=32", 50)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "use one of"), ("chat:x=1", "use one of"), ("lengths", "missing required field"),
        ("lengths:64", "write KIND:key=value"), ("lengths:input=1,output=2,speed=3", "unknown field `speed`"),
        ("lengths:input=1,input=2,output=1", "given twice"), ("lengths:input=0,output=1", "lengths input: 0"),
        ("lengths:input=1,output=bad", "lengths output: bad"), ("prefixes:input=1,output=1,prefix=x", "Expected `int`"),
        ("prefixes:input=1,output=1,prefix=0", "prefixes prefix: 0"),
        ("prefixes:input=1,output=1,prefix=9,share=2", "share"),
        ("prefixes:input=1,output=1,prefix=9,share=nan", "share"),
        ("prefixes:input=1,output=1,prefix=9,zipf=-1", "zipf"),
        ("prefixes:input=1,output=1,prefix=9,groups=0", "groups"),
        ("prefixes:input=1,output=1,prefix=32,hit=0.1,share=1", "give one of the two"),
        ("conversations:turns=0,input=1,output=1", "turns"),
        ("conversations:turns=1,input=1,output=1,think=-1", "think"),
        ("conversations:turns=1,input=1,output=1,system=-1", "system"),
        ("conversations:turns=1,input=9,output=9,longest=5", "longest"), ("trace:file=x,scale=0", "--trace-scale"),
        ("trace:file=sample:azure,start_s=-1", "--trace-window"),
        ("trace:file=sample:azure,length_s=0", "--trace-window"),
        ("trace:file=sample:azure,most=0", "most"), ("sharegpt:file=/none", "cannot be read"), ("/none.toml", "TOML"),
    ],
)  # fmt: skip
def test_bad_specifications_are_one_line(text, said):
    with pytest.raises(InputError, match=said) as error:
        open_workload(parse_workload(text))
    assert "\n" not in str(error.value)


VALUES = st.integers() | st.floats() | st.text(max_size=12) | st.none() | st.booleans() | st.integers(1, 99)
KEYS = (
    "input",
    "output",
    "prefix",
    "groups",
    "share",
    "hit",
    "zipf",
    "turns",
    "think",
    "system",
    "longest",
    "file",
    "x",
)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(KINDS), "input": VALUES | st.just(8), "output": VALUES | st.just(8)},
        optional=dict.fromkeys(KEYS[2:], VALUES),
    )
)
def test_no_specification_breaks_the_reader(spec):
    try:
        made = open_workload(spec).items(CLOSED, 0)
    except InputError:
        return
    assert next(made).input_tokens >= 1

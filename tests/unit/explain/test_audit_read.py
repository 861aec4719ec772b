"""Files of claims: TOML and CSV say the same; what is wrong is told with file, claim, field, value and mend."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from phasemeter.explain.audit.claims import NEEDS, Setup, Statement
from phasemeter.explain.audit.judge import audit
from phasemeter.explain.audit.read import claims_of_csv, claims_of_toml, read_claims
from phasemeter.record.errors import InputError

GROW = 'kind = "growth"\nmetric = "{}"\nfrom_tokens = {}\nto_tokens = {}\n'
SETUP = '[setup]\nmodel = "ernie-4.5-0.3b"\nhardware = "a100-40gb"\nengine = "vllm"\n'


def toml(claim: str, setup: str = SETUP) -> str:
    return f"{setup}\n[[claim]]\n{claim}\n"


def refused(text: str, name: str = "c.toml") -> InputError:
    with pytest.raises(InputError) as caught:
        claims_of_csv(text, name) if name.endswith("csv") else claims_of_toml(text, name)
    assert "\n" not in str(caught.value)
    return caught.value


def test_toml_and_csv_alike():
    made = claims_of_toml(
        toml(
            'id = "a"\ninput_tokens = 64\noutput_tokens = 128\nprefill_ms = 15\ntpot_ms = 4.4\ndivides_by = "n-1"\n'
            '[[claim]]\nid = "b"\ninput_tokens = 128\nprefill_ms = 45.0\nsetup = { hardware = "h200", gpus = 2 }\n'
            '[[claim]]\nid = "c"\nkind = "growth"\nmetric = "prefill"\nfrom_tokens = 64\nto_tokens = 128\n'
            'factor = 3.0\nrows = ["a", "b"]\n'
            '[[claim]]\nid = "d"\nkind = "late_slowdown"\ninput_tokens = [64, 128]\noutput_tokens = [1, 2]\n'
        ),
        "c.toml",
    )
    read = claims_of_csv(
        "\ufeffid,kind,model,hardware,engine,gpus,input_tokens,output_tokens,prefill_ms,tpot_ms,divides_by,metric,from_tokens,"
        "to_tokens,factor,rows\n"
        "a,,ernie-4.5-0.3b,a100-40gb,vllm,,64,128,15,4.4,n-1,,,,,\n"
        "\n"
        "b,row,ernie-4.5-0.3b,h200,vllm,2,128,,45.0,,,,,,,\n"
        "c,growth,ernie-4.5-0.3b,a100-40gb,vllm,,,,,,,prefill,64,128,3.0,a;b\n"
        "d,late_slowdown,ernie-4.5-0.3b,a100-40gb,vllm,,64;128,1;2,,,,,,,,\n",
        "c.csv",
    )
    assert read.placed == made.placed
    verdicts = [[(one.id, one.verdict) for one in audit(claims)] for claims in (made, read)]
    assert verdicts[0] == verdicts[1]
    assert made.placed[1].setup == Setup(model="ernie-4.5-0.3b", hardware="h200", engine="vllm", gpus=2)


def test_dates_and_single_lengths_and_missing_ids():
    claims = claims_of_toml(
        toml('kind = "prefill_compute_bound"\ninput_tokens = 64', SETUP + "date = 2025-08-01\n"), "c.toml"
    )
    claim = claims.placed[0].claim
    assert isinstance(claim, Statement)
    assert (claim.id, claim.input_tokens, claims.placed[0].setup.date) == ("claim-1", (64,), date(2025, 8, 1))
    assert claims_of_csv("input_tokens,prefill_ms\n64,3\n", "c.csv").placed[0].claim.id == "row-1"


@pytest.mark.parametrize(
    ("claim", "field", "mend"),
    [
        ("prefill_ms = -1.0", "prefill_ms", "finite and positive"),
        ("prefill_ms = 0", "prefill_ms", "finite and positive"),
        ("ttft_ms = nan", "ttft_ms", "finite and positive"),
        ("tpot_ms = inf", "tpot_ms", "finite and positive"),
        ('e2e_ms = "fast"', "e2e_ms", "Expected `float"),
        ("decode_total_ms = true", "decode_total_ms", "Expected `float"),
        ("output_tokens_per_s = 1e12", "output_tokens_per_s", "check the unit"),
        ("prefill_ms = 1.0\ninput_tokens = 0", "input_tokens", "finite and positive"),
        ("prefill_ms = 1.0\ninput_tokens = 64.5", "input_tokens", "Expected `int"),
        ("prefill_ms = 1.0\noutput_tokens = -3", "output_tokens", "finite and positive"),
        ("prefill_ms = 1.0\nbatch = 100000000", "batch", "check the unit"),
        ("prefill_ms = 1.0\ncached_tokens = -1", "cached_tokens", "finite and positive"),
        ("prefill_ms = 1.0\ninput_tokens = 8\ncached_tokens = 8", "cached_tokens", "less than input_tokens"),
        ('prefill_ms = 1.0\ndivides_by = "m"', "divides_by", "Invalid enum value"),
        ("prefill_ms = 1.0\nprefil_ms = 2.0", "prefil_ms", "unknown field"),
        ("prefill_ms = 1.0\nid = 7", "id", "Expected `str`"),
        ('prefill_ms = 1.0\nid = " "', "id", "must not be empty"),
        ("input_tokens = 64", "claim-1", "holds no number"),
        ('prefill_ms = 1.0\nkind = "guess"', "kind", "use one of set_up, row"),
        ("prefill_ms = 1.0\nkind = 3", "kind", "use one of"),
        ("prefill_ms = 1.0\nsetup = 3", "setup", "must be a table"),
        ("prefill_ms = 1.0\nsetup = { gpu = 1 }", "gpu", "unknown field"),
        ('prefill_ms = 1.0\nsetup = { dtype = "fp12" }', "dtype", "use one of"),
        ("prefill_ms = 1.0\nsetup = { gpus = 0 }", "gpus", "1 to 4096"),
        ('prefill_ms = 1.0\nsetup = { date = "today" }', "date", "Invalid RFC3339"),
        (GROW.format('prefill', 64, 64) + 'exponent = 2', "to_tokens", "more than"),
        (GROW.format('prefill', 64, 128), "claim-1", "exactly one of"),
        (GROW.format('prefill', 64, 128) + 'exponent = 2\nfactor = 2', "claim-1", "exactly one"),
        (GROW.format('heat', 64, 128) + 'exponent = 2', "metric", "Invalid enum"),
        (GROW.format('prefill', 64, 128) + 'law = "O(N!)"', "law", "Invalid enum"),
        ('kind = "growth"\nmetric = "prefill"\nto_tokens = 128\nlaw = "O(N)"', "from_tokens", "missing required"),
        (GROW.format('prefill', 6, 128) + 'factor = 2\nrows = ["x"]', "rows", "id of no row"),
        ('kind = "agreement"\nmetric = "prefill"\nrows = ["x"]\nother_rows = []', "other_rows", "one for each"),
        ('kind = "late_slowdown"\ninput_tokens = [1, 2]\noutput_tokens = [1]', "output_tokens", "one for each"),
        ('kind = "late_slowdown"\ninput_tokens = [1]', "output_tokens", "is missing"),
        ('kind = "prefill_compute_bound"\ninput_tokens = []', "input_tokens", "at least one"),
        ('kind = "prefill_compute_bound"\ninput_tokens = ["a"]', "input_tokens", "Expected `int`"),
        ('kind = "prefill_compute_bound"\ninput_tokens = [1]\nrows = ["a"]', "rows", "takes batch, input_tokens alone"),
        ('kind = "setting_has_effect"', "setting", "is missing"),
    ],
)  # fmt: skip
def test_bad_fields_are_named(claim, field, mend):
    error = refused(toml(claim))
    assert field in error.field
    assert error.field.startswith("c.toml, claim")
    assert mend in error.mend


@pytest.mark.parametrize(
    ("text", "field", "mend"),
    [
        ("id,ttft_ms\na,fast\n", "c.csv, line 2 (a), ttft_ms", "Expected `float"),
        ("id,ttft_ms,input_tokens\na,3,4\n\nb,3,x\n", "c.csv, line 4 (b), input_tokens", "Expected `int"),
        ("id,speed\na,3\n", "c.csv, header", "is no field"),
        ("id,id,ttft_ms\na,b,3\n", "c.csv, header", "twice"),
        ("id,ttft_ms\na,3,4\n", "c.csv, line 2", "more cells than the header"),
        ('id,ttft_ms\n"a,3\n', "c.csv, after line 1", "not valid CSV"),
        ("id,ttft_ms\n", "c.csv", "holds no claim"),
        ("", "c.csv", "holds no claim"),
        ("id,ttft_ms\na,3\na,4\n", "c.csv, id", "twice"),
        ("id,ttft_ms,dtype\na,3,fp1\n", "c.csv, line 2, dtype", "use one of"),
        ("id,ttft_ms,kind\na,3,late_slowdown\n", "c.csv, line 2 (a), ttft_ms", "takes batch"),
    ],
)
def test_bad_lines_of_a_csv_are_named(text, field, mend):
    error = refused(text, "c.csv")
    assert error.field == field
    assert mend in error.mend


@pytest.mark.parametrize(
    ("text", "mend"),
    [
        ("[[claim", "not valid TOML"),
        ("claims = 3\n", "no key of a claims file"),
        ("claim = 3\n", "write [[claim]]"),
        ("claim = [3]\n", "must be a table"),
        ("setup = 3\n[[claim]]\nttft_ms = 1.0\n", "must be a table"),
        ("title = 3\n[[claim]]\nttft_ms = 1.0\n", "must be a text"),
        ("[setup]\nmodel = 3\n[[claim]]\nttft_ms = 1.0\n", "Expected `str"),
        ("", "holds no claim"),
    ],
)
def test_bad_toml_is_told(text, mend):
    assert mend in refused(text).mend


def test_rows_that_lack_the_metric_are_named():
    growth = GROW.format("prefill", 1, 2) + 'factor = 2.0\nrows = ["a"]'
    text = toml('id = "a"\nttft_ms = 1.0\n[[claim]]\n' + growth)
    assert refused(text).mend == "gives no prefill"


def test_files(tmp_path):
    for name, content, mend in (
        ("a.json", b"{}", "ends in .toml or .csv"),
        ("a.toml", b"\xff\xfe", "UTF-8"),
        ("big.csv", b"x" * (17 * 2**20), "larger than 16 MiB"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError, match=mend):
            read_claims(path)
    for path in (tmp_path, tmp_path / "none.toml", Path("\0.toml")):
        with pytest.raises(InputError):
            read_claims(path)


def test_every_kind_of_sentence_can_be_written():
    for kind, (must, may) in NEEDS.items():
        values = {
            "input_tokens": "[8]",
            "output_tokens": "[8]",
            "batch": "2",
            "factor": "2.0",
            "setting": '"top_k"',
        }
        values |= {"object": '"SamplingParams"', "rows": "[]"}
        text = "\n".join([f'kind = "{kind}"', *(f"{name} = {values[name]}" for name in sorted(must | may))])
        found = audit(claims_of_toml(toml(text), "c.toml"))
        assert len(found) == 1
        assert found[0].verdict.value != "undecidable"

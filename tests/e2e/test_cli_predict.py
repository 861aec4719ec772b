"""`phasemeter fit` and `phasemeter predict` from the front door."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phasemeter.cli import main

H200 = Path(__file__).parents[2] / "benchmarks" / "h200"


def call(capfd, *args) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(arg) for arg in args])
    out, err = capfd.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("fit") / "MODEL.json"
    with pytest.raises(SystemExit) as ended:
        main(["fit", str(H200 / "h200-local-eager.jsonl.gz"), "--out", str(path), "--next", "20000,128"])
    assert ended.value.code == 0
    return path


def test_predict_prints_the_contracts_keys(capfd, saved):
    code, out, _ = call(capfd, "predict", saved, "--input-tokens", 512, "--output-tokens", 64, "--json")
    told = json.loads(out)
    assert code == 0
    for key in ("ttft_ms", "prefill_ms", "tpot_ms", "e2e_ms"):
        assert told[key]["lo"] <= told[key]["mid"] <= told[key]["hi"]
    assert told["inside_domain"] is True
    assert told["e2e_ms"]["mid"] == pytest.approx(told["ttft_ms"]["mid"] + 63 * told["tpot_ms"]["mid"])


@pytest.mark.parametrize(("lang", "word"), [("en", "share of uncertainty"), ("zh", "占不确定度的比例")])
def test_predict_says_whose_the_uncertainty_is_in_both_languages(capfd, saved, lang, word):
    args = ("--input-tokens", 256, "--output-tokens", 512, "--hardware", "a100-40gb-sxm", "--lang", lang)
    code, out, _ = call(capfd, "predict", saved, *args)
    assert code == 0
    assert word in out
    assert "A100" in out


def test_a_model_is_not_overwritten(capfd, saved):
    code, _, err = call(capfd, "fit", H200 / "h200-local-eager.jsonl.gz", "--out", saved)
    assert code == 2
    assert "exists already" in err


@pytest.mark.parametrize(
    ("args", "code", "word"),
    [
        (("fit", H200 / "h200-local-default.jsonl.gz", H200 / "h200-local-eager.jsonl.gz"), 2, "one machine"),
        (("fit", H200 / "h200-local-default.jsonl.gz", "--next", "many"), 2, "--next"),
        (("fit", H200 / "h200-local-default.jsonl.gz", "--next", "0,5"), 2, "input_tokens"),
        (("predict", "/no/such/MODEL.json", "--input-tokens", 1, "--output-tokens", 1), 2, "cannot be read"),
    ],
)
def test_bad_input_is_one_line(capfd, args, code, word):
    got, out, err = call(capfd, *args)
    assert (got, out) == (code, "")
    assert err.count("\n") == 1
    assert word in err


def test_an_unknown_gpu_is_one_line(capfd, saved):
    args = ("--input-tokens", 1, "--output-tokens", 1, "--hardware", "h999")
    code, _, err = call(capfd, "predict", saved, *args)
    assert code == 2
    assert err.startswith("phasemeter: hardware: h999:")


def test_one_cell_is_undecided(capfd, tmp_path):
    run = tmp_path / "run.jsonl"
    grid = ("--input-tokens", 16, "--output-tokens", 4, "--repeats", 3, "--out", run)
    assert (
        call(capfd, "measure", "--engine", "simulated", "--truth", "ttft_ms=1", "--truth", "itl_ms=1", *grid)[
            0
        ]
        == 0
    )
    code, _, err = call(capfd, "fit", run)
    assert code == 3
    assert "--input-tokens 64,256,1024" in err


def test_explain_shows_each_cell_from_its_floor_to_what_was_measured(capfd, saved):
    run = H200 / "h200-local-eager.jsonl.gz"
    code, out, _ = call(capfd, "explain", run, "--fit", saved, "--json")
    assert code == 0
    told = json.loads(out)["waterfall"]
    assert {one["phase"] for one in told} == {"first", "decode"}
    for one in told:
        assert sum(step["ms"] for step in one["steps"]) == pytest.approx(one["measured_ms"])
        assert one["steps"][0]["name"] == "floor"
        assert all(step["ms"] >= 0 for step in one["steps"][:-1])
    assert "unexplained" in call(capfd, "explain", run, "--fit", saved)[1]

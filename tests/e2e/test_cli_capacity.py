"""`phasemeter whatif` and `phasemeter capacity` from the front door."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phasemeter.cli import main
from phasemeter.predict.model import save
from unit.predict.fitted_fleet import fitted

LENGTHS = ("--input-tokens", "uniform:100:900", "--output-tokens", "8,40", "--requests", "300")


def call(capfd, *args) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(arg) for arg in args])
    out, err = capfd.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("fit") / "MODEL.json"
    save(fitted(noise=0.03), path)
    return path


def test_whatif_tells_percentiles_with_intervals(capfd, saved):
    code, out, _ = call(capfd, "whatif", saved, "--rate", 20, *LENGTHS, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["requests"] == 300
    for metric in ("ttft", "queue", "prefill", "front_end", "tpot", "itl", "e2e"):
        for share in ("p50", "p90", "p99"):
            level = told["ms"][metric][share]
            assert level["lo"] <= level["mid"] <= level["hi"], metric
    again = json.loads(call(capfd, "whatif", saved, "--rate", 20, *LENGTHS, "--json")[1])
    assert again == told
    other = json.loads(call(capfd, "whatif", saved, "--rate", 20, *LENGTHS, "--seed", 3, "--json")[1])
    assert other["ms"] != told["ms"]


@pytest.mark.parametrize(
    "load",
    [
        ("--trace", "sample:azure", "--requests", "200"),
        ("--trace", "sample:mooncake", "--prefix-caching", "--requests", "40", "--kv-blocks", "60000"),
        ("--concurrency", "8", "--think-s", "0.5", *LENGTHS),
        ("--rate", "9", "--arrivals", "gamma:3", *LENGTHS, "--replicas", "2", "--routing", "p2c"),
        ("--rate", "9", "--workload", "conversations:turns=3,system=200,input=40,output=20,think=0.1",
         "--requests", "60", "--prefix-caching"),
    ],
)  # fmt: skip
def test_whatif_takes_every_kind_of_load(capfd, saved, load):
    code, out, err = call(capfd, "whatif", saved, *load)
    assert (code, err) == (0, "")
    assert "Simulated, not measured." in out
    assert "ttft" in out


def test_a_ramp_is_no_overload(capfd, saved):
    ramp = ("--rate", "20", "--arrivals", "ramp:0.1", *LENGTHS, "--json")
    told = json.loads(call(capfd, "whatif", saved, *ramp)[1])
    assert told["growing"] is False


def test_shared_prefixes_are_found_in_the_cache(capfd, saved):
    shared = (
        "--workload",
        "prefixes:prefix=512,groups=4,input=64,output=8",
        "--rate",
        "9",
        "--requests",
        "80",
    )
    cached = json.loads(call(capfd, "whatif", saved, *shared, "--prefix-caching", "--json")[1])
    plain = json.loads(call(capfd, "whatif", saved, *shared, "--json")[1])
    assert plain["cached_ratio"] == 0.0
    assert cached["cached_ratio"] > 0.3
    assert cached["ms"]["prefill"]["p50"]["mid"] < plain["ms"]["prefill"]["p50"]["mid"]


@pytest.mark.parametrize(("lang", "word"), [("en", "flags worth setting"), ("zh", "值得设置的参数")])
def test_capacity_prints_a_table_in_both_languages(capfd, saved, lang, word):
    args = ("--rate", 30, *LENGTHS, "--slo", "ttft_p99=300ms,tpot_p99=40ms", "--lang", lang)
    code, out, _ = call(capfd, "capacity", saved, *args)
    assert code == 0
    assert word in " ".join(out.split())
    assert "ttft_p99" in out


def test_capacity_compares_chips_and_prices_and_writes_a_page(capfd, saved, tmp_path):
    pytest.importorskip("plotly")
    page = tmp_path / "deep" / "plan.html"
    code, out, _ = call(
        capfd, "capacity", saved, "--rate", 30, *LENGTHS, "--slo", "ttft_p99=300ms,tpot_p99=40ms",
        "--hardware", "h200,a100-80", "--price", "h200=4", "--price", "a100-80=1.5", "-o", page, "--json",
    )  # fmt: skip
    told = json.loads(out)
    assert code in (0, 3)
    assert {option["machine"] for option in told["options"]} == {"h200", "a100-80gb-sxm"}
    first = told["options"][0]
    assert first["usd_per_hour"] == first["replicas"]["mid"] * (4 if first["machine"] == "h200" else 1.5)
    assert first["standing"]["kept"][0]["name"] == "ttft_p99"
    html = page.read_text(encoding="utf-8")
    assert "a100-80gb-sxm" in html
    assert "Plotly.newPlot" in html
    assert 'src="http' not in html


def test_a_price_for_the_fitted_machine_may_name_it_by_its_row(capfd, saved):
    args = ("--rate", 5, *LENGTHS, "--slo", "ttft_p99=900ms", "--price", "h200=4", "--json")
    code, out, _ = call(capfd, "capacity", saved, *args)
    assert code == 0
    assert json.loads(out)["options"][0]["usd_per_hour"] == 4.0


def test_what_is_not_met_ends_with_one(capfd, saved):
    args = ("--rate", 5, *LENGTHS, "--slo", "ttft_p99=1ms", "--replicas-max", 2)
    code, out, _ = call(capfd, "capacity", saved, *args)
    assert code == 1
    assert "more than 2" in out


SLO = ("--slo", "ttft_p99=1s")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("whatif", "MODEL", *LENGTHS), "traffic: none"),
        (("whatif", "MODEL", "--rate", "5"), "--input-tokens: none"),
        (("whatif", "MODEL", "--rate", "5", "--trace", "sample:azure"), "--trace and --rate"),
        (("whatif", "MODEL", "--rate", "5", "--workload", "lengths:input=9,output=9", "--input-tokens", "9"),
         "leave --input-tokens out"),
        (("whatif", "MODEL", "--rate", "0", *LENGTHS), "--rate"),
        (("whatif", "MODEL", "--rate", "5", *LENGTHS, "--hardware", "abacus"), "abacus"),
        (("whatif", "MODEL", "--rate", "5", *LENGTHS, "--kv-blocks", "9"), "of 9 KV blocks"),
        (("whatif", "MODEL", "--trace-scale", "2", "--rate", "5", *LENGTHS), "--trace-scale"),
        (("whatif", "MODEL", "--trace", "nowhere.csv"), "nowhere.csv"),
        (("whatif", "nowhere.json", "--rate", "5", *LENGTHS), "nowhere.json"),
        (("capacity", "MODEL", "--rate", "5", *LENGTHS), "--slo"),
        (("capacity", "MODEL", "--rate", "5", *LENGTHS, "--slo", "speed=9"), "speed"),
        (("capacity", "MODEL", "--rate", "5", *LENGTHS, "--slo", "itl=9ms"), "itl"),
        (("capacity", "MODEL", "--rate", "5", *LENGTHS, *SLO, "--price", "h100=2"), "is not planned for"),
        (("capacity", "MODEL", "--rate", "5", *LENGTHS, *SLO, "--price", "h200"), "NAME=USD"),
        (("capacity", "MODEL", "--rate", "5", *LENGTHS, *SLO, "--price", "h200=-2"), "NAME=USD"),
        (("capacity", "MODEL", "--rate", "5", *LENGTHS, *SLO, "--headroom", "-1"), "--headroom"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_2(capfd, saved, args, says):
    code, out, err = call(capfd, *(saved if arg == "MODEL" else arg for arg in args))
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.strip().splitlines()) == 1

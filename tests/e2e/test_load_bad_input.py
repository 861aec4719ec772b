"""Options of a load that cannot be meant: one line that names the option, its value and the mend; exit code 2."""

from __future__ import annotations

import pytest

from phasemeter.cli import main

SIMULATED = ("measure", "--engine", "simulated")
REMOTE = ("measure", "--engine", "openai", "--url", "http://127.0.0.1:1")
RATE = ("--rate", "5", "--duration", "1")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((*SIMULATED, "--rate", "5"), ["--duration or --requests"]),
        ((*SIMULATED, "--rate", "0", "--duration", "1"), ["--rate", "above 0"]),
        ((*SIMULATED, "--rate", "-3", "--duration", "1"), ["--rate", "-3"]),
        ((*SIMULATED, "--rate", "nan", "--duration", "1"), ["--rate", "nan"]),
        ((*SIMULATED, "--rate", "inf", "--duration", "1"), ["--rate", "inf"]),
        ((*SIMULATED, "--rate", "1,,2", "--duration", "1"), ["--rate", "1,,2"]),
        ((*SIMULATED, "--rate", "quick", "--duration", "1"), ["--rate", "quick"]),
        ((*SIMULATED, "--rate", "5", "--duration", "0"), ["--duration"]),
        ((*SIMULATED, "--rate", "5", "--duration", "nan"), ["--duration"]),
        ((*SIMULATED, *RATE, "--concurrency", "4"), ["--rate and --concurrency"]),
        ((*SIMULATED, *RATE, "--trace", "t.csv"), ["--trace and --rate"]),
        ((*SIMULATED, *RATE, "--paired"), ["--paired"]),
        ((*SIMULATED, *RATE, "--think-s", "1"), ["--rate and --think-s"]),
        ((*SIMULATED, *RATE, "--stagger-s", "1"), ["--rate and --stagger-s"]),
        ((*SIMULATED, *RATE, "--repeats", "0"), ["--repeats", "0"]),
        ((*SIMULATED, *RATE, "--repeats", "5000"), ["--repeats", "5000", "stages"]),
        ((*SIMULATED, *RATE, "--input-tokens", "many"), ["--input-tokens", "many"]),
        ((*SIMULATED, "--arrivals", "poisson", "--duration", "1"), ["--arrivals", "--rate"]),
        ((*SIMULATED, *RATE, "--arrivals", "gaussian"), ["--arrivals", "gaussian"]),
        ((*SIMULATED, *RATE, "--arrivals", "gamma"), ["--arrivals", "gamma"]),
        ((*SIMULATED, *RATE, "--arrivals", "gamma:-1"), ["--arrivals"]),
        ((*SIMULATED, *RATE, "--arrivals", "gamma:nan"), ["--arrivals"]),
        ((*SIMULATED, *RATE, "--arrivals", "bursts:0:1"), ["--arrivals", "ON_S"]),
        ((*SIMULATED, *RATE, "--arrivals", "ramp:-1"), ["--arrivals", "FROM_RATE"]),
        ((*SIMULATED, "--trace", "no/such.csv"), ["no/such.csv"]),
        ((*SIMULATED, "--trace", "t.csv", "--concurrency", "2"), ["--trace and --concurrency"]),
        ((*SIMULATED, "--trace", "t.csv", "--input-tokens", "8"), ["--trace and --input-tokens"]),
        ((*SIMULATED, "--trace", "t.csv", "--output-tokens", "8"), ["--trace and --output-tokens"]),
        ((*SIMULATED, "--trace", "t.csv", "--workload", "lengths:input=8,output=8"), ["--trace and --workload"]),
        ((*SIMULATED, "--trace", "t.csv", "--arrivals", "constant"), ["--trace and --arrivals"]),
        ((*SIMULATED, "--trace", "t.csv", "--think-s", "1"), ["--trace and --think-s"]),
        ((*SIMULATED, "--trace", "t.csv", "--stagger-s", "1"), ["--trace and --stagger-s"]),
        ((*SIMULATED, *RATE, "--trace-scale", "2"), ["--trace-scale", "--trace"]),
        ((*SIMULATED, *RATE, "--trace-window", "0:60"), ["--trace-window", "--trace"]),
        ((*SIMULATED, "--trace", "t.csv", "--trace-scale", "0"), ["--trace-scale"]),
        ((*SIMULATED, "--trace", "t.csv", "--trace-window", "yesterday"), ["--trace-window", "yesterday"]),
        ((*SIMULATED, "--workload", "lengths:input=8,output=8"), ["--duration or --requests"]),
        ((*SIMULATED, *RATE, "--workload", "gossip"), ["--workload", "gossip"]),
        ((*SIMULATED, *RATE, "--workload", "lengths:input=8"), ["--workload", "output"]),
        ((*SIMULATED, *RATE, "--workload", "lengths:input=8,output=8,colour=1"), ["--workload", "colour"]),
        ((*SIMULATED, *RATE, "--workload", "lengths:input=-8,output=8"), ["--workload", "-8"]),
        (
            (*SIMULATED, *RATE, "--workload", "lengths:input=8,output=8", "--input-tokens", "8"),
            ["--workload and --input-tokens"],
        ),
        (
            (*SIMULATED, *RATE, "--workload", "lengths:input=8,output=8", "--output-tokens", "8"),
            ["--workload and --output-tokens"],
        ),
        ((*SIMULATED, "--concurrency", "2", "--think-s", "1"), ["--duration or --requests"]),
        ((*SIMULATED, "--requests", "2", "--think-s", "-1"), ["--think-s"]),
        ((*SIMULATED, "--requests", "2", "--stagger-s", "-1"), ["--stagger-s"]),
        ((*SIMULATED, "--requests", "2", "--cancel-ratio", "1.5"), ["--cancel-ratio"]),
        ((*SIMULATED, "--requests", "2", "--cancel-ratio", "nan"), ["--cancel-ratio"]),
        ((*SIMULATED, *RATE, "--cancel-after-tokens", "4"), ["--cancel-after-tokens", "--cancel-ratio"]),
        ((*SIMULATED, *RATE, "--cancel-ratio", "0.1", "--cancel-after-tokens", "0"), ["--cancel-after-tokens"]),
        ((*SIMULATED, "--requests", "2", "--late-limit-ms", "5"), ["--late-limit-ms", "open loop"]),
        ((*SIMULATED, *RATE, "--late-limit-ms", "0"), ["--late-limit-ms"]),
        ((*SIMULATED, *RATE, "--connect-timeout-s", "1"), ["--connect-timeout-s", "simulated"]),
        ((*SIMULATED, "--first-token-timeout-s", "1"), ["--first-token-timeout-s", "simulated"]),
        ((*SIMULATED, "--gap-timeout-s", "1"), ["--gap-timeout-s", "simulated"]),
        ((*REMOTE, "--connect-timeout-s", "0"), ["--connect-timeout-s"]),
        ((*REMOTE, "--first-token-timeout-s", "-1"), ["--first-token-timeout-s"]),
        ((*REMOTE, "--gap-timeout-s", "nan"), ["--gap-timeout-s"]),
        (("measure", "--engine", "vllm-local", "--model", "m", *RATE, "--cancel-ratio", "0.1"), ["--cancel-ratio"]),
        ((*REMOTE, *RATE, "--tokenizer", "no/such/tokenizer"), ["--tokenizer", "no/such/tokenizer"]),
    ],
)  # fmt: skip
def test_it_is_refused_before_anything_is_sent(capfd, tmp_path, monkeypatch, args, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    out, err = capfd.readouterr()
    told = [line for line in err.splitlines() if line.startswith("phasemeter: ")]
    assert ended.value.code == 2, err
    assert "Traceback" not in err
    assert len(told) == 1, err
    assert all(word in told[0] for word in says), told[0]
    assert out == ""
    assert list(tmp_path.rglob("*.jsonl")) == []

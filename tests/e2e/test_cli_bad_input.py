"""Bad input: one clear line on stderr with field, value and mend; exit code 2 or 4; no traceback; nothing lost."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from phasemeter.cli import main


def call(capfd, *args: str) -> tuple[int, str, str]:
    """The command in this process: exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as ended:
        main(list(args))
    out, err = capfd.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, out, err


def refused(capfd, code: int, *args: str) -> str:
    """The one line that a refused command prints."""
    got, out, err = call(capfd, *args)
    lines = [line for line in err.splitlines() if line.startswith("phasemeter: ")]
    assert got == code, err
    assert "Traceback" not in err
    assert len(lines) == 1, err
    assert out == ""
    return lines[0]


GRID = ("--input-tokens", "8", "--output-tokens", "4", "--repeats", "1")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("measure", *GRID), ["--model", "preset"]),
        (("measure", "--engine", "nonsense", *GRID), ["--engine", "nonsense"]),
        (("measure", "--engine", "openai", *GRID), ["--url"]),
        (("measure", "--engine", "simulated", "--url", "http://127.0.0.1:1", *GRID), ["--url"]),
        (("measure", "--engine", "simulated", "--input-tokens", "-5"), ["--input-tokens", "-5"]),
        (("measure", "--engine", "simulated", "--input-tokens", "0"), ["--input-tokens", "0"]),
        (("measure", "--engine", "simulated", "--input-tokens", "sixty"), ["--input-tokens", "sixty"]),
        (("measure", "--engine", "simulated", "--output-tokens", "0"), ["--output-tokens"]),
        (("measure", "--engine", "simulated", "--concurrency", "0"), ["--concurrency"]),
        (("measure", "--engine", "simulated", "--repeats", "0"), ["--repeats", "0"]),
        (("measure", "--engine", "simulated", "--warmup", "some"), ["--warmup", "some"]),
        (("measure", "--engine", "simulated", "--truth", "ttft_ms"), ["--truth", "KEY=VALUE"]),
        (("measure", "--engine", "simulated", "--truth", "nonsense=1", *GRID), ["nonsense"]),
        (("measure", "--engine", "simulated", "--hardware", "abacus", *GRID), ["abacus"]),
        (("measure", "--engine", "simulated", "--model-shape", "abacus", *GRID), ["abacus"]),
        (("measure", "--engine", "openai", "--url", "ftp://x", *GRID), ["ftp"]),
        (("measure", "--engine", "openai", "--url", "http://u:p@127.0.0.1", *GRID), ["--url"]),
        (
            ("measure", "--engine", "openai", "--url", "http://127.0.0.1:1", "--api-key-env", "NO_SUCH_VAR", *GRID),
            ["NO_SUCH_VAR"],
        ),
        (("measure", "--no-such-option"), ["--no-such-option"]),
        (("no-such-command",), ["no-such-command"]),
        (("hardware", "abacus"), ["abacus"]),
        (("hardware", "h200", "--measure"), ["NAME", "h200"]),
        (("models", "abacus"), ["abacus"]),
        (("models", "ernie-4.5-0.3b", "--hardware", "abacus"), ["abacus"]),
        (("models", "ernie-4.5-0.3b", "--input-tokens", "-1"), ["--input-tokens"]),
        (("explain", "no/such/run.jsonl"), ["no such file"]),
        (("report", "no/such/run.jsonl", "-o", "x.html"), ["no such file"]),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line_and_exit_code_2(capfd, tmp_path, monkeypatch, args, says):
    monkeypatch.chdir(tmp_path)
    line = refused(capfd, 2, *args)
    assert all(word in line for word in says), line
    assert list(tmp_path.rglob("*.jsonl")) == []


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{", "config.json"),
        ("[]", "config.json"),
        ('{"model_type": "llama", "num_attention_heads": 2}', "hidden_size"),
        (
            '{"model_type": "llama", "hidden_size": -4, "num_hidden_layers": 2, "num_attention_heads": 2, '
            '"intermediate_size": 8, "vocab_size": 10}',
            "hidden_size",
        ),
    ],
)
def test_a_bad_config_names_the_field(capfd, tmp_path, config, says):
    (tmp_path / "config.json").write_text(config)
    assert says in refused(capfd, 2, "models", str(tmp_path / "config.json"))


@pytest.mark.parametrize("text", ["", "hello\n", '{"type":"request"}\n'])
def test_what_is_no_run_file(capfd, tmp_path, text):
    (tmp_path / "x.jsonl").write_text(text)
    assert "not a Phasemeter run file" in refused(capfd, 2, "explain", str(tmp_path / "x.jsonl"))


def test_a_run_of_a_newer_schema(capfd, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"type":"header","schema":999,"what":"ever"}\n')
    assert "upgrade" in refused(capfd, 2, "explain", str(tmp_path / "x.jsonl"))


def test_nobody_listens(capfd, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    line = refused(
        capfd, 4, "measure", "--engine", "openai", "--url", url, *GRID, "--out", str(tmp_path / "r.jsonl")
    )
    assert "refused" in line
    assert not (tmp_path / "r.jsonl").exists()


def test_no_such_host(capfd, tmp_path):
    url = "http://no-such-host.invalid:8000"
    line = refused(
        capfd, 4, "measure", "--engine", "openai", "--url", url, *GRID, "--out", str(tmp_path / "r.jsonl")
    )
    assert "no-such-host.invalid" in line


def canned(answer: bytes):
    """A server that gives every request the same answer."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(5)
                peer.recv(65536)
                peer.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}"


def response(status: str, kind: str, body: bytes) -> bytes:
    return (
        f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    ).encode() + body


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (response("404 Not Found", "application/json", b'{"error":{"message":"nothing here"}}'), "404"),
        (response("200 OK", "text/html", b"<html>hello</html>"), ""),
        (
            response("401 Unauthorized", "application/json", b'{"error":{"message":"no key"}}'),
            "--api-key-env",
        ),
    ],
)
def test_the_wrong_kind_of_server(capfd, tmp_path, answer, says):
    listener, url = canned(answer)
    with listener:
        code, out, err = call(capfd, "measure", "--engine", "openai", "--url", url, "--model", "m", *GRID,
                              "--out", str(tmp_path / "r.jsonl"))  # fmt: skip
    assert code in (2, 4)
    assert out == ""
    assert "Traceback" not in err
    assert says in err
    assert not (tmp_path / "r.jsonl").exists()


def test_an_existing_run_is_never_overwritten(capfd, tmp_path):
    out = tmp_path / "r.jsonl"
    out.write_text("precious")
    line = refused(capfd, 2, "measure", "--engine", "simulated", *GRID, "--out", str(out))
    assert "never overwritten" in line
    assert out.read_text() == "precious"


def test_a_place_that_cannot_be_written(capfd, tmp_path):
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "r.jsonl")
    line = refused(capfd, 2, "measure", "--engine", "simulated", *GRID, "--out", out)
    assert "cannot be written" in line


def test_a_full_disk_loses_nothing_that_was_written(tmp_path):
    """A real run on a real full disk: a tiny file system of its own where the system allows one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("this system does not let us mount a tmpfs")
    try:
        out = disk / "r.jsonl"
        done = subprocess.run(
            [sys.executable, "-m", "phasemeter", "measure", "--engine", "simulated", "--truth", "ttft_ms=0.2",
             "--truth", "itl_ms=0.01", "--input-tokens", "8", "--output-tokens", "64", "--repeats", "400",
             "--out", str(out)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert "no space left" in done.stderr
        assert "Traceback" not in done.stderr
        from phasemeter.record.file import read_run

        run = read_run(out)
        assert len(run.requests) > 5
        assert run.damaged == ()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_reports_want_a_known_suffix(capfd, tmp_path):
    run = tmp_path / "r.jsonl"
    call(capfd, "measure", "--engine", "simulated", "--truth", "ttft_ms=1", *GRID, "--out", str(run))
    assert ".html" in refused(capfd, 2, "report", str(run), "-o", str(tmp_path / "x.pdf"))


def test_unlike_runs_are_not_merged(capfd, tmp_path):
    runs: list[Path] = []
    for i, ttft in enumerate(("1", "2")):
        runs.append(tmp_path / f"{i}.jsonl")
        call(
            capfd,
            "measure",
            "--engine",
            "simulated",
            "--truth",
            f"ttft_ms={ttft}",
            *GRID,
            "--out",
            str(runs[-1]),
        )
    line = refused(capfd, 2, "explain", *map(str, runs))
    assert "cannot be merged" in line
    assert "truth" in line


def test_an_unknown_model_or_no_torch_to_run_it(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refused(capfd, 2, "measure", "--model", "no-such-model", *GRID)
    installed = importlib.util.find_spec("torch") is not None
    assert ("no-such-model" if installed else "phasemeter[local]") in line


def test_a_gpu_that_is_not_there(capfd, tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    out = str(tmp_path / "r.jsonl")
    code, _, err = call(capfd, "measure", "--model", "smollm2-135m", "--device", "cuda", *GRID, "--out", out)
    assert code in (2, 4)
    assert "Traceback" not in err
    assert "--device" in err
    assert not Path(out).exists()

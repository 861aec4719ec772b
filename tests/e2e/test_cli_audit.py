"""`phasemeter audit` from the front door: the shipped examples, both languages, exit codes, one line for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phasemeter.cli import main

ROOT = Path(__file__).parents[2]
ARTICLE, PUBLIC = ROOT / "examples" / "article-claims.toml", ROOT / "examples" / "public-4090-claims.csv"


def call(capfd, *args: object) -> tuple[int, str, str]:
    """The command in this process: exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as ended:
        main(["audit", *map(str, args)])
    out, err = capfd.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def test_json_follows_the_contract_in_both_languages(capfd):
    told = {}
    for lang in ("en", "zh"):
        code, out, err = call(capfd, ARTICLE, "--json", "--lang", lang)
        assert (code, err) == (0, "")
        told[lang] = json.loads(out)["claims"]
    for claim in told["en"]:
        assert {"id", "statement", "verdict", "working", "bound"} <= set(claim)
        assert all(isinstance(line, str) for line in claim["working"])
        assert claim["working"]
    assert [(c["id"], c["verdict"], c["bound"]) for c in told["en"]] == [
        (c["id"], c["verdict"], c["bound"]) for c in told["zh"]
    ]
    statements = {claim["id"]: claim["statement"] for claim in told["zh"]}
    assert statements["square-law"] == "输入文本越长，prefill时间呈平方级增长"


def test_the_page_shows_what_is_printed(capfd):
    _, out, _ = call(capfd, ARTICLE)
    page = (ROOT / "docs/commands/audit.md").read_text()
    shown = page.split("```console")[1].split("```")[0].split("...\n")[1].strip()
    assert shown.startswith("list-512: implausible")
    assert shown in out


def test_the_table_alone_and_strict(capfd):
    code, out, _ = call(capfd, PUBLIC, "--no-working", "--strict")
    assert code == 1
    assert "prefix cache" in " ".join(out.split())
    assert "· " not in out
    assert call(capfd, PUBLIC, "--no-working")[0] == 0


def test_strict_passes_where_nothing_is_refuted(capfd, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(
        "model,hardware,engine,input_tokens,prefill_ms\nernie-4.5-0.3b,h200,vllm,64,7\nernie-4.5-0.3b,nine,vllm,64,7\n"
    )
    code, out, _ = call(capfd, path, "--strict")
    assert code == 0
    assert "undecidable" in out
    assert "not decidable: no row of the hardware table goes by nine" in " ".join(out.split())


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "c.toml",
            '[[claim]]\nid = "x"\nprefill_ms = -3\n',
            "c.toml, claim x, prefill_ms: -3.0: must be finite and positive",
        ),
        ("c.csv", "id,prefill\nx,3\n", "c.csv, header: prefill: is no field"),
    ],
)
def test_bad_input_is_one_line(capfd, tmp_path, name, text, told):
    path = tmp_path / name
    path.write_text(text)
    code, out, err = call(capfd, path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert told in err


def test_text_from_a_file_cannot_command_the_terminal(capfd, tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(
        'title = "\\u001b[31mred"\n[[claim]]\nid = "a\\u001b[2J"\nstatement = "\\u202eback"\nprefill_ms = 3\n'
    )
    code, out, _ = call(capfd, path)
    assert code == 0
    assert "\x1b[2J" not in out
    assert "\u202e" not in out

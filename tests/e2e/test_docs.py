"""What the documents tell a reader to type parses, runs, and prints what they say that it prints."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from phasemeter.cli import COMMANDS, main
from phasemeter.cli.flags import engine_spec, grid_of
from phasemeter.roofline.floor import prefill_floor
from phasemeter.roofline.hardware import find_hardware
from phasemeter.roofline.presets import load_shape
from phasemeter.roofline.work import prefill, work

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md")])
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 128, "vocab_size": 1000,
}  # fmt: skip


@dataclass(frozen=True)
class Typed:
    """One command of a document, and the output that the document shows below it."""

    page: str
    line: int
    args: tuple[str, ...]
    shown: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.page}:{self.line} {' '.join(self.args)}"


def fences(text: str) -> list[tuple[str, int, list[str]]]:
    """Language, number of the first line, and lines of every fenced block."""
    found: list[tuple[str, int, list[str]]] = []
    language, start, lines = None, 0, []
    for number, line in enumerate(text.splitlines(), start=1):
        fence = re.match(r"\s*```(\w*)\s*$", line)
        if fence is None:
            if language is not None:
                lines.append(line)
        elif language is None:
            language, start, lines = fence[1], number + 1, []
        else:
            found.append((language, start, lines))
            language = None
    assert language is None, f"a fence opened in line {start - 1} is never closed"
    return found


def commands_of(page: str, text: str) -> list[Typed]:
    """Every `phasemeter` command: behind `$ ` in console blocks, bare in blocks without a language."""
    found: list[Typed] = []
    for language, start, lines in fences(text):
        prompt = {"console": "$ ", "": "phasemeter "}.get(language)
        at = 0
        while prompt is not None and at < len(lines):
            line, number = lines[at].strip(), start + at
            at += 1
            if not line.startswith(prompt):
                continue
            typed = line.removeprefix("$ ")
            while typed.endswith("\\") and at < len(lines):
                typed = typed[:-1] + lines[at].strip().removeprefix("> ")
                at += 1
            output: list[str] = []
            while language == "console" and at < len(lines) and not lines[at].startswith("$ "):
                output.append(lines[at])
                at += 1
            name, *args = shlex.split(typed, comments=True)
            if name == "phasemeter":
                found.append(Typed(page, number, tuple(args), tuple(output)))
    return found


TYPED = [t for page in PAGES for t in commands_of(str(page.relative_to(ROOT)), page.read_text())]

LAWS = [t for t in TYPED if t.page == "docs/tutorial.md" and "prefill_" in " ".join(t.args)]


def parsed(args: tuple[str, ...]) -> click.Context | None:
    """The command's context as click reads it, without running it; None for --help and --version."""
    if not args or args[0].startswith("-"):
        assert args in {("--help",), ("--version",), ("-h",)}
        return None
    assert args[0] in COMMANDS, f"there is no command {args[0]}"
    command: click.Command = importlib.import_module(f"phasemeter.cli.{args[0]}").command
    try:
        return command.make_context(args[0], list(args[1:]))
    except click.exceptions.Exit:
        return None


def refers_to_a_file(name: str) -> bool:
    return name.endswith(".json") or "/" in name


def test_the_reader_of_documents_reads_prompts_continuations_and_output():
    text = (
        "```console\n$ ls\n$ phasemeter models \\\n>   x --json  # why\nshown\n\n$ phasemeter doctor\n```\n"
        "```\nphasemeter hardware\n```\n```python\nphasemeter no\n```\n"
    )
    assert [(t.line, t.args, t.shown) for t in commands_of("p", text)] == [
        (3, ("models", "x", "--json"), ("shown", "")),
        (7, ("doctor",), ()),
        (10, ("hardware",), ()),
    ]


def test_an_option_that_does_not_exist_is_found():
    with pytest.raises(click.UsageError, match="no-such"):
        parsed(("models", "--no-such"))
    with pytest.raises(click.UsageError):
        parsed(("run", "--engine", "nope"))


def test_every_command_is_shown_somewhere_to_be_typed():
    assert {t.args[0] for t in TYPED if t.page.startswith("docs/")} >= set(COMMANDS)
    for readme in ("README.md", "README.zh-CN.md"):
        assert {t.args[0] for t in TYPED if t.page == readme} >= {"run", "explain", "report", "simulate"}, (
            readme
        )


@pytest.mark.parametrize("typed", TYPED, ids=str)
def test_it_parses_and_means_something(typed, monkeypatch):
    context = parsed(typed.args)
    if context is None:
        return
    options = context.params
    for name in re.findall(r"--api-key-env (\w+)", " ".join(typed.args)):
        monkeypatch.setenv(name, "a key")
    for name in filter(None, str(options.get("hardware") or "").split(",")):
        find_hardware(name)
    shape = options.get("model_shape") or (options["name"] if context.info_name == "models" else None)
    if shape and not refers_to_a_file(shape):
        load_shape(shape)
    if context.info_name == "hardware" and options["name"]:
        find_hardware(options["name"])
    if context.info_name in {"run", "measure"}:
        grid = grid_of(options)
        assert grid.input_tokens
        assert engine_spec(options).kind == options["engine"]


def test_no_page_speaks_of_a_command_that_does_not_exist():
    unknown = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        for name in re.findall(r"`phasemeter ([a-z]+)", page.read_text())
        if name not in COMMANDS
    }
    assert unknown == set()


def test_examples_in_the_help_texts_parse():
    found = 0
    for name in COMMANDS:
        command: click.Command = importlib.import_module(f"phasemeter.cli.{name}").command
        text = f"{command.help}\n{command.epilog or ''}".replace("\b", "").replace("\\\n", " ")
        examples = re.findall(r"^ *phasemeter (.+)$", text, flags=re.MULTILINE)
        assert examples, name
        for example in examples:
            parsed(tuple(shlex.split(example)))
            found += 1
    assert found >= len(COMMANDS)


# running


RUNNABLE = {"hardware", "models", "doctor", "explain", "report"}


def can_run(typed: Typed) -> bool:
    """Needs no model, server or network, and no seconds of an idle machine."""
    if not typed.args or typed.args[0].startswith("-"):
        return True
    if typed.args[0] == "simulate":
        return "--list-faults" in typed.args
    if typed.args[0] in {"run", "measure"}:
        return "simulated" in typed.args
    return typed.args[0] in RUNNABLE and "--measure" not in typed.args


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    """Two runs of one measurement, as `explain` merges them."""
    folder = tmp_path_factory.mktemp("runs")
    paths = [folder / "a.jsonl", folder / "b.jsonl"]
    for path in paths:
        args = ["measure", "--engine", "simulated", "--truth", "ttft_ms=2", "--truth", "itl_ms=1"]
        assert code_of([*args, "--input-tokens", "16,32", "--output-tokens", "4", "--out", str(path)]) == 0
    return paths


def code_of(args: list[str]) -> int:
    with pytest.raises(SystemExit) as ended:
        main(args)
    return ended.value.code if isinstance(ended.value.code, int) else 0


def with_runs(args: tuple[str, ...], runs: list[Path]) -> list[str]:
    """The run files that a document names, replaced by real ones; different names by different runs."""
    if args[0] not in {"explain", "report"}:
        return list(args)
    named = list(dict.fromkeys(a for a in args if a == "RUN" or a.endswith(".jsonl")))
    assert 0 < len(named) <= len(runs), "a document shows more runs at once than this test makes"
    return [str(runs[named.index(a)]) if a in named else a for a in args]


@pytest.mark.parametrize("typed", [t for t in TYPED if can_run(t) and t not in LAWS], ids=str)
def test_it_runs(typed, runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model" / "config.json").write_text(json.dumps(CONFIG))
    args = with_runs(typed.args, runs)
    # On a machine that others use, --strict may rightly answer 1.
    code = code_of([a for a in args if a != "--strict"])
    told = capsys.readouterr()
    assert code == 0, told.err
    if "--json" in args:
        json.loads(told.out)
    if typed.shown and typed.args[0] in {"models", "hardware"}:
        assert_shown(typed.shown, told.out)
    if "-o" in args:
        assert (tmp_path / args[args.index("-o") + 1]).stat().st_size > 1000


def assert_shown(shown: tuple[str, ...], printed: str) -> None:
    """Every line that the document shows is printed, in order; `...` leaves out any number of lines."""
    lines = [line.rstrip() for line in printed.splitlines()]
    at, jump = 0, False
    for line in (line.rstrip() for line in shown):
        if line == "...":
            jump = True
            continue
        if jump:
            with contextlib.suppress(ValueError):
                at = lines.index(line, at)
        assert at < len(lines), f"never printed: {line!r}"
        assert lines[at] == line
        at, jump = at + 1, False
    assert jump or at == len(lines), f"not shown: {lines[at:]}"


def test_a_document_that_shows_other_numbers_is_found():
    assert_shown(("a", "...", "d"), "a\nb\nc\nd\n")
    assert_shown(("a", "..."), "a\nb\n")
    for shown in (("a", "...", "x"), ("a", "c", "d"), ("a", "b")):
        with pytest.raises(AssertionError):
            assert_shown(shown, "a\nb\nc\nd\n")


def test_the_laws_that_the_tutorial_gives_are_found_again(tmp_path, monkeypatch, capsys):
    """The tutorial says "it must say exponent 2.00", and 1.00 for the other."""
    monkeypatch.chdir(tmp_path)
    for typed, exponent in zip(LAWS, (2.0, 1.0), strict=True):
        assert code_of([*typed.args, "--json"]) == 0
        growth = json.loads(capsys.readouterr().out)["growth"]
        exponents = [step["exponent"] for step in growth if step["metric"] == "prefill"]
        assert exponents == pytest.approx([exponent] * len(exponents), abs=0.005)
        assert len(exponents) >= 2


def test_the_articles_rows_on_the_physics_page_are_arithmetic():
    shape, chip = load_shape("ernie-4.5-0.3b"), find_hardware("a100-40gb-sxm")
    rows = re.findall(
        r"^\| (\d+) \| (\d+) \| ([\d.]+) \| (\d+) \| ([\d.]+) \|$",
        (ROOT / "docs/physics.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) == 4
    for tokens, claimed_ms, floor_ms, ratio, teraflops in rows:
        least_ms = prefill_floor(shape, int(tokens), chip).seconds * 1e3
        assert float(floor_ms) == pytest.approx(least_ms, abs=0.0005)
        assert int(ratio) == round(float(claimed_ms) / least_ms)
        flops = work(shape, prefill(int(tokens)), "bfloat16").flops
        assert float(teraflops) == pytest.approx(flops / float(claimed_ms) / 1e9, rel=0.01)

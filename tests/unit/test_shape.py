"""The shape of the code: what no linter checks."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from phasemeter.cli import COMMANDS
from phasemeter.engines import ENGINES

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
OUR_FILES = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "benchmarks").rglob("*.py"))]
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}


def test_no_file_is_longer_than_400_lines():
    long = {str(p.relative_to(ROOT)): n for p in OUR_FILES if (n := len(p.read_text().splitlines())) > 400}
    assert long == {}


def test_no_module_is_a_drawer_for_odds_and_ends():
    assert [p for p in SOURCES if {p.stem, *p.relative_to(ROOT).parts} & FORBIDDEN_NAMES] == []


def test_every_command_has_a_file_a_page_and_an_example_in_its_help():
    for name in COMMANDS:
        assert (ROOT / f"src/phasemeter/cli/{name}.py").is_file(), name
        page = ROOT / f"docs/commands/{name}.md"
        assert page.is_file(), f"docs/commands/{name}.md is missing"
        assert f"phasemeter {name}" in page.read_text(), name


def test_every_option_is_on_its_commands_page():
    """An option that no page names is an option that nobody finds."""
    import importlib

    missing: list[str] = []
    for name in COMMANDS:
        command = importlib.import_module(f"phasemeter.cli.{name}").command
        pages = (ROOT / f"docs/commands/{name}.md").read_text() + (
            ROOT / "docs/commands/engine-flags.md"
        ).read_text()
        for param in command.params:
            missing += [f"{name} {opt}" for opt in param.opts if opt.startswith("--") and opt not in pages]
    assert missing == []


def test_every_package_is_on_the_architecture_page():
    text = (ROOT / "docs/architecture.md").read_text()
    packages = [p.name for p in (ROOT / "src/phasemeter").iterdir() if (p / "__init__.py").is_file()]
    assert [p for p in packages if f"`{p}`" not in text and f"`{p}/`" not in text] == []


def test_every_engine_is_documented():
    page = (ROOT / "docs/commands/engine-flags.md").read_text()
    assert [name for name in ENGINES if f"`{name}`" not in page] == []


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text()
    pages = [str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md")]
    assert [p for p in pages if p not in nav and not p.startswith("decisions/")] == []


def test_links_between_our_pages_lead_somewhere():
    broken: list[str] = []
    for page in [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]:
        links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
        broken += [f"{page.relative_to(ROOT)}: {link}" for link in links if not (page.parent / link).exists()]
    assert broken == []


def test_the_repository_speaks_of_the_project_alone():
    """No path of one machine, no registry's host."""
    found: list[str] = []
    files = [
        p for p in ROOT.rglob("*") if p.suffix in {".py", ".md", ".toml", ".yml", ".html", ".css", ".js"}
    ]
    for path in files:
        if {".venv", "runs", "models", "site", ".git", ".hypothesis"} & set(path.relative_to(ROOT).parts):
            continue
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found += [
            f"{path.relative_to(ROOT)}: {m}"
            for m in re.findall(r"(?<![\w.])/(?:work|root|home)/\w+|pypi\.org", text)
        ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import phasemeter", {"numpy", "httptools", "uvloop", "torch", "rich", "click", "asyncio"}),
        ("import phasemeter.record.file", {"numpy", "httptools", "uvloop", "torch", "asyncio"}),
        ("import phasemeter.cli", {"numpy", "httptools", "uvloop", "torch", "rich", "asyncio"}),
        (
            "import sys; sys.argv = ['phasemeter', '--help']\nfrom phasemeter.cli import main\n"
            "try:\n    main()\nexcept SystemExit:\n    pass",
            {"numpy", "httptools", "uvloop", "torch", "rich", "asyncio"},
        ),
    ],
)
def test_light_imports_stay_light(code, absent):
    probe = f"{code}\nimport sys\nprint('|'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert set(done.stderr.strip().split("|")) & absent == set()


def test_the_core_installs_without_torch_and_without_scipy():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = " ".join(project["dependencies"])
    assert not re.search(r"torch|transformers|scipy|plotly|aiohttp", core)
    assert len(project["dependencies"]) <= 8


def test_extras_of_all_leave_torch_out():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "local" not in " ".join(extras["all"])

"""Run files as the page needs them: by server start, with the article's claims judged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct

from phasemeter.explain.audit.judge import audit
from phasemeter.explain.audit.read import read_claims
from phasemeter.explain.growth import Exponent
from phasemeter.explain.roof import roofs
from phasemeter.explain.shapes import ShapeSummary
from phasemeter.explain.summary import Summary, summarise
from phasemeter.record.errors import InputError
from phasemeter.record.file import read_run
from phasemeter.report.article import HARDWARE, LIST_PREFILL_MS, MODEL, TABLE_MS, Place, article_rows
from phasemeter.report.audit_view import AuditLine, audit_view
from phasemeter.report.parts import Number
from phasemeter.roofline.hardware import find_hardware
from phasemeter.roofline.presets import load_shape

CLAIMS = Path(__file__).parents[2] / "examples" / "article-claims.toml"
CLAIM_IDS = (
    *(f"list-{tokens}" for tokens, _ in LIST_PREFILL_MS),
    *(f"table-{tokens}.prefill" for tokens, *_ in TABLE_MS),
    *(f"table-{tokens}.tpot" for tokens, *_ in TABLE_MS),
)
"""What the audit calls the article's numbers, in the order of `article_rows`."""
ORDER = ("http-default", "local-default", "http-eager", "local-eager")


class Claim(Struct, frozen=True):
    """One number of the article, judged alone.

    The verdict is that of `phasemeter audit examples/article-claims.toml`; no run has a part in it.
    """

    what: str
    lengths: str
    input_tokens: int
    claimed_ms: float
    floor_claimed_ms: float
    measured: Number
    verdict: str


class Runs(Struct, frozen=True):
    """All runs by the start they measured, the main one first."""

    by_name: dict[str, Summary]
    paths: dict[str, Path] = {}

    @property
    def main_path(self) -> Path | None:
        """The file of `main`, where it was read from one."""
        return self.paths.get(next(iter(self.by_name)))

    @property
    def main(self) -> Summary:
        """The run that stands for all where one must: through HTTP with the defaults, where there is one."""
        return next(iter(self.by_name.values()))

    def get(self, name: str) -> Summary | None:
        return self.by_name.get(name)

    def pairs(self, first: str, second: str) -> list[tuple[Summary, Summary]]:
        """Runs that differ in one thing: ("default", "eager") or ("http", "local")."""
        found: list[tuple[Summary, Summary]] = []
        for name, summary in self.by_name.items():
            other = self.by_name.get(name.replace(first, second))
            if first in name and other is not None:
                found.append((summary, other))
        return found

    def lengths(self, name: str) -> list[ShapeSummary]:
        """Shapes at batch 1 that differ in input length alone (the output that most of them have)."""
        return lengths_of(self.by_name[name])

    def batches(self, name: str) -> list[ShapeSummary]:
        """Shapes of one length that differ in batch alone."""
        shapes = [shape for shape in self.by_name[name].shapes if shape.ok]
        wide = {(s.key.input_tokens, s.key.output_tokens) for s in shapes if s.key.concurrency > 1}
        if not wide:
            return []
        chosen = max(
            wide, key=lambda pair: sum((s.key.input_tokens, s.key.output_tokens) == pair for s in shapes)
        )
        return [s for s in shapes if (s.key.input_tokens, s.key.output_tokens) == chosen]


def lengths_of(summary: Summary) -> list[ShapeSummary]:
    """Shapes at batch 1 with the output length that most of them share, by input length."""
    shapes = [shape for shape in summary.shapes if shape.ok and shape.key.concurrency == 1]
    outputs = [shape.key.output_tokens for shape in shapes]
    if not outputs:
        return []
    usual = max(set(outputs), key=lambda n: (outputs.count(n), -n))
    return sorted((s for s in shapes if s.key.output_tokens == usual), key=lambda s: s.key.input_tokens)


def load_runs(paths: Sequence[Path]) -> Runs:
    """Read and summarise every run of the article's model or shape; the start is what the run's settings name.
    Raises InputError where two runs measured the same start."""
    found: dict[str, Summary] = {}
    files: dict[str, Path] = {}
    for path in paths:
        summary = summarise(read_run(path))
        name = start_of(summary)
        if name in found:
            raise InputError(
                "--runs", path.name, f"measures {name} as {found[name].name} does; keep one of them"
            )
        found[name] = summary
        files[name] = path
    ranked = sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    return Runs({name: found[name] for name in ranked}, files)


def start_of(summary: Summary) -> str:
    """ "http-default" and so on, as the run's settings say; else from what the engine says of itself."""
    told = summary.header.settings.get("start")
    if isinstance(told, str):
        return told
    engine = summary.header.engine
    way = "local" if engine.kind == "vllm-local" else "http" if engine.url else engine.kind
    return f"{way}-eager" if engine.details.get("enforce_eager") == "True" else f"{way}-default"


@cache
def audited(lang: str) -> tuple[AuditLine, ...]:
    """Every claim of the article with the audit's verdict and reason."""
    claims = read_claims(CLAIMS)
    return audit_view(claims, audit(claims), lang).lines


def claims_of(summary: Summary, lang: str) -> list[Claim]:
    """The article's ten numbers beside one run, each with the audit's verdict."""
    found = roofs(summary.header, hardware=summary.hardware_name, model_shape=MODEL)
    place = Place(load_shape(MODEL), find_hardware(HARDWARE), found[0] if found else None)
    verdicts = {one.id: one.verdict.value for one in audited(lang)}
    return [
        Claim(
            what=row.what,
            lengths=row.lengths,
            input_tokens=row.input_tokens,
            claimed_ms=row.claimed_ms,
            floor_claimed_ms=row.floor_claimed.value or 0.0,
            measured=row.measured,
            verdict=verdicts[name],
        )
        for name, row in zip(CLAIM_IDS, article_rows(summary, place, lang), strict=True)
    ]


def exponents_of(summary: Summary, metric: str) -> list[Exponent]:
    """Growth between neighbouring lengths at batch 1, of the line with the most lengths."""
    lengths = lengths_of(summary)
    if not lengths:
        return []
    output = lengths[0].key.output_tokens
    wanted = [e for e in summary.growth if e.concurrency == 1 and e.output_tokens == output]
    return [e for e in wanted if e.metric == metric]

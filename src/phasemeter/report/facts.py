"""The header card: machine, model, engine, versions, ceilings, settings and what was counted."""

from __future__ import annotations

from phasemeter.explain.shape_key import Asked
from phasemeter.explain.summary import Ceiling, Summary
from phasemeter.record.run import Machine
from phasemeter.report.digits import plain
from phasemeter.report.levels import level_cell
from phasemeter.report.parts import Fact
from phasemeter.report.words import say, word


def facts_of(summary: Summary, lang: str) -> tuple[Fact, ...]:
    """Machine, model, engine and versions; weights that are random are loud. What is not known is left
    out."""
    header = summary.header
    engine, machine = header.engine, header.machine
    weights = engine.weights or ""
    pairs: list[tuple[str, str, bool]] = [
        (
            "model",
            _joined(engine.model, summary.shape_name if summary.shape_name != engine.model else None),
            False,
        ),
        ("weights", weights, "random" in weights.lower()),
        ("dtype", _joined(engine.dtype, engine.device), False),
        ("engine", _engine(summary), False),
        ("machine", _machine(machine), False),
        ("gpu", ", ".join(gpu.name for gpu in machine.gpus), False),
        ("os", _joined(machine.os, _python(machine.python)), False),
        ("versions", _versions(summary), False),
        ("floors_for", _joined(summary.shape_name, summary.hardware_name), False),
    ]
    facts = [Fact(word(lang, key), text, loud=loud) for key, text, loud in pairs if text]
    facts += [_ceiling(ceiling, lang) for ceiling in summary.ceilings]
    facts.append(Fact(word(lang, "started"), summary.started))
    return tuple(facts + [Fact(word(lang, "notes"), note) for note in header.notes])


def settings_of(summary: Summary, lang: str) -> tuple[Fact, ...]:
    """Everything that was asked for, under the names of the run file; the seed is always shown."""
    settings = {key: value for key, value in summary.header.settings.items() if value is not None}
    settings = {key: value for key, value in settings.items() if _plain(value)}
    found = [
        Fact(key if key != "seed" else word(lang, "seed"), _plain(value)) for key, value in settings.items()
    ]
    details = summary.header.engine.details
    return tuple(found + [Fact(f"{word(lang, 'engine')}: {key}", value) for key, value in details.items()])


def counts_of(summary: Summary, lang: str) -> tuple[Fact, ...]:
    """How many requests, at which rate and concurrency, and how tokens were counted."""
    requests, flow, conc = summary.requests, summary.throughput, summary.concurrency
    text = say(
        lang,
        "unplanned" if requests.planned is None else "planned",
        ok=requests.ok,
        failed=requests.failed,
        planned=requests.planned,
        warmup=requests.warmup,
    )
    failures = {name: count for name, count in requests.by_outcome.items() if name != "ok"}
    if failures:
        text += " (" + ", ".join(f"{name} {count}" for name, count in failures.items()) + ")"
    found = [Fact(word(lang, "requests"), text)]
    if flow.output_tokens_per_s is not None:
        key = "throughput" if len(summary.shapes) == 1 else "throughput_all"
        rate = say(lang, key, tokens=plain(flow.output_tokens_per_s), requests=plain(flow.requests_per_s))
        found.append(Fact(word(lang, "throughput"), rate))
    if conc.levels:
        asked = ", ".join(level_cell(Asked(level.asked, level.rate_per_s), lang) for level in conc.levels)
        seen = ", ".join(str(level.seen_max) for level in conc.levels)
        found.append(Fact(word(lang, "concurrency"), say(lang, "concurrency", asked=asked, seen=seen)))
    answer = summary.latency.ttfa_ms
    if answer is not None:
        found.append(Fact(word(lang, "ttfa_name"), say(lang, "first_answer", ms=plain(answer.p50))))
    counted = word(lang, f"counted_{summary.tokens_counted}")
    found.append(Fact(word(lang, "tokens_counted"), counted, loud=summary.tokens_counted == "chunk"))
    if summary.itl_counted in ("chunk", "mixed") and summary.tokens_counted != "chunk":
        found.append(Fact(word(lang, "gaps_counted"), word(lang, f"gaps_{summary.itl_counted}")))
    return tuple(found)


def device_of(summary: Summary) -> str:
    """The machine in a few words: its GPUs, else its processor."""
    machine = summary.header.machine
    return ", ".join(gpu.name for gpu in machine.gpus) or machine.cpu


def engine_of(summary: Summary) -> str:
    """The engine in a few words."""
    engine = summary.header.engine
    return _joined(engine.kind if not engine.version else f"{engine.kind} {engine.version}", engine.dtype)


def _engine(summary: Summary) -> str:
    engine = summary.header.engine
    return _joined(
        engine.kind if not engine.version else f"{engine.kind} {engine.version}", engine.url, engine.api
    )


def _machine(machine: Machine) -> str:
    memory = f"{machine.memory_bytes / 2**30:.0f} GiB" if machine.memory_bytes is not None else None
    return _joined(machine.host, machine.cpu, f"{machine.cores} cores", memory)


def _python(version: str) -> str:
    return f"Python {version}" if version[:1].isdigit() else version


def _versions(summary: Summary) -> str:
    header = summary.header
    versions = {"phasemeter": header.phasemeter} | header.machine.versions | header.engine.versions
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _ceiling(ceiling: Ceiling, lang: str) -> Fact:
    peak = f"{_rate(ceiling.peak_flops_per_s, 'FLOP/s')} {ceiling.dtype}"
    text = say(
        lang,
        "ceiling",
        source=word(lang, f"ceiling_{ceiling.source}"),
        peak=peak,
        bandwidth=_rate(ceiling.read_bytes_per_s, "B/s"),
        hardware=ceiling.hardware,
    )
    if ceiling.launch_ns is not None:
        text += say(lang, "ceiling_launch", launch=plain(ceiling.launch_ns / 1e3))
    return Fact(word(lang, "ceiling"), text)


def _rate(value: float | None, unit: str) -> str:
    if value is None:
        return plain(None)
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{plain(value / size)} {prefix}{unit}"
    return f"{plain(value)} {unit}"


def _joined(*parts: str | None) -> str:
    return " · ".join(part for part in parts if part)


def _plain(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(entry) for entry in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, dict):
        return ", ".join(f"{key}={entry}" for key, entry in value.items() if entry is not None)  # pyright: ignore[reportUnknownVariableType]
    return str(value)

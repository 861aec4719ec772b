"""Could this engine run this model on this hardware? Releases, dates and memory; it says nothing of any number."""

from __future__ import annotations

from phasemeter.explain.audit.claims import Setup
from phasemeter.explain.audit.place import Place
from phasemeter.explain.audit.tables import Release, Support, engine_key, releases, version_key
from phasemeter.explain.audit.verdict import Finding, Line, Verdict, line, undecidable


def judge_set_up(place: Place) -> Finding:
    """Impossible where the release lacks the architecture, came out too late, or the weights do not fit the memory;
    plausible where the tables know it; else undecidable."""
    working: list[Line] = []
    for rule in (_memory, _dates, _support):
        found = rule(place, working)
        if found is not None:
            return Finding(found.verdict, found.reason, tuple(working), found.bound)
    if place.chip is None:
        return undecidable(place.missing or line("missing_hardware_name"), working)
    return Finding(Verdict.PLAUSIBLE, line("set_up_known"), tuple(working), {})


def _memory(place: Place, working: list[Line]) -> Finding | None:
    if place.chip is None or place.chip.hardware.memory_bytes is None:
        return None
    needs = place.chip.shape.weight_bytes(place.chip.dtype)
    has = place.chip.hardware.memory_bytes
    working.append(line("weights_fit", weights_gb=needs / 1e9, memory_gb=has / 1e9))
    if needs <= has:
        return None
    return Finding(
        Verdict.IMPOSSIBLE,
        line("weights_too_large", weights_gb=needs / 1e9, memory_gb=has / 1e9),
        (),
        {"weight_bytes": needs, "memory_bytes": has},
    )


def _dates(place: Place, working: list[Line]) -> Finding | None:
    """A model or a release that came out after the source's own date."""
    setup = place.setup
    if setup.date is None:
        return None
    model = next(
        (m for m in releases().model if place.shape and m.model_type == place.shape.model_type), None
    )
    release = _release(setup)
    for what, came in (("model_later", model), ("release_later", release)):
        if came is not None and came.date > setup.date:
            working.append(line("source_of", source=came.source))
            reason = line(what, came=came.date.isoformat(), told=setup.date.isoformat())
            return Finding(Verdict.IMPOSSIBLE, reason, (), {"released": came.date.isoformat()})
    return None


def _support(place: Place, working: list[Line]) -> Finding | None:
    setup = place.setup
    if place.shape is None:
        return undecidable(place.missing or line("missing_model_name"))
    if setup.engine is None or setup.version is None:
        return undecidable(line("missing_engine_version"))
    row = _support_row(setup, place.shape.model_type)
    if row is None:
        return undecidable(line("missing_support", engine=setup.engine, model_type=place.shape.model_type))
    told, since = version_key(setup.version), version_key(row.since)
    if told is None or since is None:
        return undecidable(line("missing_version", version=setup.version))
    working.append(
        line(
            "first_release",
            engine=row.engine,
            model_type=row.model_type,
            since=row.since,
            absent=row.absent_in or "-",
        )
    )
    dated = _release(setup)
    if dated is not None:
        working.append(
            line("released", engine=dated.engine, version=dated.version, date=dated.date.isoformat())
        )
    working.append(line("source_of", source=row.source))
    if row.note:
        working.append(line("note_of", note=row.note, note_zh=row.note_zh or row.note))
    return None if told >= since else _too_old(setup, row, told)


def _too_old(setup: Setup, row: Support, told: tuple[int, ...]) -> Finding:
    absent = version_key(row.absent_in) if row.absent_in else None
    fallback = version_key(row.fallback_after) if row.fallback_after else None
    bound: dict[str, object] = {"since": row.since, "version": setup.version}
    if absent is None or told > absent:
        return Finding(Verdict.UNDECIDABLE, line("not_looked_at", since=row.since), (), bound)
    if fallback is not None and told > fallback:
        return Finding(Verdict.UNDECIDABLE, line("only_fallback", since=row.since), (), bound)
    reason = line(
        "too_old", engine=row.engine, version=setup.version or "", since=row.since, model_type=row.model_type
    )
    return Finding(Verdict.IMPOSSIBLE, reason, (), bound)


def _support_row(setup: Setup, model_type: str) -> Support | None:
    key = engine_key(setup.engine)
    return next(
        (row for row in releases().support if row.engine == key and row.model_type == model_type), None
    )


def _release(setup: Setup) -> Release | None:
    key, number = engine_key(setup.engine), version_key(setup.version or "")
    rows = [row for row in releases().release if row.engine == key and version_key(row.version) == number]
    return rows[0] if rows and number else None

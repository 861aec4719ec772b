"""Does a name stand where an engine reads it? From the lists of names that each object of a release takes."""

from __future__ import annotations

from phasemeter.explain.audit.claims import Setup, Statement
from phasemeter.explain.audit.tables import Settings, engine_key, settings, version_key
from phasemeter.explain.audit.verdict import Finding, Verdict, line, undecidable


def setting_has_effect(claim: Statement, setup: Setup) -> Finding:
    """True where the object takes the name, misleading where another object does, false where none does."""
    if setup.engine is None:
        return undecidable(line("missing_engine_name"))
    known = _nearest(setup)
    if not known:
        return undecidable(line("missing_settings", engine=setup.engine))
    working = [
        line("settings_of", object=one.object, version=one.version, count=len(one.names)) for one in known
    ]
    working += [line("source_of", source=one.source) for one in known]
    takers = [one.object for one in known if claim.setting in one.names]
    bound: dict[str, object] = {"takes": takers, "version": known[0].version}
    place = claim.object or known[0].object
    if claim.object and claim.object not in {one.object for one in known}:
        return undecidable(line("missing_object", object=claim.object, engine=setup.engine))
    if place in takers or (not claim.object and takers):
        return Finding(
            Verdict.TRUE, line("setting_true", setting=claim.setting, object=place), tuple(working), bound
        )
    if takers:
        reason = line("setting_misleading", setting=claim.setting, object=place, taker=", ".join(takers))
        return Finding(Verdict.MISLEADING, reason, tuple(working), bound)
    reason = line("setting_false", setting=claim.setting, objects=", ".join(one.object for one in known))
    return Finding(Verdict.FALSE, reason, tuple(working), bound)


def _nearest(setup: Setup) -> list[Settings]:
    """The lists of the newest release that is not newer than the set-up's; without a version, of the newest."""
    rows = [one for one in settings() if one.engine == engine_key(setup.engine)]
    told = version_key(setup.version) if setup.version else None
    older = [one for one in rows if told is None or (version_key(one.version) or ()) <= told]
    best = max((version_key(one.version) or () for one in older), default=None)
    return [one for one in older if version_key(one.version) == best]

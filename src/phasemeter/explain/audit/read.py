"""From a TOML or CSV file to claims; what cannot be understood is told with file, claim, field and mend."""

from __future__ import annotations

import csv
import io
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast, get_args

import msgspec

from phasemeter.explain.audit.claims import (
    NEEDS,
    Agreement,
    Claim,
    Claims,
    Growth,
    Placed,
    Row,
    SetUp,
    Setup,
    Statement,
    TimeMetric,
    time_of,
)
from phasemeter.record.errors import InputError
from phasemeter.roofline.dtypes import canonical_dtype

T = TypeVar("T")

_MOST_BYTES = 16 * 2**20
_MOST_TOKENS = 10**9
_MOST_BATCH = 65_536
_MAY_BE_ZERO = frozenset({"cached_tokens", "exponent"})
_TYPES: dict[str, type[SetUp] | type[Row] | type[Growth] | type[Agreement]] = {
    "set_up": SetUp,
    "row": Row,
    "growth": Growth,
    "agreement": Agreement,
}
_KINDS = (*_TYPES, *NEEDS)
_ALWAYS = {"id", "kind", "statement", "statement_zh"}
_LISTS = {"rows", "other_rows", "input_tokens", "output_tokens"}
_SETUP_FIELDS = frozenset(Setup.__struct_fields__)
_WAYS = ("factor", "factor_per_doubling", "exponent", "law")


def read_claims(path: Path) -> Claims:
    """The claims of a .toml or .csv file. Raises InputError naming file, claim, field, value and how to mend it."""
    text = _text(path)
    if path.suffix.lower() == ".csv":
        return claims_of_csv(text, path.name)
    if path.suffix.lower() == ".toml":
        return claims_of_toml(text, path.name)
    raise InputError("claims", str(path), "give a file that ends in .toml or .csv")


def claims_of_toml(text: str, name: str) -> Claims:
    """`[setup]` for all, `[[claim]]` one each (with a `setup` of its own where it differs), `title`."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(name, str(error), "is not valid TOML") from None
    unknown = set(table) - {"title", "setup", "claim"}
    if unknown:
        raise InputError(name, sorted(unknown)[0], "is no key of a claims file; use title, setup and claim")
    title: object = table.get("title", name)
    if not isinstance(title, str):
        raise InputError(f"{name}, title", title, "must be a text")
    base = _table(table.get("setup", {}), f"{name}, setup")
    raw: object = table.get("claim", [])
    if not isinstance(raw, list):
        raise InputError(f"{name}, claim", raw, "must be tables: write [[claim]]")
    _setup(base, f"{name}, setup", strict=True)
    placed: list[Placed] = []
    for number, item in enumerate(cast("list[object]", raw), start=1):
        given = _table(item, f"{name}, claim {number}")
        fields: dict[str, object] = {"kind": "row", "id": f"claim-{number}", **given}
        where = f"{name}, claim {_label(fields['id'])}"
        own = _table(fields.pop("setup", {}), f"{where}, setup")
        setup = _setup({**base, **own}, f"{where}, setup", strict=True)
        placed.append(Placed(_claim(fields, where, strict=True), setup))
    return _whole(title, placed, name)


def claims_of_csv(text: str, name: str) -> Claims:
    """One claim a line under a header of field names; empty cells are absent, lists are parted by ";"."""
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    placed: list[Placed] = []
    try:
        heads = [head.strip() for head in reader.fieldnames or ()]
        _check_heads(heads, name)
        for number, line in enumerate(reader, start=1):
            where = f"{name}, line {reader.line_num}"
            extra: object = cast("dict[object, object]", line).get(None)
            if extra is not None:
                raise InputError(
                    where, extra, "has more cells than the header; quote a text that holds a comma"
                )
            cells = {
                head: value.strip()
                for head, value in zip(heads, line.values(), strict=True)
                if value and value.strip()
            }
            if cells:
                placed.append(_csv_claim(cells, number, where))
    except csv.Error as error:
        raise InputError(f"{name}, after line {reader.line_num}", str(error), "is not valid CSV") from None
    return _whole(name, placed, name)


def _check_heads(heads: list[str], name: str) -> None:
    known = {field for kind in (*_TYPES.values(), Statement) for field in kind.__struct_fields__}
    for head in heads:
        if head not in known | _SETUP_FIELDS | {"kind"}:
            near = ", ".join(sorted(_SETUP_FIELDS | set(Row.__struct_fields__)))
            raise InputError(f"{name}, header", head, f"is no field; for rows use {near}")
        if heads.count(head) > 1:
            raise InputError(f"{name}, header", head, "stands there twice")


def _csv_claim(cells: dict[str, str], number: int, where: str) -> Placed:
    setup = _setup({k: v for k, v in cells.items() if k in _SETUP_FIELDS}, where, strict=False)
    fields: dict[str, object] = {"kind": "row", "id": f"row-{number}"}
    kind = cells.get("kind", "row")
    for key, value in cells.items():
        if key in _SETUP_FIELDS:
            continue
        listed = key in _LISTS and (kind in NEEDS or "rows" in key)
        fields[key] = [part.strip() for part in value.split(";")] if listed else value
    return Placed(_claim(fields, f"{where} ({_label(fields['id'])})", strict=False), setup)


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise InputError("claims", str(path), "is no file; give a .toml or .csv file of claims")
        if path.stat().st_size > _MOST_BYTES:
            raise InputError("claims", str(path), "is larger than 16 MiB; give a file of claims")
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise InputError("claims", str(path), "is not UTF-8; save it as UTF-8") from None
    except (OSError, ValueError) as error:
        raise InputError("claims", str(path), f"cannot be read ({error})") from None


def _table(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InputError(where, value, 'must be a table, such as { hardware = "h200" }')
    return cast("dict[str, object]", value)


def _label(value: object) -> str:
    return str(value)[:60]


def _setup(raw: Mapping[str, object], where: str, *, strict: bool) -> Setup:
    setup = _converted(raw, Setup, where, strict=strict)
    canonical_dtype(setup.dtype, f"{where}, dtype")
    if not 1 <= setup.gpus <= 4096:
        raise InputError(f"{where}, gpus", setup.gpus, "must be 1 to 4096")
    return setup


def _claim(fields: dict[str, object], where: str, *, strict: bool) -> Claim:
    kind = fields["kind"]
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(f"{where}, kind", kind, f"use one of {', '.join(_KINDS)}")
    if kind in NEEDS:
        claim: Claim = _statement(fields, kind, where, strict=strict)
    else:
        claim = _converted(fields, _TYPES[kind], where, strict=strict)
    if not claim.id.strip():
        raise InputError(f"{where}, id", claim.id, "must not be empty")
    _check_numbers(claim, where)
    if isinstance(claim, Row):
        _check_row(claim, where)
    if isinstance(claim, Growth):
        _check_growth(claim, where)
    if isinstance(claim, Agreement):
        _check_agreement(claim, where)
    return claim


def _statement(fields: dict[str, object], kind: str, where: str, *, strict: bool) -> Statement:
    must, may = NEEDS[kind]
    for key in sorted(set(fields) - must - may - _ALWAYS):
        raise InputError(
            f"{where}, {key}", fields[key], f"{kind} takes {', '.join(sorted(must | may))} alone"
        )
    for key in sorted(must - set(fields)):
        raise InputError(f"{where}, {key}", None, f"is missing; {kind} needs {', '.join(sorted(must))}")
    listed: dict[str, object] = {
        key: [value] if key in _LISTS and not isinstance(value, list) else value
        for key, value in fields.items()
    }
    claim = _converted(listed, Statement, where, strict=strict)
    for key in must & _LISTS:
        if not getattr(claim, key):
            raise InputError(f"{where}, {key}", [], "must hold at least one length")
    if "output_tokens" in must and len(claim.input_tokens) != len(claim.output_tokens):
        raise InputError(
            f"{where}, output_tokens", list(claim.output_tokens), "give one for each of input_tokens"
        )
    return claim


def _converted(raw: Mapping[str, object], kind: type[T], where: str, *, strict: bool) -> T:
    try:
        return msgspec.convert(dict(raw), kind, strict=strict)
    except msgspec.ValidationError as error:
        message = str(error)
        found = re.search(r"\$\.?(\w+)", message) or re.search(r"field `(\w+)`", message)
        field = found[1] if found else ""
        mend = message.partition(" - at ")[0].replace("Object ", "")
        raise InputError(f"{where}, {field}" if field else where, raw.get(field), mend) from None


def _check_numbers(claim: Claim, where: str) -> None:
    """Times, factors and lengths that cannot be: not finite, not positive, absurdly many."""
    for field in claim.__struct_fields__:
        value: object = getattr(claim, field)
        for one in cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,):
            if isinstance(one, bool) or not isinstance(one, int | float):
                continue
            wrong = one <= 0 if field not in _MAY_BE_ZERO else one < 0 and field != "exponent"
            if not math.isfinite(one) or wrong:
                raise InputError(f"{where}, {field}", one, "must be finite and positive")
            most = _MOST_BATCH if field == "batch" else _MOST_TOKENS
            if one > most:
                raise InputError(f"{where}, {field}", one, f"is more than {most:,}; check the unit")


def _check_row(row: Row, where: str) -> None:
    if all(time_of(row, metric) is None for metric in get_args(TimeMetric)):
        raise InputError(
            where, None, "holds no number to audit; give prefill_ms, ttft_ms, tpot_ms, decode_total_ms, e2e_ms or "
            "output_tokens_per_s",
        )  # fmt: skip
    if row.input_tokens is not None and row.cached_tokens >= row.input_tokens:
        raise InputError(
            f"{where}, cached_tokens", row.cached_tokens, "must be less than input_tokens"
        )  # fmt: skip


def _check_growth(growth: Growth, where: str) -> None:
    given = [way for way in _WAYS if getattr(growth, way) is not None]
    if len(given) != 1:
        raise InputError(where, ", ".join(given) or None, f"give exactly one of {', '.join(_WAYS)}")
    if growth.from_tokens >= growth.to_tokens:
        raise InputError(
            f"{where}, to_tokens", growth.to_tokens, f"must be more than from_tokens ({growth.from_tokens})"
        )


def _check_agreement(claim: Agreement, where: str) -> None:
    if not claim.rows or len(claim.rows) != len(claim.other_rows):
        raise InputError(
            f"{where}, other_rows", list(claim.other_rows), "give one for each of rows, and at least one"
        )


def _whole(title: str, placed: list[Placed], name: str) -> Claims:
    if not placed:
        raise InputError(name, None, "holds no claim")
    claims = Claims(title, tuple(placed))
    seen: set[str] = set()
    for one in placed:
        if one.claim.id in seen:
            raise InputError(f"{name}, id", one.claim.id, "stands there twice; give every claim its own")
        seen.add(one.claim.id)
    for one in placed:
        _check_references(one.claim, claims, name)
    return claims


def _check_references(claim: Claim, claims: Claims, name: str) -> None:
    if isinstance(claim, SetUp | Row):
        return
    metric = claim.metric if isinstance(claim, Growth | Agreement) else None
    others = claim.other_rows if isinstance(claim, Agreement) else ()
    for row in (*claim.rows, *others):
        found = claims.row(row)
        if found is None:
            raise InputError(
                f"{name}, claim {_label(claim.id)}, rows", row, "is the id of no row of this file"
            )
        if metric is not None and time_of(cast("Row", found.claim), metric) is None:
            raise InputError(f"{name}, claim {_label(claim.id)}, rows", row, f"gives no {metric}")

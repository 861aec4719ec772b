"""The few fields of an OTLP trace export that are read here, from its protobuf and its JSON form. Pure: bytes in, spans
out.

Field numbers are those of `opentelemetry/proto/trace/v1/trace.proto` and `common/v1/common.proto`. What is not known is
passed over, as protobuf wants it; what cannot be read at all raises `DamagedError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec
from msgspec import Struct

Value = str | bool | int | float

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BYTES = 10
_SIGN, _SPAN = 1 << 63, 1 << 64


class DamagedError(ValueError):
    """The body is no trace export."""


class Span(Struct, frozen=True):
    """One span: `id` is trace and span id in hexadecimal ("" when it has none), times are ns of the sender's wall clock
    (None when not told); attributes that are lists, maps or bytes are left out."""

    name: str
    id: str = ""
    start_ns: int | None = None
    end_ns: int | None = None
    attributes: dict[str, Value] = {}


class _Field(Struct, frozen=True):
    number: int
    kind: int
    number_value: int = 0
    data: bytes = b""


def spans_of_protobuf(body: bytes) -> list[Span]:
    """Spans of an `ExportTraceServiceRequest`. Raises DamagedError."""
    return [
        _span(span.data)
        for resource in _messages(body, 1)
        for scope in _messages(resource.data, 2)
        for span in _messages(scope.data, 2)
    ]


def _messages(data: bytes, number: int) -> list[_Field]:
    return [field for field in _fields(data) if (field.number, field.kind) == (number, _BYTES)]


def _span(data: bytes) -> Span:
    texts: dict[int, bytes] = {}
    times: dict[int, int] = {}
    attributes: dict[str, Value] = {}
    for field in _fields(data):
        if field.number in {1, 2, 5} and field.kind == _BYTES:
            texts[field.number] = field.data
        elif field.number in {7, 8} and field.kind == _FIXED64:
            times[field.number] = field.number_value
        elif field.number == 9 and field.kind == _BYTES:
            key, value = _attribute(field.data)
            if value is not None:
                attributes[key] = value
    return Span(
        name=_text(texts.get(5, b"")),
        id=texts.get(1, b"").hex() + texts.get(2, b"").hex(),
        start_ns=times.get(7) or None,
        end_ns=times.get(8) or None,
        attributes=attributes,
    )


def _attribute(data: bytes) -> tuple[str, Value | None]:
    key, value = "", None
    for field in _fields(data):
        if (field.number, field.kind) == (1, _BYTES):
            key = _text(field.data)
        elif (field.number, field.kind) == (2, _BYTES):
            value = _any_value(field.data)
    return key, value


def _any_value(data: bytes) -> Value | None:
    found: Value | None = None
    for field in _fields(data):
        match field.number, field.kind:
            case 1, 2:
                found = _text(field.data)
            case 2, 0:
                found = bool(field.number_value)
            case 3, 0:
                found = field.number_value - _SPAN if field.number_value >= _SIGN else field.number_value
            case 4, 1:
                found = float(struct.unpack("<d", struct.pack("<Q", field.number_value))[0])
            case 5 | 6 | 7, 2:
                found = None
            case _:
                pass
    return found


def _fields(data: bytes) -> Iterator[_Field]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise DamagedError("a field has the number 0")
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield _Field(number, kind, value)
        elif kind in _FIXED_BYTES:
            part, at = _take(data, at, _FIXED_BYTES[kind])
            yield _Field(number, kind, int.from_bytes(part, "little"))
        elif kind == _BYTES:
            length, at = _varint(data, at)
            part, at = _take(data, at, length)
            yield _Field(number, kind, data=part)
        else:
            raise DamagedError(f"wire type {kind} is not in use")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(_VARINT_BYTES):
        if at + i >= len(data):
            raise DamagedError("it ends within a number")
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value & (_SPAN - 1), at + i + 1
    raise DamagedError("a number has more than ten bytes")


def _take(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    end = at + length
    if end > len(data):
        raise DamagedError("it ends within a field")
    return data[at:end], end


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DamagedError("a text is not UTF-8") from None


class _JsonValue(Struct, frozen=True, rename="camel"):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None


class _JsonAttribute(Struct, frozen=True):
    key: str = ""
    value: _JsonValue = _JsonValue()


class _JsonSpan(Struct, frozen=True, rename="camel"):
    name: str = ""
    trace_id: str = ""
    span_id: str = ""
    start_time_unix_nano: int | str | None = None
    end_time_unix_nano: int | str | None = None
    attributes: tuple[_JsonAttribute, ...] = ()


class _JsonScope(Struct, frozen=True):
    spans: tuple[_JsonSpan, ...] = ()


class _JsonResource(Struct, frozen=True, rename="camel"):
    scope_spans: tuple[_JsonScope, ...] = ()


class _JsonExport(Struct, frozen=True, rename="camel"):
    resource_spans: tuple[_JsonResource, ...] = ()


_json = msgspec.json.Decoder(_JsonExport)


def spans_of_json(body: bytes) -> list[Span]:
    """Spans of the JSON form, in which 64-bit integers are strings. Raises DamagedError."""
    try:
        export = _json.decode(body)
        return [
            _json_span(span)
            for resource in export.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
    except (ValueError, RecursionError) as error:  # msgspec's own errors and those of int() and float()
        raise DamagedError(str(error)) from None


def _json_span(span: _JsonSpan) -> Span:
    values = {each.key: value for each in span.attributes if (value := _json_value(each.value)) is not None}
    return Span(
        name=span.name,
        id=(span.trace_id + span.span_id).lower(),
        start_ns=int(span.start_time_unix_nano or 0) or None,
        end_ns=int(span.end_time_unix_nano or 0) or None,
        attributes=values,
    )


def _json_value(told: _JsonValue) -> Value | None:
    if told.string_value is not None:
        return told.string_value
    if told.bool_value is not None:
        return told.bool_value
    if told.int_value is not None:
        return int(told.int_value)
    return None if told.double_value is None else float(told.double_value)

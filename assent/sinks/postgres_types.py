"""Arrow's types and PostgreSQL's. COPY does not cast: what is sent is exactly what a column is."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from assent.protocol.errors import AssentError, ConfigurationError
from assent.sinks.json_text import json_texts
from assent.sinks.postgres_binary import EPOCH_DAYS, EPOCH_MICROSECONDS
from assent.sinks.sql_table import Convert
from assent.sinks.sql_types import (
    DIGITS,
    check_document,
    is_binary,
    is_list,
    is_text,
    refuse_finer,
)

_types = pa.types
_INTEGERS = {"int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64()}
_FLOATS = {"float4": pa.float32(), "float8": pa.float64()}
_TEXTS = frozenset({"text", "varchar", "bpchar", "citext", "json", "enum"})
_DOCUMENTS = frozenset({"json", "jsonb"})
_MICROSECONDS = 6


@dataclass(frozen=True)
class ColumnType:
    """The type of a column: of a domain its base, of an array with that of its elements."""

    name: str
    """As PostgreSQL names it within (`int4`), `array`, or `enum`."""
    shown: str
    """As people write it (`integer`)."""
    modifier: int = -1
    element: ColumnType | None = None
    element_number: int | None = None
    """Of an array: the type of its elements, as the server numbers types."""

    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale of a numeric column; None where it takes any."""
        if self.modifier < 4:
            return None
        packed = self.modifier - 4
        return (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024

    def fraction(self) -> int:
        """How many digits of a second the column keeps."""
        return _MICROSECONDS if self.modifier < 0 else self.modifier


def converter(name: str, kind: pa.DataType, column: ColumnType) -> Convert:
    """How values of a column of rows become what the table's column takes on the wire.

    Only what keeps every value: anything else is a ConfigurationError that names both types.
    """
    if _types.is_dictionary(kind):
        inner = converter(name, kind.value_type, column)
        return lambda array: inner(array.cast(kind.value_type))
    if _types.is_null(kind):
        return lambda array: pa.nulls(len(array), pa.binary())
    if column.name in _DOCUMENTS and (_types.is_nested(kind) or column.name == "jsonb"):
        return _document(name, kind, column)
    if column.name == "uuid" and is_text(kind):
        return lambda array: _uuids(name, array)
    wire = _wire(kind, column)
    if wire is None:
        raise ConfigurationError(
            f"column {name!r} has type {kind}, which does not fit its column in the table, of type "
            f"{column.shown}: COPY does not cast. Cast it in the query, or change the table "
            f"({_suggestion(name, kind)})"
        )

    def convert(array: pa.Array) -> pa.Array:
        if column.name in ("timestamp", "timestamptz", "time") and column.fraction() < 6:
            refuse_finer(name, array, column.fraction(), column.shown)
        try:
            converted = array if array.type == wire else array.cast(wire)
        except pa.ArrowInvalid as error:
            raise AssentError(
                f"column {name!r} cannot be written as {column.shown}: {error}"
            ) from error
        values = converted.flatten() if is_list(converted.type) else converted
        _refuse_nul(name, values)
        _refuse_early(name, values, column.shown)
        return converted

    return convert


def column_type(name: str, kind: pa.DataType) -> str:
    """The type of a column that is made for such values, as in CREATE TABLE."""
    if _types.is_dictionary(kind):
        return column_type(name, kind.value_type)
    plain = _plain_type(kind)
    if plain is not None:
        return plain
    if is_list(kind):
        element = _plain_type(kind.value_type)
        if element is not None:
            return f"{element}[]"
    if _types.is_nested(kind):
        check_document(name, kind, _has_form)
        return "jsonb"
    raise ConfigurationError(
        f"column {name!r} has type {kind}, for which PostgreSQL has no type; cast it in the query, "
        "or leave it out"
    )


def _plain_type(kind: pa.DataType) -> str | None:
    if _types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if _types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    names = {
        _types.is_boolean: "boolean",
        _types.is_int8: "smallint",
        _types.is_int16: "smallint",
        _types.is_int32: "integer",
        _types.is_int64: "bigint",
        _types.is_float32: "real",
        _types.is_float64: "double precision",
        _types.is_date32: "date",
        _types.is_time: "time",
        _types.is_duration: "interval",
        is_text: "text",
        is_binary: "bytea",
    }
    return next((name for test, name in names.items() if test(kind)), None)


def _suggestion(name: str, kind: pa.DataType) -> str:
    try:
        return f"a column of type {column_type(name, kind)} would fit"
    except ConfigurationError:
        return "no column would fit"


def _wire(kind: pa.DataType, column: ColumnType) -> pa.DataType | None:
    """The Arrow type whose form on the wire is the column's; None if it would lose something."""
    name = column.name
    if _types.is_signed_integer(kind):
        return _integer_wire(kind, column)
    if _types.is_floating(kind) and name in _FLOATS:
        wanted = _FLOATS[name]
        return wanted if kind.bit_width <= wanted.bit_width and kind.bit_width > 16 else None
    if _types.is_decimal(kind) and name == "numeric":
        room = column.decimal()
        if room is not None and (
            kind.scale > room[1] or kind.precision - kind.scale > room[0] - room[1]
        ):
            return None
        return kind
    if is_list(kind) and name == "array" and column.element is not None:
        element = _wire(kind.value_type, column.element)
        return None if element is None else pa.list_(element)
    if _types.is_timestamp(kind):
        same = name == ("timestamp" if kind.tz is None else "timestamptz")
        return pa.timestamp("us", kind.tz) if same else None
    if _types.is_duration(kind) and name == "interval":
        return pa.duration("us") if column.modifier < 0 else None
    simple = (
        (_types.is_boolean, ("bool",), pa.bool_()),
        (is_text, _TEXTS, pa.string()),
        (is_binary, ("bytea",), pa.binary()),
        (_types.is_date32, ("date",), pa.date32()),
        (_types.is_time, ("time",), pa.time64("us")),
    )
    for test, names, wire in simple:
        if test(kind) and name in names:
            return kind if _types.is_large_string(kind) or _types.is_large_binary(kind) else wire
    return None


def _integer_wire(kind: pa.DataType, column: ColumnType) -> pa.DataType | None:
    width = kind.bit_width
    if column.name in _INTEGERS:
        wanted = _INTEGERS[column.name]
        return wanted if width <= wanted.bit_width else None
    if column.name in _FLOATS:
        # Only where every integer has a float of its own.
        exact = 16 if column.name == "float4" else 32
        return _FLOATS[column.name] if width <= exact else None
    if column.name == "numeric":
        room = column.decimal()
        if room is None or room[0] - room[1] >= DIGITS[width]:
            return pa.decimal128(DIGITS[width], 0)
    return None


def _document(name: str, kind: pa.DataType, column: ColumnType) -> Convert:
    if not (_types.is_nested(kind) or is_text(kind)):
        raise ConfigurationError(
            f"column {name!r} has type {kind}, which does not fit its column in the table, of type "
            f"{column.shown}: write a struct, a map, an array, or a text that is JSON"
        )
    if _types.is_nested(kind):
        check_document(name, kind, _has_form)

    def convert(array: pa.Array) -> pa.Array:
        texts = pa.array(json_texts(array), pa.string()) if _types.is_nested(kind) else array
        if column.name == "json":
            _refuse_nul(name, texts)
            return texts.cast(pa.string())
        # The version of the format, then the text.
        bytes_ = texts.cast(pa.binary())
        return pc.binary_join_element_wise(pa.scalar(b"\x01"), bytes_, pa.scalar(b""))

    return convert


def _has_form(kind: pa.DataType) -> bool:
    return _plain_type(kind) is not None and not _types.is_duration(kind)


def _uuids(name: str, array: pa.Array) -> pa.Array:
    try:
        return pa.array(
            [None if text is None else uuid.UUID(text).bytes for text in array.to_pylist()],
            pa.binary(),
        )
    except ValueError as error:
        raise AssentError(f"column {name!r} holds a text that is no uuid") from error


def _refuse_nul(name: str, texts: pa.Array) -> None:
    if not is_text(texts.type) or not _may_hold_nul(texts):
        return
    if pc.any(pc.match_substring(texts, "\0")).as_py():
        raise AssentError(
            f"column {name!r} holds a text with a NUL character (\\u0000), which PostgreSQL cannot "
            f"store; replace it in the query: translate({name}, '\\u0000', '')"
        )


def _may_hold_nul(texts: pa.Array) -> bool:
    """Whether the bytes of all texts, and what nulls hide among them, have a NUL: a quick look."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return False
    places = np.frombuffer(offsets, np.int64 if _types.is_large_string(texts.type) else np.int32)
    begin, end = places[texts.offset], places[texts.offset + len(texts)]
    return b"\0" in data[int(begin) : int(end)].to_pybytes()


def _refuse_early(name: str, times: pa.Array, shown: str) -> None:
    """Refuse what is too early to be counted from the server's epoch, or would mean infinity."""
    if _types.is_date32(times.type):
        count, bound = pa.int32(), EPOCH_DAYS - 2**31
    elif _types.is_timestamp(times.type):
        count, bound = pa.int64(), EPOCH_MICROSECONDS - 2**63
    else:
        return
    earliest = pc.min(times.view(count)).as_py()
    if earliest is not None and earliest <= bound:
        raise AssentError(f"column {name!r} holds a time that is too early for {shown}")

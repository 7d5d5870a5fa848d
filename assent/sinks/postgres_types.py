"""Arrow's types and PostgreSQL's. COPY does not cast: what is sent is exactly what a column is."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from assent.protocol.errors import AssentError, ConfigurationError
from assent.sinks.json_text import json_texts

Convert = Callable[[pa.Array], pa.Array]

_types = pa.types
_INTEGERS = {"int2": pa.int16(), "int4": pa.int32(), "int8": pa.int64()}
_FLOATS = {"float4": pa.float32(), "float8": pa.float64()}
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_TEXTS = frozenset({"text", "varchar", "bpchar", "citext", "json", "enum"})
_DOCUMENTS = frozenset({"json", "jsonb"})
_MICROSECONDS = 6
# By which Spark marks structs that stand for types of their own.
_DISGUISED = frozenset({b"variant", b"geometry", b"geography"})


@dataclass(frozen=True)
class ColumnType:
    """The type of a column: of a domain its base, of an array with that of its elements."""

    name: str
    """As PostgreSQL names it within (`int4`), `array`, or `enum`."""
    shown: str
    """As people write it (`integer`)."""
    modifier: int = -1
    element: ColumnType | None = None

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
    if column.name == "uuid" and _is_text(kind):
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
            _refuse_finer(name, array, column)
        try:
            converted = array if array.type == wire else array.cast(wire)
        except pa.ArrowInvalid as error:
            raise AssentError(
                f"column {name!r} cannot be written as {column.shown}: {error}"
            ) from error
        _refuse_nul(name, converted)
        return converted

    return convert


def column_type(name: str, kind: pa.DataType) -> str:
    """The type of a column that is made for such values, as in CREATE TABLE."""
    if _types.is_dictionary(kind):
        return column_type(name, kind.value_type)
    plain = _plain_type(kind)
    if plain is not None:
        return plain
    if _is_list(kind):
        element = _plain_type(kind.value_type)
        if element is not None:
            return f"{element}[]"
    if _types.is_nested(kind):
        _check_document(name, kind)
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
        _is_text: "text",
        _is_binary: "bytea",
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
    if _is_list(kind) and name == "array" and column.element is not None:
        element = _wire(kind.value_type, column.element)
        return None if element is None else pa.list_(element)
    if _types.is_timestamp(kind):
        same = name == ("timestamp" if kind.tz is None else "timestamptz")
        return pa.timestamp("us", kind.tz) if same else None
    if _types.is_duration(kind) and name == "interval":
        return pa.duration("us") if column.modifier < 0 else None
    simple = (
        (_types.is_boolean, ("bool",), pa.bool_()),
        (_is_text, _TEXTS, pa.string()),
        (_is_binary, ("bytea",), pa.binary()),
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
        if room is None or room[0] - room[1] >= _DIGITS[width]:
            return pa.decimal128(_DIGITS[width], 0)
    return None


def _document(name: str, kind: pa.DataType, column: ColumnType) -> Convert:
    if not (_types.is_nested(kind) or _is_text(kind)):
        raise ConfigurationError(
            f"column {name!r} has type {kind}, which does not fit its column in the table, of type "
            f"{column.shown}: write a struct, a map, an array, or a text that is JSON"
        )
    if _types.is_nested(kind):
        _check_document(name, kind)

    def convert(array: pa.Array) -> pa.Array:
        texts = pa.array(json_texts(array), pa.string()) if _types.is_nested(kind) else array
        if column.name == "json":
            _refuse_nul(name, texts)
            return texts.cast(pa.string())
        # The version of the format, then the text.
        bytes_ = texts.cast(pa.binary())
        return pc.binary_join_element_wise(pa.scalar(b"\x01"), bytes_, pa.scalar(b""))

    return convert


def _check_document(path: str, kind: pa.DataType) -> None:
    """Refuse what has no form in JSON, by the path to it."""
    if _types.is_dictionary(kind):
        kind = kind.value_type
    if _types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        for field in fields:
            if field.metadata and _DISGUISED & field.metadata.keys():
                raise ConfigurationError(
                    f"column {path!r} is a variant or a shape, which cannot be written as it is; "
                    "turn it into a text in the query (to_json, st_astext)"
                )
        names = [field.name for field in fields]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"column {path!r} has two fields of one name; rename one")
        for field in fields:
            _check_document(f"{path}.{field.name}", field.type)
    elif _types.is_map(kind):
        if not _is_text(kind.key_type):
            raise ConfigurationError(
                f"column {path!r} is a map with keys of type {kind.key_type}, and keys in JSON are "
                "texts; cast them in the query"
            )
        _check_document(f"{path}.value", kind.item_type)
    elif _is_list(kind):
        _check_document(f"{path}.element", kind.value_type)
    elif (_plain_type(kind) is None and not _types.is_null(kind)) or _types.is_duration(kind):
        raise ConfigurationError(
            f"column {path!r} has type {kind}, which has no form in JSON; cast it in the query"
        )


def _uuids(name: str, array: pa.Array) -> pa.Array:
    try:
        return pa.array(
            [None if text is None else uuid.UUID(text).bytes for text in array.to_pylist()],
            pa.binary(),
        )
    except ValueError as error:
        raise AssentError(f"column {name!r} holds a text that is no uuid") from error


def _refuse_nul(name: str, array: pa.Array) -> None:
    texts = array.flatten() if _is_list(array.type) else array
    if _is_text(texts.type) and pc.any(pc.match_substring(texts, "\0")).as_py():
        raise AssentError(
            f"column {name!r} holds a text with a NUL character (\\u0000), which PostgreSQL cannot "
            f"store; replace it in the query: translate({name}, '\\u0000', '')"
        )


def _refuse_finer(name: str, array: pa.Array, column: ColumnType) -> None:
    """The server would round without a word."""
    unit = {"s": 0, "ms": 3, "us": 6, "ns": 9}[array.type.unit]
    if unit <= column.fraction():
        return
    values = array.drop_null().cast(pa.int64()).to_numpy()
    if np.any(values % 10 ** (unit - column.fraction())):
        raise AssentError(
            f"column {name!r} holds times that are finer than its column in the table, of type "
            f"{column.shown}, keeps; truncate them in the query (date_trunc), or change the table"
        )


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        _types.is_string(kind) or _types.is_large_string(kind) or _types.is_string_view(kind)
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        _types.is_binary(kind)
        or _types.is_large_binary(kind)
        or _types.is_fixed_size_binary(kind)
        or _types.is_binary_view(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        _types.is_list(kind) or _types.is_large_list(kind) or _types.is_fixed_size_list(kind)
    )

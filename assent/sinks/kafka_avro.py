"""Arrow columns as Avro: the schema that follows from theirs, and the binary encoding."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from assent.protocol.errors import ConfigurationError

_types = pa.types
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_DECIMAL = 1024
Encoded = list[bytes]

_INTEGERS = ((_types.is_int64, "long"), (_types.is_uint32, "long"), (_types.is_integer, "int"))
_TEXTS = (_types.is_string, _types.is_large_string, _types.is_string_view)
_BINARIES = (_types.is_binary, _types.is_large_binary, _types.is_binary_view)
_LISTS = (_types.is_list, _types.is_large_list, _types.is_fixed_size_list)
_UNITS = {"s": "millis", "ms": "millis", "us": "micros", "ns": "micros"}


def avro_schema(schema: pa.Schema, name: str = "topLevelRecord") -> dict[str, Any]:
    """The Avro schema of rows of that schema, as Spark's `to_avro` derives it.

    A nullable column is a union of its type and null, in that order. ConfigurationError names
    the column whose type Avro does not have.
    """
    return _record(list(schema), name, "", "")


def _record(fields: Sequence[pa.Field], name: str, space: str, path: str) -> dict[str, Any]:
    below = f"{space}.{name}" if space else name
    record: dict[str, Any] = {"type": "record", "name": name}
    if space:
        record["namespace"] = space
    for field in fields:
        if not _NAME.fullmatch(field.name):
            raise ConfigurationError(
                f"column {_join(path, field.name)!r} cannot be a field in Avro, whose names are "
                "letters, digits and underscores; rename it"
            )
    record["fields"] = [
        {
            "name": field.name,
            "type": _nullable(field, _type(field.type, field.name, below, _join(path, field.name))),
        }
        for field in fields
    ]
    return record


def _nullable(field: pa.Field, kind: Any) -> Any:
    return [kind, "null"] if field.nullable else kind


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _type(kind: pa.DataType, name: str, space: str, path: str) -> Any:
    if _types.is_dictionary(kind):
        return _type(kind.value_type, name, space, path)
    if _types.is_boolean(kind):
        return "boolean"
    if _types.is_integer(kind) and not _types.is_uint64(kind):
        return next(avro for test, avro in _INTEGERS if test(kind))
    if _types.is_float32(kind) or _types.is_float64(kind):
        return "float" if _types.is_float32(kind) else "double"
    if _is(kind, _TEXTS):
        return "string"
    if _is(kind, _BINARIES):
        return "bytes"
    if _types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if _types.is_timestamp(kind):
        local = "" if kind.tz else "local-"
        return {"type": "long", "logicalType": f"{local}timestamp-{_UNITS[kind.unit]}"}
    if _types.is_decimal128(kind):
        return {
            "type": "fixed",
            "name": f"{space}.{name}.fixed",
            "size": _decimal_bytes(kind.precision),
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if _types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return _record(fields, name, space, path)
    if _types.is_map(kind) and _is(kind.key_type, _TEXTS):
        values = _type(kind.item_type, name, space, f"{path}.value")
        return {"type": "map", "values": _nullable(kind.item_field, values)}
    if _is(kind, _LISTS):
        items = _type(kind.value_type, name, space, f"{path}.element")
        return {"type": "array", "items": _nullable(kind.value_field, items)}
    raise ConfigurationError(
        f"column {path!r} has type {kind}, which cannot be written as Avro; cast or drop it"
    )


@dataclass(frozen=True)
class AvroFormat:
    """Writes rows by an Avro schema: the one that follows from the columns, or a given one.

    A given schema may order its fields and unions in its own way and leave columns out; each of
    its fields has to be a column whose type fits.
    """

    schema: Any

    def check(self, schema: pa.Schema) -> None:
        """ConfigurationError unless rows of that schema can be written by this one."""
        self.encode(_empty(schema))

    def encode(self, batch: pa.RecordBatch) -> Encoded:
        """The Avro encoding of every row, without a schema or header before it."""
        if not isinstance(self.schema, Mapping) or self.schema.get("type") != "record":
            raise ConfigurationError("the Avro schema of a row has to be a record")
        columns = {name: batch.column(name) for name in batch.schema.names}
        return _encode_record(columns, self.schema, "", batch.num_rows)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _encode_record(
    columns: Mapping[str, pa.Array], schema: Mapping[str, Any], path: str, rows: int
) -> Encoded:
    encoded: list[Encoded] = []
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(map(_is_field, fields)):
        raise ConfigurationError(
            f"the Avro schema of {f'column {path!r}' if path else 'a row'} is a record, and its "
            "fields are not a list of objects with a name and a type"
        )
    for field in fields:
        where = _join(path, field["name"])
        if field["name"] not in columns:
            raise ConfigurationError(
                f"the Avro schema has a field {where!r}, and there is no such column"
            )
        encoded.append(_encode(columns[field["name"]], field["type"], where))
    if not encoded:
        return [b""] * rows
    return [b"".join(parts) for parts in zip(*encoded, strict=True)]


def _is_field(field: object) -> bool:
    return isinstance(field, Mapping) and isinstance(field.get("name"), str) and "type" in field


def _encode(array: pa.Array, schema: Any, path: str) -> Encoded:
    if _types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if isinstance(schema, list):
        return _encode_union(array, schema, path)
    if array.null_count:
        raise ConfigurationError(
            f"column {path!r} holds a null, and its Avro type {_avro_name(schema)} has none; "
            "make it a union with null"
        )
    return _encode_valid(array, schema, path)


def _encode_union(array: pa.Array, schema: list[Any], path: str) -> Encoded:
    others = [index for index, kind in enumerate(schema) if kind != "null"]
    if len(others) != 1:
        raise ConfigurationError(
            f"the Avro type of column {path!r} is a union of {len(others)} types beside null; "
            "only a union of one type and null can be written"
        )
    there = _long(others[0])
    rows = iter(_encode_valid(array.drop_null(), schema[others[0]], path))
    if not array.null_count:
        return [there + row for row in rows]
    if "null" not in schema:
        return _encode(array, schema[others[0]], path)
    absent = _long(schema.index("null"))
    return [there + next(rows) if valid else absent for valid in array.is_valid().to_pylist()]


def _encode_valid(array: pa.Array, schema: Any, path: str) -> Encoded:
    kind, avro = array.type, _avro_name(schema)
    if avro == "record" and _types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        columns = dict(zip(names, array.flatten(), strict=True))
        return _encode_record(columns, schema, path, len(array))
    if avro == "array" and _is(kind, _LISTS):
        items = iter(_encode(array.flatten(), _inner(schema, "items", path), f"{path}.element"))
        return [_block(list(islice(items, count))) for count in _lengths(array)]
    if avro == "map" and _types.is_map(kind):
        entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        lists = array.cast(pa.list_(entry))
        keys = _encode(lists.flatten().field(0), "string", f"{path}.key")
        values = _encode(lists.flatten().field(1), _inner(schema, "values", path), f"{path}.value")
        pairs = (key + value for key, value in zip(keys, values, strict=True))
        return [_block(list(islice(pairs, count))) for count in _lengths(lists)]
    encode = _scalar_encoder(kind, schema, avro)
    if encode is None:
        raise ConfigurationError(
            f"column {path!r} has type {kind}, which cannot be written as Avro {avro}"
        )
    return encode(array)


def _inner(schema: Any, name: str, path: str) -> Any:
    if not isinstance(schema, Mapping) or name not in schema:
        raise ConfigurationError(f"the Avro type of column {path!r} says nothing of its {name}")
    return schema[name]


def _scalar_encoder(
    kind: pa.DataType, schema: Any, avro: str
) -> Callable[[pa.Array], Encoded] | None:
    named = schema.get("logicalType", "") if isinstance(schema, Mapping) else ""
    logical = named if isinstance(named, str) else "?"
    if _types.is_boolean(kind) and avro == "boolean":
        return lambda array: [b"\1" if value else b"\0" for value in array.to_pylist()]
    if _types.is_integer(kind) and avro in ("int", "long") and not logical:
        wide = kind.bit_width > 32 or (_types.is_uint32(kind))
        return None if wide and avro == "int" else _longs
    if _types.is_floating(kind) and avro in ("float", "double"):
        if avro == "float" and kind.bit_width > 32:
            return None
        form = "<f" if avro == "float" else "<d"
        return lambda array: [struct.pack(form, value) for value in array.to_pylist()]
    if (_is(kind, _TEXTS) and avro == "string") or (_is(kind, _BINARIES) and avro == "bytes"):
        return lambda array: [_bytes(value) for value in array.cast(pa.large_binary()).to_pylist()]
    if _types.is_date32(kind) and avro == "int" and logical == "date":
        return lambda array: _longs(array.cast(pa.int32()))
    if _types.is_timestamp(kind) and avro == "long":
        unit = {"millis": "ms", "micros": "us"}.get(logical.rpartition("-")[2])
        expected = "timestamp" if kind.tz else "local-timestamp"
        if unit is None or logical.rpartition("-")[0] != expected:
            return None
        plain = pa.timestamp(unit, kind.tz)
        return lambda array: _longs(array.cast(plain, safe=False).cast(pa.int64()))
    if _types.is_decimal128(kind) and logical == "decimal" and schema.get("scale") == kind.scale:
        return _decimal_encoder(kind, schema, avro)
    return None


def _decimal_encoder(
    kind: pa.DataType, schema: Mapping[str, Any], avro: str
) -> Callable[[pa.Array], Encoded] | None:
    precision, least = schema.get("precision"), _decimal_bytes(kind.precision)
    if avro not in ("fixed", "bytes") or type(precision) is not int or precision < kind.precision:
        return None
    size = schema.get("size") if avro == "fixed" else least
    if type(size) is not int or not least <= size <= _LONGEST_DECIMAL:
        return None

    def encode(array: pa.Array) -> Encoded:
        # By its digits: arithmetic with decimals would round to the 28 of their context.
        whole = [int(format(value, "f").replace(".", "")) for value in array.to_pylist()]
        texts = [number.to_bytes(size, "big", signed=True) for number in whole]
        return texts if avro == "fixed" else [_bytes(text) for text in texts]

    return encode


def _longs(array: pa.Array) -> Encoded:
    return [_long(value) for value in array.to_pylist()]


def _long(value: int) -> bytes:
    """Variable length, the sign in the lowest bit."""
    left = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)


def _bytes(value: bytes) -> bytes:
    return _long(len(value)) + value


def _block(items: Encoded) -> bytes:
    return _long(len(items)) + b"".join(items) + b"\0" if items else b"\0"


def _lengths(lists: pa.Array) -> list[int]:
    lengths: list[int] = pc.list_value_length(lists).to_pylist()
    return lengths


def _decimal_bytes(precision: int) -> int:
    size = 1
    while 2 ** (8 * size - 1) < 10**precision:
        size += 1
    return size


def _avro_name(schema: Any) -> str:
    name = schema.get("type") if isinstance(schema, Mapping) else schema
    return name if isinstance(name, str) else "?"


def _is(kind: pa.DataType, tests: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    return any(test(kind) for test in tests)

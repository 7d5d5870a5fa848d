"""Arrow's types and MySQL's. Values travel as texts; each text stands for exactly its value."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from assent.protocol.errors import AssentError, ConfigurationError
from assent.sinks.json_text import json_texts
from assent.sinks.sql_table import Convert
from assent.sinks.sql_types import DIGITS, check_document, is_binary, is_text, refuse_finer
from assent.sinks.utf8 import check_texts

TEXT = pa.large_string()
"""Of every converted column: no sum of lengths is too much for it."""

_types = pa.types
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TEXTS = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum"})
_BINARIES = frozenset({"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"})
# What a double holds exactly, and so what JSON in MySQL keeps.
_EXACT_DIGITS = 15
_MOST_DIGITS, _MOST_DECIMALS = 65, 30
_DAY = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719162, 2932896  # 0001-01-01 and 9999-12-31


@dataclass(frozen=True)
class ColumnType:
    """The type of a column."""

    name: str
    """As the catalogue names it (`bigint`); `json` also where it is a checked text."""
    shown: str
    """As people write it (`bigint unsigned`)."""
    length: int | None = None
    precision: int | None = None
    scale: int | None = None
    fraction: int = 0
    """How many digits of a second the column keeps."""
    charset: str | None = None
    collation: str | None = None
    binary_json: bool = False
    """JSON is not kept as the text that it was, but as the server understood it."""
    counts: bool = False
    """AUTO_INCREMENT."""

    @property
    def expression(self) -> str:
        """How a text, put in for {}, becomes a value."""
        if self.name in _BINARIES:
            return "UNHEX({})"
        return "CAST({} AS UNSIGNED)" if self.name == "bit" else "{}"

    @property
    def definition(self) -> str:
        """As in CREATE TABLE, without what is not about values."""
        if self.charset is None:
            return self.shown
        return f"{self.shown} CHARACTER SET {self.charset} COLLATE {self.collation}"

    def members(self) -> list[str]:
        """Of an enum."""
        found = re.findall(r"'((?:[^']|'')*)'", self.shown)
        return [member.replace("''", "'") for member in found]


def converter(name: str, kind: pa.DataType, column: ColumnType) -> Convert:
    """How values of a column of rows become the texts that the table's column takes.

    Only what keeps every value: anything else is a ConfigurationError that names both types.
    """
    if _types.is_dictionary(kind):
        inner = converter(name, kind.value_type, column)
        return lambda array: inner(array.cast(kind.value_type))
    if _types.is_null(kind):
        return lambda array: pa.nulls(len(array), TEXT)
    if column.name == "json" and _types.is_nested(kind):
        _check_json(name, kind, column)
        return lambda array: escaped(pa.array(json_texts(_checked(name, array)), TEXT))
    if not _fits(kind, column):
        raise ConfigurationError(
            f"column {name!r} has type {kind}, which does not fit its column in the table, of type "
            f"{column.shown}. Cast it in the query, or change the table "
            f"({_suggestion(name, kind)})"
        )
    return lambda array: _texts(name, _checked(name, array), column)


def _checked(name: str, array: pa.Array) -> pa.Array:
    """The servers refuse most texts that are not UTF-8, but MariaDB takes half a surrogate pair."""
    if _types.is_nested(array.type) or is_text(array.type):
        check_texts(name, array)
    return array


def new_type(
    name: str,
    kind: pa.DataType,
    collation: str,
    *,
    key: bool = False,
    binary_json: bool = False,
) -> ColumnType:
    """The type of a column that is made for such values.

    `binary_json` tells what the server makes of JSON.
    """
    if _types.is_dictionary(kind):
        kind = kind.value_type
    if is_text(kind):
        # Keys differ wherever Spark's differ, in case, accents and trailing spaces too.
        text = "varchar" if key else "longtext"
        shown = "varchar(255)" if key else text
        return ColumnType(text, shown, charset="utf8mb4", collation=collation)
    if is_binary(kind):
        return ColumnType(*(("varbinary", "varbinary(255)") if key else ("longblob", "longblob")))
    plain = _plain_type(kind)
    if plain is not None:
        return plain
    if _types.is_nested(kind):
        document = ColumnType("json", "json", binary_json=binary_json)
        _check_json(name, kind, document)
        return document
    raise ConfigurationError(
        f"column {name!r} has type {kind}, for which MySQL has no type; cast it in the query, or "
        "leave it out"
    )


def _plain_type(kind: pa.DataType) -> ColumnType | None:
    if _types.is_decimal(kind):
        precision, scale = kind.precision, kind.scale
        if precision > _MOST_DIGITS or not 0 <= scale <= _MOST_DECIMALS:
            return None
        shown = f"decimal({precision},{scale})"
        return ColumnType("decimal", shown, precision=precision, scale=scale)
    if _types.is_timestamp(kind):
        text = "datetime" if kind.tz is None else "timestamp"
        return ColumnType(text, f"{text}(6)", fraction=6)
    if _types.is_time(kind):
        return ColumnType("time", "time(6)", fraction=6)
    names = {
        _types.is_boolean: "tinyint(1)",
        _types.is_int8: "tinyint",
        _types.is_int16: "smallint",
        _types.is_int32: "int",
        _types.is_int64: "bigint",
        _types.is_float32: "float",
        _types.is_float64: "double",
        _types.is_date32: "date",
    }
    shown = next((name for test, name in names.items() if test(kind)), "")
    return ColumnType(shown.partition("(")[0], shown) if shown else None


def _has_form(kind: pa.DataType) -> bool:
    return is_text(kind) or is_binary(kind) or _plain_type(kind) is not None


def _suggestion(name: str, kind: pa.DataType) -> str:
    try:
        made = new_type(name, kind, "utf8mb4_bin").shown
    except ConfigurationError:
        return "no column would fit"
    return f"a column of type {made} would fit"


def _check_json(name: str, kind: pa.DataType, column: ColumnType) -> None:
    def has_form(inner: pa.DataType) -> bool:
        if column.binary_json and _types.is_decimal(inner):
            # The server would make a double of it.
            return bool(inner.precision <= _EXACT_DIGITS)
        return _has_form(inner)

    check_document(name, kind, has_form)


def _fits(kind: pa.DataType, column: ColumnType) -> bool:
    name = column.name
    if _types.is_boolean(kind):
        return name in ("tinyint", "bit")
    if _types.is_signed_integer(kind):
        return _integer_fits(kind.bit_width, column)
    if _types.is_floating(kind):
        # With digits in its definition, such a column rounds.
        exact = column.scale is None and kind.bit_width > 16
        return exact and (name == "double" or (name == "float" and kind.bit_width == 32))
    if _types.is_decimal(kind):
        return name == "decimal" and _digits_fit(kind.precision, kind.scale, column)
    if _types.is_timestamp(kind):
        return name == ("datetime" if kind.tz is None else "timestamp")
    return bool(
        (is_text(kind) and (name in _TEXTS or name == "json"))
        or (is_binary(kind) and name in _BINARIES)
        or (_types.is_date32(kind) and name == "date")
        or (_types.is_time(kind) and name == "time")
    )


def _integer_fits(bits: int, column: ColumnType) -> bool:
    if column.name in _BITS:
        return bits <= _BITS[column.name]
    if column.name == "decimal":
        return _digits_fit(DIGITS[bits], 0, column)
    # Only where every integer has a float of its own.
    exact = {"float": 16, "double": 32}.get(column.name, 0)
    return column.scale is None and bits <= exact


def _digits_fit(precision: int, scale: int, column: ColumnType) -> bool:
    room, decimals = column.precision or 0, column.scale or 0
    return scale <= decimals and precision - scale <= room - decimals


def _texts(name: str, array: pa.Array, column: ColumnType) -> pa.Array:
    kind = array.type
    if is_text(kind):
        texts = array.cast(TEXT)
        _check_texts(name, texts, column)
        return escaped(texts)
    if is_binary(kind):
        return _hexadecimal(name, array, column)
    if _types.is_boolean(kind):
        return array.cast(pa.int8()).cast(TEXT)
    if _types.is_floating(kind):
        # A float by way of a double: its own short text need not lead back to it.
        doubles = array.cast(pa.float64())
        if pc.any(pc.invert(pc.is_finite(doubles))).as_py():
            raise AssentError(
                f"column {name!r} holds NaN or an infinity, which MySQL cannot store; replace it "
                f"in the query: nanvl({name}, null)"
            )
        return doubles.cast(TEXT)
    if _types.is_timestamp(kind) or _types.is_time(kind):
        refuse_finer(name, array, column.fraction, column.shown)
    if _types.is_timestamp(kind):
        # Through integers, because naming a zone needs a zone database.
        array = array.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        _check_range(name, array, _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1)
        return array.cast(pa.timestamp("us")).cast(TEXT)
    if _types.is_time(kind):
        return array.cast(pa.time64("us"), safe=False).cast(TEXT)
    if _types.is_date32(kind):
        _check_range(name, array.cast(pa.int32()), _FIRST_DAY, _LAST_DAY)
    return array.cast(TEXT)


def escaped(texts: pa.Array) -> pa.Array:
    """As both a quoted text and a line of LOAD DATA have to have it."""
    for plain, written in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("'", "\\'")):
        texts = pc.replace_substring(texts, plain, written)
    return texts


def _check_texts(name: str, texts: pa.Array, column: ColumnType) -> None:
    """What the server would change without a word."""
    if column.name == "char" and pc.any(pc.ends_with(texts, " ")).as_py():
        raise AssentError(
            f"column {name!r} holds a text that ends in a space, and its column in the table, of "
            f"type {column.shown}, keeps none there; use a varchar, or rtrim in the query"
        )
    if column.name == "enum":
        known = pc.is_in(texts, pa.array(column.members(), TEXT))
        if pc.any(pc.and_(pc.invert(known), texts.is_valid())).as_py():
            raise AssentError(
                f"column {name!r} holds a text that is not one of its column in the table, of "
                f"type {column.shown}"
            )


def _check_range(name: str, values: pa.Array, first: int, last: int) -> None:
    extremes = pc.min_max(values).as_py()
    if extremes["min"] is not None and (extremes["min"] < first or extremes["max"] > last):
        raise AssentError(
            f"column {name!r} holds a date before the year 1 or after the year 9999, which MySQL "
            "cannot store"
        )


def _hexadecimal(name: str, array: pa.Array, column: ColumnType) -> pa.Array:
    if column.name == "binary":
        lengths = pc.min_max(pc.binary_length(array.cast(pa.large_binary()))).as_py()
        if lengths["min"] is not None and set(lengths.values()) != {column.length}:
            raise AssentError(
                f"column {name!r} holds values that are not {column.length} bytes long, and its "
                f"column in the table, of type {column.shown}, would fill them up; use a varbinary"
            )
    bytes_ = array.cast(pa.large_binary())
    if bytes_.offset:
        bytes_ = pa.concat_arrays([bytes_, pa.nulls(0, pa.large_binary())])
    validity, offsets, data = bytes_.buffers()
    # Twice as many digits as bytes, so all of them at once.
    doubled = pc.multiply(pa.Array.from_buffers(pa.int64(), len(bytes_) + 1, [None, offsets]), 2)
    digits = pa.py_buffer(memoryview(data or b"").hex().encode())
    buffers = [validity, doubled.buffers()[1], digits]
    return pa.Array.from_buffers(TEXT, len(bytes_), buffers, bytes_.null_count)

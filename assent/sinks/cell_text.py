"""Values as the texts and bytes that stores without types hold; keys made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from assent.protocol.errors import AssentError, ConfigurationError
from assent.sinks.json_text import json_texts

_types = pa.types
_TEXTS = (_types.is_string, _types.is_large_string, _types.is_string_view)
_BYTES = (
    _types.is_binary,
    _types.is_large_binary,
    _types.is_binary_view,
    _types.is_fixed_size_binary,
)
_EXACT = (
    *_TEXTS,
    _types.is_boolean,
    _types.is_integer,
    _types.is_decimal,
    _types.is_date,
    _types.is_time,
    _types.is_timestamp,
)
_LISTS = (_types.is_list, _types.is_large_list, _types.is_fixed_size_list)

Cells = list[bytes | None]


def check_columns(schema: pa.Schema, option: str, names: Sequence[str]) -> None:
    """ConfigurationError for names, as an option gives them, that are not columns."""
    for name in names:
        if name not in schema.names:
            raise ConfigurationError(
                f"option {option} names {name!r}, which is not a column; "
                f"the columns are {', '.join(schema.names)}"
            )
    if len(set(names)) != len(names):
        raise ConfigurationError(f"option {option} names a column twice; name it once")


def check_no_duplicates(schema: pa.Schema) -> None:
    """ConfigurationError for two columns of one name."""
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise ConfigurationError(f"two columns are named {min(twice)!r}; rename one of them")


def check_cell(path: str, kind: pa.DataType) -> None:
    """ConfigurationError, naming column and type, for what has no text."""
    kind = _value_type(kind)
    if _is(kind, (*_EXACT, *_BYTES, _types.is_floating)):
        return
    if _types.is_struct(kind):
        for index in range(kind.num_fields):
            check_cell(f"{path}.{kind.field(index).name}", kind.field(index).type)
    elif _types.is_map(kind):
        if not _is(kind.key_type, _TEXTS):
            raise ConfigurationError(
                f"column {path!r} is a map with keys of type {kind.key_type}, and keys in JSON are "
                "texts; cast them"
            )
        check_cell(f"{path}.value", kind.item_type)
    elif _is(kind, _LISTS):
        check_cell(f"{path}.element", kind.value_type)
    else:
        raise ConfigurationError(
            f"column {path!r} has type {kind}, which has no text to be written as; cast it to "
            "another type or leave it out"
        )


def check_key(schema: pa.Schema, option: str, names: Sequence[str]) -> None:
    """ConfigurationError for columns that do not make a key."""
    check_columns(schema, option, names)
    for name in names:
        kind = _value_type(schema.field(name).type)
        if _is(kind, _EXACT) or (_is(kind, _BYTES) and len(names) == 1):
            continue
        raise ConfigurationError(
            f"option {option} names {name!r} of type {kind}, whose values do not make keys; use "
            "texts, whole numbers, decimals, booleans, dates or times, or one binary column"
        )


def cells(array: pa.Array) -> Cells:
    """Each value as bytes; None for null.

    Texts and binary are what they are; numbers keep every digit; times are ISO 8601, in UTC with
    a Z when they are instants; nested values are JSON.
    """
    kind = array.type
    if _types.is_dictionary(kind):
        return cells(array.cast(kind.value_type))
    if _is(kind, _BYTES):
        raw: Cells = array.to_pylist()
        return raw
    if _is(kind, _TEXTS):
        # As they are, also where they are not UTF-8: such a store holds bytes.
        return cells(array.cast(pa.large_binary()))
    # A text in JSON has quotation marks around it, and here nothing that had to be escaped.
    bare = not (_types.is_struct(kind) or _types.is_map(kind) or _is(kind, _LISTS))
    return [
        None if text is None else (text.strip('"') if bare else text).encode()
        for text in json_texts(array)
    ]


def keys(batch: pa.RecordBatch, names: Sequence[str], prefix: bytes) -> list[bytes]:
    """The prefix and the values of the columns, with a colon between them.

    So that two rows never share a key by accident, `%` and `:` are written as `%25` and `%3A`
    within the values of several columns. A null is an error: it would be a key of its own.
    """
    parts = [cells(batch.column(name)) for name in names]
    for name, part in zip(names, parts, strict=True):
        if None in part:
            raise AssentError(
                f"a row has no key: its column {name!r} is null; filter such rows out, or fill them"
            )
    if len(parts) == 1:
        return [prefix + (part or b"") for part in parts[0]]
    escaped = [
        [(part or b"").replace(b"%", b"%25").replace(b":", b"%3A") for part in column]
        for column in parts
    ]
    return [prefix + b":".join(row) for row in zip(*escaped, strict=True)]


def integers(column: pa.Array) -> list[int | None]:
    """Whole numbers; of times, those since 1970 in their unit."""
    numbers: list[int | None] = column.cast(pa.int64()).to_pylist()
    return numbers


def is_ordered(kind: pa.DataType) -> bool:
    """Whether values of the type are whole numbers or times."""
    return _is(kind, (_types.is_signed_integer, _types.is_timestamp))


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if _types.is_dictionary(kind) else kind


def _is(kind: pa.DataType, tests: Sequence[Any]) -> bool:
    return any(test(kind) for test in tests)

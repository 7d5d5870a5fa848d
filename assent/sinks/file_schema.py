"""Which schemas can be written to which files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from assent.protocol.errors import ConfigurationError

_types = pa.types
_PLAIN = (
    _types.is_boolean,
    _types.is_integer,
    _types.is_decimal,
    _types.is_string,
    _types.is_large_string,
    _types.is_string_view,
    _types.is_date,
    _types.is_time,
    _types.is_timestamp,
)
_BINARY = (
    _types.is_binary,
    _types.is_large_binary,
    _types.is_binary_view,
    _types.is_fixed_size_binary,
)
_LISTS = (_types.is_list, _types.is_large_list, _types.is_fixed_size_list)


def check_schema(
    schema: pa.Schema, *, file_format: str, partition_columns: Sequence[str], epoch_column: str
) -> None:
    """Raise ConfigurationError, naming column and type, for what cannot be written.

    Columns are matched whatever their case, as Spark matches them.
    """
    if not schema.names:
        raise ConfigurationError("the rows have no columns; select at least one")
    _check_names(schema, epoch_column)
    for field in schema:
        _check_type(field.name, field.type, file_format)
    _check_partitions(schema, partition_columns)


def _check_names(schema: pa.Schema, epoch_column: str) -> None:
    twice = _duplicate(schema.names)
    if twice is not None:
        raise ConfigurationError(
            f"two columns are named {twice!r} (names do not depend on case); rename one of them"
        )
    for name in schema.names:
        if name.lower() == epoch_column.lower():
            raise ConfigurationError(
                f"column {name!r} has the name of the folder that holds an epoch, which readers "
                "take for a column too; rename the column, or set option epochColumn to a name "
                "that no column has"
            )


def _check_partitions(schema: pa.Schema, given: Sequence[str]) -> None:
    names = {name.lower(): name for name in schema.names}
    for name in given:
        if name.lower() not in names:
            raise ConfigurationError(
                f"option partitionColumns names {name!r}, which is not a column; "
                f"the columns are {', '.join(schema.names)}"
            )
    columns = tuple(names[name.lower()] for name in given)
    if (twice := _duplicate(columns)) is not None:
        raise ConfigurationError(f"option partitionColumns names {twice!r} twice; name it once")
    if len(columns) == len(schema.names):
        raise ConfigurationError(
            f"option partitionColumns names every column ({', '.join(columns)}), which leaves "
            "nothing to write into the files; leave at least one out"
        )
    for name in columns:
        kind = schema.field(name).type
        if not _is(_value_type(kind), _PLAIN):
            raise ConfigurationError(
                f"option partitionColumns names {name!r} of type {kind}, whose values do not make "
                "names of folders; partition by texts, whole numbers, decimals, booleans, dates "
                "or times, or cast the column to one of them"
            )


def _check_type(path: str, kind: pa.DataType, file_format: str) -> None:
    kind = _value_type(kind)
    if _is(kind, (*_PLAIN, _types.is_floating)):
        return
    if file_format == "csv":
        raise ConfigurationError(
            f"column {path!r} has type {kind}, which csv files cannot hold; cast it to a text "
            "(to_json for nested values, base64 for binary ones) or set option fileFormat to "
            "parquet or json"
        )
    if _is(kind, _BINARY) or (file_format == "parquet" and _types.is_duration(kind)):
        return
    children = list(_children(kind))
    if not children:
        raise ConfigurationError(
            f"column {path!r} has type {kind}, which {file_format} files cannot hold; "
            "cast it to another type or drop it"
        )
    if _types.is_map(kind) and file_format == "json" and not _is_text(kind.key_type):
        raise ConfigurationError(
            f"column {path!r} is a map with keys of type {kind.key_type}, and keys in JSON are "
            "texts; cast them, or set option fileFormat to parquet"
        )
    if (twice := _duplicate([name for name, _ in children])) is not None:
        raise ConfigurationError(
            f"column {path!r} has two fields named {twice!r} (names do not depend on case); "
            "rename one of them"
        )
    for name, child in children:
        _check_type(f"{path}.{name}", child, file_format)


def _children(kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    if _types.is_struct(kind):
        for index in range(kind.num_fields):
            yield kind.field(index).name, kind.field(index).type
    elif _types.is_map(kind):
        yield "key", kind.key_type
        yield "value", kind.item_type
    elif _is(kind, _LISTS):
        yield "element", kind.value_type


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if _types.is_dictionary(kind) else kind


def _is(kind: pa.DataType, tests: Sequence[object]) -> bool:
    return any(callable(test) and test(kind) for test in tests)


def _is_text(kind: pa.DataType) -> bool:
    return _is(kind, (_types.is_string, _types.is_large_string, _types.is_string_view))


def _duplicate(names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            return name
        seen.add(name.lower())
    return None

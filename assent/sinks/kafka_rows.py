"""From a query's columns to Kafka records: key, value, topic, partition, headers, timestamp."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from assent.protocol.errors import AssentError, ConfigurationError
from assent.sinks.cell_text import check_no_duplicates
from assent.sinks.function import load_function
from assent.sinks.json_text import json_texts
from assent.sinks.kafka_avro import AvroFormat, avro_schema
from assent.sinks.kafka_records import Records
from assent.sinks.utf8 import check_texts

_types = pa.types
_TEXTS = (_types.is_string, _types.is_large_string, _types.is_string_view)
_BYTES = (_types.is_binary, _types.is_large_binary, _types.is_binary_view)

# In milliseconds: all up to it have an integer that a double tells apart from its neighbours.
_LAST_TIME = 2.0**63

VALUE_FORMATS = ("raw", "json", "avro")
_WHERE_TO = ("key", "topic", "partition", "headers")


@dataclass(frozen=True)
class RowFormat:
    """How rows become records. The columns are those of Spark's own Kafka sink.

    =============  =======================================  =====================================
    column         type                                     what it is
    =============  =======================================  =====================================
    `key`          string or binary                         the key; optional
    `value`        string or binary                         the value, with `raw`
    `topic`        string                                   the topic, unless the option is set
    `partition`    int                                      the partition; null for the usual one
    `headers`      array<struct<key:string,value:binary>>   the headers; optional
    `timestamp`    timestamp, or double in seconds          the record's time; null for now
    =============  =======================================  =====================================

    With `json` and `avro` the value is made of `value_columns`: by default of every column but
    `key`, `topic`, `partition` and `headers`. `key_columns`, if given, make the key: one text or
    binary column as it is, anything else as JSON (as Avro, with `avro` and a key schema or id).
    A schema id puts a schema registry's five bytes before each value or key. `serializer` names
    a function that makes both, from a RecordBatch to (keys, values).
    """

    topic: str | None = None
    include_headers: bool = True
    value_format: str = "raw"
    key_columns: tuple[str, ...] = ()
    value_columns: tuple[str, ...] = ()
    key_schema_id: int | None = None
    value_schema_id: int | None = None
    key_schema: str | None = None
    value_schema: str | None = None
    serializer: str | None = None

    def check(self, schema: pa.Schema) -> None:
        """ConfigurationError, naming column and type, for rows that cannot be records."""
        check_no_duplicates(schema)
        self._check_options()
        if self.topic is None:
            if "topic" not in schema.names:
                raise ConfigurationError(
                    "there is no column 'topic' and no option topic; set one of them"
                )
            _require(schema, "topic", _TEXTS, "string")
        _require(schema, "partition", (_types.is_int32,), "int")
        if self.include_headers and "headers" in schema.names:
            _check_headers(schema.field("headers").type)
        if self.value_format == "raw" or "timestamp" in schema.names:
            _require(
                schema, "timestamp", (_types.is_timestamp, _types.is_float64), "timestamp or double"
            )
        if self.serializer is not None:
            load_function(self.serializer, "serializer")
            return
        if not self.key_columns:
            _require(schema, "key", (*_TEXTS, *_BYTES), "string or binary")
        if self.value_format == "raw":
            if "value" not in schema.names:
                raise ConfigurationError(
                    "there is no column 'value'; select one, or set option valueFormat to json or "
                    f"avro to write whole rows (columns: {', '.join(schema.names)})"
                )
            _require(schema, "value", (*_TEXTS, *_BYTES), "string or binary")
            return
        for option, names in (
            ("keyColumns", self.key_columns),
            ("valueColumns", self.value_columns),
        ):
            for name in names:
                if name not in schema.names:
                    raise ConfigurationError(
                        f"option {option} names {name!r}, which is not a column; "
                        f"the columns are {', '.join(schema.names)}"
                    )
        if not self._value_names(schema):
            raise ConfigurationError("no column is left for the value; set option valueColumns")
        empty = pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
        self._values(empty)
        self._keys(empty)

    def records(self, batch: pa.RecordBatch) -> Iterator[Records]:
        """The records of a batch, topic by topic; the order within a topic is the batch's."""
        if not batch.num_rows:
            return
        if self.serializer is not None:
            keys, values = self._serialized(batch)
        else:
            if self.value_format != "raw":
                for name in {*self.key_columns, *self._value_names(batch.schema)}:
                    check_texts(name, batch.column(name))
            keys, values = self._keys(batch), self._values(batch)
        keys = _framed(keys, self.key_schema_id)
        framed = _framed(values, self.value_schema_id)
        headers = _column(batch, "headers") if self.include_headers else None
        if headers is not None:
            _check_header_values(headers)
        everything = Records(
            self.topic or "",
            framed,
            keys,
            _partitions(_column(batch, "partition")),
            _timestamps(_column(batch, "timestamp")),
            headers,
        )
        if self.topic is not None:
            yield everything
            return
        column = batch.column("topic")
        if column.null_count:
            raise AssentError(
                f"{column.null_count} rows have no topic (null); set option topic, or fill the "
                "column 'topic'"
            )
        check_texts("topic", column)
        topics = column.dictionary_encode()
        names = topics.dictionary.to_pylist()
        if len(names) == 1:
            yield replace(everything, topic=names[0])
            return
        codes = topics.indices.to_numpy()
        for code, name in enumerate(names):
            yield everything.take(np.flatnonzero(codes == code), name)

    # Keys and values.

    def _keys(self, batch: pa.RecordBatch) -> pa.Array | None:
        if not self.key_columns:
            return _column(batch, "key")
        chosen = batch.select(list(self.key_columns))
        if self.value_format == "avro" and (self.key_schema or self.key_schema_id is not None):
            return _avro(chosen, self.key_schema, "keySchema")
        only = chosen.column(0)
        if len(self.key_columns) == 1 and _is(only.type, (*_TEXTS, *_BYTES)):
            return only
        return _json(chosen)

    def _values(self, batch: pa.RecordBatch) -> pa.Array:
        if self.value_format == "raw":
            return batch.column("value")
        chosen = batch.select(self._value_names(batch.schema))
        if self.value_format == "avro":
            return _avro(chosen, self.value_schema, "valueSchema")
        return _json(chosen)

    def _value_names(self, schema: pa.Schema) -> list[str]:
        if self.value_columns:
            return list(self.value_columns)
        taken = [
            name
            for name in _WHERE_TO
            if not (name == "key" and self.key_columns)
            and not (name == "topic" and self.topic is not None)
            and not (name == "headers" and not self.include_headers)
        ]
        return [name for name in schema.names if name not in taken]

    def _serialized(self, batch: pa.RecordBatch) -> tuple[pa.Array | None, pa.Array]:
        assert self.serializer is not None
        answer = load_function(self.serializer, "serializer")(batch)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise AssentError(f"the serializer {self.serializer} has to give (keys, values)")
        keys, values = (_whole(part) for part in answer)
        for part, column in (("keys", keys), ("values", values)):
            if column is None and part == "keys":
                continue
            if not isinstance(column, pa.Array) or not _is(column.type, (*_TEXTS, *_BYTES)):
                found = column.type if isinstance(column, pa.Array) else type(column).__name__
                raise AssentError(
                    f"the serializer {self.serializer} gave {part} of type {found}; expected an "
                    "Arrow array of strings or binary"
                )
            if len(column) != batch.num_rows:
                raise AssentError(
                    f"the serializer {self.serializer} gave {len(column)} {part} for "
                    f"{batch.num_rows} rows"
                )
        return keys, values

    def _check_options(self) -> None:
        if self.value_format not in VALUE_FORMATS:
            raise ConfigurationError(
                f"option valueFormat is {self.value_format!r}; expected one of "
                f"{', '.join(VALUE_FORMATS)}"
            )
        given = {
            "keyColumns": self.key_columns,
            "valueColumns": self.value_columns,
            "keySchema": self.key_schema,
            "valueSchema": self.value_schema,
        }
        for option, value in given.items():
            if value and (self.value_format == "raw" or self.serializer is not None):
                raise ConfigurationError(
                    f"option {option} is set, and nothing would use it; set option valueFormat "
                    "to json or avro, without a serializer"
                )
            if value and option.endswith("Schema") and self.value_format != "avro":
                raise ConfigurationError(
                    f"option {option} is set; it goes with valueFormat=avro alone"
                )
        for option, number in (
            ("keySchemaId", self.key_schema_id),
            ("valueSchemaId", self.value_schema_id),
        ):
            if number is not None and not 0 <= number < 1 << 31:
                raise ConfigurationError(f"option {option} is {number}; expected 0 to 2147483647")


def _json(batch: pa.RecordBatch) -> pa.Array:
    rows = pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
    return pa.array(json_texts(rows), pa.string())


def _avro(batch: pa.RecordBatch, given: str | None, option: str) -> pa.Array:
    if given is None:
        schema: Any = avro_schema(batch.schema)
    else:
        try:
            schema = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"option {option} is not JSON: {error}") from error
    try:
        return pa.array(AvroFormat(schema).encode(batch), pa.binary())
    except RecursionError:
        raise ConfigurationError(f"option {option} is nested too deeply") from None


def _framed(array: pa.Array | None, schema_id: int | None) -> pa.Array | None:
    if array is None or schema_id is None:
        return array
    prefix = pa.scalar(struct.pack(">bI", 0, schema_id), pa.large_binary())
    separator = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(prefix, array.cast(pa.large_binary()), separator)


# The other columns.


def _partitions(column: pa.Array | None) -> npt.NDArray[np.int32] | None:
    if column is None or column.null_count == len(column):
        return None
    # A number below 0 is no partition; one that means "open" must not come from a row.
    asked = np.asarray(pc.fill_null(column, -1)).astype(np.int32)
    if column.null_count:
        given = column.is_valid().to_numpy(zero_copy_only=False)
        return np.where(given & (asked < 0), np.int32(-2), asked)
    return np.where(asked < 0, np.int32(-2), asked)


def _timestamps(column: pa.Array | None) -> npt.NDArray[np.int64] | None:
    if column is None or column.null_count == len(column):
        return None
    if _types.is_float64(column.type):
        exact = pc.floor(pc.multiply(column, 1000.0))
        if not pc.all(pc.fill_null(pc.less(pc.abs(exact), _LAST_TIME), True)).as_py():
            raise AssentError(
                "a row has a timestamp that is no time (NaN, infinite, or later than the year "
                "280000000); column 'timestamp' holds seconds since 1970: mend it, or leave it null"
            )
        milliseconds = exact.cast(pa.int64())
    else:
        milliseconds = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    if pc.min(milliseconds).as_py() <= 0:
        raise AssentError(
            f"a row has the timestamp {pc.min(milliseconds).as_py()} ms since 1970; Kafka's "
            "records have times after 1970-01-01T00:00:00Z: mend it, or leave it null for now"
        )
    return np.asarray(pc.fill_null(milliseconds, 0)).astype(np.int64)


def _check_header_values(lists: pa.Array) -> None:
    pairs = lists.flatten()
    names = pairs.field(0)
    check_texts("headers", names)
    if pairs.null_count or names.null_count:
        raise AssentError("a row has a header without a key (null); Kafka's headers have keys")
    if pc.any(pc.match_substring(names, "\0")).as_py():
        raise AssentError("a row has a header whose key holds a zero byte; it cannot be written")


def _check_headers(kind: pa.DataType) -> None:
    item = kind.value_type if _types.is_list(kind) or _types.is_large_list(kind) else None
    fits = (
        item is not None
        and _types.is_struct(item)
        and [item.field(index).name for index in range(item.num_fields)] == ["key", "value"]
        and _is(item.field(0).type, _TEXTS)
        and _is(item.field(1).type, _BYTES)
    )
    if not fits:
        raise ConfigurationError(
            f"column 'headers' has type {kind}; it has to be "
            "array<struct<key:string,value:binary>> (or set option includeHeaders to false)"
        )


def _require(schema: pa.Schema, name: str, tests: Sequence[Any], wanted: str) -> None:
    if name in schema.names and not _is(schema.field(name).type, tests):
        raise ConfigurationError(
            f"column {name!r} has type {schema.field(name).type}; it has to be {wanted}"
        )


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    return batch.column(name) if name in batch.schema.names else None


def _whole(array: Any) -> Any:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _is(kind: pa.DataType, tests: Sequence[Any]) -> bool:
    return any(test(kind) for test in tests)

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest

from assent.protocol.errors import ConfigurationError
from assent.sinks.kafka_avro import AvroFormat, avro_schema

fastavro = pytest.importorskip("fastavro")
UTC = dt.UTC

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, None]),
    "tiny": (pa.int8(), [-128, 127, None]),
    "int": (pa.int32(), [-(2**31), 2**31 - 1, None]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "unsigned": (pa.uint32(), [0, 2**32 - 1, None]),
    "float": (pa.float32(), [0.5, -1.25, None]),
    "double": (pa.float64(), [1e300, -0.1, None]),
    "text": (pa.string(), ["", "日本語", None]),
    "wide": (pa.large_string(), ["a", "b" * 300, None]),
    "bytes": (pa.binary(), [b"", b"\0\xff", None]),
    "date": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2026, 1, 1), None]),
    "instant": (
        pa.timestamp("us", "UTC"),
        [
            dt.datetime(2026, 1, 1, 1, 2, 3, 456789, UTC),
            dt.datetime(1960, 1, 1, tzinfo=UTC),
            None,
        ],
    ),
    "wall": (pa.timestamp("us"), [dt.datetime(2026, 1, 1, 1, 2, 3, 4), None, None]),
    "money": (pa.decimal128(10, 2), [Decimal("-12345678.90"), Decimal("0.01"), None]),
    "huge": (pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(-(10**38) + 1), None]),
    "list": (pa.list_(pa.int64()), [[1, None, 3], [], None]),
    "nested": (pa.list_(pa.list_(pa.string())), [[["a"], None, []], [], None]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], [], None]),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.string())]))]),
        [{"a": 1, "b": {"c": "x"}}, {"a": None, "b": None}, None],
    ),
}


def decoded(batch: pa.RecordBatch, schema: Any = None) -> list[Any]:
    """What an independent library reads out of our encoding; all bytes have to be used."""
    used = avro_schema(batch.schema) if schema is None else schema
    rows = []
    for encoded in AvroFormat(used).encode(batch):
        stream = BytesIO(encoded)
        rows.append(fastavro.schemaless_reader(stream, used, None))
        assert stream.read() == b""
    return rows


@pytest.mark.parametrize("name", TYPES)
def test_each_type_reads_back(name: str) -> None:
    kind, values = TYPES[name]
    rows = decoded(pa.record_batch({"x": pa.array(values, kind)}))
    expected = [dict(v) if name == "map" and v is not None else v for v in values]
    assert [row["x"] for row in rows] == expected


def test_all_types_in_one_row_without_nulls() -> None:
    fields = [pa.field(name, kind, nullable=False) for name, (kind, _) in TYPES.items()]
    first = [pa.array([values[0]], kind) for kind, values in TYPES.values()]
    batch = pa.RecordBatch.from_arrays(first, schema=pa.schema(fields))
    schema = avro_schema(batch.schema)
    assert all(not isinstance(field["type"], list) for field in schema["fields"])
    (row,) = decoded(batch)
    assert row["long"] == -(2**63)
    assert row["struct"] == {"a": 1, "b": {"c": "x"}}


def test_random_numbers() -> None:
    source = random.Random(7)
    numbers = [source.randint(-(2**63), 2**63 - 1) >> source.randint(0, 63) for _ in range(2000)]
    assert [row["x"] for row in decoded(pa.record_batch({"x": pa.array(numbers)}))] == numbers


def test_slices_and_dictionaries() -> None:
    column = pa.array(["a", "b", None, "a"]).dictionary_encode()
    batch = pa.record_batch({"x": column, "y": pa.array([[1], [2], [], [4]])}).slice(1, 3)
    assert decoded(batch) == [{"x": "b", "y": [2]}, {"x": None, "y": []}, {"x": "a", "y": [4]}]


def test_the_schema_is_that_of_spark() -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("who", pa.struct([pa.field("name", pa.string())])),
            pa.field("price", pa.decimal128(5, 2), nullable=False),
        ]
    )
    assert avro_schema(schema) == {
        "type": "record",
        "name": "topLevelRecord",
        "fields": [
            {"name": "id", "type": "long"},
            {
                "name": "who",
                "type": [
                    {
                        "type": "record",
                        "name": "who",
                        "namespace": "topLevelRecord",
                        "fields": [{"name": "name", "type": ["string", "null"]}],
                    },
                    "null",
                ],
            },
            {
                "name": "price",
                "type": {
                    "type": "fixed",
                    "name": "topLevelRecord.price.fixed",
                    "size": 3,
                    "logicalType": "decimal",
                    "precision": 5,
                    "scale": 2,
                },
            },
        ],
    }


def test_a_given_schema_orders_fields_and_unions_in_its_own_way() -> None:
    given = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "note", "type": ["null", "string"]},
            {"name": "id", "type": "long"},
            {
                "name": "at",
                "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
            },
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
        ],
    }
    instant = dt.datetime(2026, 1, 1, 0, 0, 0, 5000, UTC)
    batch = pa.record_batch(
        {
            "id": pa.array([1, 2], pa.int32()),
            "at": pa.array([instant, None], pa.timestamp("us", "UTC")),
            "note": [None, "x"],
            "price": pa.array([Decimal("1.25"), Decimal("-3.50")], pa.decimal128(5, 2)),
            "left_out": [0, 0],
        }
    )
    AvroFormat(given).check(batch.schema)
    assert decoded(batch, given) == [
        {"note": None, "id": 1, "at": instant, "price": Decimal("1.25")},
        {"note": "x", "id": 2, "at": None, "price": Decimal("-3.50")},
    ]


@pytest.mark.parametrize(
    ("kind", "avro"),
    [
        (pa.int64(), "int"),
        (pa.string(), "bytes"),
        (pa.float64(), "float"),
        (pa.int64(), "string"),
        (pa.timestamp("us"), {"type": "long", "logicalType": "timestamp-micros"}),
        (pa.timestamp("us", "UTC"), "long"),
        (
            pa.decimal128(9, 3),
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        ),
        (pa.string(), ["null", "string", "long"]),
        (pa.list_(pa.int64()), {"type": "array", "items": "int"}),
    ],
)
def test_a_given_schema_that_does_not_fit(kind: pa.DataType, avro: Any) -> None:
    given = {"type": "record", "name": "R", "fields": [{"name": "x", "type": avro}]}
    with pytest.raises(ConfigurationError, match="'x"):
        AvroFormat(given).check(pa.schema({"x": kind}))


def test_a_field_without_a_column() -> None:
    given = {"type": "record", "name": "R", "fields": [{"name": "y", "type": "int"}]}
    with pytest.raises(ConfigurationError, match="field 'y', and there is no such column"):
        AvroFormat(given).check(pa.schema({"x": pa.int32()}))
    with pytest.raises(ConfigurationError, match="has to be a record"):
        AvroFormat({"type": "string"}).check(pa.schema({"x": pa.int32()}))


def test_a_null_where_the_schema_has_none() -> None:
    given = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}
    with pytest.raises(ConfigurationError, match="column 'x' holds a null"):
        AvroFormat(given).encode(pa.record_batch({"x": pa.array([1, None], pa.int32())}))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("x", pa.uint64()), ("x", pa.duration("s")), ("x", pa.map_(pa.int32(), pa.int32()))],
)
def test_types_that_avro_does_not_have(name: str, kind: pa.DataType) -> None:
    with pytest.raises(ConfigurationError, match="column 'x' has type"):
        avro_schema(pa.schema({name: kind}))


def test_names_that_avro_does_not_have() -> None:
    with pytest.raises(ConfigurationError, match="'a-b' cannot be a field"):
        avro_schema(pa.schema({"a-b": pa.int32()}))

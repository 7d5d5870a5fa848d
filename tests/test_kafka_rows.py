from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from assent.protocol.errors import AssentError, ConfigurationError
from assent.sinks.kafka_records import HEADERS, Records
from assent.sinks.kafka_rows import RowFormat

UTC = dt.UTC


def only(rows: RowFormat, batch: pa.RecordBatch) -> Records:
    rows.check(batch.schema)
    (records,) = rows.records(batch)
    return records


def upper(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    """The serializer of a test below."""
    texts = [value.upper() for value in batch.column("text").to_pylist()]
    return None, pa.chunked_array([texts], pa.string())


def wrong_length(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    return None, pa.array([b"x"])


def wrong_type(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array]:
    return pa.array([1] * batch.num_rows), pa.array([b"x"] * batch.num_rows)


def wrong_shape(batch: pa.RecordBatch) -> pa.Array:
    return pa.array([b"x"])


class TestRaw:
    def test_values_alone(self) -> None:
        records = only(RowFormat("t"), pa.record_batch({"value": ["a", None, "c"]}))
        assert records.topic == "t"
        assert records.values.to_pylist() == ["a", None, "c"]
        assert (records.keys, records.partitions, records.timestamps, records.headers) == (
            (None,) * 4
        )

    def test_nothing_is_copied(self) -> None:
        batch = pa.record_batch({"key": [b"k"], "value": [b"v"]})
        records = only(RowFormat("t"), batch)
        assert records.keys is not None
        assert records.values.buffers()[2].address == batch.column("value").buffers()[2].address
        assert records.keys.buffers()[2].address == batch.column("key").buffers()[2].address

    def test_every_column(self) -> None:
        instant = dt.datetime(2026, 5, 1, 12, 0, 0, 123456, UTC)
        headers = [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None]
        batch = pa.record_batch(
            {
                "key": pa.array(["k", None]),
                "value": pa.array([b"v", b"w"]),
                "partition": pa.array([3, None], pa.int32()),
                "headers": pa.array(headers, HEADERS),
                "timestamp": pa.array([instant, None], pa.timestamp("us", "UTC")),
                "other": pa.array([1, 2]),
            }
        )
        records = only(RowFormat("t"), batch)
        assert records.keys is not None
        assert records.keys.to_pylist() == ["k", None]
        assert records.partitions is not None
        assert records.partitions.tolist() == [3, -1]
        assert records.timestamps is not None
        assert records.timestamps.tolist() == [int(instant.timestamp() * 1000), 0]
        assert records.headers is not None
        assert records.headers.to_pylist() == headers
        assert only(RowFormat("t", include_headers=False), batch).headers is None

    def test_the_option_overrides_the_column_of_topics(self) -> None:
        batch = pa.record_batch({"value": ["a", "b"], "topic": pa.array([1, 2])})
        assert only(RowFormat("t"), batch).topic == "t"

    def test_rows_of_several_topics_keep_their_order(self) -> None:
        batch = pa.record_batch(
            {
                "value": ["1", "2", "3", "4"],
                "key": ["a", "b", "c", "d"],
                "topic": ["x", "y", "x", "y"],
                "partition": pa.array([0, 1, 2, 3], pa.int32()),
            }
        )
        found = list(RowFormat().records(batch))
        assert [(r.topic, r.values.to_pylist()) for r in found] == [
            ("x", ["1", "3"]),
            ("y", ["2", "4"]),
        ]
        assert found[1].keys is not None
        assert found[1].keys.to_pylist() == ["b", "d"]
        assert found[1].partitions is not None
        assert found[1].partitions.tolist() == [1, 3]

    def test_a_batch_of_one_topic_is_not_copied(self) -> None:
        batch = pa.record_batch({"value": ["1", "2"], "topic": ["x", "x"]})
        records = only(RowFormat(), batch)
        assert records.topic == "x"
        assert records.values.buffers()[2].address == batch.column("value").buffers()[2].address

    def test_a_row_without_topic(self) -> None:
        batch = pa.record_batch({"value": ["1", "2"], "topic": ["x", None]})
        with pytest.raises(AssentError, match="1 rows have no topic"):
            list(RowFormat().records(batch))

    def test_a_negative_partition_is_asked_for_and_not_open(self) -> None:
        batch = pa.record_batch({"value": ["1", "2"], "partition": pa.array([-1, 0], pa.int32())})
        records = only(RowFormat("t"), batch)
        assert records.partitions is not None
        assert records.partitions.tolist() == [-2, 0]

    def test_times_that_kafka_does_not_have(self) -> None:
        for moment in (0.0, -5.0):
            batch = pa.record_batch({"value": ["1"], "timestamp": [moment]})
            with pytest.raises(AssentError, match="after 1970"):
                list(RowFormat("t").records(batch))
        fine = pa.record_batch({"value": ["1"], "timestamp": [1.5]})
        records = only(RowFormat("t"), fine)
        assert records.timestamps is not None
        assert records.timestamps.dtype == np.int64
        assert records.timestamps.tolist() == [1500]

    def test_headers_without_key(self) -> None:
        for pair in ({"key": None, "value": b"1"}, {"key": "a\0b", "value": b"1"}, None):
            batch = pa.record_batch({"value": ["1"], "headers": pa.array([[pair]], HEADERS)})
            with pytest.raises(AssentError, match="header"):
                list(RowFormat("t").records(batch))

    def test_framing_of_ready_bytes(self) -> None:
        batch = pa.record_batch({"key": ["k", None], "value": [b"v", None]})
        records = only(RowFormat("t", key_schema_id=1, value_schema_id=258), batch)
        assert records.keys is not None
        assert records.keys.to_pylist() == [b"\0\0\0\0\1k", None]
        assert records.values.to_pylist() == [b"\0\0\0\1\2v", None]

    def test_an_empty_batch(self) -> None:
        batch = pa.record_batch({"value": pa.array([], pa.string())})
        assert list(RowFormat("t").records(batch)) == []


class TestRefused:
    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"v": pa.string()}, "no column 'value'"),
            ({"value": pa.int64()}, "column 'value' has type int64; it has to be string or binary"),
            ({"value": pa.string(), "key": pa.int32()}, "column 'key' has type int32"),
            ({"value": pa.string(), "partition": pa.int64()}, "'partition' has type int64"),
            ({"value": pa.string(), "headers": pa.string()}, "'headers' has type string"),
            ({"value": pa.string(), "timestamp": pa.string()}, "'timestamp' has type string"),
            (
                {
                    "value": pa.string(),
                    "headers": pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())])),
                },
                "array<struct<key:string,value:binary>>",
            ),
        ],
    )
    def test_schemas(self, columns: dict[str, pa.DataType], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            RowFormat("t").check(pa.schema(columns))

    def test_no_topic_anywhere(self) -> None:
        with pytest.raises(ConfigurationError, match="no column 'topic' and no option topic"):
            RowFormat().check(pa.schema({"value": pa.string()}))
        with pytest.raises(ConfigurationError, match="column 'topic' has type int32"):
            RowFormat().check(pa.schema({"value": pa.string(), "topic": pa.int32()}))

    @pytest.mark.parametrize(
        ("rows", "message"),
        [
            (RowFormat("t", value_format="xml"), "valueFormat is 'xml'"),
            (RowFormat("t", key_columns=("a",)), "keyColumns is set, and nothing would use it"),
            (RowFormat("t", value_format="json", value_schema="{}"), "valueFormat=avro alone"),
            (RowFormat("t", value_format="json", key_columns=("z",)), "'z', which is not a column"),
            (RowFormat("t", value_format="avro", value_schema="{"), "valueSchema is not JSON"),
            (RowFormat("t", value_schema_id=-1), "valueSchemaId is -1"),
            (RowFormat("t", serializer="nowhere"), "expected module:function"),
            (RowFormat("t", serializer="nowhere_at_all:f"), "cannot be imported here"),
            (RowFormat("t", serializer="json:nothing"), "cannot be imported here"),
            (RowFormat("t", serializer="json:__name__"), "not a function"),
        ],
    )
    def test_options(self, rows: RowFormat, message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            rows.check(pa.schema({"value": pa.string()}))

    def test_two_columns_of_one_name(self) -> None:
        schema = pa.schema([("value", pa.string()), ("value", pa.string())])
        with pytest.raises(ConfigurationError, match="two columns are named 'value'"):
            RowFormat("t").check(schema)


class TestJson:
    batch = pa.record_batch(
        {
            "id": pa.array([1, 2]),
            "name": pa.array(["Zoë", None]),
            "at": pa.array([dt.datetime(2026, 5, 1, tzinfo=UTC)] * 2, pa.timestamp("us", "UTC")),
            "topic": pa.array(["x", "x"]),
        }
    )

    def test_whole_rows(self) -> None:
        records = only(RowFormat(value_format="json"), self.batch)
        texts = records.values.to_pylist()
        assert json.loads(texts[0]) == {"id": 1, "name": "Zoë", "at": "2026-05-01T00:00:00.000Z"}
        assert json.loads(texts[1]) == {"id": 2, "at": "2026-05-01T00:00:00.000Z"}
        assert records.keys is None

    def test_a_column_that_does_not_route_stays(self) -> None:
        records = only(RowFormat("t", value_format="json", value_columns=("topic",)), self.batch)
        assert records.values.to_pylist() == ['{"topic":"x"}'] * 2
        whole = only(RowFormat("t", value_format="json"), self.batch)
        assert json.loads(whole.values[0].as_py())["topic"] == "x"

    def test_one_text_column_is_the_key_as_it_is(self) -> None:
        rows = RowFormat(value_format="json", key_columns=("name",), value_columns=("id",))
        records = only(rows, self.batch)
        assert records.keys is not None
        assert records.keys.to_pylist() == ["Zoë", None]
        assert records.values.to_pylist() == ['{"id":1}', '{"id":2}']

    def test_other_keys_are_json(self) -> None:
        for columns, expected in ((("id",), '{"id":1}'), (("id", "name"), '{"id":1,"name":"Zoë"}')):
            rows = RowFormat(value_format="json", key_columns=columns)
            keys = only(rows, self.batch).keys
            assert keys is not None
            assert keys[0].as_py() == expected

    def test_nothing_left_for_the_value(self) -> None:
        with pytest.raises(ConfigurationError, match="no column is left"):
            RowFormat(value_format="json").check(pa.schema({"topic": pa.string()}))

    def test_the_column_key_is_the_key(self) -> None:
        batch = pa.record_batch({"key": ["k"], "a": [1]})
        records = only(RowFormat("t", value_format="json"), batch)
        assert records.keys is not None
        assert (records.keys.to_pylist(), records.values.to_pylist()) == (["k"], ['{"a":1}'])


class TestSerializer:
    here = "tests.test_kafka_rows"
    batch = pa.record_batch({"text": ["a", "b"], "topic": ["x", "y"]})

    def test_a_function_of_the_user(self) -> None:
        found = list(RowFormat(serializer=f"{self.here}:upper").records(self.batch))
        assert [(r.topic, r.values.to_pylist(), r.keys) for r in found] == [
            ("x", ["A"], None),
            ("y", ["B"], None),
        ]

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("wrong_length", "gave 1 values for 2 rows"),
            ("wrong_type", "gave keys of type int64"),
            ("wrong_shape", r"has to give \(keys, values\)"),
        ],
    )
    def test_functions_that_answer_nonsense(self, name: str, message: str) -> None:
        with pytest.raises(AssentError, match=message):
            list(RowFormat(serializer=f"{self.here}:{name}").records(self.batch))


def test_avro_values_and_keys_with_framing() -> None:
    fastavro = pytest.importorskip("fastavro")
    from io import BytesIO

    from assent.sinks.kafka_avro import avro_schema

    batch = pa.record_batch({"id": pa.array([7]), "amount": pa.array([Decimal("1.25")])})
    rows = RowFormat(
        "t", value_format="avro", key_columns=("id",), key_schema_id=5, value_schema_id=6
    )
    records = only(rows, batch)
    assert records.keys is not None
    key, value = records.keys[0].as_py(), records.values[0].as_py()
    assert (key[:5], value[:5]) == (b"\0\0\0\0\5", b"\0\0\0\0\6")
    keys = avro_schema(batch.select(["id"]).schema)
    assert fastavro.schemaless_reader(BytesIO(key[5:]), keys, None) == {"id": 7}
    found = fastavro.schemaless_reader(BytesIO(value[5:]), avro_schema(batch.schema), None)
    assert found == {"id": 7, "amount": Decimal("1.25")}

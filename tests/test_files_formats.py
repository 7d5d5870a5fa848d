"""What the files sink writes, read back by others: formats, partitions, types, bounds."""

from __future__ import annotations

import bz2
import csv
import datetime
import gzip
import io
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as dataset
import pyarrow.parquet as parquet
import pytest

import assent.sinks.file_transaction as file_transaction
from assent.protocol.errors import ConfigurationError
from assent.sinks.file_partition import split
from assent.sinks.file_writer import COMPRESSIONS
from assent.sinks.files import FilesSink
from assent.sinks.json_text import json_lines
from tests.files_kit import name, numbers, open_files, pending, settle, visible

UTC = datetime.UTC


def write(sink: FilesSink, *batches: pa.RecordBatch) -> list[Path]:
    sink.check(batches[0].schema)
    transaction = sink.begin(name(), 0)
    for batch in batches:
        sink.write(transaction, batch)
    settle(sink, 0, [sink.pre_commit(transaction)])
    return sorted(file for file in sink.output.rglob("*") if file.is_file())


def content(file: Path) -> str:
    data = file.read_bytes()
    if file.suffix == ".gz":
        data = gzip.decompress(data)
    elif file.suffix == ".bz2":
        data = bz2.decompress(data)
    elif file.suffix == ".zst":
        data = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read()
    return data.decode()


PLAIN = pa.record_batch(
    {
        "whole": pa.array([1, None, -3], pa.int32()),
        "real": pa.array([1.0, 0.1, None], pa.float32()),
        "text": ['a "b", c\nd', "", None],
        "flag": [True, False, None],
        "day": pa.array([datetime.date(2024, 1, 2), None, datetime.date(1969, 12, 31)]),
        "amount": pa.array([Decimal("1.50"), Decimal("-0.01"), None], pa.decimal128(20, 2)),
        "instant": pa.array(
            [datetime.datetime(2024, 1, 2, 3, 4, 5, 123000, UTC), None, None],
            pa.timestamp("us", "Europe/Zurich"),
        ),
        "local": pa.array(
            [datetime.datetime(2024, 1, 2, 3, 4, 5, 123456), None, None], pa.timestamp("us")
        ),
    }
)
NESTED = pa.record_batch(
    {
        "list": pa.array([[1, None], [], None], pa.list_(pa.int64())),
        "struct": pa.array([{"a": 1, "b": None}, None, {"a": None, "b": ["x"]}]),
        "map": pa.array([{"k": 1, "l": None}, None, {}], pa.map_(pa.string(), pa.int64())),
        "deep": pa.array(
            [[{"m": [("k", [1.5])]}], None, [None]],
            pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.float64())))])),
        ),
        "bytes": pa.array([b"\x00\xff", b"", None]),
    }
)


@pytest.mark.parametrize("compression", COMPRESSIONS["parquet"])
def test_parquet_reads_back_equal(tmp_path: Path, compression: str) -> None:
    columns = {**dict(zip(PLAIN.schema.names, PLAIN.columns, strict=True))}
    columns |= dict(zip(NESTED.schema.names, NESTED.columns, strict=True))
    batch = pa.record_batch(columns)
    (file,) = write(FilesSink(tmp_path / "out", compression=compression), batch, batch)
    assert file.suffix == ".parquet"
    assert parquet.ParquetFile(file).read() == pa.Table.from_batches([batch, batch])
    codec = parquet.ParquetFile(file).metadata.row_group(0).column(0).compression
    assert codec == ("UNCOMPRESSED" if compression == "none" else compression.upper())


@pytest.mark.parametrize("compression", COMPRESSIONS["json"])
def test_json_has_a_line_per_row_by_the_conventions_of_spark(
    tmp_path: Path, compression: str
) -> None:
    (file,) = write(FilesSink(tmp_path / "out", "json", compression=compression), PLAIN)
    assert content(file) == (
        '{"whole":1,"real":1.0,"text":"a \\"b\\", c\\nd","flag":true,"day":"2024-01-02",'
        '"amount":1.50,"instant":"2024-01-02T03:04:05.123Z","local":"2024-01-02T03:04:05.123456"}\n'
        '{"real":0.1,"text":"","flag":false,"amount":-0.01}\n'
        '{"whole":-3,"day":"1969-12-31"}\n'
    )


def test_nested_values_in_json(tmp_path: Path) -> None:
    (file,) = write(FilesSink(tmp_path / "out", "json"), NESTED)
    assert content(file).splitlines() == [
        '{"list":[1,null],"struct":{"a":1},"map":{"k":1,"l":null},"deep":[{"m":{"k":[1.5]}}],'
        '"bytes":"AP8="}',
        '{"list":[],"bytes":""}',
        '{"struct":{"b":["x"]},"map":{},"deep":[null]}',
    ]


@pytest.mark.parametrize("batch", [PLAIN, NESTED], ids=["plain", "nested"])
def test_json_of_a_slice_is_the_slice_of_the_json(batch: pa.RecordBatch) -> None:
    lines = json_lines(batch).splitlines(keepends=True)
    for start in range(3):
        for count in range(3 - start + 1):
            assert json_lines(batch.slice(start, count)) == "".join(lines[start : start + count])


def test_numbers_in_json_keep_every_digit() -> None:
    batch = pa.record_batch(
        {
            "real": [float("nan"), float("inf"), float("-inf"), 1e300, -0.0],
            "exact": pa.array(
                [Decimal("0.0000000001"), None, None, None, None], pa.decimal128(38, 10)
            ),
            "large": [2**63 - 1, None, None, None, None],
            "words": pa.array(["é ", None, None, None, None]).dictionary_encode(),
        }
    )
    lines = json_lines(batch).splitlines()[:5]
    assert lines[0] == (
        '{"real":"NaN","exact":0.0000000001,"large":9223372036854775807,"words":"é "}'
    )
    assert lines[1:4] == ['{"real":"Infinity"}', '{"real":"-Infinity"}', '{"real":1e+300}']
    assert str(json.loads(lines[4])["real"]) == "-0.0"


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("s", 0, "1970-01-01T00:00:00"),
        ("ms", 1, "1970-01-01T00:00:00.001"),
        ("us", 1_000_000, "1970-01-01T00:00:01.000"),
        ("us", -1, "1969-12-31T23:59:59.999999"),
        ("ns", 1000, "1970-01-01T00:00:00.000001"),
    ],
)
def test_times_in_json(unit: str, value: int, text: str) -> None:
    for zone, suffix in ((None, ""), ("UTC", "Z"), ("+02:00", "Z"), ("Nowhere/Land", "Z")):
        array = pa.array([value]).cast(pa.timestamp(unit)).cast(pa.int64())
        batch = pa.record_batch({"t": array.cast(pa.timestamp(unit, zone))})
        assert json.loads(json_lines(batch))["t"] == text + suffix


@pytest.mark.parametrize("compression", COMPRESSIONS["csv"])
@pytest.mark.parametrize("separator", [",", "\t", "|"])
def test_csv_reads_back_equal(tmp_path: Path, compression: str, separator: str) -> None:
    sink = FilesSink(
        tmp_path / "out", "csv", compression=compression, header=True, separator=separator
    )
    (file,) = write(sink, PLAIN, PLAIN)
    header, *rows = csv.reader(io.StringIO(content(file), newline=""), delimiter=separator)
    assert header == PLAIN.schema.names
    times = ["2024-01-02T03:04:05.123Z", "2024-01-02T03:04:05.123456"]
    expected = [
        ["1", "1", 'a "b", c\nd', "true", "2024-01-02", "1.50", *times],
        ["", "0.1", "", "false", "", "-0.01", "", ""],
        ["-3", "", "", "", "1969-12-31", "", "", ""],
    ]
    assert rows == expected * 2


def test_csv_without_header_tells_empty_from_null(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": ["", None], "b": [1, 2]})
    (file,) = write(FilesSink(tmp_path / "out", "csv"), batch)
    assert content(file) == '"",1\n,2\n'


def test_a_lonely_null_in_csv_is_not_an_empty_line(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": [1, None, 3]})
    (file,) = write(FilesSink(tmp_path / "out", "csv", header=True), batch)
    assert content(file) == '"a"\n"1"\n""\n"3"\n'
    assert dataset.dataset(file, format="csv").count_rows() == 3


@pytest.mark.parametrize("file_format", COMPRESSIONS)
def test_all_formats_partitioned(tmp_path: Path, file_format: str) -> None:
    sink = FilesSink(tmp_path / "out", file_format, ["g"], header=file_format == "csv")
    files = write(sink, numbers(0, 9), numbers(9, 9))
    assert [file.parent.name for file in files] == ["g=g0", "g=g1", "g=g2"]
    assert len({file.parent.parent for file in files}) == 1
    table = dataset.dataset(sink.output, format=file_format, partitioning="hive").to_table()
    assert sorted(zip(table["n"].to_pylist(), table["g"].to_pylist(), strict=True)) == [
        (n, f"g{n % 3}") for n in range(18)
    ]


STRANGE = [
    "a/b",
    "..",
    "a=b",
    "100%",
    "'\"",
    "x:y?",
    "{[^]}*#\\",
    "tab\t",
    "ü ö",
    "a b",
    "%2F",
    "\x7f\x00",
]


def test_pandas_reads_the_folder(tmp_path: Path) -> None:
    import pandas

    sink = FilesSink(tmp_path / "out", partition_columns=["g"])
    write(sink, numbers(0, 9))
    frame = pandas.read_parquet(sink.output)
    assert sorted(frame.columns) == ["epoch", "g", "n"]
    assert sorted(frame["n"]) == list(range(9))
    assert set(frame["epoch"]) == {"3f2a9c0d-000000"}


def test_strange_partition_values_come_back(tmp_path: Path) -> None:
    batch = pa.record_batch({"v": [*STRANGE, None, ""], "n": range(len(STRANGE) + 2)})
    sink = FilesSink(tmp_path / "out", partition_columns=["v"])
    files = write(sink, batch)
    found: dict[str, list[int]] = {}
    for file in files:
        value = unquote(file.parent.name.removeprefix("v="))
        assert file.parent.parent.parent == sink.output
        table = parquet.ParquetFile(file).read()
        assert table.schema.names == ["n"]
        found.setdefault(value, []).extend(table["n"].to_pylist())
    assert found.pop("__HIVE_DEFAULT_PARTITION__") == [12, 13]
    assert found == {value: [number] for number, value in enumerate(STRANGE)}


@pytest.mark.parametrize(
    ("array", "folders"),
    [
        (pa.array([7, None]), ["v=7", "v=__HIVE_DEFAULT_PARTITION__"]),
        (pa.array([True, False]), ["v=true", "v=false"]),
        (pa.array([datetime.date(2024, 1, 2)]), ["v=2024-01-02"]),
        (pa.array([Decimal("1E-10")], pa.decimal128(20, 10)), ["v=0.0000000001"]),
        (
            pa.array(
                [datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)], pa.timestamp("us", "UTC")
            ),
            ["v=2024-01-02 03%3A04%3A05.000"],
        ),
        (pa.array(["x", None]).dictionary_encode(), ["v=x", "v=__HIVE_DEFAULT_PARTITION__"]),
    ],
)
def test_the_names_of_partition_folders(array: pa.Array, folders: list[str]) -> None:
    batch = pa.record_batch({"v": array, "n": range(len(array))})
    assert [folder for folder, _ in split(batch, ["v"])] == folders


def test_rows_keep_their_order_and_number_when_split() -> None:
    batch = pa.record_batch(
        {
            "n": range(5000),
            "a": [n * 7 % 11 for n in range(5000)],
            "b": [n % 2 for n in range(5000)],
        }
    )
    seen: list[int] = []
    for folder, rows in split(batch, ["a", "b"]):
        values = rows["n"].to_pylist()
        assert values == sorted(values)
        assert {f"a={n * 7 % 11}/b={n % 2}" for n in values} == {folder}
        seen += values
    assert sorted(seen) == list(range(5000))


def test_partition_columns_match_whatever_their_case(tmp_path: Path) -> None:
    files = write(FilesSink(tmp_path / "out", partition_columns=["G"]), numbers(0))
    assert {file.parent.name for file in files} == {"g=g0", "g=g1", "g=g2"}


def test_a_partition_value_too_long_for_a_folder_is_an_error(tmp_path: Path) -> None:
    sink = FilesSink(tmp_path / "out", partition_columns=["v"])
    batch = pa.record_batch({"v": ["x" * 300], "n": [1]})
    sink.check(batch.schema)
    transaction = sink.begin(name(), 0)
    sink.write(transaction, batch)
    with pytest.raises(ConfigurationError, match="partition by a shorter column"):
        sink.pre_commit(transaction)
    sink.discard(transaction)
    assert (pending(sink), os.listdir(sink.output)) == ([], [])


def schema(**types: pa.DataType) -> pa.Schema:
    return pa.schema(list(types.items()))


INT, TEXT = pa.int64(), pa.string()
BOTH = pa.struct([("x", INT), ("X", INT)])


@pytest.mark.parametrize(
    ("file_format", "columns", "given", "words"),
    [
        ("parquet", (), schema(), "no columns"),
        ("parquet", (), schema(a=INT, A=INT), "two columns are named 'A'"),
        ("parquet", (), schema(a=pa.null()), "column 'a' has type null"),
        ("parquet", (), schema(a=pa.struct([])), r"column 'a' has type struct<>"),
        ("parquet", (), schema(a=pa.list_(pa.null())), "column 'a.element' has type null"),
        ("parquet", (), schema(a=BOTH), "column 'a' has two fields named 'X'"),
        ("parquet", (), schema(Epoch=INT), "column 'Epoch' .* set option epochColumn"),
        ("json", (), schema(a=pa.duration("us")), "column 'a' has type duration"),
        ("json", (), schema(a=pa.map_(INT, INT)), "column 'a' is a map with keys of type int64"),
        ("csv", (), schema(a=INT, b=pa.list_(INT)), "column 'b' has type list.*csv"),
        ("csv", (), schema(b=pa.struct([("x", INT)])), "column 'b' has type struct.*csv"),
        ("csv", (), schema(b=pa.map_(TEXT, INT)), "column 'b' has type map.*csv"),
        ("csv", (), schema(b=pa.binary()), "column 'b' has type binary.*base64"),
        ("parquet", ("c",), schema(a=INT, b=INT), "names 'c', .*the columns are a, b"),
        ("parquet", ("a", "A"), schema(a=INT, b=INT, c=INT), "names 'a' twice"),
        ("parquet", ("a", "b"), schema(a=INT, b=INT), "names every column"),
        ("parquet", ("a",), schema(a=pa.float64(), b=INT), "names 'a' of type double"),
        ("parquet", ("a",), schema(a=pa.list_(INT), b=INT), "names 'a' of type list"),
        ("parquet", ("a",), schema(a=pa.binary(), b=INT), "names 'a' of type binary"),
        ("parquet", ("epoch",), schema(epoch=INT, b=INT), "column 'epoch' .* rename"),
    ],
)
def test_schemas_that_cannot_be_written_are_refused(
    tmp_path: Path, file_format: str, columns: tuple[str, ...], given: pa.Schema, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        FilesSink(tmp_path / "out", file_format, columns).check(given)
    assert os.listdir(tmp_path) == []


ALL_TYPES: list[Any] = [
    (pa.int8(), 1),
    (pa.int64(), 1),
    (pa.uint64(), 1),
    (pa.float16(), 1.5),
    (pa.float32(), 1.5),
    (pa.float64(), 1.5),
    (pa.bool_(), True),
    (pa.string(), "x"),
    (pa.large_string(), "x"),
    (pa.string_view(), "x"),
    (pa.date32(), datetime.date(2024, 1, 2)),
    (pa.date64(), datetime.date(2024, 1, 2)),
    (pa.time32("s"), datetime.time(1, 2, 3)),
    (pa.time64("us"), datetime.time(1, 2, 3)),
    (pa.timestamp("ns"), 1),
    (pa.timestamp("s"), 1),
    (pa.decimal128(5, 2), Decimal("1.5")),
    (pa.decimal256(50, 2), Decimal("1.5")),
    (pa.dictionary(pa.int32(), pa.string()), "x"),
    (pa.binary(), b"x"),
    (pa.large_binary(), b"x"),
    (pa.binary(1), b"x"),
    (pa.duration("us"), 1),
    (pa.list_(INT), [1]),
    (pa.large_list(INT), [1]),
    (pa.list_(INT, 1), [1]),
    (pa.map_(TEXT, INT), [("a", 1)]),
    (pa.map_(INT, TEXT), [(1, "a")]),
    (pa.struct([("x", INT)]), {"x": 1}),
    (pa.null(), None),
    (pa.month_day_nano_interval(), None),
    (pa.binary_view(), b"x"),
]


@pytest.mark.parametrize("file_format", COMPRESSIONS)
@pytest.mark.parametrize(("kind", "value"), ALL_TYPES, ids=[str(kind) for kind, _ in ALL_TYPES])
def test_what_check_accepts_can_be_written(
    tmp_path: Path, file_format: str, kind: pa.DataType, value: object
) -> None:
    batch = pa.record_batch({"a": pa.array([value, None], kind), "b": pa.array([1, 2])})
    sink = FilesSink(tmp_path / "out", file_format, header=True)
    try:
        sink.check(batch.schema)
    except ConfigurationError as error:
        assert "column 'a'" in str(error)  # noqa: PT017
        return
    (file,) = write(sink, batch)
    assert dataset.dataset(file, format=file_format).count_rows() == 2


def test_more_partition_values_than_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_transaction, "OPEN_WRITERS", 4)
    monkeypatch.setattr(file_transaction, "KEPT_ROWS", 250)
    sink = FilesSink(tmp_path / "out", partition_columns=["v"])
    batches = [
        pa.record_batch({"n": range(at, at + 100), "v": [row % 30 for row in range(at, at + 100)]})
        for at in range(0, 1000, 100)
    ]
    sink.check(batches[0].schema)
    transaction = sink.begin(name(), 0)
    for batch in batches:
        sink.write(transaction, batch)
        assert len(open_files(sink.staging)) <= 4
    handle = sink.pre_commit(transaction)
    settle(sink, 0, [handle])
    assert visible(sink) == list(range(1000))
    found = dataset.dataset(sink.output, partitioning="hive").to_table()
    assert all(
        n % 30 == int(v)
        for n, v in zip(found["n"].to_pylist(), found["v"].to_pylist(), strict=True)
    )
    # One file per value each of the four times that rows are written, not per value and batch,
    # and the four files that are open are used again.
    assert len(list(sink.output.rglob("*.parquet"))) == 30 * 4 - 4 * 3


def test_memory_does_not_grow_with_the_partition(tmp_path: Path) -> None:
    sink = FilesSink(tmp_path / "out", compression="none")
    batch = pa.record_batch({"n": range(10_000), "text": ["x" * 1000] * 10_000})
    sink.check(batch.schema)
    transaction = sink.begin(name(), 0)
    before = pa.total_allocated_bytes()
    most = 0
    for _ in range(60):
        # A new allocation each time, as Spark hands over.
        sink.write(transaction, batch.take(pa.array(range(10_000))))
        most = max(most, pa.total_allocated_bytes() - before)
    handle = sink.pre_commit(transaction)
    assert most < 3 * file_transaction.KEPT_BYTES
    settle(sink, 0, [handle])
    (file,) = sink.output.rglob("*.parquet")
    assert file.stat().st_size > 2000
    parquet = dataset.dataset(file)
    assert parquet.count_rows() == 600_000
    groups = next(iter(parquet.get_fragments())).num_row_groups
    assert groups < 15

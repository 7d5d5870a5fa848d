"""Every type of Spark: written, read back and compared, or refused by name; loaded or inserted."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Context, Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from assent.protocol.errors import AssentError, ConfigurationError
from assent.testing.mysql import MySql
from tests.mysql_stage import MySqlStage

pytestmark = pytest.mark.mysql

WAYS = ["load", "insert"]
MODES = ["prepared", "staged"]

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_moments = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999))
# What a TIMESTAMP of these servers holds.
_instants = st.datetimes(dt.datetime(1970, 1, 1, 0, 0, 1), dt.datetime(2038, 1, 19, 3, 14, 7))


def _finite(width: Literal[32, 64]) -> st.SearchStrategy[float]:
    return st.floats(allow_nan=False, allow_infinity=False, width=width)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    exact = Context(prec=80)
    return st.integers(-most, most).map(lambda value: exact.scaleb(Decimal(value), -scale))


# Arrow type as Spark gives it, the column that is made for it, how it is read, and values.
CASES: dict[str, tuple[pa.DataType, str, str, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), "tinyint(1)", "v", st.booleans()),
    "byte": (pa.int8(), "tinyint", "v", st.integers(-(2**7), 2**7 - 1)),
    "short": (pa.int16(), "smallint", "v", st.integers(-(2**15), 2**15 - 1)),
    "int": (pa.int32(), "int", "v", st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), "bigint", "v", st.integers(-(2**63), 2**63 - 1)),
    # A float is shown with six digits, unless it is made a double.
    "float": (pa.float32(), "float", "v + 0e0", _finite(32)),
    "double": (pa.float64(), "double", "v", _finite(64)),
    "decimal(38,18)": (pa.decimal128(38, 18), "decimal(38,18)", "v", _decimals(38, 18)),
    "decimal(38,0)": (pa.decimal128(38, 0), "decimal(38,0)", "v", _decimals(38, 0)),
    "decimal(9,9)": (pa.decimal128(9, 9), "decimal(9,9)", "v", _decimals(9, 9)),
    "decimal(10,2)": (pa.decimal128(10, 2), "decimal(10,2)", "v", _decimals(10, 2)),
    "string": (pa.string(), "longtext", "v", _texts),
    "binary": (pa.binary(), "longblob", "v", st.binary(max_size=40)),
    "date": (pa.date32(), "date", "v", st.dates()),
    "timestamp_ntz": (pa.timestamp("us"), "datetime(6)", "v", _moments),
    "timestamp": (pa.timestamp("us", "UTC"), "timestamp(6)", "v", _instants),
    "time": (pa.time64("ns"), "time(6)", "CAST(v AS char)", st.times()),
}


@contextmanager
def way_of(stage: MySqlStage, way: str) -> Iterator[None]:
    """Whether LOAD DATA LOCAL is allowed."""
    if way == "load":
        yield
        return
    stage.server.run("SET GLOBAL local_infile = 0")
    try:
        yield
    finally:
        stage.server.run("SET GLOBAL local_infile = 1")


def write(stage: MySqlStage, rows: pa.RecordBatch, way: str = "load") -> None:
    with way_of(stage, way):
        sink = stage.sink()
        sink.check(rows.schema)
        transaction = sink.begin(stage.name(), 0)
        try:
            sink.write(transaction, rows)
            handle = sink.pre_commit(transaction)
        except BaseException:
            sink.discard(transaction)
            raise
        sink.commit(handle)
        sink.publish(0, [handle])


def read(stage: MySqlStage, shown: str = "v") -> list[Any]:
    connection = stage.server.connect(init_command="SET time_zone = '+00:00'")
    with connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {shown} FROM {stage.full} ORDER BY n")
        return [value for (value,) in cursor.fetchall()]


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    return f"{value:%H:%M:%S.%f}" if isinstance(value, dt.time) else value


def one_column(kind: pa.DataType, *values: Any) -> pa.RecordBatch:
    return pa.record_batch(
        {"n": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, kind)}
    )


@pytest.fixture(scope="module")
def created(mysql_kind: MySql) -> dict[str, MySqlStage]:
    return {name: MySqlStage(mysql_kind, "", create_table=True) for name in CASES}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_written_is_read(
    created: dict[str, MySqlStage], name: str, way: str, data: st.DataObject
) -> None:
    kind, column, shown, values = CASES[name]
    stage = created[name]
    wanted = data.draw(st.lists(st.none() | values, min_size=1, max_size=30))
    write(stage, one_column(kind, *wanted), way)
    found = read(stage, shown)
    stage.server.run(f"DELETE FROM {stage.full}")
    expected = [_plain(value) for value in pa.array(wanted, kind).to_pylist()]
    assert found == expected  # MariaDB makes 0.0 of -0.0, which is equal
    [(made,)] = stage.server.rows(
        "SELECT column_type FROM information_schema.columns WHERE column_name = 'v'"
        f" AND table_schema = '{stage.schema}' AND table_name = '{stage.table}'"
    )
    # With a width for display on some servers.
    assert made == column or made.partition("(")[0] == column


@pytest.mark.parametrize("way", WAYS)
def test_awkward_texts_and_numbers(mysql_kind: MySql, way: str) -> None:
    texts = [
        "",
        "\\N",
        "NULL",
        "\\",
        "\\\\",
        "'",
        '"',
        "\t",
        "\n",
        "\r\n",
        "\0",
        "\x1a",
        "a\\",
        "é",
    ]
    texts += ["😀", "%s", "`", "a,b", "\\n", "x'--", " ", "a "]
    stage = MySqlStage(mysql_kind, "", create_table=True)
    write(stage, one_column(pa.string(), *texts, None), way)
    assert read(stage) == [*texts, None]
    stage = MySqlStage(mysql_kind, "", create_table=True)
    doubles = [5e-324, -0.0, 1.7976931348623157e308, 2.2250738585072014e-308, 0.1, 1 / 3]
    write(stage, one_column(pa.float64(), *doubles), way)
    assert read(stage) == doubles
    stage = MySqlStage(mysql_kind, "", create_table=True)
    every = [bytes([value]) for value in range(256)] + [bytes(range(256)), b"", None]
    write(stage, one_column(pa.binary(), *every), way)
    assert read(stage) == every


NESTED: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]),
        [{"a": 1, "b": ["x'\\\n\t", None]}, None, {"a": None, "b": None}],
        [{"a": 1, "b": ["x'\\\n\t", None]}, None, {}],
    ),
    "map": (
        pa.map_(pa.string(), pa.float64()),
        [[("k", 1.5), ("n", None)], None, []],
        [{"k": 1.5, "n": None}, None, {}],
    ),
    "array of structs": (
        pa.list_(pa.struct([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])),
        [[{"at": dt.datetime(2020, 1, 1), "n": 2**63 - 1}], None, []],
        [[{"at": "2020-01-01T00:00:00.000Z", "n": 2**63 - 1}], None, []],
    ),
    "array of arrays": (pa.list_(pa.list_(pa.int64())), [[[1], []], None], [[[1], []], None]),
    "floats in it": (
        pa.list_(pa.struct([("f", pa.float64())])),
        [[{"f": math.nan}, {"f": math.inf}, {"f": 0.1}]],
        [[{"f": "NaN"}, {"f": "Infinity"}, {"f": 0.1}]],
    ),
    "decimals that a double holds": (
        pa.list_(pa.decimal128(15, 5)),
        [[Decimal("1234567890.12345")]],
        [[1234567890.12345]],
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("column", ["json", ""])
@pytest.mark.parametrize("name", NESTED)
def test_nested_values_are_json(mysql_kind: MySql, name: str, column: str, way: str) -> None:
    kind, values, expected = NESTED[name]
    columns = f"n bigint, v {column}" if column else ""
    stage = MySqlStage(mysql_kind, columns, create_table=not column)
    write(stage, one_column(kind, *values), way)
    assert [value and json.loads(value) for value in read(stage)] == expected


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(value=_finite(64))
@example(value=5e-324)
@example(value=1.7976931348623157e308)
def test_doubles_in_json_come_back(documents: MySqlStage, value: float) -> None:
    documents.server.run(f"DELETE FROM {documents.full}")
    write(documents, one_column(pa.list_(pa.float64()), [value]))
    [found] = json.loads(read(documents)[0])
    if documents.server.is_mariadb:
        assert found == value
    else:  # which reads JSON a digit less precisely than a double is
        assert math.isclose(found, value, rel_tol=1e-15)


@pytest.fixture(scope="module")
def documents(mysql_kind: MySql) -> MySqlStage:
    return MySqlStage(mysql_kind, "n bigint, v json", commit_mode="staged")


def test_decimals_in_json_are_kept_or_refused(mysql_kind: MySql) -> None:
    kind = pa.struct([("d", pa.decimal128(38, 18))])
    rows = one_column(kind, {"d": Decimal("1.000000000000000001")})
    for columns in ("n bigint, v json", ""):
        stage = MySqlStage(mysql_kind, columns, create_table=True)
        if mysql_kind.is_mariadb:  # where JSON is the text that it was
            write(stage, rows)
            assert read(stage) == ['{"d":1.000000000000000001}']
            continue
        with pytest.raises(ConfigurationError, match=r"'v\.d' has type decimal128"):
            stage.sink().check(rows.schema)


# Wider columns, and such as have no counterpart in Spark


@pytest.mark.parametrize(
    ("kind", "column", "values", "expected"),
    [
        (pa.int8(), "bigint", [1, -1], [1, -1]),
        (pa.int16(), "mediumint", [2**15 - 1, -1], [2**15 - 1, -1]),
        (pa.int32(), "int unsigned", [2**31 - 1, 0], [2**31 - 1, 0]),
        (pa.int64(), "bigint unsigned", [2**63 - 1], [2**63 - 1]),
        (pa.int32(), "double", [2**31 - 1], [2.0**31 - 1]),
        (pa.int64(), "decimal(20,1)", [-(2**63)], [Decimal(-(2**63))]),
        (pa.float32(), "double", [1.5], [1.5]),
        (pa.decimal128(5, 2), "decimal(10,4)", [Decimal("123.45")], [Decimal("123.4500")]),
        (pa.bool_(), "bit(1)", [True, False, None], [b"\x01", b"\x00", None]),
        (pa.bool_(), "boolean", [True, False, None], [1, 0, None]),
        (pa.string(), "varchar(3)", ["abc", "é€😀", None], ["abc", "é€😀", None]),
        (pa.string(), "char(3)", ["ab"], ["ab"]),
        (pa.string(), "text CHARACTER SET latin1", ["é"], ["é"]),
        (pa.string(), "enum('a', 'it''s', '2')", ["it's", "2", None], ["it's", "2", None]),
        (pa.large_string(), "text", ["a"], ["a"]),
        (pa.string_view(), "text", ["a", None], ["a", None]),
        (pa.dictionary(pa.int32(), pa.string()), "text", ["a", "a", None], ["a", "a", None]),
        (pa.null(), "integer", [None, None], [None, None]),
        (pa.binary(4), "binary(4)", [b"abcd", None], [b"abcd", None]),
        (pa.binary(), "varbinary(9)", [b"\x00\xff", b""], [b"\x00\xff", b""]),
        (pa.binary_view(), "blob", [b"a", None], [b"a", None]),
        (
            pa.timestamp("us"),
            "datetime(3)",
            [dt.datetime(2020, 1, 1, 0, 0, 0, 123000)],
            [dt.datetime(2020, 1, 1, 0, 0, 0, 123000)],
        ),
        (pa.timestamp("ns"), "datetime", [dt.datetime(2020, 1, 1)], [dt.datetime(2020, 1, 1)]),
        (pa.time64("us"), "time", [dt.time(1, 2, 3)], [dt.timedelta(seconds=3723)]),
    ],
    ids=str,
)
def test_what_fits_without_loss(
    mysql_kind: MySql, kind: pa.DataType, column: str, values: list[Any], expected: list[Any]
) -> None:
    for mode, way in zip(MODES, WAYS, strict=True):
        stage = MySqlStage(mysql_kind, f"n bigint, v {column}", commit_mode=mode)
        write(stage, one_column(kind, *values), way)
        assert read(stage) == expected


# What does not fit


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.int64(), "integer"),
        (pa.int64(), "double"),
        (pa.int64(), "text"),
        (pa.int64(), "bit(64)"),
        (pa.int64(), "decimal(18,0)"),
        (pa.int32(), "mediumint unsigned"),
        (pa.int32(), "float"),
        (pa.int64(), "json"),
        (pa.int16(), "year"),
        (pa.float64(), "float"),
        (pa.float64(), "double(10,2)"),
        (pa.float64(), "decimal(30,10)"),
        (pa.decimal128(10, 2), "decimal(10,1)"),
        (pa.decimal128(10, 2), "decimal(9,2)"),
        (pa.decimal128(10, 2), "double"),
        (pa.string(), "integer"),
        (pa.string(), "blob"),
        (pa.string(), "set('a', 'b')"),
        (pa.string(), "datetime"),
        (pa.string(), "point"),
        (pa.binary(), "text"),
        (pa.date32(), "datetime"),
        (pa.timestamp("us", "UTC"), "datetime(6)"),
        (pa.timestamp("us"), "timestamp(6) NULL"),
        (pa.timestamp("us"), "date"),
        (pa.duration("us"), "time"),
        (pa.list_(pa.int64()), "text"),
        (pa.struct([("a", pa.int32())]), "longtext"),
        (pa.bool_(), "integer"),
        (pa.uint64(), "bigint unsigned"),
        (pa.float16(), "float"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_column_and_type(
    mysql_kind: MySql, kind: pa.DataType, column: str
) -> None:
    stage = MySqlStage(mysql_kind, f"n bigint, v {column}")
    with pytest.raises(ConfigurationError) as caught:
        stage.sink().check(pa.schema([("n", pa.int64()), ("v", kind)]))
    assert "'v'" in str(caught.value)
    assert str(kind) in str(caught.value)


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.duration("us"),
        pa.decimal128(38, 31),
        pa.map_(pa.int32(), pa.string()),
        pa.struct([("a", pa.duration("us"))]),
        pa.struct([pa.field("m", pa.binary(), metadata={"variant": "true"})]),
        pa.struct([("a", pa.int32()), ("a", pa.int32())]),
        pa.month_day_nano_interval(),
    ],
    ids=str,
)
def test_what_no_column_can_be_made_for(mysql_kind: MySql, kind: pa.DataType) -> None:
    stage = MySqlStage(mysql_kind, "", create_table=True)
    with pytest.raises(ConfigurationError, match=r"column 'v"):
        stage.sink().check(pa.schema([("n", pa.int64()), ("v", kind)]))
    assert stage.staged() == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("kind", "column", "value", "match"),
    [
        (pa.float64(), "double", math.nan, "column 'v' holds NaN or an infinity"),
        (pa.float32(), "float", -math.inf, "column 'v' holds NaN or an infinity"),
        (pa.string(), "varchar(2)", "abc", r"Data too long for column 'v'|Data truncated.*'v'"),
        (pa.string(), "varchar(2)", "ab ", r"Data truncated for column 'v'"),
        (pa.string(), "tinytext", "x" * 300, r"Data too long|Data truncated"),
        (pa.string(), "text CHARACTER SET latin1", "€😀", r"Incorrect string value|Invalid"),
        (pa.string(), "text CHARACTER SET utf8mb3", "😀", r"Incorrect string value|Invalid"),
        (pa.string(), "char(5)", "ab ", "column 'v' holds a text that ends in a space"),
        (pa.string(), "enum('a', 'b')", "2", "column 'v' holds a text that is not one of"),
        (pa.string(), "json", "{", r"Invalid JSON|json_valid|CONSTRAINT"),
        (pa.binary(), "binary(4)", b"ab", "column 'v' holds values that are not 4 bytes long"),
        (pa.binary(), "varbinary(1)", b"ab", r"Data too long|Data truncated"),
        (pa.int32(), "int unsigned", -1, "Out of range value for column 'v'"),
        (pa.date32(), "date", -800000, "'v' holds a date before the year 1"),
        (pa.timestamp("us"), "datetime(6)", 20_000 * 366 * 86_400_000_000, "after the year 9999"),
        (pa.timestamp("us", "UTC"), "timestamp(6) NULL", 5_000_000_000_000_000, "Incorrect|range"),
        (pa.timestamp("us", "UTC"), "timestamp(6) NULL", 0, "Incorrect|range"),
        (pa.timestamp("us"), "datetime(3)", dt.datetime(2020, 1, 1, 0, 0, 0, 1), "finer"),
        (pa.timestamp("ns"), "datetime(6)", 1, "finer"),
        (pa.time64("ns"), "time(3)", dt.time(1, 1, 1, 1), "finer"),
        (pa.int64(), "bigint NOT NULL", None, "no value in column 'v', which takes no nulls"),
        (pa.int64(), "bigint AUTO_INCREMENT UNIQUE", None, "no value in column 'v'"),
        (pa.timestamp("us", "UTC"), "timestamp NOT NULL", None, "no value in column 'v'"),
        (pa.int64(), "bigint, CHECK (v > 5)", 1, r"3819|4025|CONSTRAINT|constraint"),
    ],
    ids=str,
)
def test_values_that_cannot_be_stored_fail_their_task(
    mysql_kind: MySql, kind: pa.DataType, column: str, value: Any, match: str, way: str
) -> None:
    """Before the vote, in both modes, beside a row that could be stored; and nothing is left."""
    good = {"bigint AUTO_INCREMENT UNIQUE": 7, "timestamp NOT NULL": 10**9}.get(column)
    for mode in MODES:
        stage = MySqlStage(mysql_kind, f"n bigint, v {column}", commit_mode=mode)
        with pytest.raises(AssentError, match=match):
            write(stage, one_column(kind, *([good] * (good is not None)), value), way)
        assert (stage.prepared(), stage.staged(), stage.select("n")) == ([], [], [])


def test_zero_in_a_column_that_counts_is_zero(mysql_kind: MySql) -> None:
    for mode, way in zip(MODES, WAYS, strict=True):
        stage = MySqlStage(
            mysql_kind, "n bigint, v bigint AUTO_INCREMENT PRIMARY KEY", commit_mode=mode
        )
        write(stage, one_column(pa.int64(), 0, 5), way)
        assert read(stage) == [0, 5]


def test_large_batches_and_rows(mysql_kind: MySql) -> None:
    for mode, way in zip(MODES, WAYS, strict=True):
        stage = MySqlStage(mysql_kind, "n bigint, v longtext", commit_mode=mode)
        values = ["x" * 3_000_000, *[f"row {number}" for number in range(30_000)], None]
        write(stage, one_column(pa.string(), *values), way)
        assert read(stage) == values

"""Every type of Spark: written, read back by another client and compared, or refused by name."""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from decimal import Context, Decimal
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assent.protocol.errors import AssentError, ConfigurationError
from assent.testing.postgres import Postgres
from tests.postgres_stage import PostgresStage

pytestmark = pytest.mark.postgres

UTC = dt.UTC

_texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
_moments = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    exact = Context(prec=80)
    return st.integers(-most, most).map(lambda value: exact.scaleb(Decimal(value), -scale))


# Arrow type as Spark gives it, the column that is made for it, and values.
CASES: dict[str, tuple[pa.DataType, str, st.SearchStrategy[Any]]] = {
    "boolean": (pa.bool_(), "boolean", st.booleans()),
    "byte": (pa.int8(), "smallint", st.integers(-(2**7), 2**7 - 1)),
    "short": (pa.int16(), "smallint", st.integers(-(2**15), 2**15 - 1)),
    "int": (pa.int32(), "integer", st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), "bigint", st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), "real", st.floats(width=32)),
    "double": (pa.float64(), "double precision", st.floats()),
    "decimal(38,18)": (pa.decimal128(38, 18), "numeric(38,18)", _decimals(38, 18)),
    "decimal(38,0)": (pa.decimal128(38, 0), "numeric(38,0)", _decimals(38, 0)),
    "decimal(9,9)": (pa.decimal128(9, 9), "numeric(9,9)", _decimals(9, 9)),
    "decimal(10,2)": (pa.decimal128(10, 2), "numeric(10,2)", _decimals(10, 2)),
    "string": (pa.string(), "text", _texts),
    "binary": (pa.binary(), "bytea", st.binary(max_size=40)),
    "date": (pa.date32(), "date", st.dates()),
    "timestamp_ntz": (pa.timestamp("us"), "timestamp", _moments),
    "timestamp": (pa.timestamp("us", "UTC"), "timestamptz", _moments),
    "interval": (
        pa.duration("us"),
        "interval",
        st.timedeltas(dt.timedelta(days=-9000), dt.timedelta(days=9000)),
    ),
    "time": (pa.time64("ns"), "time", st.times()),
    "array<int>": (pa.list_(pa.int32()), "integer[]", st.lists(st.none() | st.integers(0, 9))),
    "array<string>": (pa.list_(pa.string()), "text[]", st.lists(st.none() | _texts, max_size=5)),
    "array<byte>": (pa.list_(pa.int8()), "smallint[]", st.lists(st.integers(0, 9))),
    "array<timestamp_ntz>": (pa.list_(pa.timestamp("us")), "timestamp[]", st.lists(_moments)),
    "array<decimal>": (
        pa.list_(pa.decimal128(10, 2)),
        "numeric(10,2)[]",
        st.lists(_decimals(10, 2)),
    ),
    "array<binary>": (pa.list_(pa.binary()), "bytea[]", st.lists(st.binary(max_size=5))),
}


def write(stage: PostgresStage, rows: pa.RecordBatch) -> None:
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


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    return bool(left == right)


def read(stage: PostgresStage) -> list[Any]:
    """By psycopg's own readers of binary values. Instants in UTC, as Arrow has them."""
    query = f"SELECT v FROM {stage.full} ORDER BY n".encode()
    with stage.server.connect(options="-c TimeZone=UTC") as connection:
        found = connection.execute(query, binary=True).fetchall()
    return [_plain(value) for (value,) in found]


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


@pytest.fixture(scope="module")
def created(postgres: Postgres) -> dict[str, PostgresStage]:
    return {
        f"{name}-{mode}": PostgresStage(postgres, "", create_table=True, commit_mode=mode)
        for name in CASES
        for mode in ("prepared", "staged")
    }


@pytest.mark.parametrize("mode", ["prepared", "staged"])
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_written_is_read(
    created: dict[str, PostgresStage], name: str, mode: str, data: st.DataObject
) -> None:
    kind, column, values = CASES[name]
    stage = created[f"{name}-{mode}"]
    wanted = data.draw(st.lists(st.none() | values, min_size=1, max_size=20))
    array = pa.array(wanted, kind)
    rows = pa.record_batch({"n": pa.array(range(len(wanted)), pa.int64()), "v": array})
    write(stage, rows)
    found = read(stage)
    stage.server.run(f"TRUNCATE {stage.full}")
    expected = [_plain(value) for value in array.to_pylist()]
    assert all(same(*pair) for pair in zip(found, expected, strict=True)), (found, expected)
    [(shown,)] = stage.server.rows(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute"
        f" WHERE attrelid = '{stage.full}'::regclass AND attname = 'v'"
    )
    assert shown.replace(" without time zone", "").replace(
        "timestamp with time zone", "timestamptz"
    ) == column.replace("[]", "[]")


def one_column(kind: pa.DataType, *values: Any) -> pa.RecordBatch:
    return pa.record_batch(
        {"n": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, kind)}
    )


EARLY = {
    "date": (pa.date32(), 10_957 - 2**31),
    "timestamp": (pa.timestamp("us"), 946_684_800_000_000 - 2**63),
    "timestamptz": (pa.timestamp("us", "UTC"), 946_684_800_000_000 - 2**63),
    "timestamp[]": (pa.list_(pa.timestamp("us")), [946_684_800_000_000 - 2**63]),
}


@pytest.mark.parametrize("name", EARLY)
def test_a_time_before_all_that_the_server_knows_is_refused(postgres: Postgres, name: str) -> None:
    """Counted from the server's epoch it would wrap around, or mean infinity."""
    kind, value = EARLY[name]
    stage = PostgresStage(postgres, f"n bigint, v {name}")
    with pytest.raises(AssentError, match="column 'v' holds a time that is too early for"):
        write(stage, one_column(kind, value))
    assert read(stage) == []


NESTED = {
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]),
        [{"a": 1, "b": ["x", None]}, None, {"a": None, "b": None}],
        [{"a": 1, "b": ["x", None]}, None, {}],
    ),
    "map": (
        pa.map_(pa.string(), pa.float64()),
        [[("k", 1.5), ("n", None)], None, []],
        [{"k": 1.5, "n": None}, None, {}],
    ),
    "array of structs": (
        pa.list_(pa.struct([("at", pa.timestamp("us", "UTC"))])),
        [[{"at": dt.datetime(2020, 1, 1)}], None, []],
        [[{"at": "2020-01-01T00:00:00.000Z"}], None, []],
    ),
    "array of arrays": (pa.list_(pa.list_(pa.int64())), [[[1], []], None], [[[1], []], None]),
    "floats in it": (
        pa.list_(pa.struct([("f", pa.float64())])),
        [[{"f": math.nan}, {"f": math.inf}, {"f": -math.inf}]],
        [[{"f": "NaN"}, {"f": "Infinity"}, {"f": "-Infinity"}]],
    ),
}


@pytest.mark.parametrize("column", ["jsonb", "json", ""])
@pytest.mark.parametrize("name", NESTED)
def test_nested_values_are_json(postgres: Postgres, name: str, column: str) -> None:
    kind, values, expected = cast("tuple[pa.DataType, list[Any], list[Any]]", NESTED[name])
    columns = f"n bigint, v {column}" if column else ""
    stage = PostgresStage(postgres, columns, create_table=not column)
    write(stage, one_column(kind, *values))
    assert read(stage) == expected
    [(shown,)] = stage.server.rows(f"SELECT pg_typeof(v)::text FROM {stage.full} LIMIT 1")
    assert shown == (column or "jsonb")


# Wider columns, and such as have no counterpart in Spark


@pytest.mark.parametrize(
    ("kind", "column", "values", "expected"),
    [
        (pa.int8(), "bigint", [1, -1], [1, -1]),
        (pa.int16(), "integer", [1, -1], [1, -1]),
        (pa.int32(), "bigint", [2**31 - 1], [2**31 - 1]),
        (pa.int32(), "double precision", [2**31 - 1], [2.0**31 - 1]),
        (pa.int64(), "numeric", [2**63 - 1], [Decimal(2**63 - 1)]),
        (pa.int64(), "numeric(20,1)", [-(2**63)], [Decimal(-(2**63))]),
        (pa.float32(), "double precision", [1.5], [1.5]),
        (pa.decimal128(5, 2), "numeric(10,4)", [Decimal("123.45")], [Decimal("123.4500")]),
        (pa.decimal128(5, 2), "numeric", [Decimal("-0.05")], [Decimal("-0.05")]),
        (pa.string(), "varchar(3)", ["abc", None], ["abc", None]),
        (pa.string(), "char(3)", ["ab"], ["ab "]),
        (pa.string(), "jsonb", ['{"a": 1}', None], [{"a": 1}, None]),
        (pa.string(), "json", ['{"a": 1}', None], [{"a": 1}, None]),
        (pa.string(), "uuid", [str(uuid.UUID(int=5)), None], [uuid.UUID(int=5), None]),
        (pa.large_string(), "text", ["a"], ["a"]),
        (pa.string_view(), "text", ["a", None], ["a", None]),
        (pa.dictionary(pa.int32(), pa.string()), "text", ["a", "a", None], ["a", "a", None]),
        (pa.null(), "integer", [None, None], [None, None]),
        (pa.null(), "jsonb", [None], [None]),
        (pa.binary(4), "bytea", [b"abcd"], [b"abcd"]),
        (
            pa.timestamp("us"),
            "timestamp(3)",
            [dt.datetime(2020, 1, 1, 0, 0, 0, 123000)],
            [dt.datetime(2020, 1, 1, 0, 0, 0, 123000)],
        ),
        (pa.time64("us"), "time(0)", [dt.time(1, 2, 3)], [dt.time(1, 2, 3)]),
        (pa.list_(pa.int32()), "bigint[]", [[1, None]], [[1, None]]),
        (pa.large_list(pa.int32()), "integer[]", [[1, None], None], [[1, None], None]),
    ],
    ids=str,
)
def test_what_fits_without_loss(
    postgres: Postgres, kind: pa.DataType, column: str, values: list[Any], expected: list[Any]
) -> None:
    for mode in ("prepared", "staged"):
        stage = PostgresStage(postgres, f"n bigint, v {column}", commit_mode=mode)
        write(stage, one_column(kind, *values))
        assert read(stage) == expected


def test_enums_and_domains(postgres: Postgres) -> None:
    stage = PostgresStage(postgres, "")
    stage.server.run(
        f"CREATE TYPE {stage.schema}.mood AS ENUM ('sad', 'ok')",
        f"CREATE DOMAIN {stage.schema}.short AS varchar(5) CHECK (value <> 'no')",
        f"CREATE DOMAIN {stage.schema}.money2 AS numeric(10,2)",
        f"CREATE TABLE {stage.full} (n bigint, m {stage.schema}.mood, s {stage.schema}.short,"
        f" v {stage.schema}.money2)",
    )

    def rows(mood: str, short: str) -> pa.RecordBatch:
        return pa.record_batch(
            {
                "n": pa.array([1], pa.int64()),
                "m": [mood],
                "s": [short],
                "v": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
            }
        )

    write(stage, rows("ok", "yes"))
    assert stage.select("m, s, v") == [("ok", "yes", Decimal("1.50"))]
    with pytest.raises(AssentError, match="22P02"):
        write(stage, rows("glad", "yes"))
    with pytest.raises(AssentError, match="23514"):
        write(stage, rows("ok", "no"))
    wide = rows("ok", "yes").set_column(3, "v", pa.array([Decimal("1.555")], pa.decimal128(10, 3)))
    with pytest.raises(ConfigurationError, match="'v' has type decimal128"):
        write(stage, wide)


# What does not fit


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.int64(), "integer"),
        (pa.int64(), "double precision"),
        (pa.int64(), "timestamptz"),
        (pa.int64(), "text"),
        (pa.int64(), "numeric(18,0)"),
        (pa.int32(), "real"),
        (pa.int64(), "jsonb"),
        (pa.float64(), "real"),
        (pa.float64(), "numeric"),
        (pa.decimal128(10, 2), "numeric(10,1)"),
        (pa.decimal128(10, 2), "numeric(9,2)"),
        (pa.decimal128(10, 2), "double precision"),
        (pa.string(), "integer"),
        (pa.string(), "bytea"),
        (pa.string(), "inet"),
        (pa.string(), "timestamp"),
        (pa.binary(), "text"),
        (pa.date32(), "timestamp"),
        (pa.timestamp("us", "UTC"), "timestamp"),
        (pa.timestamp("us"), "timestamptz"),
        (pa.timestamp("us"), "date"),
        (pa.duration("us"), "interval(3)"),
        (pa.list_(pa.int64()), "integer[]"),
        (pa.list_(pa.int64()), "bigint"),
        (pa.list_(pa.list_(pa.int64())), "bigint[]"),
        (pa.struct([("a", pa.int32())]), "text"),
        (pa.bool_(), "integer"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_column_and_type(
    postgres: Postgres, kind: pa.DataType, column: str
) -> None:
    stage = PostgresStage(postgres, f"n bigint, v {column}")
    with pytest.raises(ConfigurationError) as caught:
        stage.sink().check(pa.schema([("n", pa.int64()), ("v", kind)]))
    message = str(caught.value)
    assert "'v'" in message
    assert str(kind) in message


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.map_(pa.int32(), pa.string()),
        pa.struct([("a", pa.duration("us"))]),
        pa.struct(
            [
                pa.field("value", pa.binary()),
                pa.field("m", pa.binary(), metadata={"variant": "true"}),
            ]
        ),
        pa.struct([("a", pa.int32()), ("a", pa.int32())]),
        pa.month_day_nano_interval(),
    ],
    ids=str,
)
def test_what_no_column_can_be_made_for(postgres: Postgres, kind: pa.DataType) -> None:
    stage = PostgresStage(postgres, "", create_table=True)
    with pytest.raises(ConfigurationError, match=r"column 'v"):
        stage.sink().check(pa.schema([("n", pa.int64()), ("v", kind)]))
    assert stage.staged() == []


@pytest.mark.parametrize(
    ("kind", "column", "value", "match"),
    [
        (pa.string(), "text", "a\0b", r"column 'v' holds a text with a NUL"),
        (pa.list_(pa.string()), "text[]", ["a\0b"], r"column 'v' holds a text with a NUL"),
        (pa.struct([("a", pa.string())]), "jsonb", {"a": "\0"}, r"22P05.*NUL"),
        (pa.string(), "varchar(2)", "abc", "22001"),
        (pa.string(), "jsonb", "{", "22P02"),
        (pa.string(), "json", "{", "22P02"),
        (pa.string(), "uuid", "no", "'v' holds a text that is no uuid"),
        (pa.timestamp("us"), "timestamp(3)", dt.datetime(2020, 1, 1, 0, 0, 0, 1), "finer"),
        (pa.time64("ns"), "time(3)", dt.time(1, 1, 1, 1), "finer"),
        (pa.int64(), "bigint CHECK (v > 5)", 1, "23514"),
        (pa.int64(), "bigint NOT NULL", None, "23502"),
    ],
    ids=str,
)
def test_values_that_cannot_be_stored_fail_their_task(
    postgres: Postgres, kind: pa.DataType, column: str, value: Any, match: str
) -> None:
    """Before the vote, in both modes; and nothing is left."""
    for mode in ("prepared", "staged"):
        stage = PostgresStage(postgres, f"n bigint, v {column}", commit_mode=mode)
        with pytest.raises(AssentError, match=match):
            write(stage, one_column(kind, value))
        assert (stage.prepared(), stage.staged(), stage.select("v")) == ([], [], [])


def test_json_keeps_what_it_can(postgres: Postgres) -> None:
    stage = PostgresStage(postgres, "n bigint, v json")
    kind = pa.struct([("d", pa.decimal128(38, 18))])
    write(stage, one_column(kind, {"d": Decimal("1.000000000000000001")}))
    [(text,)] = stage.server.rows(f"SELECT v::text FROM {stage.full}")
    assert text == '{"d":1.000000000000000001}'
    assert json.loads(text)["d"] == 1.0

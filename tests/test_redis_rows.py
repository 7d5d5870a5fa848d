"""What rows become in Redis: every structure, every type, order, deletion, expiry."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from assent.protocol.errors import AssentError, ConfigurationError
from assent.testing.redis import RedisServer
from tests.redis_query import RedisStage

pytestmark = pytest.mark.redis

INSTANT = datetime(2024, 2, 29, 12, 30, 15, 250000, tzinfo=UTC)

TYPES: dict[str, tuple[pa.Array, str]] = {
    "string": (pa.array(["grüße: %"]), "grüße: %"),
    "large_string": (pa.array(["a"], pa.large_string()), "a"),
    "dictionary": (pa.array(["a"]).dictionary_encode(), "a"),
    "boolean": (pa.array([True]), "true"),
    "int8": (pa.array([-8], pa.int8()), "-8"),
    "int64": (pa.array([2**63 - 1]), "9223372036854775807"),
    "float": (pa.array([1.5], pa.float32()), "1.5"),
    "double": (pa.array([0.1]), "0.1"),
    "nan": (pa.array([float("nan")]), "NaN"),
    "infinity": (pa.array([float("-inf")]), "-Infinity"),
    "decimal": (pa.array([Decimal("1234567890.1200")]), "1234567890.1200"),
    "date": (pa.array([date(2024, 2, 29)]), "2024-02-29"),
    "timestamp": (pa.array([INSTANT], pa.timestamp("us", "UTC")), "2024-02-29T12:30:15.250Z"),
    "timestamp_ntz": (
        pa.array([INSTANT.replace(tzinfo=None)], pa.timestamp("us")),
        "2024-02-29T12:30:15.250",
    ),
    "list": (pa.array([[1, None, 3]]), "[1,null,3]"),
    "struct": (pa.array([{"x": 1, "y": "z"}]), '{"x":1,"y":"z"}'),
    "map": (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), '{"k":1}'),
}


@pytest.fixture
def stage(redis_server: RedisServer) -> RedisStage:
    return RedisStage(redis_server)


SCORES: dict[str, Any] = {
    "structure": "sortedSet",
    "member_column": "who",
    "score_column": "points",
}


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(column) for name, column in columns.items()})


# Structures


def test_a_hash_is_replaced_as_a_whole(stage: RedisStage) -> None:
    stage.write(0, rows(key=["a"], x=["1"], y=["2"]), structure="hash")
    assert stage.seen() == {"a": {"x": "1", "y": "2"}}
    stage.write(1, rows(key=["a", "b"], x=["3", "4"], y=[None, "5"]), structure="hash")
    assert stage.seen() == {"a": {"x": "3"}, "b": {"x": "4", "y": "5"}}


def test_a_hash_without_any_value_is_no_key(stage: RedisStage) -> None:
    stage.write(0, rows(key=["a"], x=["1"]), structure="hash")
    stage.write(1, rows(key=["a"], x=pa.array([None], pa.string())), structure="hash")
    assert stage.seen() == {}


def test_strings(stage: RedisStage) -> None:
    stage.write(0, rows(key=["a", "b"], x=["1", ""]), structure="string")
    assert stage.seen() == {"a": "1", "b": ""}
    stage.write(1, rows(key=["a"], x=pa.array([None], pa.string())), structure="string")
    assert stage.seen() == {"b": ""}


def test_binary_values_and_keys(stage: RedisStage) -> None:
    stage.write(0, rows(key=[b"\xff{}"], x=[b"\x00\xfe"]), structure="string")
    client = stage.server.client()
    client.connection_pool.connection_kwargs["decode_responses"] = False
    assert client.get(stage.prefix.encode() + b"\xff{}") == b"\x00\xfe"


def test_json(stage: RedisStage) -> None:
    batch = rows(key=["a"], x=[1], y=[[1, 2]], z=pa.array([None], pa.string()), w=['"'])
    stage.write(0, batch, structure="json")
    assert json.loads(stage.seen()["a"]) == {"x": 1, "y": [1, 2], "w": '"'}


def test_sorted_sets_hold_absolute_scores(stage: RedisStage) -> None:
    batch = rows(key=["x", "x", "y"], who=["a", "b", "a"], points=[1, 2, 3])
    for epoch in (0, 0, 1):  # a replay adds nothing up
        stage.write(epoch, batch, **SCORES)
        assert stage.seen() == {"x": {"a": 1.0, "b": 2.0}, "y": {"a": 3.0}}
    stage.write(2, rows(key=["x"], who=["a"], points=[0.5]), **SCORES)
    assert stage.seen()["x"] == {"a": 0.5, "b": 2.0}


def test_one_sorted_set_for_all(stage: RedisStage) -> None:
    stage.write(0, rows(who=["a"], points=[float("inf")]), key_columns=(), **SCORES)
    assert stage.seen() == {"": {"a": float("inf")}}


@pytest.mark.parametrize(
    ("score", "message"),
    [
        ([None], "no score.*null"),
        ([float("nan")], "no score.*NaN"),
        ([2**53 + 1], "9007199254740993.*doubles"),
    ],
)
def test_scores_that_cannot_be_kept(stage: RedisStage, score: list[Any], message: str) -> None:
    batch = pa.record_batch(
        {
            "key": pa.array(["x"]),
            "who": pa.array(["a"]),
            "points": pa.array(score, pa.int64() if isinstance(score[0], int) else pa.float64()),
        }
    )
    with pytest.raises(AssentError, match=message):
        stage.write(0, batch, structure="sortedSet", member_column="who", score_column="points")
    assert stage.seen() == {}


# Keys


def test_keys_of_several_columns_never_meet(stage: RedisStage) -> None:
    batch = rows(p=["a:b", "a", "a%3Ab"], q=["c", "b:c", "c"], x=["1", "2", "3"])
    stage.write(0, batch, key_columns=["p", "q"])
    assert stage.seen() == {"a%3Ab:c": "1", "a:b%3Ac": "2", "a%253Ab:c": "3"}


def test_keys_of_other_types(stage: RedisStage) -> None:
    stage.write(0, rows(key=[7], day=[date(2024, 2, 29)], x=["1"]), key_columns=["key", "day"])
    assert stage.seen() == {"7:2024-02-29": "1"}


def test_a_key_that_is_null(stage: RedisStage) -> None:
    with pytest.raises(AssentError, match="no key: its column 'key' is null"):
        stage.write(0, rows(key=["a", None], x=["1", "2"]))
    assert stage.seen() == {}


# Order and deletion


@pytest.mark.parametrize("structure", ["string", "hash", "json"])
def test_the_highest_order_wins_within_an_epoch(stage: RedisStage, structure: str) -> None:
    """Across batches, tasks and attempts; in the next epoch orders begin anew."""
    more: dict[str, Any] = {"structure": structure, "order_column": "at", "value_columns": ["x"]}
    stage.write(0, rows(key=["a", "a", "a"], x=["2", "3", "1"], at=[2, 3, 1]), **more)
    first = stage.seen()
    assert "3" in str(first)
    stage.write(0, rows(key=["a"], x=["0"], at=[0]), **more)
    stage.write(0, rows(key=["a"], x=["-"], at=[-5]), term=1, **more)
    stage.write(0, rows(key=["a"], x=["n"], at=pa.array([None], pa.int64())), **more, term=1)
    assert stage.seen() == first
    stage.write(1, rows(key=["a"], x=["4"], at=[0]), **more)
    assert "4" in str(stage.seen())
    assert stage.server.client().hgetall(f"assent:order:{stage.prefix}") == {
        f"{stage.prefix}a": str(2**63 + 1).zfill(20)
    }


def test_order_of_members(stage: RedisStage) -> None:
    more = {**SCORES, "order_column": "at", "delete_column": "gone"}
    batch = rows(
        key=["x", "x", "x"],
        who=["a", "b", "a"],
        points=[1, 2, 3],
        at=[INSTANT, INSTANT, INSTANT - timedelta(microseconds=1)],
        gone=[False, False, True],
    )
    stage.write(0, batch, **more)
    assert stage.seen() == {"x": {"a": 1.0, "b": 2.0}}
    stage.write(1, rows(key=["x"], who=["a"], points=[0], at=[INSTANT], gone=[True]), **more)
    assert stage.seen() == {"x": {"b": 2.0}}


@pytest.mark.parametrize("structure", ["string", "hash", "json"])
def test_deletions(stage: RedisStage, structure: str) -> None:
    more: dict[str, Any] = {"structure": structure, "delete_column": "gone"}
    stage.write(0, rows(key=["a", "b"], x=["1", "2"], gone=[False, None]), **more)
    assert sorted(stage.seen()) == ["a", "b"]
    stage.write(1, rows(key=["a"], x=["1"], gone=[True]), **more)
    assert sorted(stage.seen()) == ["b"]


# Expiry


def test_time_to_live(stage: RedisStage) -> None:
    client = stage.server.client()
    for structure in ("string", "hash", "json"):
        stage.write(0, rows(key=[structure], x=["1"]), structure=structure, ttl=100)
        assert 99_000 < client.pttl(stage.prefix + structure) <= 100_000
    stage.write(
        0,
        rows(key=["set"], who=["a"], points=[1]),
        structure="sortedSet",
        member_column="who",
        score_column="points",
        ttl=100,
    )
    assert 99_000 < client.pttl(f"{stage.prefix}set") <= 100_000
    assert client.ttl(f"assent:fence:{stage.prefix}") == -1
    assert client.ttl(f"assent:owner:{stage.prefix}") == -1
    stage.write(1, rows(key=["string"], x=["1"]))
    assert client.ttl(f"{stage.prefix}string") == -1


def test_an_instant_of_expiry_per_row(stage: RedisStage) -> None:
    now, day = datetime.now(UTC), timedelta(days=1)
    batch = rows(
        key=["soon", "never", "past"],
        x=["1", "2", "3"],
        until=pa.array(
            [now + timedelta(days=1), None, now - timedelta(days=1)], pa.timestamp("us", "UTC")
        ),
    )
    stage.write(0, batch, expire_at_column="until")
    assert stage.seen() == {"soon": "1", "never": "2"}
    expected = int((now + day).timestamp() * 1000)
    assert stage.server.client().pexpiretime(f"{stage.prefix}soon") == expected


# Types


@pytest.mark.parametrize("name", TYPES)
def test_types(stage: RedisStage, name: str) -> None:
    array, expected = TYPES[name]
    batch = pa.record_batch({"key": pa.array(["a"]), "x": array})
    stage.sink(structure="hash").check(batch.schema)
    stage.write(0, batch, structure="hash")
    assert stage.seen() == {"a": {"x": expected}}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.duration("us"), r"column 'x' has type duration\[us\]"),
        (pa.null(), "column 'x' has type null"),
        (pa.list_(pa.duration("us")), r"column 'x\.element' has type duration"),
        (pa.struct([("y", pa.null())]), r"column 'x\.y' has type null"),
        (pa.map_(pa.int64(), pa.string()), "map with keys of type int64"),
    ],
)
def test_types_that_have_no_text(stage: RedisStage, kind: pa.DataType, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        stage.sink().check(pa.schema([("key", pa.string()), ("x", kind)]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_columns": []}, "keyColumns is missing"),
        ({"key_columns": ["no"]}, "keyColumns names 'no', which is not a column"),
        ({"key_columns": ["key", "key"]}, "names a column twice"),
        ({"key_columns": ["real"]}, "'real' of type double, whose values do not make keys"),
        ({"key_columns": ["key", "raw"]}, "'raw' of type binary"),
        ({"value_columns": ["no"]}, "valueColumns names 'no'"),
        ({"structure": "string"}, "one value column, and there are"),
        ({"order_column": "key"}, "orderColumn names 'key' of type string; it has to be a whole"),
        ({"delete_column": "number"}, "deleteColumn names 'number' of type int64"),
        ({"expire_at_column": "number"}, "expireAtColumn names 'number' of type int64"),
        ({"member_column": "key"}, "memberColumn goes with structure=sortedSet alone"),
        ({"structure": "sortedSet"}, "sortedSet needs option memberColumn"),
        (
            {"structure": "sortedSet", "member_column": "key", "score_column": "key"},
            "scoreColumn names 'key' of type string",
        ),
        (
            {
                "structure": "sortedSet",
                "member_column": "key",
                "score_column": "number",
                "expire_at_column": "at",
            },
            "only whole sets expire",
        ),
    ],
)
def test_columns_that_do_not_fit(stage: RedisStage, options: dict[str, Any], message: str) -> None:
    schema = pa.schema(
        [
            ("key", pa.string()),
            ("number", pa.int64()),
            ("real", pa.float64()),
            ("raw", pa.binary()),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
    with pytest.raises(ConfigurationError, match=message):
        stage.sink(**{"structure": "hash", **options}).check(schema)
    assert stage.seen() == {}


def test_two_columns_of_one_name(stage: RedisStage) -> None:
    schema = pa.schema([("key", pa.string()), ("x", pa.string()), ("x", pa.string())])
    with pytest.raises(ConfigurationError, match="two columns are named 'x'"):
        stage.sink().check(schema)


def test_many_and_large_rows_in_bounded_calls(
    stage: RedisStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a call and a pipeline take, by number and by size."""
    monkeypatch.setattr("assent.sinks.redis_transaction._PIPELINE_ROWS", 1200)
    keys = [f"k{number}" for number in range(3001)]
    stage.write(0, rows(key=keys, x=keys))
    assert stage.seen() == {key: key for key in keys}
    large = [str(number) * 3_000_000 for number in range(5)]
    stage.write(1, rows(key=keys[:5], x=large))
    assert [stage.server.client().get(stage.prefix + key) for key in keys[:5]] == large

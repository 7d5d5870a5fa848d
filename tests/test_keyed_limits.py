"""Redis and HBase: rows at the limits; an error that says so, or it works.

They are idempotent: what a failed task has written stays, and the epoch that is written again
overwrites it. A row that cannot be written stops its task before the decision.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from assent.ledger.local import LocalStore
from assent.protocol.errors import AssentError, ConfigurationError
from assent.testing.hbase import HBaseServer
from assent.testing.query import BatchQuery
from assent.testing.redis import RedisServer
from tests.hbase_query import HBaseStage
from tests.limits import texts
from tests.redis_query import RedisStage

Pairs = dict[bytes, bytes]


def rows(pairs: dict[bytes | None, bytes | None]) -> pa.RecordBatch:
    return pa.record_batch({"key": texts(*pairs), "x": texts(*pairs.values())})


class RedisLimits(RedisStage):
    def raw(self) -> Pairs:
        import redis

        with redis.Redis.from_url(self.server.url) as client:
            prefix = self.prefix.encode()
            keys = client.scan_iter(prefix + b"*", count=1000)
            return {key.removeprefix(prefix): client.get(key) or b"" for key in keys}


class HBaseLimits(HBaseStage):
    def raw(self) -> Pairs:
        found = self.client.table(self.table).scan()
        return {key: cells.get(b"cf:x", b"") for key, cells in found}


@pytest.fixture(
    params=[
        pytest.param("redis_server", marks=pytest.mark.redis),
        pytest.param("hbase", marks=[pytest.mark.hbase, pytest.mark.faults]),
    ]
)
def stage(request: pytest.FixtureRequest) -> RedisLimits | HBaseLimits:
    server = request.getfixturevalue(request.param)
    if isinstance(server, RedisServer):
        return RedisLimits(server)
    assert isinstance(server, HBaseServer)
    return HBaseLimits(server)


def query_of(stage: RedisLimits | HBaseLimits, folder: Path, **more: Any) -> BatchQuery:
    return BatchQuery(lambda: stage.sink(**more), LocalStore(str(folder / "_assent")))


def test_odd_bytes_are_kept_as_they_are(stage: RedisLimits | HBaseLimits, tmp_path: Path) -> None:
    odd: dict[bytes | None, bytes | None] = {
        b"empty": b"",
        b"zero\0byte": b"a\0b",
        b"not \xc3\x28 UTF-8": b"\xff\xfe",
        b"large": b"x" * 1_000_000,
    }
    query = query_of(stage, tmp_path)
    stage.sink().check(rows(odd).schema)
    query.run(query.start(), 0, [[rows(odd), rows({})], [], [rows({})]])
    assert stage.raw() == odd


def test_a_key_that_is_null_stops_the_epoch_and_the_next_run_goes_on(
    stage: RedisLimits | HBaseLimits, tmp_path: Path
) -> None:
    query = query_of(stage, tmp_path)
    coordinator = query.start()
    query.run(coordinator, 0, [[rows({b"a": b"0"})]])
    with pytest.raises(AssentError, match="a row has no key: its column 'key' is null"):
        query.run(coordinator, 1, [[rows({b"a": b"1"})], [rows({None: b"1"})]])
    query.run(query.start(), 1, [[rows({b"a": b"1"})], [rows({b"b": b"1"})]])
    assert stage.raw() == {b"a": b"1", b"b": b"1"}


def test_no_columns_at_all(stage: RedisLimits | HBaseLimits) -> None:
    with pytest.raises(ConfigurationError, match="keyColumns names 'key', which is not a column"):
        stage.sink().check(pa.schema([]))


def test_ten_thousand_columns(stage: RedisLimits | HBaseLimits, tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(10_000)]
    wide = pa.record_batch({"key": ["k"], **{name: [name] for name in names}})
    more = {"structure": "hash"} if isinstance(stage, RedisLimits) else {}
    query = query_of(stage, tmp_path, **more)
    stage.sink(**more).check(wide.schema)
    query.run(query.start(), 0, [[wide]])
    if isinstance(stage, RedisLimits):
        assert {*names} <= {*stage.seen()["k"]}
    else:
        assert len(stage.rows()["k"]) == 10_000


def test_texts_that_are_none_within_json(stage: RedisLimits | HBaseLimits, tmp_path: Path) -> None:
    bad = pa.StructArray.from_arrays([texts(b"\xc3\x28")], ["inner"])
    good = pa.StructArray.from_arrays([texts(b"fine")], ["inner"])
    query = query_of(stage, tmp_path)
    with pytest.raises(AssentError, match="not UTF-8"):
        query.run(query.start(), 0, [[pa.record_batch({"key": ["k"], "x": bad})]])
    assert stage.raw() == {}
    query.run(query.start(), 0, [[pa.record_batch({"key": ["k"], "x": good})]])
    assert stage.raw() == {b"k": b'{"inner":"fine"}'}

"""The HBase sink on a real HBase: replays, late writers, owners, rows, crashes.

What readers see is read by a client of its own, after each phase, together with the verdicts.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from assent.protocol.errors import (
    AssentError,
    ConfigurationError,
    FencedError,
    InDoubtError,
    RetriableError,
)
from assent.protocol.guarantee import Guarantee
from assent.protocol.handle import Handle
from assent.protocol.name import nonce
from assent.protocol.step import Step, When
from assent.protocol.verdict import Verdict
from assent.sinks.hbase import HBaseSink
from assent.sinks.hbase_owner import Claim, HBaseOwner
from assent.sinks.option import read_options
from assent.testing.hbase import HBaseServer
from tests.hbase_query import HBaseStage
from tests.keyed_query import KeyedQuery, batch

pytestmark = pytest.mark.hbase


@pytest.fixture(scope="module")
def registry(hbase: HBaseServer) -> HBaseServer:
    """An HBase with a registry, which a check of any sink creates."""
    HBaseStage(hbase).sink().check(batch({}).schema)
    return hbase


@pytest.fixture
def stage(registry: HBaseServer) -> HBaseStage:
    return HBaseStage(registry)


def owner(stage: HBaseStage) -> dict[str, Any]:
    row = stage.client.table("assent").row(stage.table.encode())
    found: dict[str, Any] = json.loads(row[b"a:owner"])
    return found


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(column) for name, column in columns.items()})


# One task


def test_begin_write_pre_commit_commit(stage: HBaseStage) -> None:
    sink = stage.sink()
    sink.check(batch({}).schema)
    transaction = sink.begin(stage.name(), 3)
    assert stage.seen() == {}
    sink.write(transaction, batch({"a": 1, "b": 2}))
    assert stage.seen() == {"a": "1", "b": "2"}  # before the decision, and the docs say so
    handle = sink.pre_commit(transaction)
    assert list(sink.pending(stage.identity)) == []
    for _ in range(2):
        assert sink.verdict(handle) is Verdict.COMMITTED
        sink.commit(handle)
    sink.abort(handle)  # takes nothing back
    assert stage.seen() == {"a": "1", "b": "2"}
    assert Handle.parse(str(handle)) == handle
    cells = stage.client.table(stage.table).row(b"a", include_timestamp=True)
    assert cells == {b"cf:x": (b"1", int(handle.details["timestamp"]))}
    assert abs(int(handle.details["timestamp"]) / 1000 - time.time()) < 60


def test_a_handle_of_another_sink_is_refused(stage: HBaseStage) -> None:
    handle = stage.write(0, {"a": 1})
    with pytest.raises(ConfigurationError, match="another sink"):
        HBaseSink(stage.server.address, "elsewhere", ["key"]).commit(handle)
    with pytest.raises(ConfigurationError, match="does not say what it stands for"):
        stage.sink().commit(Handle("hbase", "assent-0-1"))


# Replays and late writers


def test_a_replay_changes_nothing(stage: HBaseStage) -> None:
    stamps = set()
    for term in (0, 0, 1, 2):
        stamps.add(stage.write(5, {"a": 1}, term=term).details["timestamp"])
        assert stage.seen() == {"a": "1"}
    assert len(stamps) == 1
    versions = stage.client.table(stage.table).cells(b"a", b"cf:x", versions=10)
    assert versions == [b"1"]


def test_a_late_older_epoch_never_overwrites(stage: HBaseStage) -> None:
    sink = stage.sink()
    zombie = sink.begin(stage.name(), 4)
    sink.write(zombie, batch({"a": 4}))
    stage.write(5, {"a": 5})
    with pytest.raises(FencedError, match="has gone on with table"):
        sink.write(zombie, batch({"a": 40, "new": 40}))
    # Past the question and on its way, it is too old all the same.
    zombie.connection.write(
        stage.table, list(sink.row_format.rows(batch({"a": 41}))), zombie.claim.timestamp
    )
    with pytest.raises(FencedError):
        sink.pre_commit(zombie)
    sink.discard(zombie)
    assert stage.seen() == {"a": "5"}


def test_a_late_write_after_a_deletion(stage: HBaseStage) -> None:
    sink = stage.sink()
    stage.write(3, {"a": 3})
    zombie = sink.begin(stage.name(), 4)
    stage.write(5, rows(key=["a"], x=[0], gone=[True]), delete_column="gone")
    assert stage.rows() == {}
    late = list(sink.row_format.rows(batch({"a": 4})))
    zombie.connection.write(stage.table, late, zombie.claim.timestamp)
    assert stage.rows() == {}
    # When a compaction has forgotten the deletion, the question before each call still helps.
    stage.compact()
    with pytest.raises(FencedError):
        sink.write(zombie, batch({"a": 4}))
    sink.discard(zombie)
    assert stage.rows() == {}


@pytest.mark.parametrize(("epoch", "term"), [(4, 9), (5, 0)])
def test_a_task_that_begins_late_is_refused(stage: HBaseStage, epoch: int, term: int) -> None:
    stage.write(5, {"a": 5}, term=1)
    with pytest.raises(FencedError, match=rf"epoch 5 \(run 1\).*epoch {epoch} \(run {term}\)"):
        stage.write(epoch, {"a": 0}, term=term)
    assert stage.seen() == {"a": "5"}


def test_an_older_run_of_the_same_epoch_stops(stage: HBaseStage) -> None:
    sink = stage.sink()
    zombie = sink.begin(stage.name(term=0), 4)
    stage.write(4, {"a": 2}, term=1)
    with pytest.raises(FencedError):
        sink.write(zombie, batch({"a": 1}))
    sink.discard(zombie)
    assert stage.seen() == {"a": "2"}


def test_timestamps_only_grow_whatever_the_clock_says(stage: HBaseStage) -> None:
    now = time.time()
    with stage.sink()._connect() as connection:

        def claim(epoch: int, clock: float) -> Claim:
            owner = HBaseOwner(connection, "assent", stage.table, clock=lambda: clock)
            return owner.claim(stage.identity, epoch, 0, None, lambda: None)

        first = claim(0, now).timestamp
        assert first == round(now * 1000)
        assert claim(1, now - 3600).timestamp == first + 1  # the clock jumped back
        assert claim(2, now).timestamp == first + 2
        assert claim(2, now + 50).timestamp == first + 2  # another task of that epoch
        assert claim(3, now + 60).timestamp == first + 60_000


def test_time_to_live(registry: HBaseServer) -> None:
    """Timestamps are of clock scale: nothing vanishes early, and what was late stays away."""
    stage = HBaseStage(registry, time_to_live=3600)
    stage.write(0, {"a": 1})
    assert stage.seen() == {"a": "1"}
    with stage.sink()._connect() as connection:
        hour_later = HBaseOwner(connection, "assent", stage.table, clock=lambda: time.time() + 3600)
        same = hour_later.claim(stage.identity, 0, 0, None, lambda: 3600.0)
        assert same.timestamp == owner(stage)["timestamp"]
        # A run that replays an epoch which began long ago: its cells would be gone at once.
        again = hour_later.claim(stage.identity, 0, 1, None, lambda: 3600.0)
        assert again.timestamp > same.timestamp + 3_000_000
        soon = HBaseOwner(connection, "assent", stage.table)
        assert soon.claim(stage.identity, 0, 2, None, lambda: 3600.0).timestamp == again.timestamp


def test_two_tasks_that_begin_at_once_have_one_timestamp(stage: HBaseStage) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        handles = list(pool.map(lambda n: stage.write(0, {f"k{n}": n}), range(8)))
    assert len({handle.details["timestamp"] for handle in handles}) == 1
    assert stage.seen() == {f"k{n}": str(n) for n in range(8)}


def test_of_two_that_begin_at_once_one_fixes_the_timestamp(
    stage: HBaseStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has read before the first has written."""
    first = stage.write(0, {"a": 1})
    read, answers = HBaseOwner.read, [None]
    monkeypatch.setattr(HBaseOwner, "read", lambda self: answers.pop() if answers else read(self))
    second = stage.write(0, {"b": 2})
    assert answers == []
    assert second.details == first.details


# Owners


def test_a_new_checkpoint_on_old_data_is_refused_or_takes_over(stage: HBaseStage) -> None:
    old = stage.sink()
    late = old.begin(stage.name(), 8)
    stage.write(8, {"a": 8})
    newcomer, take = nonce(), f"{stage.identity}-1"
    with pytest.raises(ConfigurationError, match=rf"belongs to .*takeOver to {take}"):
        stage.write(0, {"a": 0}, identity=newcomer)
    assert stage.seen() == {"a": "8"}
    handle = stage.write(0, {"a": 0}, identity=newcomer, take_over=take)
    assert handle.details["base"] == "2"
    assert stage.seen() == {"a": "0"}
    with pytest.raises(FencedError):
        old.write(late, batch({"a": 80}))
    old.discard(late)
    with pytest.raises(ConfigurationError, match=f"belongs to .*{newcomer}"):
        stage.write(9, {"a": 9}, take_over=take)
    stage.write(1, {"a": 1}, identity=newcomer, take_over=take)
    assert stage.seen() == {"a": "1"}


def test_an_older_checkpoint_restored_goes_on_when_asked(stage: HBaseStage) -> None:
    handle = stage.write(9, {"a": 9, "b": 9})
    with pytest.raises(FencedError, match=rf"restored.*takeOver={stage.identity}-1"):
        stage.write(4, {"a": 4})
    stage.write(4, {"a": 4}, take_over=f"{stage.identity}-1")
    assert stage.seen() == {"a": "4", "b": "9"}
    assert stage.sink().verdict(handle) is Verdict.UNKNOWN
    stage.write(9, {"a": 9})  # another epoch 9 than the first
    assert stage.sink().verdict(handle) is Verdict.UNKNOWN


def test_rows_that_nobody_owns_are_refused_or_taken_over(stage: HBaseStage) -> None:
    stage.client.table(stage.table).put(b"a", {b"cf:x": b"theirs"})
    with pytest.raises(ConfigurationError, match=r"no query of Assent has written.*unowned"):
        stage.sink().check(batch({}).schema)
    stage.sink(take_over="unowned").check(batch({}).schema)
    stage.write(0, {"a": 0}, take_over="unowned")
    stage.sink().check(batch({}).schema)
    assert stage.seen() == {"a": "0"}


def test_an_owner_that_cannot_be_read(stage: HBaseStage) -> None:
    registry = stage.client.table("assent")
    for content, message in ((b'{"format":2}', "format 2"), (b"{", "cannot be read")):
        registry.put(stage.table.encode(), {b"a:owner": content})
        with pytest.raises(AssentError, match=message):
            stage.write(0, {"a": 0})
    registry.delete(stage.table.encode())


# The coordinator over it


def test_killed_before_and_after_the_decision(registry: HBaseServer, tmp_path: Path) -> None:
    stage = HBaseStage(registry)
    query = KeyedQuery(stage, tmp_path)
    query.run(query.start(), 0, [{"a": 0}])
    query.die(When.BEFORE, Step.DECIDE, 1, [{"a": 1}, {"b": 1}])
    assert stage.seen() == {"a": "1", "b": "1"}
    query.die(When.AFTER, Step.DECIDE, 1, [{"a": 1}, {"b": 1}])
    query.run(query.start(), 1, [{"a": 1}, {"b": 1}])
    query.run(query.start(), 2, [{"a": 2}])
    assert stage.seen() == {"a": "2", "b": "1"}


def test_an_owner_that_is_gone_after_the_decision_is_in_doubt(
    registry: HBaseServer, tmp_path: Path
) -> None:
    stage = HBaseStage(registry)
    query = KeyedQuery(stage, tmp_path)
    query.die(When.AFTER, Step.DECIDE, 0, [{"a": 1}])
    stage.client.table("assent").delete(stage.table.encode())
    with pytest.raises(InDoubtError, match="no longer knows"):
        query.plan(query.start(), 0)


@pytest.mark.parametrize("guarantee", [Guarantee.AT_LEAST_ONCE, Guarantee.NONE])
def test_without_a_ledger(stage: HBaseStage, guarantee: Guarantee) -> None:
    sink = stage.sink()
    sink.guarantee = guarantee
    sink.check(batch({}).schema)
    for number in (1, 2, 1):
        transaction = sink.begin(stage.name(identity=nonce()), 0)
        sink.write(transaction, batch({"a": number}))
        sink.commit(sink.pre_commit(transaction))
        assert stage.seen() == {"a": str(number)}
    with pytest.raises(ConfigurationError, match="queries without exactly_once"):
        stage.write(0, {"a": 3})
    stage.write(0, {"a": 3}, take_over="unguarded-1")
    assert stage.seen() == {"a": "3"}


# Rows


def test_cells_families_and_nulls(stage: HBaseStage) -> None:
    mapping = {"y": "other:why"}
    stage.write(0, rows(key=["a"], x=["1"], y=["2"]), column_mapping=mapping)
    assert stage.rows() == {"a": {"cf:x": "1", "other:why": "2"}}
    stage.write(
        1, rows(key=["a"], x=["3"], y=pa.array([None], pa.string())), column_mapping=mapping
    )
    assert stage.rows() == {"a": {"cf:x": "3"}}


def test_deletions(stage: HBaseStage) -> None:
    more: dict[str, Any] = {"column_mapping": {"y": "other:y"}, "delete_column": "gone"}
    stage.write(0, rows(key=["a", "b"], x=["1", "2"], y=["3", "4"], gone=[False, None]), **more)
    assert sorted(stage.rows()) == ["a", "b"]
    for _ in range(2):
        stage.write(1, rows(key=["a"], x=["1"], y=["3"], gone=[True]), **more)
        assert sorted(stage.rows()) == ["b"]
    stage.write(2, rows(key=["a"], x=["5"], y=["6"], gone=[False]), **more)
    assert stage.rows()["a"] == {"cf:x": "5", "other:y": "6"}


@pytest.mark.parametrize("last", ["put", "delete"])
def test_the_highest_order_is_the_net_effect(stage: HBaseStage, last: str) -> None:
    """A row that is deleted and written again in one epoch, in any order of arrival."""
    more: dict[str, Any] = {"order_column": "at", "delete_column": "gone"}
    stage.write(0, rows(key=["a"], x=[0], at=[0], gone=[False]), **more)
    sink = stage.sink(**more)
    transaction = sink.begin(stage.name(), 1)
    put = rows(key=["a", "a"], x=[7, 6], at=[7, 6], gone=[False, False])
    delete = rows(key=["a"], x=[0], at=[9 if last == "delete" else 5], gone=[True])
    for part in (delete, put, delete):
        sink.write(transaction, part)
    sink.pre_commit(transaction)
    assert stage.seen() == ({} if last == "delete" else {"a": "7"})


def test_rows_that_wait_are_bounded(stage: HBaseStage) -> None:
    batch_of_three = rows(key=["a", "b", "c"], x=[1, 2, 3], at=[1, 2, 3])
    with pytest.raises(AssentError, match=r"more than 2 keys.*orderedRows"):
        stage.write(0, batch_of_three, order_column="at", ordered_rows=2)
    assert stage.rows() == {}


def test_types(stage: HBaseStage) -> None:
    instant = datetime(2024, 2, 29, 12, 30, 15, 250000, tzinfo=UTC)
    values = pa.record_batch(
        {
            "key": pa.array([7]),
            "text": pa.array(["grüße"]),
            "raw": pa.array([b"\x01"]),
            "flag": pa.array([True]),
            "long": pa.array([2**63 - 1]),
            "real": pa.array([0.1]),
            "money": pa.array([Decimal("1.20")]),
            "day": pa.array([date(2024, 2, 29)]),
            "at": pa.array([instant], pa.timestamp("us", "UTC")),
            "list": pa.array([[1, 2]]),
        }
    )
    stage.sink().check(values.schema)
    stage.write(0, values)
    assert stage.rows() == {
        "7": {
            "cf:text": "grüße",
            "cf:raw": "\x01",
            "cf:flag": "true",
            "cf:long": "9223372036854775807",
            "cf:real": "0.1",
            "cf:money": "1.20",
            "cf:day": "2024-02-29",
            "cf:at": "2024-02-29T12:30:15.250Z",
            "cf:list": "[1,2]",
        }
    }


def test_keys(stage: HBaseStage) -> None:
    stage.write(0, rows(p=["a:b", "a"], q=["c", "b:c"], x=[1, 2]), key_columns=["p", "q"])
    assert stage.seen() == {"a%3Ab:c": "1", "a:b%3Ac": "2"}
    for key, message in ((None, "no key"), ("", "0 bytes"), ("k" * 40_000, "40000 bytes")):
        with pytest.raises(AssentError, match=message):
            stage.write(1, rows(key=pa.array([key], pa.string()), x=[1]))


def test_many_rows(stage: HBaseStage) -> None:
    numbers = {f"k{number:05}": number for number in range(5001)}
    stage.write(0, numbers)
    assert stage.seen() == {key: str(number) for key, number in numbers.items()}


# Before the start


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key_columns": []}, "keyColumns is missing"),
        ({"key_columns": ["no"]}, "keyColumns names 'no'"),
        ({"column_family": "nope"}, r"no family 'nope' \(it has cf, other\)"),
        ({"column_mapping": {"no": "cf:no"}}, "columnMapping names 'no'"),
        ({"column_mapping": {"x": "cf:at"}}, "two columns go to the cell cf:at"),
        ({"value_columns": ["no"]}, "valueColumns names 'no'"),
        ({"order_column": "key"}, "orderColumn names 'key' of type string"),
        ({"delete_column": "x"}, "deleteColumn names 'x' of type int64"),
        ({"value_columns": ["odd"]}, "column 'odd' has type duration"),
    ],
)
def test_columns_that_do_not_fit(stage: HBaseStage, options: dict[str, Any], message: str) -> None:
    schema = pa.schema(
        [
            ("key", pa.string()),
            ("x", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("odd", pa.duration("us")),
        ]
    )
    options.setdefault("value_columns", ["x", "at"])
    with pytest.raises(ConfigurationError, match=message):
        stage.sink(**options).check(schema)


def test_tables_modes_and_options(stage: HBaseStage) -> None:
    with pytest.raises(ConfigurationError, match="no such table"):
        HBaseSink(stage.server.address, "nowhere", ["key"]).check(batch({}).schema)
    with pytest.raises(ConfigurationError, match="allowComplete"):
        stage.sink().check(batch({}).schema, overwrite=True)
    stage.sink(allow_complete=True).check(batch({}).schema, overwrite=True)
    for servers in ("host", "host:port", "thrift://host:1", "host:1,"):
        with pytest.raises(ConfigurationError, match="expected host:port"):
            HBaseSink(servers, "t")
    with pytest.raises(ConfigurationError, match="give each its own"):
        HBaseSink("host:1", "assent")
    given = {"servers": "b:2, a:1", "table": "t", "columnmapping": "x=cf:y, z=other:z"}
    sink = HBaseSink.from_options(read_options(given, HBaseSink.OPTIONS, sink="assent-hbase"))
    assert sink.target == "a:1,b:2 table t"
    assert sink.row_format.column_mapping == {"x": "cf:y", "z": "other:z"}
    given["columnmapping"] = "x=y"
    with pytest.raises(ConfigurationError, match="expected column=family:qualifier"):
        read_options(given, HBaseSink.OPTIONS, sink="assent-hbase")


def test_a_table_that_vanishes_while_a_task_writes(stage: HBaseStage) -> None:
    sink = stage.sink(timeout=3.0)
    transaction = sink.begin(stage.name(), 0)
    stage.client.delete_table(stage.table, disable=True)
    with pytest.raises(RetriableError, match=f"Failed 1 action: {stage.table}") as caught:
        sink.write(transaction, batch({"a": 1}))
    assert len(str(caught.value)) < 700  # HBase sends its whole stack
    with pytest.raises(ConfigurationError, match="does not have the table"):
        transaction.connection.has_rows(stage.table)
    sink.discard(transaction)


# Servers that are away


def test_a_server_that_is_not_there() -> None:
    sink = HBaseSink("127.0.0.1:1", "t", ["key"], timeout=0.2)
    with pytest.raises(RetriableError, match=r"127\.0\.0\.1:1 cannot be used for now"):
        sink.check(batch({}).schema)


def test_a_connection_that_is_cut_is_made_again(stage: HBaseStage) -> None:
    """SIGKILL of the Thrift server, which holds nothing; another one comes up."""
    sink = stage.sink(timeout=120.0)
    transaction = sink.begin(stage.name(), 0)
    sink.write(transaction, batch({"a": 1}))
    stage.server.thrift.kill()
    stage.server.start()
    sink.write(transaction, batch({"b": 2}))
    sink.commit(sink.pre_commit(transaction))
    stage.client = stage.server.connection()
    assert stage.seen() == {"a": "1", "b": "2"}


def test_killed_and_restarted_everything_is_still_there(
    registry: HBaseServer, tmp_path: Path
) -> None:
    stage = HBaseStage(registry)
    query = KeyedQuery(stage, tmp_path)
    query.die(When.AFTER, Step.DECIDE, 0, [{"a": 1}, {"b": 2}])
    registry.kill()
    registry.start()
    stage.client = registry.connection()
    assert stage.seen() == {"a": "1", "b": "2"}
    query.run(query.start(), 0, [{"a": 1}, {"b": 2}])
    query.run(query.start(), 1, [{"a": 3}])
    assert stage.seen() == {"a": "3", "b": "2"}

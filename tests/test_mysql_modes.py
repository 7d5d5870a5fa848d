"""Append, upsert and overwrite, prepared and staged; keys, locks and attempts that meet."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from assent.protocol.errors import AssentError, ConfigurationError, RetriableError
from assent.protocol.guarantee import Guarantee
from assent.protocol.handle import Handle
from assent.protocol.name import TransactionName, nonce
from assent.protocol.sink import Sink
from assent.testing.mysql import MySql
from tests.mysql_stage import MySqlStage
from tests.sql_query import SqlQuery, batch

pytestmark = pytest.mark.mysql

KEYED = "id bigint PRIMARY KEY, page varchar(100)"
MODES = ["prepared", "staged"]


def changes(*rows: tuple[int, str | None, int, bool | None]) -> pa.RecordBatch:
    """Key, page, order and whether the key is deleted."""
    keys, pages, orders, gone = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.record_batch(
        {
            "Id": pa.array(keys, pa.int64()),
            "page": pa.array(pages, pa.string()),
            "seq": pa.array(orders, pa.int32()),
            "gone": pa.array(gone, pa.bool_()),
        }
    )


def prepare(
    stage: MySqlStage,
    rows: pa.RecordBatch,
    partition: int = 0,
    place: int = 0,
    sink: Sink[Any] | None = None,
) -> Handle:
    sink = sink or stage.sink()
    transaction = sink.begin(stage.name(place, partition), 0)
    try:
        sink.write(transaction, rows)
        return sink.pre_commit(transaction)
    except BaseException:
        sink.discard(transaction)
        raise


def complete(sink: Sink[Any], *handles: Handle) -> None:
    for handle in handles:
        sink.commit(handle)
    sink.publish(0, handles)


def is_clean(stage: MySqlStage) -> bool:
    return not stage.prepared() and not stage.staged()


def merging_stage(server: MySql, columns: str = KEYED, **more: Any) -> MySqlStage:
    options = {"write_mode": "upsert", "key_columns": ["id"], "order_column": "seq"}
    stage = MySqlStage(server, columns, **{**options, "delete_column": "gone", **more})
    stage.sink().check(changes().schema)
    return stage


@pytest.fixture
def merging(mysql_kind: MySql) -> MySqlStage:
    return merging_stage(mysql_kind)


# Upsert


ROWS = changes(
    (1, "b", 2, False),
    (1, "a", 1, None),
    (4, "new", 1, None),
    (3, None, 5, True),
    (3, "c", 4, False),
    (5, "x", 1, True),
    (6, "x", 1, True),
    (6, "back", 2, False),
    (7, "early", 3, False),
    (7, "no order", None, False),  # type: ignore[arg-type]
)
OLD, MERGED = "(1, 'old'), (2, 'old'), (3, 'old')", ["1b", "2old", "4new", "6back", "7early"]


def test_upsert_keeps_the_newest_of_each_key(merging: MySqlStage) -> None:
    merging.server.run(f"INSERT INTO {merging.full} VALUES {OLD}")
    handle = prepare(merging, ROWS)
    assert handle.details["mode"] == "staged"
    assert [page for _, page in merging.rows()] == ["old"] * 3
    complete(merging.sink(), handle)
    assert [f"{key}{page}" for key, page in merging.rows()] == MERGED
    assert is_clean(merging)


def test_upsert_without_exactly_once_is_done_by_the_task(merging: MySqlStage) -> None:
    merging.server.run(f"INSERT INTO {merging.full} VALUES {OLD}")
    sink = merging.sink()
    sink.guarantee = Guarantee.AT_LEAST_ONCE
    sink.check(changes().schema)
    for _ in range(2):  # in the same session, if it can be
        prepare(merging, ROWS, sink=sink)
        assert [f"{key}{page}" for key, page in merging.rows()] == MERGED
    assert is_clean(merging)


def test_upsert_of_the_next_epoch_replaces(merging: MySqlStage) -> None:
    for place in range(3):
        rows = changes((1, f"epoch {place}", 1, False), (place + 10, "x", 1, False))
        complete(merging.sink(), prepare(merging, rows, place=place))
    assert merging.rows() == [(1, "epoch 2"), (10, "x"), (11, "x"), (12, "x")]


def test_a_key_without_a_value_is_refused(merging: MySqlStage) -> None:
    with pytest.raises(AssentError, match="no value in column 'Id', by which rows are merged"):
        prepare(merging, changes((None, "a", 1, False)))  # type: ignore[arg-type]
    assert is_clean(merging)


def test_tasks_may_share_a_key_where_there_is_an_order(merging: MySqlStage) -> None:
    first = prepare(merging, changes((1, "late", 9, False), (2, "x", 1, False)), partition=0)
    second = prepare(merging, changes((1, "early", 3, False), (2, None, 2, True)), partition=1)
    complete(merging.sink(), first, second)
    assert merging.rows() == [(1, "late")]


def test_the_order_may_be_a_column_of_the_table(mysql_kind: MySql) -> None:
    stage = merging_stage(
        mysql_kind,
        "id bigint PRIMARY KEY, page varchar(9), seq int, gone tinyint",
        order_column="SEQ",
        delete_column="GONE",
    )
    complete(stage.sink(), prepare(stage, changes((1, "a", 1, False), (1, "b", 2, None))))
    assert stage.select() == [(1, "b", 2, None)]


def test_prepared_upsert_is_refused(mysql_kind: MySql) -> None:
    stage = MySqlStage(
        mysql_kind, KEYED, commit_mode="prepared", write_mode="upsert", key_columns=["id"]
    )
    with pytest.raises(ConfigurationError, match="set option commitMode to staged"):
        stage.sink().check(batch().schema)


def test_two_rows_of_a_key_without_an_order(mysql_kind: MySql) -> None:
    """In one task they are refused before the vote; in two, when they meet."""
    stage = MySqlStage(mysql_kind, KEYED, write_mode="upsert", key_columns=["id"])
    sink = stage.sink()
    sink.check(batch().schema)
    assert sink.distribution == ("id",)  # with foreachBatch it cannot happen
    transaction = sink.begin(stage.name(), 0)
    with pytest.raises(AssentError, match="1062"):
        sink.write(transaction, batch((1, "a"), (1, "b")))
    sink.discard(transaction)
    assert is_clean(stage)
    handles = [stage.prepare((1, page), partition=n) for n, page in enumerate("ab")]
    with pytest.raises(AssentError, match=r"same key: set option orderColumn"):
        complete(sink, *handles)
    assert stage.rows() == []
    complete(stage.sink(order_column="page"), *handles)
    assert stage.rows() == [(1, "b")]


def test_keys_are_those_of_the_collation(
    mysql_kind: MySql, caplog: pytest.LogCaptureFixture
) -> None:
    """A table that is made tells keys apart as Spark does; one that is found may not, and warns."""
    rows = pa.record_batch({"k": ["a", "A", "ä"], "n": pa.array([1, 2, 3], pa.int64())})
    for columns, count in (("", 3), ("k varchar(9) PRIMARY KEY, n bigint", 1)):
        stage = MySqlStage(
            mysql_kind,
            columns,
            create_table=True,
            write_mode="upsert",
            key_columns=["k"],
            order_column="n",
        )
        caplog.clear()
        stage.sink().check(rows.schema)
        assert ("differ only in case" in caplog.text) == bool(columns)
        complete(stage.sink(), prepare(stage, rows))
        assert len(stage.select()) == count


def test_upsert_of_keys_alone(mysql_kind: MySql) -> None:
    keys = pa.record_batch({"id": pa.array([1, 2], pa.int64())})
    stage = MySqlStage(mysql_kind, "id bigint PRIMARY KEY", write_mode="upsert", key_columns=["id"])
    stage.sink().check(keys.schema)
    for place in range(2):
        complete(stage.sink(), prepare(stage, keys, place=place))
    assert stage.select("id") == [(1,), (2,)]


def test_another_unique_index_is_refused_unless_it_counts(mysql_kind: MySql) -> None:
    """By any unique index, ON DUPLICATE KEY UPDATE would change a row that nobody named."""
    options: dict[str, Any] = {"write_mode": "upsert", "key_columns": ["id"]}
    stage = MySqlStage(mysql_kind, "id bigint PRIMARY KEY, page varchar(9) UNIQUE", **options)
    with pytest.raises(ConfigurationError, match="more unique indexes than that of the key"):
        stage.sink().check(batch().schema)
    counted = "n bigint AUTO_INCREMENT PRIMARY KEY, id bigint NOT NULL UNIQUE, page varchar(9)"
    stage = MySqlStage(mysql_kind, counted, **options)
    stage.sink().check(batch().schema)
    for place, page in enumerate("ab"):
        complete(stage.sink(), stage.prepare((1, page), (2, page), place=place))
    assert stage.select() == [(1, 1, "b"), (2, 2, "b")]


def test_a_row_that_deletes_need_not_be_whole(mysql_kind: MySql) -> None:
    stage = merging_stage(mysql_kind, "id bigint PRIMARY KEY, page varchar(9) NOT NULL")
    stage.server.run(f"INSERT INTO {stage.full} VALUES (1, 'old')")
    complete(stage.sink(), prepare(stage, changes((1, None, 1, True))))
    assert stage.rows() == []
    with pytest.raises(AssentError, match="null in column 'page'"):
        prepare(stage, changes((2, None, 1, False)))
    assert is_clean(stage)


# Overwrite


def test_overwrite_replaces_everything_in_one_act(mysql_kind: MySql, tmp_path: Path) -> None:
    stage = MySqlStage(mysql_kind, write_mode="overwrite")
    query = SqlQuery(stage, tmp_path)
    coordinator = query.start()
    query.run(coordinator, 0, [[(1, "a")], [(2, "b")]])
    assert stage.rows() == [(1, "a"), (2, "b")]
    votes = query.write(query.plan(coordinator, 1), 1, [[(3, "c")], []])
    assert stage.rows() == [(1, "a"), (2, "b")]
    coordinator.commit(votes, 1)
    query.checkpoint.committed.add(1)
    assert stage.rows() == [(3, "c")]
    # An empty result is a result too.
    query.run(coordinator, 2, [[], []])
    assert stage.rows() == []
    query.run(coordinator, 3, [[], [(4, "d")]])
    assert stage.rows() == [(4, "d")]
    assert is_clean(stage)


def test_an_old_overwrite_that_arrives_late_changes_nothing(mariadb: MySql) -> None:
    stage = MySqlStage(mariadb, write_mode="overwrite")
    sink = stage.sink()
    sink.check(batch().schema)
    old = stage.prepare((1, "old"), place=0)
    complete(sink, old)
    complete(sink, stage.prepare((2, "new"), place=1))
    complete(stage.sink(), old)
    assert stage.rows() == [(2, "new")]


def test_complete_mode_is_overwrite(mariadb: MySql) -> None:
    stage = MySqlStage(mariadb)
    sink = stage.sink()
    before = sink.replaces
    sink.check(batch().schema, overwrite=True)
    assert (before, sink.replaces) == (False, True)
    for place in range(2):
        complete(sink, stage.prepare((place, "x"), sink=sink, place=place))
    assert stage.rows() == [(1, "x")]
    with pytest.raises(ConfigurationError, match="set option commitMode to staged"):
        MySqlStage(mariadb, commit_mode="prepared").sink().check(batch().schema, overwrite=True)


# Unique indexes, constraints, locks, attempts


def test_staged_rows_that_meet_a_unique_index_are_refused_before_the_vote(
    mysql_kind: MySql,
) -> None:
    for columns in (KEYED, "id bigint, page varchar(100), UNIQUE (id, page(1))"):
        stage = MySqlStage(mysql_kind, columns, commit_mode="staged")
        stage.sink().check(batch().schema)
        complete(stage.sink(), stage.prepare((1, "aa")))
        with pytest.raises(AssentError, match=r"key of rows that are in table .* already"):
            stage.prepare((1, "ab"), place=1)
        with pytest.raises(AssentError, match="1062"):
            prepare(stage, batch((2, "aa"), (2, "ab")), place=1)
        assert is_clean(stage)
        assert stage.rows() == [(1, "aa")]


def test_what_only_writing_shows_is_shown_before_the_vote(mysql_kind: MySql) -> None:
    """Foreign keys, conditions and triggers, which staging tables have not."""
    for mode in MODES:
        stage = MySqlStage(mysql_kind, commit_mode=mode)
        parent, columns = f"{stage.schema}.parent", "id bigint, page varchar(9)"
        stage.server.run(
            f"CREATE TABLE {parent} (id bigint PRIMARY KEY)",
            f"INSERT INTO {parent} VALUES (1), (7)",
            f"DROP TABLE {stage.full}",
            f"CREATE TABLE {stage.full} ({columns}, FOREIGN KEY (id) REFERENCES {parent} (id),"
            " CHECK (id < 5))",
            f"CREATE TRIGGER {stage.schema}.guard BEFORE INSERT ON {stage.full} FOR EACH ROW"
            " IF NEW.page = 'no' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no page';"
            " END IF",
        )
        stage.sink().check(batch().schema)
        for row, match in (
            ((2, "a"), "foreign key"),
            ((7, "a"), "(?i)constraint"),
            ((1, "no"), "no page"),
        ):
            with pytest.raises(AssentError, match=match) as caught:
                stage.prepare(row)
            assert type(caught.value) is AssentError, caught.value
            assert stage.prepared() == []
            assert stage.staged() == ["parent"]
        complete(stage.sink(), stage.prepare((1, "a")))
        assert stage.rows() == [(1, "a")]


@pytest.mark.parametrize("mode", MODES)
def test_a_retry_after_prepare_is_not_blocked(mysql_kind: MySql, mode: str, tmp_path: Path) -> None:
    """The first attempt voted, its vote was lost; the second writes the same keys."""
    stage = MySqlStage(mysql_kind, KEYED, commit_mode=mode, lock_timeout=1.0)
    query = SqlQuery(stage, tmp_path)
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    query.task(assignment, 0, 0, [(1, "a"), (2, "b")], attempt=0)
    started = time.monotonic()
    vote = query.task(assignment, 0, 0, [(1, "a"), (2, "b")], attempt=1)
    assert time.monotonic() - started < 8
    assert len(stage.prepared()) == (1 if mode == "prepared" else 0)
    coordinator.commit([vote], 0)
    assert is_clean(stage)
    assert stage.rows() == [(1, "a"), (2, "b")]


def test_under_speculation_the_first_vote_counts_and_the_copy_waits(
    mysql_kind: MySql, tmp_path: Path
) -> None:
    """The copy is still waiting for its lock when the epoch is committed; it then fails."""
    stage = MySqlStage(mysql_kind, KEYED, commit_mode="prepared", lock_timeout=20.0)
    query = SqlQuery(stage, tmp_path)
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    votes = [query.task(assignment, 0, 0, [(1, "a")], attempt=0)]
    outcome: list[object] = []

    def copy() -> None:
        try:
            outcome.append(query.task(assignment, 0, 0, [(1, "a")], attempt=1))
        except AssentError as error:
            outcome.append(error)

    thread = threading.Thread(target=copy)
    thread.start()
    time.sleep(0.3)  # it may be anywhere by now: the outcome is the same
    assert outcome == []
    coordinator.commit(votes, 0)
    thread.join(30)
    [found] = outcome
    assert isinstance(found, AssentError), found
    assert "1062" in str(found)
    assert stage.rows() == [(1, "a")]
    query.checkpoint.committed.add(0)
    query.run(coordinator, 1, [[(2, "b")]])
    assert is_clean(stage)
    assert stage.rows() == [(1, "a"), (2, "b")]


def test_two_attempts_at_once_on_a_unique_index(mysql_kind: MySql, tmp_path: Path) -> None:
    """Both write the same keys at the same time: one prepares, the other fails or waits."""
    stage = MySqlStage(mysql_kind, KEYED, commit_mode="prepared", lock_timeout=1.0)
    query = SqlQuery(stage, tmp_path)
    coordinator = query.start()
    assignment = query.plan(coordinator, 0)
    sink = stage.sink()
    first, second = (
        sink.begin(TransactionName(assignment.identity, 0, 0, 0, nonce(), number), 0)
        for number in range(2)
    )
    sink.write(first, batch((1, "a")))
    with pytest.raises(RetriableError, match="lockTimeout"):
        sink.write(second, batch((1, "a")))
    sink.discard(second)
    sink.pre_commit(first)
    # Its vote is lost; a third attempt gets through, and the loser is swept.
    vote = query.task(assignment, 0, 0, [(1, "a")], attempt=2)
    coordinator.commit([vote], 0)
    assert is_clean(stage)
    assert stage.rows() == [(1, "a")]


def test_somebody_elses_lock_ends_in_an_error_and_not_in_a_wait(mysql_kind: MySql) -> None:
    stage = MySqlStage(mysql_kind, lock_timeout=1.0)
    sink = stage.sink()
    sink.check(batch().schema)
    with stage.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLES {stage.full} WRITE")
        with pytest.raises(RetriableError, match="lockTimeout"):
            stage.prepare((1, "a"), sink=sink)


# Which commit mode


def test_auto_chooses_and_says_which(
    mariadb: MySql, mysql_before: MySql, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "assent")
    cases = [
        (MySqlStage(mariadb), "prepared", "no unique index is in the way"),
        (MySqlStage(mariadb, KEYED), "staged", "unique indexes (PRIMARY)"),
        (MySqlStage(mysql_before), "staged", "the server writes a binary log"),
        (MySqlStage(mariadb, write_mode="overwrite"), "staged", "writeMode is overwrite"),
    ]
    for stage, mode, reason in cases:
        caplog.clear()
        stage.sink().check(batch().schema)
        assert f"commitMode {mode} for table" in caplog.text
        assert reason in caplog.text
        handle = stage.prepare((1, "a"))
        assert handle.details["mode"] == mode
        complete(stage.sink(), handle)
        assert stage.rows() == [(1, "a")]
        assert is_clean(stage)


def test_prepared_with_a_binary_log_that_is_not_crash_safe_is_warned_of(
    mysql_before: MySql, mysql: MySql, caplog: pytest.LogCaptureFixture
) -> None:
    for server, warned in ((mysql_before, True), (mysql, False)):
        caplog.clear()
        MySqlStage(server, commit_mode="prepared").sink().check(batch().schema)
        assert ("replicas, out of step" in caplog.text) == warned


def test_an_index_that_comes_between_two_epochs_changes_the_mode(
    mariadb: MySql, tmp_path: Path
) -> None:
    stage = MySqlStage(mariadb)
    query = SqlQuery(stage, tmp_path)
    coordinator = query.start()
    query.run(coordinator, 0, [[(1, "a")]])
    stage.server.run(f"CREATE UNIQUE INDEX one ON {stage.full} (id)")
    votes = query.write(query.plan(coordinator, 1), 1, [[(2, "b")], [(3, "c")]])
    assert (len(stage.prepared()), len(stage.staged())) == (0, 2)
    coordinator.commit(votes, 1)
    assert is_clean(stage)
    assert stage.rows() == [(1, "a"), (2, "b"), (3, "c")]


def test_a_type_that_changes_under_a_running_task_waits(mysql_kind: MySql) -> None:
    stage = MySqlStage(mysql_kind, commit_mode="prepared")
    sink = stage.sink()
    sink.check(batch().schema)
    transaction = sink.begin(stage.name(), 0)
    with stage.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET lock_wait_timeout = 1")
        with pytest.raises(Exception, match="1205"):
            cursor.execute(f"ALTER TABLE {stage.full} MODIFY id double")
    sink.discard(transaction)
    stage.server.run(f"ALTER TABLE {stage.full} MODIFY id double")
    with pytest.raises(ConfigurationError, match="'id' has type int64"):
        stage.prepare((1, "a"), sink=sink)
    assert stage.prepared() == []
